"""The tables of an experiment file. Each key is declared once, with its range, default and help."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from fedax import algorithms
from fedax.communication import attacks, codecs
from fedax.communication.channel import Channel
from fedax.communication.privacy import Privacy
from fedax.conformance.reference import Eager
from fedax.core import SGD, Algorithm, Exact, Inexact, InvalidInput, Schedule, Solver, UnknownName
from fedax.core.hyper import MOST_COUNT, construct, declared, is_concrete
from fedax.core.solver import optax_solver
from fedax.engine.backends.mpi import MPI
from fedax.engine.backends.simulation import Simulation
from fedax.engine.round.engine import Engine
from fedax.flower.server.engine import current_engine
from fedax.utils.plugins import find
from fedax.utils.random import MOST_SEED

ENGINES: dict[str, Callable[[], Engine]] = {
    "simulation": Simulation,
    "eager": Eager,
    "mpi": MPI,
    "flower": current_engine,
}
"""Engines by their name in experiment files."""

SOLVERS: dict[str, type[Solver]] = {"sgd": SGD, "exact": Exact, "inexact": Inexact}
"""Local solvers by their name in experiment files, besides Optax's optimizers."""

TEXT = 200
"""Most characters of titles and labels."""


def check_different(values: list[Any]) -> list[Any]:
    """Refuses a value that is there twice. Values are compared as texts: lists have no hash."""
    if len(set(map(str, values))) < len(values):
        raise ValueError("values that differ")
    return values


Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Seeds = Annotated[
    list[Annotated[int, Field(ge=0, le=MOST_SEED)]],
    AfterValidator(check_different),
]


def make_checked(kind: type[Any], **options: Any) -> Any:
    """Makes an object of a dataclass, with the nearest name of a field where one is unknown."""
    check_names("key", options, [field.name for field in dataclasses.fields(kind)])
    return kind(**options)


def made(kind: type[Any]) -> BeforeValidator:
    """Makes an object of the table of its options, which its class declares and checks."""

    def make(values: Any) -> Any:
        return make_checked(kind, **values) if isinstance(values, dict) else values

    return BeforeValidator(make)


class Table(BaseModel):
    """Base of the tables: immutable, with values of the declared types, and finite numbers."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def check_keys(cls, values: Any) -> Any:
        """Refuses unknown keys, with the nearest one that is known."""
        if isinstance(values, dict) and cls.model_config.get("extra") == "forbid":
            fields = cls.model_fields.items()
            check_names("key", values, [field.alias or name for name, field in fields])
        return values


class OpenTable(Table):
    """A table with further keys, which are checked by what it describes."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not declared."""
        return dict(self.model_extra or {})


class Section(OpenTable):
    """A table with a name and options."""

    name: str


class SolverSection(Section):
    """`[solver]`: `name = "sgd"`, `"exact"`, `"inexact"`, an Optax optimizer such as `"adam"`, or
    your own, and its hyperparameters.
    """

    name: str = "sgd"

    @property
    def kind(self) -> type[Solver] | None:
        """The class; None of your own code."""
        return SOLVERS.get(self.name) or optax_solver(self.name)

    def make(self) -> Solver:
        allowed = "a class derived from fedax.core.Solver, with `minimize`"
        kind = self.kind or find(
            "solver", self.name, SOLVERS, allowed, lambda x: is_concrete(x, Solver)
        )
        return construct(f"option of solver {self.name!r}", kind, self.options)


