"""One experiment: several algorithms and seeds on one task, as a validated TOML file."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fedax import algorithms, observe, tasks
from fedax.core import SGD, Algorithm, Exact, InvalidInput, Observer, Schedule, Solver, SpecError, Task, UnknownName
from fedax.core.hyper import declared
from fedax.engines.loop import Divergence
from fedax.experiments.source import Place, Source

SOLVERS: dict[str, type[Solver]] = {"sgd": SGD, "exact": Exact}
"""Local solvers by their name in experiment files."""

OBSERVERS = {
    "train_loss": observe.TrainLoss,
    "test_loss": observe.TestLoss,
    "test_accuracy": observe.TestAccuracy,
    "client_accuracy": observe.ClientAccuracy,
    "dissimilarity": observe.Dissimilarity,
}
"""Observers by their name in experiment files. All but `dissimilarity` are on by default, if the task has what they need."""


class Section(BaseModel):
    """A table with a name and options; the options are checked by what the name stands for."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class SolverSection(Section):
    """`[solver]`: `name = "sgd"` or `"exact"`, and its hyperparameters."""

    name: str = "sgd"

    def make(self) -> Solver:
        if self.name not in SOLVERS:
            raise UnknownName.among("solver", self.name, SOLVERS)
        kind = SOLVERS[self.name]
        known = declared(kind)
        _check_names(f"option of solver {self.name!r}", self.options, known)
        # a whole number for a real one would be a constant of the compiled program instead of its input
        return kind(**{k: float(v) if type(v) is int and not known[k].counts else v for k, v in self.options.items()})


class AlgorithmSection(Section):
    """`[[algorithm]]`: a name, an optional label, and hyperparameters (a list is one value per client)."""

    label: str | None = None

    def make(self) -> Algorithm[Any]:
        values = {k: np.asarray(v, dtype=float) if isinstance(v, list) else v for k, v in self.options.items()}
        return algorithms.make(self.name, **values)

    def shown(self) -> str:
        """The label, or the method's title with the hyperparameters that were given."""
        if self.label is not None:
            return self.label
        title = algorithms.catalogue()[self.name.lower()].card.title
        return " ".join([title, *(f"{key}={value}" for key, value in self.options.items())])


class StopSection(BaseModel):
    """`[stop]`: ends a run early, see `fedax.Divergence`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rise: float = Divergence().rise
    window: int = Divergence().window


@dataclasses.dataclass(frozen=True)
class Plan:
    """An experiment's objects, ready for `fedax.run`; `algorithms` are by label, in the order of the file."""

    task: Task
    algorithms: dict[str, Algorithm[Any]]
    arguments: dict[str, Any]


