"""Profiles of rounds and counts of floating-point operations."""
