"""Backends that carry client work out: compiled simulation, reference, MPI."""
