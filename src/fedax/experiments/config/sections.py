"""The tables of an experiment file."""

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedax import algorithms
from fedax.audit import Attack
from fedax.communication import attacks, codecs
from fedax.communication.channel import Channel, Codec
from fedax.communication.privacy import Privacy
from fedax.core import SGD, Algorithm, Exact, Inexact, InvalidInput, Schedule, Solver, UnknownName
from fedax.core.directions import Mode
from fedax.core.hyper import MOST_COUNT, Hyper, class_of, declared, is_concrete
from fedax.core.scheduling.devices import Devices
from fedax.core.solver import optax_names, optax_solver
from fedax.engine.backends.mpi import MPI
from fedax.engine.backends.reference import Eager
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import Budget, EarlyStopping
from fedax.engine.driver.run import Divergence
from fedax.engine.round.engine import Engine
from fedax.experiments.config.toml import KeyPath, explain_type
from fedax.flower.server.engine import current_engine
from fedax.tasks.sources import task_options
from fedax.utils.plugins import find, is_reference, title_of
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


def solver_class(name: str) -> type[Solver]:
    """Returns the class of a local solver: a name of `SOLVERS`, of an Optax optimizer, or of your
    own.

    Raises:
        UnknownName, InvalidInput: as `fedax.utils.plugins.find`.
    """
    if name not in SOLVERS and name in optax_names():
        return optax_solver(name)
    known_solvers: dict[str, Any] = dict.fromkeys(optax_names()) | SOLVERS
    allowed = "a class derived from fedax.Solver, with `minimize`"
    return find("solver", name, known_solvers, allowed, lambda value: is_concrete(value, Solver))


TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Trackers by name, to which curves go besides the run directory;
`fedax.experiments.running.trackers` has the classes."""


KEEP_MODELS = ("reported", "personal", "all", "none")
"""The choices of `keep_models`."""

SEEDS = f"at least one whole number from 0 to {MOST_SEED}, all different"


MOST_MEMBERS, MOST_RUNS = 1_000, 100_000
"""Of an experiment with its grid: algorithms, and the runs of all of them with all seeds."""
TEXT = 200
"""Most characters of titles and labels."""


def are_seeds(values: Sequence[int]) -> bool:
    """Returns whether these are seeds of an experiment."""
    return (
        bool(values)
        and min(values) >= 0
        and max(values) <= MOST_SEED
        and len(set(values)) == len(values)
    )


MOST_REMEMBERED = 4096


class Section(BaseModel):
    """A table with a name and options; the options are checked by what the name stands for."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


Made = TypeVar("Made")


def memoize(make: Callable[[Any], Made]) -> Callable[[Any], Made]:
    """Caches a factory of immutable values: a recipe's experiments ask for equal ones hundreds of
    times.
    """
    cache: dict[str, Made] = {}

    @functools.wraps(make)
    def make_cached(value: Any) -> Made:
        if isinstance(value, Section) and is_reference(value.name):  # the file may change
            return make(value)
        try:
            key = json.dumps([value.name, value.options] if isinstance(value, Section) else value)
        except (TypeError, ValueError, RecursionError):
            # dates, numbers and lists that JSON cannot hold
            return make(value)
        if key not in cache:
            # a full cache starts again: a long session would otherwise keep every value
            if len(cache) == MOST_REMEMBERED:
                cache.clear()
            cache[key] = make(value)
        return cache[key]

    return make_cached


BY_THEORY = {"theory": True}
"""As `learning_rate` of SGD, stands for the number of `fedax.theory.step_size`."""


