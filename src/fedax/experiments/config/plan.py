"""The objects of an experiment, ready to be run, and the members of its grid."""

import dataclasses
from typing import Any

import jax
import numpy as np

from fedax.core import Algorithm, Task
from fedax.core.task import Given
from fedax.engine.compilation.identity import hash_arrays
from fedax.engine.driver.grid import Grid, program_key
from fedax.engine.driver.options import RunOptions
from fedax.experiments.config.sections import AlgorithmSection, SolverSection, schedule_of

MOST_HASHED = 1 << 29
"""Bytes of data in memory of which every number is hashed, in about half a second; of more data and
of files on disk blocks are."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """An experiment's objects, ready for `fedax.run`; `algorithms` are by label, in the order of
    the file, and so is `own`, their solvers and schedules. The label `""` has the file's.
    """

    task: Task
    algorithms: dict[str, Algorithm[Any]]
    arguments: dict[str, Any]
    own: dict[str, dict[str, Any]]

    def check(self) -> None:
        """Refuses what runs would refuse, before anything is compiled.

        Settings that one program serves are checked once.

        Raises:
            InvalidInput: an algorithm that does not fit its schedule, the channel, the engine, the
                devices or the model.
        """
        checked: list[Any] = []
        for label, algorithm in self.algorithms.items():
            arguments = self.arguments_of(label)
            owners = algorithm, arguments["solver"], arguments["schedule"]
            key = [program_key(owner) for owner in owners]
            if key not in checked:
                checked.append(key)
                Grid([algorithm], self.task, [], RunOptions.of(arguments))

    def arguments_of(self, label: str) -> dict[str, Any]:
        """Returns the arguments of `fedax.run` for one algorithm."""
        return self.arguments | self.own[label]


def data_hashes(task: Task) -> dict[str, str]:
    """Returns hashes of what files may change while the experiment stays the same: the `examples`
    and the parameters at the `start`.
    """
    parts = [task.train, task.test, task.validation, task.central]
    if task.unseen is not None:
        parts += [task.unseen.train, task.unseen.test]
    hashes = {"examples": _hash_data(parts)}
    # other starting points are drawn, from the seed of the run
    if isinstance(task.start, Given):
        hashes["start"] = _hash_data(task.start.params)
    return hashes


def majority_of(task: Task) -> float | None:
    """Returns the share of the most frequent class among the test examples; None without classes or
    test examples.
    """
    labels = np.asarray((task.test_set or {}).get("y", ()))
    if "accuracy" not in task.scores or labels.ndim != 1 or not labels.size:
        return None
    return float(np.unique(labels, return_counts=True)[1].max() / labels.size)


def _hash_data(tree: Any) -> str:
    """Returns a hash of a pytree's arrays, of numbers in double precision as single ones.

    Another processor may round the last bits of double precision in another way.
    """

    def to_single(leaf: Any) -> Any:
        if isinstance(leaf, np.memmap) or getattr(leaf, "dtype", None) != np.float64:
            return leaf
        with np.errstate(over="ignore"):
            return np.asarray(leaf, np.float32)

    leaves = jax.tree.leaves(tree)
    # files on disk are sampled at any size, because hashing all would read them as a whole
    sampled = any(isinstance(leaf, np.memmap) for leaf in leaves)
    sampled |= sum(getattr(leaf, "nbytes", 0) for leaf in leaves) > MOST_HASHED
    return hash_arrays(jax.tree.map(to_single, tree), sampled=sampled)


@dataclasses.dataclass(frozen=True)
class Member:
    """One algorithm of the grid.

    Attributes:
        method: the label of its section.
        algorithm: the section with the grid's values.
        solver: with the values of the section and of the grid.
        schedule: the same.
        values: what the grid gives it, by `algorithm`, `solver` and `schedule`.
    """

    method: str
    algorithm: AlgorithmSection
    solver: SolverSection
    schedule: dict[str, Any]
    values: dict[str, dict[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        """The grid's values by key. A key that an earlier owner has is qualified by its owner."""
        settings = dict[str, Any]()
        for owner, values in self.values.items():
            for key, value in values.items():
                settings[f"{owner}.{key}" if key in settings else key] = value
        return settings

    @property
    def label(self) -> str:
        """The title, which no other member has."""
        return ", ".join([self.method, *(f"{k}={v}" for k, v in self.settings.items())])

    def make(self) -> tuple[Algorithm[Any], dict[str, Any]]:
        """Makes the algorithm, and its solver and schedule by these names."""
        options = {"solver": self.solver.make(), "schedule": schedule_of(self.schedule)}
        return self.algorithm.make(), options
