"""Clients' examples as arrays: type checks, client names, ragged rows in memory and in files."""
