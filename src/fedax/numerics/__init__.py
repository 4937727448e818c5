"""Numerical methods that algorithms and theory share."""
