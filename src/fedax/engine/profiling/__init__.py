"""Profiling: time of a round by its parts, and floating-point operations."""
