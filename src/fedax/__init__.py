"""Federated optimization in JAX: one text per algorithm, compiled for simulation, unchanged where it is deployed."""

from importlib.metadata import version as _version
from typing import Any

from fedax import algorithms as algorithms
from fedax import codecs as codecs
from fedax import observe as observe
from fedax import tasks as tasks
from fedax import theory as theory
from fedax.core import SGD as SGD
from fedax.core import Algorithm as Algorithm
from fedax.core import Client as Client
from fedax.core import Exact as Exact
from fedax.core import FedaxError as FedaxError
from fedax.core import Federation as Federation
from fedax.core import History as History
from fedax.core import Local as Local
from fedax.core import Optax as Optax
from fedax.core import Outcome as Outcome
from fedax.core import Schedule as Schedule
from fedax.core import Task as Task
from fedax.core import Upload as Upload
from fedax.core import hyper as hyper
from fedax.engines.coding import Channel as Channel
from fedax.engines.eager import Eager as Eager
from fedax.engines.loop import Divergence as Divergence
from fedax.engines.loop import Progress as Progress
from fedax.engines.loop import run as run
from fedax.engines.loop import run_grid as run_grid
from fedax.engines.simulation import Simulation as Simulation
from fedax.graphs import Graph as Graph

__version__ = _version("fedax")


def __getattr__(name: str) -> Any:
    """Algorithms are found by discovery: `fedax.FedDANE` is `fedax.algorithms.FedDANE`."""
    try:
        return getattr(algorithms, name)
    except AttributeError:
        raise AttributeError(f"module 'fedax' has no attribute {name!r}") from None
