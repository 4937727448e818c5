"""MPI peers: one rank, one client, whose data never leave it."""

from fedax.engine.backends.mpi.engine import MPI as MPI

__all__ = ["MPI"]
