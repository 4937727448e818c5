"""Tasks of the benchmark: experiment files in the folder `tasks`, and how methods are judged."""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, RootModel

from fedax.algorithms import algorithm_class, algorithm_classes
from fedax.core import Algorithm, InvalidInput, UnknownName
from fedax.core.hyper import declared
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import AlgorithmSection, Table
from fedax.experiments.config.shorthand import parse_section
from fedax.experiments.config.toml import Source

FOLDER = Path(__file__).parent / "tasks"
"""The folder of the benchmark's tasks."""
TARGETS = "targets.toml"
"""File beside the tasks with a `Target` for each."""
TIERS = ("quick", "standard", "full")
"""Tiers, each with the tasks of those before it."""
SERVER = ("convex", "networks", "text", "asynchronous")
FAMILIES = (*SERVER, "personal", "decentralised")
"""Families of tasks, in the order in which they are shown."""
QUALITY: dict[Literal["final", "mean", "worst_tenth"], str] = {
    "final": "test_accuracy",
    "mean": "client_accuracy_mean",
    "worst_tenth": "client_accuracy_worst_tenth",
}
"""Metrics of most tasks by the names of qualities."""


class Target(Table):
    """How methods are judged on a task.

    Args:
        family: of `FAMILIES`.
        tier: the lowest tier that has it.
        metric: that reaches the target.
        value: the target; None before it was set, see docs/benchmark/targets.py.
        learning_rate: ends of the range of local learning rates, the same for all methods.
        quality: metrics by the names of `QUALITY`.
    """

    family: Literal["convex", "networks", "text", "asynchronous", "personal", "decentralised"]
    tier: Literal["quick", "standard", "full"]
    metric: str
    value: float | None = None
    learning_rate: list[float] = Field(min_length=2, max_length=2)
    quality: dict[Literal["final", "mean", "worst_tenth"], str] = QUALITY


@dataclasses.dataclass(frozen=True)
class BenchTask:
    """A task.

    Args:
        name: that of its file.
        sections: the experiment file's tables. Its only method is the reference, to which others
            are compared, and which sets the target.
        target: how methods are judged.
    """

    name: str
    sections: Mapping[str, Any]
    target: Target

    @property
    def title(self) -> str:
        """The title in tables."""
        return self.sections["name"]

    @property
    def reference(self) -> "Method":
        """The method to which others are compared."""
        return Method(AlgorithmSection(**self.sections["algorithm"][0]))

    @property
    def selecting(self) -> "BenchTask":
        """The task with the only observer that selection needs: the one of its metric.

        Others cost more than training on the networks.
        """
        # the metrics of an observer begin with its name, such as `client_accuracy_mean`
        mine = [name for name in self.sections["observe"] if self.target.metric.startswith(name)]
        return dataclasses.replace(self, sections={**self.sections, "observe": mine})

    def required_target(self) -> float:
        """Returns the target.

        Raises:
            InvalidInput: it was not set.
        """
        if self.target.value is None:
            raise InvalidInput.because(f"task {self.name}", "has no target")
        return self.target.value

    def options_for(self, method: "Method") -> dict[str, Any]:
        """Returns the options that are not searched: those of the reference that the method has,
        such as the graph, and its own ones.
        """
        known, common = declared(method.kind), self.reference.section.options
        return {key: value for key, value in common.items() if key in known} | (
            method.section.options
        )

    def experiment_of(
        self, method: "Method", settings: Sequence[Mapping[str, float]]
    ) -> Experiment:
        """Returns the experiment of a method with some settings, labelled by their numbers."""
        sections = []
        for number, setting in enumerate(settings):
            section = {"name": method.section.name, "label": str(number), "solver": {}}
            section |= self.options_for(method)
            for key, value in setting.items():
                # the learning rate and names with the prefix go to the solver
                is_inner = key == "learning_rate" or key.startswith("solver.")
                owner = section["solver"] if is_inner else section
                owner[key.removeprefix("solver.")] = value
            sections.append(section)
        return Experiment.of(**{**self.sections, "algorithm": sections})

    def fits(self, method: "Method") -> bool:
        """Returns whether a method takes part, by its family or as the reference."""
        return self.target.family in method.families or method.label == self.reference.label