class SolverSection(Section):
    """`[solver]`: `name = "sgd"`, `"exact"`, `"inexact"`, an Optax optimizer such as `"adam"`, or
    your own, and its hyperparameters.

    With `learning_rate = {theory = true}`, SGD has the step size of `fedax.theory.step_size`.
    """

    name: str = "sgd"

    @property
    def by_theory(self) -> bool:
        """Whether the step size follows from the data, see `Experiment.with_step_sizes`."""
        return self.name == "sgd" and self.options.get("learning_rate") == BY_THEORY

    @memoize
    def make(self) -> Solver:
        kind = solver_class(self.name)
        hyperparameters = declared(kind)
        check_names(f"option of solver {self.name!r}", self.options, hyperparameters)
        # a whole number for a real one would be a constant of the compiled program instead of its
        # input
        return kind(**as_declared(self.options, hyperparameters))


class AlgorithmSection(Section):
    """`[[algorithm]]`: a name, an optional label, hyperparameters (a list is one value per client),
    and its own options of solver and schedule.
    """

    label: str | None = Field(default=None, max_length=TEXT)
    solver: dict[str, Any] = {}
    schedule: dict[str, Any] = {}

    @memoize
    def make(self) -> Algorithm[Any]:
        # an empty list is no list of numbers: a method without personal leaves, say
        values = {
            k: _convert_numbers(v) if isinstance(v, list) and v else v
            for k, v in self.options.items()
        }
        return algorithms.make_algorithm(self.name, **values)

    def shown(self) -> str:
        """Returns the label, or the method's name with the hyperparameters that were given."""
        if self.label is not None:
            return self.label
        kind = algorithms.algorithm_classes().get(self.name.lower())
        title = title_of(self.name) if kind is None else kind.__name__
        text = " ".join([title, *(f"{key}={value}" for key, value in self.options.items())])
        return text if len(text) <= TEXT else f"{text[: TEXT - 3]}..."


def owners_of(section: AlgorithmSection) -> list[str]:
    """Returns the names in a grid under which values for an algorithm stand."""
    return list(dict.fromkeys((section.name, section.shown(), "solver", "schedule")))


def _convert_numbers(values: list[Any]) -> Any:
    """Converts a list to one number per client; an invalid list stays one, which the hyperparameter
    refuses.
    """
    try:
        return np.asarray(values, dtype=float)
    except (ValueError, TypeError, OverflowError):
        return values


class StopSection(BaseModel):
    """`[stop]`: ends a run early, see `fedax.Divergence`.

    Args:
        rise: of the training loss, finite.
        window: rounds, at least 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rise: float = Divergence().rise
    window: int = Divergence().window

    def make(self) -> Divergence:
        """Makes the rule; refuses values out of range."""
        _check_numbers("stop", {"rise": (self.rise, real()), "window": (self.window, whole(low=1))})
        return Divergence(self.rise, self.window)


class EarlyStoppingSection(BaseModel):
    """`[early_stopping]`: ends a run that no longer becomes better, see `fedax.EarlyStopping`.

    Args:
        metric: that an observer gives.
        patience: rounds, at least 1.
        min_change: finite, at least 0.
        mode: "max" if more of the metric is better, "min" if less is, for a metric whose observer
            does not say it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    metric: str = EarlyStopping().metric
    patience: int = EarlyStopping().patience
    min_change: float = EarlyStopping().min_change
    mode: Mode | None = None

    def make(self) -> EarlyStopping:
        """Makes the rule; refuses values out of range."""
        limits = {"patience": whole(low=1), "min_change": real(low=0)}
        _check_numbers(
            "early_stopping", {name: (getattr(self, name), hyper) for name, hyper in limits.items()}
        )
        return EarlyStopping(self.metric, self.patience, self.min_change, self.mode)


class BudgetSection(BaseModel):
    """`[budget]`: ends a run that has spent its time or energy on the virtual clock of `[devices]`,
    see `fedax.Budget`.

    Args:
        hours, joules: above 0; at least one of the two.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    hours: float | None = None
    joules: float | None = None

    def make(self) -> Budget:
        """Makes the rule; refuses values out of range."""
        budget = Budget(self.hours, self.joules)
        budget.check()
        return budget


class DevicesSection(BaseModel):
    """`[devices]`: the arguments of `fedax.Devices`; arrays and functions are `"FILE:NAME"`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    def make(self) -> Devices:
        return Devices.of(self.model_extra or {})


