"""Experiments being run: batches of runs that share a compiled program, progress, trackers,
interruption and resumption.
"""
