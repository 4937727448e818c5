"""Compiled programs: cache, fused loops, traced programs."""
