"""Small helpers that every room may use: argument checks, files, locks, random streams."""
