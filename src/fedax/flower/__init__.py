"""Flower: rounds in a ServerApp, work on clients' machines, and deployment."""
