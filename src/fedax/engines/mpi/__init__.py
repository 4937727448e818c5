"""MPI peers: one rank, one client, whose data never leave it."""

from fedax.engines.mpi.engine import MPI as MPI

__all__ = ["MPI"]
