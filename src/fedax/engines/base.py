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
    """What rounds report of one algorithm, each array with a first axis (rounds,)."""

    notes: dict[str, np.ndarray]
    down: np.ndarray
    up: np.ndarray
    bad_client: np.ndarray


def stacked(notes: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The notes of several rounds by name; NaN where a round did not get to one."""
    examples = {name: np.asarray(value) for round in notes for name, value in round.items()}
    missing = {name: np.full(value.shape, np.nan) for name, value in examples.items()}
    return {name: np.stack([np.asarray(round.get(name, missing[name])) for round in notes]) for name in examples}


class Program(ABC):
    """The rounds of one or several algorithms with one or several seeds: the first algorithm with all seeds, then the next.

    The states stay with the caller, between rounds; what they hold beside the algorithms' own is the engine's.
    """

    @abstractmethod
    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        """The states before round 0, from the initial model of each seed."""

    @abstractmethod
    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        """Rounds `first` to `first + count - 1` of all runs; the given states may be consumed."""

    @abstractmethod
    def observe(self, states: Any, observers: Sequence[Observer], done: int) -> list[dict[str, np.ndarray]]:
        """For each run, the metrics of all observers on its state's model after `done` rounds."""

    @abstractmethod
    def personal(self, states: Any) -> list[Float[Array, "clients dim"]]:
        """For each run, the models that the clients use themselves."""

    @abstractmethod
    def split(self, states: Any) -> list[Any]:
        """The single runs' algorithm states."""

    @abstractmethod
    def join(self, states: list[Any]) -> Any:
        """The inverse of `split`, on fresh copies."""


class Engine(ABC):
    """Where a run happens."""

    def sizes(self, task: Task) -> Sequence[int]:
        """How many training examples each client of a run has."""
        return np.asarray(task.train.sizes).tolist()

    @abstractmethod
    def program(
        self,
        algorithms: Sequence[Algorithm[Any]],
        task: Task,
        solver: Solver,
        schedule: Schedule,
        layout: Layout,
        roots: Sequence[Key[Array, ""]],
        longest: int,
    ) -> Program:
        """Prepares the runs of all algorithms with all roots of random streams.

        Several algorithms are of one class and differ in real hyperparameters only. `longest` is the most rounds that one
        `advance` will be asked for.
        """


def starting_point(task: Task, seed: int) -> tuple[Any, Key[Array, ""]]:
    """The initial parameters and the root of all other streams."""
    root = jax.random.key(seed)
    return task.start(jax.random.fold_in(root, 0)), jax.random.fold_in(root, 1)
