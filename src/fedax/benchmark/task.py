"""Tasks of the benchmark: TOML files in the folder `tasks`, and their targets."""

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli_w
from pydantic import ConfigDict, Field, RootModel

from fedax.algorithms import algorithm_class, algorithm_classes
from fedax.benchmark import devices
from fedax.benchmark.measures import COSTS, QUALITIES
from fedax.core import Algorithm, InvalidInput, UnknownName
from fedax.core.hyper import declared
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import AlgorithmSection, Table
from fedax.experiments.config.shorthand import parse_section
from fedax.experiments.config.toml import Source
from fedax.utils.files import write, writing
from fedax.utils.plugins import is_user_code, load

FOLDER = Path(__file__).parent / "tasks"
"""The folder of the standing benchmark's tasks."""
TARGETS = "targets.toml"
"""File with the targets of the tasks beside it."""

TIERS = ("quick", "standard", "full")
"""Tiers, each with the tasks of those before it."""

SERVER = ("convex", "networks", "text", "asynchronous")
FAMILIES = (*SERVER, "personal", "decentralised")
"""Families of tasks, in the order in which they are shown."""

DRAWS = {"speed": devices.SPEED, "down": 2e6, "up": devices.UP, "latency": 0.5}
"""Devices of tasks that name no other ones, by the parameters of their draws."""
DEVICES = DRAWS | {name: f"fedax.benchmark.devices:{name}" for name in ("speed", "up")}
"""The same as experiments spell them: the hours of the virtual clock."""


class Target(Table):
    """A target quality with its origin, see `fedax.benchmark.trials.set_target`.

    Args:
        value: of the task's metric.
        reference: the method that was tuned.
        settings: that were selected for it.
        seeds: of the runs that the target follows from.
        values: the best value in the first half of each.
        fedax: version that made them.
        task: fingerprint of the task.
    """

    model_config = ConfigDict(allow_inf_nan=True)  # values of runs that diverged

    value: float
    reference: str
    settings: dict[str, float]
    seeds: list[int]
    values: list[float]
    fedax: str
    task: str


Targets = RootModel[dict[str, Target]]
"""The file of the targets."""