class Method(NamedTuple):
    """A method with fixed hyperparameters; your own is `path/to/file.py:Class`."""

    section: AlgorithmSection

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Parses `name:key=value,...`.

        Raises:
            UnknownName, InvalidInput: as `fedax.algorithms.make_algorithm`; also options that the
                benchmark sets itself, and the title of a built-in method for another one.
        """
        method = cls(AlgorithmSection(**parse_section(text)))
        method.section.make()
        if method.section.solver or method.section.schedule:
            reason = "the benchmark tunes the local solver, and its tasks set the schedule"
            hint = "Declare ranges such as solver.momentum in a file for --spaces."
            raise InvalidInput.because(method.label, reason, hint)
        is_builtin = method.section.kind is not None and method.section.label is None
        if method.label in builtin_labels() and not is_builtin:
            reason = "a built-in method has this title, and results are found by it"
            raise InvalidInput.because(method.label, reason, "Add label=..., or rename the class.")
        return method

    @property
    def kind(self) -> type[Algorithm[Any]]:
        """The class."""
        return algorithm_class(self.section.name)

    @property
    def label(self) -> str:
        """The title in tables."""
        return self.section.shown()

    @property
    def families(self) -> tuple[str, ...]:
        """The families of tasks that it fits: methods on a graph, personal ones, and others."""
        if "topology" in declared(self.kind):
            return ("decentralised",)
        # methods that only adapt the global model at their clients lie in this folder too
        is_personal = ".personalized." in self.kind.__module__
        if is_personal or (
            self.section.kind is None and self.kind.personal is not Algorithm.personal
        ):
            return ("personal",)
        return SERVER


@functools.cache
def builtin_labels() -> frozenset[str]:
    """Returns the titles of the built-in methods with their default hyperparameters.

    >>> "FedAvg" in builtin_labels()
    True
    """
    return frozenset(AlgorithmSection(name=name).shown() for name in algorithm_classes())


def load_tasks(folder: Path = FOLDER) -> dict[str, BenchTask]:
    """Reads all tasks of a folder, in the order of families and tiers.

    >>> load_tasks()["synthetic-half"].target.family
    'convex'

    Raises:
        SpecError: a file that is no experiment, or targets of another form.
        InvalidInput: a task without a target's table, or none at all.
    """
    targets = Source.read(folder / TARGETS).validate(RootModel[dict[str, Target]]).root
    found = []
    for file in sorted(folder.glob("*.toml")):
        if file.name == TARGETS:
            continue
        if file.stem not in targets:
            allowed = f"a table [{file.stem}]"
            raise InvalidInput.found(str(folder / TARGETS), "no such table", allowed)
        # its errors name the file and the line
        Experiment.read(file)
        found.append(BenchTask(file.stem, Source.read(file).document, targets[file.stem]))
    if not found:
        raise InvalidInput.found("tasks", f"no task in {folder}", "a folder with tasks")

    def rank(task: BenchTask) -> tuple[int, int]:
        return FAMILIES.index(task.target.family), TIERS.index(task.target.tier)

    return {task.name: task for task in sorted(found, key=rank)}


def choose_tasks(
    tasks: Mapping[str, BenchTask], tier: str, names: Collection[str] = ()
) -> list[BenchTask]:
    """Returns the tasks of a tier, or those of some names from any tier.

    >>> [task.name for task in choose_tasks(load_tasks(), "quick", ["digits-ring"])]
    ['digits-ring']

    Raises:
        UnknownName: no such tier or task.
    """
    if tier not in TIERS:
        raise UnknownName.among("tier", tier, TIERS)
    for name in names:
        if name not in tasks:
            raise UnknownName.among("task", name, tasks)
    tiers = TIERS[: TIERS.index(tier) + 1]
    return [
        task
        for task in tasks.values()
        if (task.name in names if names else task.target.tier in tiers)
    ]