class CodecSection(Section):
    """`name`, a name of `fedax.codecs.CODECS`, its options, and the `codec` within, for `ef21` and
    `diana`; that one has no feedback by default.

    >>> CodecSection(name="topk", fraction=1).make().fraction
    1.0
    >>> CodecSection(name="ef21", codec={"name": "sign"}).make()
    EF21(codec=Sign(feedback=False))
    """

    codec: "CodecSection | None" = None

    @property
    def values(self) -> dict[str, Any]:
        """The options of `fedax.codecs.make_codec`, with its name."""
        hyperparameters = declared(class_of("codec", codecs.CODECS, self.name))
        inner = {} if self.codec is None else {"codec": self.codec.values}
        return {"name": self.name, **as_declared(self.options, hyperparameters), **inner}

    def make(self) -> Codec:
        return codecs.make_codec(**self.values)


class AttackSection(Section):
    """`name`, a name of `fedax.attacks.ATTACKS`, and its options.

    >>> AttackSection(name="sign_flip", scale=4).make().scale
    4.0
    """

    def make(self) -> attacks.Attack:
        hyperparameters = declared(class_of("attack", attacks.ATTACKS, self.name))
        return attacks.make_attack(self.name, **as_declared(self.options, hyperparameters))


class PrivacySection(BaseModel):
    """`[channel.privacy]`: clipping and noise, with the fields of `fedax.Privacy`; `clip` may be a
    list.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    def make(self) -> Privacy:
        options: dict[str, Any] = dict(self.model_extra or {})
        check_names(
            "option of privacy", options, [field.name for field in dataclasses.fields(Privacy)]
        )
        if isinstance(options.get("clip"), list):
            options["clip"] = tuple(options["clip"])
        return Privacy(**options)


class ChannelSection(BaseModel):
    """`[channel]`: codecs of what clients and server send (`up`, `down`), an `attack`, and
    `privacy`; see `fedax.Channel`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    up: CodecSection | None = None
    down: CodecSection | None = None
    attack: AttackSection | None = None
    privacy: PrivacySection | None = None

    def make(self) -> Channel:
        sections = (
            ("up", self.up),
            ("down", self.down),
            ("attack", self.attack),
            ("privacy", self.privacy),
        )
        return Channel(
            **{name: None if section is None else section.make() for name, section in sections}
        )


