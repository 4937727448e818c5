"""Experiments: their files, their runs, their folders, and the demos."""
