"""Tasks of the benchmark: experiment files in the folder `tasks`, and how methods are judged."""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, RootModel

from fedax.algorithms import algorithm_class, algorithm_classes
from fedax.core import Algorithm, InvalidInput
from fedax.core.hyper import declared
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import AlgorithmSection, Table, check_names
from fedax.experiments.config.shorthand import parse_section
from fedax.experiments.config.toml import read_toml, validate

FOLDER = Path(__file__).parent / "tasks"
"""The folder of the benchmark's tasks."""
TARGETS = "targets.toml"
"""File beside the tasks with a `Target` for each."""
TIERS = ("quick", "standard", "full")
"""Tiers, each with the tasks of those before it."""
Family = Literal["convex", "networks", "text", "asynchronous", "personal", "decentralised"]
FAMILIES: tuple[str, ...] = get_args(Family)
"""Families of tasks, in the order in which they are shown."""
Quality = Literal["final", "mean", "worst_tenth"]
QUALITY: dict[Quality, str] = {
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

    family: Family
    tier: Literal["quick", "standard", "full"]
    metric: str
    value: float | None = None
    learning_rate: list[float] = Field(min_length=2, max_length=2)
    quality: dict[Quality, str] = QUALITY


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
    def reference(self) -> AlgorithmSection:
        """The method to which others are compared."""
        return AlgorithmSection(**self.sections["algorithm"][0])

    @property
    def selecting(self) -> "BenchTask":
        """The task with the only observer that selection needs: the one of its metric.

        Others cost more than training on the networks.
        """
        observe = self.sections.get("observe", ())
        # the metrics of an observer begin with its name, such as `client_accuracy_mean`
        mine = [name for name in observe if self.target.metric.startswith(name)]
        # None for the default observers
        return dataclasses.replace(self, sections={**self.sections, "observe": mine or None})

    def options_for(self, method: AlgorithmSection) -> dict[str, Any]:
        """Returns the options that are not searched: those of the reference that the method has,
        such as the graph, and its own ones.
        """
        known = declared(algorithm_class(method.name))
        common = self.reference.options
        return {key: value for key, value in common.items() if key in known} | method.options

    def experiment_of(
        self, method: AlgorithmSection, settings: Sequence[Mapping[str, float]]
    ) -> Experiment:
        """Returns the experiment of a method with some settings, labelled by their numbers."""
        sections = []
        for number, setting in enumerate(settings):
            section = {"name": method.name, "label": str(number), "solver": {}}
            section |= self.options_for(method)
            for key, value in setting.items():
                # the learning rate and names with the prefix go to the solver
                is_inner = key == "learning_rate" or key.startswith("solver.")
                owner = section["solver"] if is_inner else section
                owner[key.removeprefix("solver.")] = value
            sections.append(section)
        return Experiment.of(**{**self.sections, "algorithm": sections})

    def fits(self, method: AlgorithmSection) -> bool:
        """Returns whether a method takes part, by its family or as the reference."""
        return self.target.family in families_of(method) or method.shown() == self.reference.shown()


def parse_method(text: str) -> AlgorithmSection:
    """Parses a method with fixed hyperparameters, `name:key=value,...`; your own is
    `path/to/file.py:Class`.

    Raises:
        UnknownName, InvalidInput: as `fedax.algorithms.make_algorithm`; also options that the
            benchmark sets itself, and the title of a built-in method for another one.
    """
    method = AlgorithmSection(**parse_section(text))
    method.make()
    if method.solver or method.schedule:
        raise InvalidInput.because(
            method.shown(),
            "the benchmark tunes the local solver, and its tasks set the schedule",
            "Declare ranges such as solver.momentum in a file for --spaces.",
        )
    is_builtin = method.kind is not None and method.label is None
    if method.shown() in builtin_labels() and not is_builtin:
        reason = "a built-in method has this title, and results are found by it"
        raise InvalidInput.because(method.shown(), reason, "Add label=..., or rename the class.")
    return method


def families_of(method: AlgorithmSection) -> tuple[str, ...]:
    """Returns the families of tasks that a method fits: methods on a graph, personal ones, and
    others.
    """
    kind = algorithm_class(method.name)
    if "topology" in declared(kind):
        return ("decentralised",)
    # methods that only adapt the global model at their clients lie in this folder too
    is_personal = ".personalized." in kind.__module__
    if is_personal or (method.kind is None and kind.personal is not Algorithm.personal):
        return ("personal",)
    return FAMILIES[:4]


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
    targets = validate(RootModel[dict[str, Target]], read_toml(folder / TARGETS)).root
    found = []
    for file in sorted(folder.glob("*.toml")):
        if file.name == TARGETS:
            continue
        if file.stem not in targets:
            allowed = f"a table [{file.stem}]"
            raise InvalidInput.found(str(folder / TARGETS), "no such table", allowed)
        # its errors name the file
        Experiment.read(file)
        found.append(BenchTask(file.stem, read_toml(file), targets[file.stem]))
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
    check_names("tier", [tier], TIERS)
    check_names("task", names, tasks)
    tiers = TIERS[: TIERS.index(tier) + 1]
    return [
        task
        for task in tasks.values()
        if (task.name in names if names else task.target.tier in tiers)
    ]