class SimulationSection(BaseModel):
    """`[simulation]`: options of `fedax.Simulation`, for the engine of that name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    placement: Literal["auto", "sequential", "chunked"] = "auto"
    chunk: int | None = None
    devices: int | None = None
    microbatch: int = 256
    data: Literal["auto", "device", "host"] = "auto"
    memory: Literal["device", "host", "disk"] = "device"


def engine_of(name: str, options: SimulationSection | None) -> Engine:
    """Makes the engine of a name; options are those of the simulation."""
    if options is None:
        return ENGINES[name]()
    if name != "simulation":
        raise InvalidInput.of("engine", name, "simulation, where there is a table [simulation]")
    return Simulation(**options.model_dump())


class ClusterSection(BaseModel):
    """`[cluster]`: the jobs that `--slurm` submits, one for each part of the work that a compiled
    program serves.

    Args:
        partition: of the cluster; its default one if none is named.
        account: that pays for the jobs, where the cluster asks for one.
        options: further options of sbatch, such as `{qos = "long", constraint = "a100"}`.
        setup: commands of the shell that each job runs first, such as `["module load cuda"]`.
        minutes: that a job may take, at least 1.
        cpus, gpus: of a job; at least 1 and at least 0.
        memory: of a job in GB, above 0; the partition's default if none is named.
        jobs: that wait or run at a time, at least 1; by default all on a cluster, and one for each
            core on this machine.
        executor: `slurm`, or `local` for processes of this machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    partition: str | None = None
    account: str | None = None
    options: dict[str, str | int | bool] = {}
    setup: list[str] = []
    minutes: int = 60
    cpus: int = 1
    gpus: int = 0
    memory: float | None = None
    jobs: int | None = None
    executor: Literal["slurm", "local"] = "slurm"

    def check(self) -> None:
        """Refuses numbers out of range."""
        limits = {"minutes": whole(low=1), "cpus": whole(low=1), "gpus": whole(low=0)}
        # optional numbers are checked only if they are given
        limits |= {} if self.memory is None else {"memory": real(low=0, open_low=True)}
        limits |= {} if self.jobs is None else {"jobs": whole(low=1)}
        _check_numbers(
            "cluster", {name: (getattr(self, name), hyper) for name, hyper in limits.items()}
        )

    def parameters(self) -> dict[str, Any]:
        """Returns what submitit takes."""
        local = self.executor == "local"
        arguments = {
            "timeout_min": self.minutes,
            "gpus_per_node": self.gpus,
            "cpus_per_task": None if local else self.cpus,
        }
        arguments |= {
            "slurm_partition": None if local else self.partition,
            "slurm_account": None if local else self.account,
            "slurm_additional_parameters": None if local else self.options or None,
            "slurm_setup": None if local else self.setup or None,
            "mem_gb": None if local else self.memory,
        }
        return {name: value for name, value in arguments.items() if value is not None}


class CostSection(BaseModel):
    """`[cost]`: prices of a simulated time, finite and at least 0, in any unit; the report can
    change them.

    Args:
        round: of one communication round, without regard to its traffic.
        step: of one local step, which all clients of a round take at the same time.
        gigabit: of 10^9 bits sent, both directions, all participants.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    round: float = 1.0
    step: float = 0.01
    gigabit: float = 0.0

    def check(self) -> None:
        """Refuses prices out of range."""
        _check_numbers(
            "cost", {name: (price, real(low=0)) for name, price in self.model_dump().items()}
        )


def whole(low: float, high: float = math.inf) -> Hyper:
    """Declares whole numbers from `low` to `high`."""
    return Hyper("", 0, low=low, high=high)


def real(low: float = -math.inf, *, open_low: bool = False) -> Hyper:
    """Declares finite numbers from `low`, which `open_low` leaves out."""
    return Hyper("", 0.0, low=low, open_low=open_low, open_high=True)


def _check_numbers(section: str, values: dict[str, tuple[Any, Hyper]]) -> None:
    for name, (value, limits) in values.items():
        if not limits.allows(value):
            raise InvalidInput.of(f"{section}.{name}", value, limits.allowed)


class AuditSection(BaseModel):
    """`[audit]`: runs are membership inference, see `fedax.audit.membership`: a target and a shadow
    model are trained on a quarter of every client's training examples each, and attacked.

    Args:
        every: rounds between attacks, at least 1; the initial and the final models are always
            attacked.
        top, hidden, epochs, learning_rate: of the attack model, see `fedax.audit.Attack`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    every: int = 10
    top: int = Attack().top
    hidden: int = Attack().hidden
    epochs: int = Attack().epochs
    learning_rate: float = Attack().learning_rate

    def make(self) -> Attack:
        upper_limits = {
            "every": MOST_COUNT,
            "top": MOST_COUNT,
            "hidden": 100_000,
            "epochs": MOST_COUNT,
        }
        _check_numbers(
            "audit",
            {
                name: (getattr(self, name), whole(low=1, high=high))
                for name, high in upper_limits.items()
            },
        )
        return Attack(self.top, self.hidden, self.epochs, self.learning_rate)

    def looks(self, rounds: int) -> list[int]:
        """Returns the rounds after which models are attacked.

        >>> AuditSection(every=4).looks(10)
        [0, 4, 8, 10]
        """
        return sorted({0, *range(self.every, rounds + 1, self.every), rounds})