class AlgorithmSection(Section):
    """`[[algorithm]]`: a name, an optional label, hyperparameters (a list is one value per client),
    and its own options of solver and schedule.
    """

    label: Annotated[str, Field(min_length=1, max_length=TEXT)] | None = None
    """Title in tables; by default the method with its hyperparameters."""
    solver: dict[str, Any] = {}
    """Options that differ from those of `[solver]`."""
    schedule: dict[str, Any] = {}
    """Options that differ from those of `[schedule]`."""

    @property
    def kind(self) -> type[Algorithm[Any]] | None:
        """The class; None of your own code."""
        return algorithms.algorithm_classes().get(self.name.lower())

    def make(self) -> Algorithm[Any]:
        return algorithms.make_algorithm(self.name, **self.options)

    def shown(self) -> str:
        """Returns the label, or the method's name with the hyperparameters that were given."""
        if self.label is not None:
            return self.label
        title = self.name.rpartition(":")[2] if self.kind is None else self.kind.__name__
        text = " ".join([title, *(f"{key}={value}" for key, value in self.options.items())])
        return text if len(text) <= TEXT else f"{text[: TEXT - 3]}..."

    @property
    def owners(self) -> list[str]:
        """The names in a grid under which values for it stand."""
        return list(dict.fromkeys((self.name, self.shown(), "solver", "schedule")))


def values_of(section: AlgorithmSection | SolverSection) -> dict[str, Any]:
    """Returns the name and all hyperparameters."""
    owner = section.make()
    made = {name: getattr(owner, name) for name in declared(owner)}
    return {"name": section.name} | section.options | made


def settings_of(section: AlgorithmSection | SolverSection) -> dict[str, Any]:
    """Returns the name of the class as `type`, and the hyperparameters by name."""
    values = values_of(section)
    name = values.pop("name")
    if section.kind is None:
        return {"type": name} | values
    known = declared(section.kind)
    return {"type": section.kind.__name__} | {
        name: value
        for name, value in values.items()
        if not (known[name].later and value == known[name].default)
    }


Choices = Annotated[
    list[str | bool | int | float | list[Any]],
    Field(min_length=1),
    AfterValidator(check_different),
]


class GridSection(OpenTable):
    """`[grid]`: lists of values by the name or label of an algorithm, by `solver` or by `schedule`;
    all combinations run.

    The member with the best value of a metric in the mean over the runs stands for its algorithm.
    The experiment's `read` says how a curve becomes a number. A member that diverged in any run
    counts as worst. What is selected on the same runs that are reported looks better than it is, so
    the members run with separate seeds, and only the selected one runs with those of the
    experiment.

    >>> grid = GridSection(**{"fedprox": {"mu": [0.1, 1.0]}, "solver": {"learning_rate": [0.01]}})
    >>> [point["algorithm"] for point in grid.points(AlgorithmSection(name="fedprox"))]
    [{'mu': 0.1}, {'mu': 1.0}]
    """

    __pydantic_extra__: dict[str, Annotated[dict[str, Choices], Field(min_length=1)]] = Field(
        init=False
    )

    select: str | None = Field(default=None, pattern="^(train|test|(local_)?validation)_")
    """The metric that selects: by default the validation loss if the task keeps examples for
    validation, of the models that the clients use themselves if a method has such; else the
    training loss, as in the papers. Test examples select only if they are named."""
    seeds: Seeds | None = None
    """Seeds of the runs that select, none of which is among the experiment's; by default as many as
    the experiment has, from the first number after its largest on."""
    selects: bool = True
    """False for experiments of a recipe that stand beside others with the same title, on other
    draws of the data: no member runs to select there, and the one that is selected on the others
    is reported."""

    def selecting(self, reported: Sequence[int]) -> list[int]:
        """Returns the seeds of the runs that select, for an experiment with some seeds.

        >>> GridSection().selecting([0, 1, 4])
        [5, 6, 7]
        """
        if not self.selects:
            return []
        first = max(reported) + 1
        return list(range(first, first + len(reported))) if self.seeds is None else self.seeds

    def check(self, owners: Sequence[str], reported: Sequence[int]) -> None:
        """Refuses owners that are not in the experiment, and seeds that are reported."""
        check_names("grid", self.options, owners)
        seeds = self.selecting(reported)
        if self.selects and (not seeds or set(seeds) & set(reported)):
            allowed = "at least one, and none of the experiment's seeds"
            raise InvalidInput.of("grid.seeds", seeds, allowed)

    def only(self, owners: Sequence[str]) -> "GridSection":
        """Returns the grid without the lists of other owners. It stays where no list is left, so
        that a run of an algorithm by itself is the one that it is beside the others.
        """
        return GridSection(**self.model_dump(exclude=self.options.keys() - owners))

    def points(self, section: AlgorithmSection) -> Iterator[dict[str, dict[str, Any]]]:
        """Yields all combinations of the values for an algorithm: by key, of the algorithm, its
        solver and its schedule.
        """
        axes = [
            [(owner, key, choice) for choice in choices]
            for owner in section.owners
            for key, choices in self.options.get(owner, {}).items()
        ]
        # the last axis varies fastest, as in nested loops
        for values in itertools.product(*axes):
            point: dict[str, dict[str, Any]] = {"algorithm": {}, "solver": {}, "schedule": {}}
            for owner, key, value in values:
                point[owner if owner in point else "algorithm"][key] = value
            yield point


