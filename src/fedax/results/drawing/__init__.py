"""Charts as data, and their files."""
