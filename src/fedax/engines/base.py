"""What the loop needs of an engine."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core.algorithm import Algorithm
from fedax.core.layout import Layout
from fedax.core.schedule import Schedule
from fedax.core.solver import Solver
from fedax.core.task import Task
from fedax.core.view import Observer


class Log(NamedTuple):
    """What rounds report, each array with a first axis (rounds,)."""

    notes: dict[str, np.ndarray]
    down: np.ndarray
    up: np.ndarray
    bad_client: np.ndarray


class Session(ABC):
    """One run on one engine: the state stays with the caller, between rounds."""

    @abstractmethod
    def start(self, w: Float[Array, "dim"]) -> Any:
        """The algorithm's state before round 0."""

    @abstractmethod
    def advance(self, state: Any, first: int, count: int) -> tuple[Any, Log]:
        """Rounds `first` to `first + count - 1`; the given state may be consumed."""

    @abstractmethod
    def observe(self, state: Any, observers: Sequence[Observer]) -> dict[str, np.ndarray]:
        """The metrics of all observers on the state's model."""


class Engine(ABC):
    """Where a run happens."""

    @abstractmethod
    def session(
        self,
        algorithm: Algorithm[Any],
        task: Task,
        solver: Solver,
        schedule: Schedule,
        layout: Layout,
        root: Key[Array, ""],
        longest: int,
    ) -> Session:
        """Prepares a run; `longest` is the most rounds that one `advance` will be asked for."""


def starting_point(task: Task, seed: int) -> tuple[Any, Key[Array, ""]]:
    """The initial parameters and the root of all other streams."""
    root = jax.random.key(seed)
    return task.start(jax.random.fold_in(root, 0)), jax.random.fold_in(root, 1)