class Experiment(BaseModel):
    r"""An experiment as written in a file; see `examples/` for files.

    Args:
        name: for titles and folder names.
        rounds: communication rounds, at least 0.
        observe_every: rounds between observations, at least 1.
        seeds: one run of every algorithm for each, at least one, all different.
        observe: names of `OBSERVERS`; None takes all but `dissimilarity` that fit the task.
        task: a name of `fedax.tasks` and its options.
        solver: how clients minimise.
        schedule: arguments of `fedax.Schedule`.
        algorithm: the methods to compare, at least one; their labels differ.
        stop: ends diverging runs early.

    Example:
        >>> source = 'name = "a"\nrounds = 2\n[task]\nname = "digits"\n[[algorithm]]\nname = "fedprox"\nmu = 1'
        >>> Experiment.parse(source).algorithm[0].shown()
        'FedProx mu=1'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1)
    rounds: int = 100
    observe_every: int = 1
    seeds: list[int] = [0]
    observe: list[str] | None = None
    task: Section
    solver: SolverSection = SolverSection()
    schedule: dict[str, Any] = {}
    algorithm: list[AlgorithmSection] = Field(min_length=1)
    stop: StopSection | None = None

    _source: Source | None = PrivateAttr(None)

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = ()) -> "Experiment":
        """Reads and checks a TOML file, with some of its values replaced.

        Args:
            path: the file.
            settings: `path=value` each, as `fedax run --set` takes them: `task.alpha=0.5`, `algorithm.0.mu=1`.

        Raises:
            SpecError: unreadable, malformed, an unknown key, a value out of range; with file, line and what is allowed.
        """
        source = Source.read(path)
        for setting in settings:
            source.override(setting)
        return cls._of(source)

    @classmethod
    def parse(cls, text: str, name: str = "experiment") -> "Experiment":
        """The same from TOML text; `name` is for messages."""
        return cls._of(Source(text, name))

    @classmethod
    def of(cls, **sections: Any) -> "Experiment":
        """The same from Python values; problems are `InvalidInput`."""
        try:
            experiment = cls.model_validate(sections)
        except ValidationError as error:
            raise InvalidInput(_explained(error)[1]) from error
        experiment._check()
        return experiment

    @classmethod
    def _of(cls, source: Source) -> "Experiment":
        try:
            experiment = cls.model_validate(source.document)
        except ValidationError as error:
            raise source.error(*_explained(error)) from error
        experiment._source = source
        experiment._check()
        return experiment

    def _check(self) -> None:
        """Everything that can be checked without the data."""
        for key, low in (("rounds", 0), ("observe_every", 1)):
            if getattr(self, key) < low:
                self._refuse((key,), InvalidInput.of(key, getattr(self, key), f"whole numbers >= {low}"))
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            self._refuse(("seeds",), InvalidInput.of("seeds", self.seeds, "at least one whole number >= 0, all different"))
        for position, name in enumerate(self.observe or []):
            if name not in OBSERVERS:
                self._refuse(("observe", position), UnknownName.among("observe", name, OBSERVERS))
        with self._at("task"):
            if self.task.name not in tasks.catalogue():
                raise UnknownName.among("task", self.task.name, tasks.catalogue())
        with self._at("solver"):
            self.solver.make()
        with self._at("schedule"):
            self._schedule()
        labels: set[str] = set()
        for position, section in enumerate(self.algorithm):
            with self._at("algorithm", position):
                section.make()
                if section.shown() in labels:
                    raise InvalidInput.of("label", section.shown(), "a label that no other algorithm of the experiment has")
                labels.add(section.shown())

    def _schedule(self) -> Schedule:
        _check_names("schedule", self.schedule, [field.name for field in dataclasses.fields(Schedule)])
        return Schedule(**self.schedule)

    def plan(self) -> Plan:
        """Makes the task (which may read or draw data) and everything else that `fedax.run` needs.

        Raises:
            InvalidInput: options that do not fit the task or its data; a `SpecError` with the line if read from a file.
        """
        with self._at("task"):
            task = tasks.make(self.task.name, **self.task.options)
        with self._at("schedule"):
            schedule = self._schedule()
            schedule.check_population(task.train.clients)
        with self._at("observe"):
            observers = self._observers(task)
        made = {section.shown(): section.make() for section in self.algorithm}
        stop = None if self.stop is None else Divergence(self.stop.rise, self.stop.window)
        if stop and not any(isinstance(observer, observe.TrainLoss) for observer in observers):
            self._refuse(("stop",), InvalidInput.of("observe", self.observe, "lists with 'train_loss', which `stop` needs"))
        arguments = {"solver": self.solver.make(), "schedule": schedule, "rounds": self.rounds, "observe": observers}
        return Plan(task, made, arguments | {"observe_every": self.observe_every, "stop": stop})

    def _observers(self, task: Task) -> list[Observer]:
        if self.observe is not None:
            chosen = [OBSERVERS[name]() for name in self.observe]
            for observer in chosen:
                observer.check(task)
            return chosen
        fitting: list[Observer] = []
        for name, make in OBSERVERS.items():
            with contextlib.suppress(InvalidInput):
                make().check(task)
                fitting += [make()] * (name != "dissimilarity")
        return fitting

    def resolved(self) -> dict[str, Any]:
        """The experiment with every default written out, as plain values that `of` takes."""
        made, solver = [section.make() for section in self.algorithm], self.solver.make()
        every = tasks.defaults(self.task.name, **self.task.options)
        defaults = {name: value for name, value in every.items() if isinstance(value, int | float | str)}
        kept = {"name": self.name, "rounds": self.rounds, "observe_every": self.observe_every, "seeds": self.seeds}
        return _plain(
            kept
            | ({} if self.observe is None else {"observe": self.observe})
            | {
                "task": {"name": self.task.name, **defaults, **self.task.options},
                "solver": {"name": self.solver.name, **_values(solver)},
                "schedule": dataclasses.asdict(self._schedule()),
                "algorithm": [
                    {"name": section.name, "label": section.shown(), **_values(algorithm)}
                    for section, algorithm in zip(self.algorithm, made, strict=True)
                ],
            }
            | ({} if self.stop is None else {"stop": self.stop.model_dump()})
        )

    def toml(self) -> str:
        """`resolved` as TOML text: reading it gives the same runs."""
        return tomli_w.dumps(self.resolved())

    def _refuse(self, place: Place, error: InvalidInput) -> NoReturn:
        if self._source is None:
            raise error
        raise self._source.error(place, str(error)) from error

    @contextlib.contextmanager
    def _at(self, *place: str | int) -> Iterator[None]:
        """Turns `InvalidInput` about a section into a `SpecError` with the line of the key that the message names."""
        try:
            yield
        except SpecError:
            raise
        except InvalidInput as error:
            section, text = self._source.find(place) if self._source else None, str(error)
            clues = ("({key}=", "got {key!r};", "got {value!r};")
            named = [k for clue in clues for k, v in (section or {}).items() if clue.format(key=k, value=v) in text]
            self._refuse((*place, *named[:1]), error)


def _check_names(field: str, given: dict[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            raise UnknownName.among(field, key, known)


def _values(owner: object) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in declared(owner)}


def _plain(value: Any) -> Any:
    """Values that TOML can hold; None is left out."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _explained(error: ValidationError) -> tuple[Place, str]:
    """The place of the first problem that pydantic found, and a message in the library's own form."""
    first = error.errors()[0]
    place = first["loc"]
    field = ".".join(str(key) for key in place)
    if first["type"] == "extra_forbidden":
        known = StopSection.model_fields if place[0] == "stop" else Experiment.model_fields
        return place, str(UnknownName.among("key" if len(place) == 1 else f"key of [{place[0]}]", str(place[-1]), known))
    if first["type"] == "missing":
        return place, f"{field}: missing; every experiment needs it."
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return place, str(InvalidInput.of(field, first["input"], allowed))
