"""Schedules: who works in a round, how much, and who can be reached."""