def check_labels(labels: Sequence[str]) -> None:
    """Refuses labels that are equal, of whose runs only one would be kept."""
    for label in labels:
        if labels.count(label) > 1:
            hint = "List each key once, and give algorithms labels that differ."
            raise InvalidInput.because("label", f"{label!r} stands for two algorithms", hint)


class ChannelSection(Table):
    """`[channel]`: what happens to messages, see `fedax.Channel`.

    >>> section = ChannelSection(
    ...     up={"name": "ef21", "codec": {"name": "sign"}},
    ...     attack={"name": "sign_flip", "scale": 4},
    ... )
    >>> section.make().up, section.make().attack.scale
    (EF21(codec=Sign(feedback=False)), 4.0)
    """

    up: Section | None = None
    """Codec of what clients send: `name`, a name of `fedax.codecs.CODECS`, its options, and the
    `codec` within, for `ef21` and `diana`; that one has no feedback by default."""
    down: Section | None = None
    """Codec of what the server sends."""
    attack: Section | None = None
    """Attack of some of the clients: `name`, a name of `fedax.attacks.ATTACKS`, and its options."""
    privacy: dict[str, Any] | None = None
    """Clipping and noise, with the fields of `fedax.Privacy`; `clip` may be a list."""

    def make(self) -> Channel:
        makers: dict[str, Callable[..., Any]] = {
            "up": codecs.make_codec,
            "down": codecs.make_codec,
            "attack": attacks.make_attack,
            "privacy": functools.partial(make_checked, Privacy),
        }
        values = self.model_dump(exclude_none=True)
        return Channel(**{name: makers[name](**options) for name, options in values.items()})


class ClusterSection(OpenTable):
    """`[cluster]`: the array of jobs that `--slurm` submits, one for each part of the work that a
    compiled program serves. Further keys are parameters of submitit, such as `slurm_partition`,
    `slurm_array_parallelism` (jobs at a time), `cpus_per_task`, `gpus_per_node`, `mem_gb` and
    `slurm_setup`, a list of commands of the shell.
    """

    timeout_min: Count = 60
    """Minutes that a job may take, at least 1."""


class AuditSection(Table):
    """`[audit]`: runs are membership inference, see `fedax.audit.membership`: a target and a shadow
    model are trained on a quarter of every client's training examples each, and attacked.
    """

    every: Count = 10
    """Rounds between attacks, at least 1; the initial and the final models are always attacked."""

    def looks(self, rounds: int) -> list[int]:
        """Returns the rounds after which models are attacked.

        >>> AuditSection(every=4).looks(10)
        [0, 4, 8, 10]
        """
        return sorted({0, *range(self.every, rounds + 1, self.every), rounds})


def check_names(field: str, values: Iterable[str], known_names: Iterable[str]) -> None:
    """Refuses names that are not known, with the nearest one that is."""
    for key in values:
        if key not in known_names:
            raise UnknownName.among(field, key, known_names)


def schedule_of(arguments: dict[str, Any]) -> Schedule:
    """Makes a schedule from arguments after a check of their keys."""
    check_names("schedule", arguments, Schedule().options)
    return Schedule.of(arguments)
