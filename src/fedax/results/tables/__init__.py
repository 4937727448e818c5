"""Numbers of runs as tables."""