def as_declared(options: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Converts whole numbers to real ones wherever a real one is declared."""

    def real_number(key: str, value: Any) -> Any:
        needs_float = (
            type(value) is int and key in hyperparameters and not hyperparameters[key].counts
        )
        # larger numbers fit into no float; they stay, and the range check refuses them
        return float(value) if needs_float and abs(value) < 1 << 1000 else value

    return {key: real_number(key, value) for key, value in options.items()}


def check_names(field: str, values: dict[str, Any], known_names: Any) -> None:
    """Refuses keys that are not known, with the nearest one that is, or the hint for the key."""
    for key in values:
        if key not in known_names:
            raise UnknownName.among(field, key, known_names)


def schedule_of(arguments: dict[str, Any]) -> Schedule:
    """Makes a schedule from arguments after a check of their keys."""
    # user code and availability are read from files, which may change between two calls
    may_change = "availability" in arguments or is_reference(rule_name(arguments.get("sampling")))
    return _read_schedule(arguments) if may_change else _cached_schedule(arguments)


def rule_name(spelling: Any) -> Any:
    """Returns the name of a rule of a schedule, which is a text or a table."""
    return spelling.get("name") if isinstance(spelling, dict) else spelling


def _read_schedule(arguments: dict[str, Any]) -> Schedule:
    check_names("schedule", arguments, [field.name for field in dataclasses.fields(Schedule)])
    return Schedule(**arguments)


_cached_schedule = memoize(_read_schedule)


def check_ranks(engine: str, task: Section) -> None:
    """Refuses MPI with another number of ranks than the task has clients, where its options tell:
    no data are made for that.
    """
    if engine != "mpi" or task.options.get("unseen"):
        return
    options = task_options(task.name, task.options)
    clients = task.options.get("clients", options["clients"].default if "clients" in options else 0)
    if isinstance(clients, int) and clients:
        MPI().check_clients(clients)


def explain_error(error: ValidationError, model: type[BaseModel]) -> tuple[KeyPath, str]:
    """Returns the path of the key of pydantic's first problem, and a message in the form of fedax's
    errors.
    """
    # a misspelt key is also missing
    first_problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    key_path = first_problem["loc"]
    field = ".".join(str(key) for key in key_path)
    if first_problem["type"] == "extra_forbidden":
        # an unknown key is reported with the keys of its table; tables without one here have
        # `model`'s
        tables = {
            "stop": StopSection,
            "channel": ChannelSection,
            "cost": CostSection,
            "audit": AuditSection,
            "early_stopping": EarlyStoppingSection,
            "simulation": SimulationSection,
            "cluster": ClusterSection,
            "budget": BudgetSection,
        }
        known_keys = [
            field.alias or name
            for name, field in tables.get(str(key_path[0]), model).model_fields.items()
        ]
        return key_path, str(
            UnknownName.among(
                "key" if len(key_path) == 1 else f"key of [{key_path[0]}]",
                str(key_path[-1]),
                known_keys,
            )
        )
    if first_problem["type"] == "missing":
        return key_path, f"{field}: missing; it is needed."
    named = {key.alias or name: key for name, key in model.model_fields.items()}
    listed = get_args(named[str(key_path[0])].annotation) if str(key_path[0]) in named else ()
    holds_tables = any(inspect.isclass(kind) and issubclass(kind, BaseModel) for kind in listed)
    message = explain_type(first_problem, holds_tables and len(key_path) == 1)
    if message is not None:
        return key_path, message
    # pydantic's wording becomes that of the other errors: "got ...; allowed: ..."
    allowed = first_problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    allowed = allowed.replace("String should have at", "texts of at").replace(
        "List should have at", "lists of at"
    )
    return key_path, str(InvalidInput.of(field, first_problem["input"], allowed))
