"""Compilation: cache, fused loops, descent steps in place, jaxprs, fingerprints of runs."""
