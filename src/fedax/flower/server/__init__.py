"""Flower as an engine: the rounds run in a ServerApp, the work functions in ClientApps on the
clients' own machines.

Nothing here imports Flower before it is used; `Flower` is the engine, `fedax.flower.client.worker`
the clients' side.
"""

from fedax.flower.server.engine import Flower as Flower

__all__ = ["Flower"]
