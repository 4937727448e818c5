"""Runs held to the papers' theorems."""
