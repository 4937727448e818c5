"""Checks of a task's functions before anything is compiled."""
