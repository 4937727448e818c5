"""Small helpers that every room may use: argument checks, whole files, locks, named random streams."""
