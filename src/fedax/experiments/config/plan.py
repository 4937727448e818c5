"""The objects of an experiment, ready to be run, and the members of its grid."""

import dataclasses
from typing import Any

from fedax.core import Algorithm, Task
from fedax.engine.driver.options import RunOptions
from fedax.engine.driver.session import Grid, program_key
from fedax.experiments.config.sections import AlgorithmSection, SolverSection


@dataclasses.dataclass(frozen=True)
class Plan:
    """An experiment's objects, ready for `fedax.run`; `algorithms` are by label, in the order of
    the file.

    `own` holds, by label, the solver and the schedule where they are not those in `arguments`.
    """

    task: Task
    algorithms: dict[str, Algorithm[Any]]
    arguments: dict[str, Any]
    own: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict[str, dict[str, Any]])

    def check(self) -> None:
        """Refuses what runs would refuse, before anything is compiled.

        Settings that one program serves are checked once.

        Raises:
            InvalidInput: an algorithm that does not fit its schedule, the channel, the engine, the
                devices or the model.
        """
        seen: list[Any] = []
        for label, algorithm in self.algorithms.items():
            arguments = self.arguments_of(label)
            owners = algorithm, arguments["solver"], arguments["schedule"]
            key = [(type(owner), program_key(owner)) for owner in owners]
            if key not in seen:
                seen.append(key)
                Grid.check(algorithm, self.task, RunOptions.of(arguments))

    def arguments_of(self, label: str) -> dict[str, Any]:
        """Returns the arguments of `fedax.run` for one algorithm."""
        return self.arguments | self.own.get(label, {})


@dataclasses.dataclass(frozen=True)
class Member:
    """One algorithm of the grid: `label` is unique, `method` is the label of its section, and
    `settings` are the values that the grid gives it.
    """

    label: str
    method: str
    algorithm: AlgorithmSection
    solver: SolverSection
    schedule: dict[str, Any]
    settings: dict[str, Any]