class BenchTask(Table):
    """A task: an experiment without methods, and how methods are judged on it.

    Args:
        title: for tables.
        family: of `FAMILIES`.
        tier: the lowest tier that has it.
        metric: that reaches the target.
        learning_rate: ends of the range of local learning rates, the same for all methods.
        measures: costs until the target, of `COSTS`.
        quality: metrics by the name of a measure of `QUALITIES`.
        reference: the method that differences are taken to, and that sets the target.
        options: hyperparameters of methods that have them, such as the graph's topology.
        experiment: an experiment file's tables, without name, seeds and methods.
        name: that of its file.
        target: None before it was set.
    """

    title: str
    family: Literal["convex", "networks", "text", "asynchronous", "personal", "decentralised"]
    tier: Literal["quick", "standard", "full"]
    metric: str
    learning_rate: list[float] = Field(min_length=2, max_length=2)
    measures: list[str] = list(COSTS)
    quality: dict[str, str]
    reference: str = "fedavg"
    options: dict[str, Any] = {}
    experiment: dict[str, Any]
    name: str = ""
    target: Target | None = None

    @classmethod
    def parse(cls, text: str, name: str) -> "BenchTask":
        """Reads and checks TOML text.

        Raises:
            SpecError: malformed, an unknown key, a value out of range; with the line.
        """
        source = Source(text, name)
        task = source.validate(cls).model_copy(update={"name": name})
        try:
            task.check()
        except InvalidInput as error:
            raise source.error((), error) from error
        return task

    def check(self) -> None:
        """Refuses unknown measures, an empty range, and an experiment that is none."""
        for measure in self.measures:
            if measure not in COSTS:
                raise UnknownName.among("measures", measure, COSTS)
        for measure in self.quality:
            if measure not in QUALITIES:
                raise UnknownName.among("quality", measure, QUALITIES)
        low, high = self.learning_rate
        if not 0 < low < high:
            raise InvalidInput.of(
                "learning_rate", self.learning_rate, "two numbers, 0 < low < high"
            )
        # made only to be checked: an error of a task shows when it is read
        self.experiment_of(Method.parse(self.reference), [{}])

    @property
    def fingerprint(self) -> str:
        """The hash of what its results depend on, without the target."""
        # titles and tiers may change without new results
        told = self.model_dump(include={"metric", "learning_rate", "options", "reference"})
        experiment = {"devices": DRAWS} | self.experiment
        text = json.dumps(told | {"experiment": experiment}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def sections(self) -> dict[str, Any]:
        """The experiment, with the devices of the benchmark if it has no other ones."""
        return {"devices": DEVICES} | self.experiment

    @property
    def selecting(self) -> "BenchTask":
        """The task with the only observer that selection needs: the one of its metric.

        Others cost more than training on the networks.
        """
        names = [name if isinstance(name, str) else name["name"] for name in self.observers]
        # the metrics of an observer begin with its name, such as `client_accuracy_mean`
        mine = [
            one
            for one, name in zip(self.observers, names, strict=True)
            if self.metric.startswith(name)
        ]
        return self.model_copy(update={"experiment": self.experiment | {"observe": mine}})

    @property
    def observers(self) -> list[Any]:
        """What the experiment observes."""
        return self.experiment.get("observe", [])

    @property
    def kept(self) -> list[str]:
        """The metrics that the archive keeps; the training loss tells who diverged."""
        return list(dict.fromkeys(["train_loss", self.metric, *self.quality.values()]))

    def required_target(self) -> float:
        """Returns the target.

        Raises:
            InvalidInput: it was not set.
        """
        if self.target is None:
            hint = f"Set it: fedax bench --targets --task {self.name}."
            raise InvalidInput.because(f"task {self.name}", "has no target", hint)
        return self.target.value

    def options_for(self, method: "Method") -> dict[str, Any]:
        """Returns the options that are fixed: those of the task that the method has, and its own
        ones.
        """
        known = declared(method.kind)
        fixed = {key: value for key, value in method.options.items() if key != "label"}
        return {key: value for key, value in self.options.items() if key in known} | fixed

    def experiment_of(
        self, method: "Method", settings: Sequence[Mapping[str, float]]
    ) -> Experiment:
        """Returns the experiment of a method with some settings, labelled by their numbers."""
        sections = []
        for number, setting in enumerate(settings):
            # the learning rate and names with the prefix go to the solver, everything else to the
            # method
            solver = {
                key.removeprefix("solver."): value
                for key, value in setting.items()
                if key == "learning_rate" or key.startswith("solver.")
            }
            hyperparameters = {
                key: value
                for key, value in setting.items()
                if key != "learning_rate" and not key.startswith("solver.")
            }
            sections.append(
                {"name": method.name, "label": str(number), "solver": solver}
                | self.options_for(method)
                | hyperparameters
            )
        return Experiment.of(name=self.name, algorithm=sections, **self.sections)

    def fits(self, method: "Method") -> bool:
        """Returns whether a method takes part: by the trait, or as the reference."""
        return self.family in method.families or method.name == self.reference


class Method(NamedTuple):
    """A method by name: built-in, or `path/to/file.py:Class`, with fixed hyperparameters."""

    name: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Parses `name:key=value,...`, and checks name and options.

        Raises:
            UnknownName, InvalidInput: as `fedax.algorithms.make_algorithm`; also options that the
                benchmark sets itself, and the title of a built-in method for another one.
        """
        section = parse_section(text)
        AlgorithmSection(**section).make()
        method = cls(section.pop("name"), section)
        for key in ("solver", "schedule"):
            # they would replace what is searched, under the title of the tuned method
            if key in method.options:
                reason = "the benchmark tunes the local solver, and its tasks set the schedule"
                hint = "Declare ranges such as solver.momentum in a file for --spaces."
                raise InvalidInput.because(f"{method.name}: {key}", reason, hint)
        if "learning_rate" in declared(method.kind):
            reason = "the benchmark searches the learning rate of the local solver by this name"
            raise InvalidInput.because(
                f"{method.name}: learning_rate", reason, "Give the hyperparameter another name."
            )
        if method.label in builtin_labels() and not method.is_builtin:
            reason = "a built-in method has this title, and results are found by it"
            raise InvalidInput.because(method.label, reason, "Add label=..., or rename the class.")
        return method

    @property
    def kind(self) -> type[Algorithm[Any]]:
        """The class."""
        return algorithm_class(self.name)

    @property
    def label(self) -> str:
        """The title in tables."""
        return AlgorithmSection(name=self.name, **self.options).shown()

    @property
    def is_builtin(self) -> bool:
        """Whether this is a method of fedax with no options beside its hyperparameters."""
        return self.name.lower() in algorithm_classes() and "label" not in self.options

    @property
    def sha256(self) -> str:
        """The hash of a user's file; empty for built-in methods."""
        if not is_user_code("algorithm", self.name):
            return ""
        return load("algorithm", self.name).sha256

    @property
    def families(self) -> tuple[str, ...]:
        """The families of tasks that it fits: methods on a graph, personal ones, and others."""
        if "topology" in declared(self.kind):
            return ("decentralised",)
        room = self.kind.__module__.split(".")
        if room[:2] == ["fedax", "algorithms"]:
            return ("personal",) if room[2] == "personalized" else SERVER
        # user code lies in no folder of the package: overriding `personal` makes it personal
        return ("personal",) if self.kind.personal is not Algorithm.personal else SERVER


@functools.cache
def builtin_labels() -> frozenset[str]:
    """Returns the titles of the built-in methods with their default hyperparameters.

    >>> "FedAvg" in builtin_labels()
    True
    """
    return frozenset(AlgorithmSection(name=name).shown() for name in algorithm_classes())


def load_tasks(folder: Path = FOLDER) -> dict[str, BenchTask]:
    """Reads all tasks of a folder with their targets, in the order of families and tiers.

    The target of a task that has changed since is left out.

    >>> load_tasks()["synthetic-half"].family
    'convex'

    Raises:
        SpecError: a file that is no task.
        InvalidInput: a folder without tasks.
    """
    targets = read_targets(folder)
    found = []
    for file in sorted(folder.glob("*.toml")):
        if file.name != TARGETS:
            task = BenchTask.parse(Source.read(file).text, file.stem)
            target = targets.get(task.name)
            # a target of another version of the task is no target
            is_current = target is not None and target.task == task.fingerprint
            found.append(task.model_copy(update={"target": target}) if is_current else task)
    if not found:
        raise InvalidInput.found("tasks", f"no task in {folder}", "a folder with tasks")
    found.sort(key=lambda task: (FAMILIES.index(task.family), TIERS.index(task.tier), task.name))
    return {task.name: task for task in found}


def read_targets(folder: Path) -> dict[str, Target]:
    """Reads the targets of a folder's tasks; none if there is no such file."""
    if not (folder / TARGETS).exists():
        return {}
    return Source.read(folder / TARGETS).validate(Targets).root


def write_target(folder: Path, name: str, target: Target) -> None:
    """Writes the target of one task, and keeps those of the others."""
    targets = read_targets(folder) | {name: target}
    with writing(folder / TARGETS):
        text = tomli_w.dumps({key: targets[key].model_dump() for key in sorted(targets)})
        write(folder / TARGETS, text)


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
    most = TIERS.index(tier)
    return [
        task
        for task in tasks.values()
        if (task.name in names if names else TIERS.index(task.tier) <= most)
    ]
