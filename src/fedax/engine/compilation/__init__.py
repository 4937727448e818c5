"""Compilation: the compilation cache, fused loops, rewritten descent steps, jaxprs, fingerprints of runs."""
