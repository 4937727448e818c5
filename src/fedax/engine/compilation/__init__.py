"""Compilation: cache, fused loops, jaxprs, fingerprints of runs."""
