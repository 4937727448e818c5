"""The options of runs as one frozen record, checked on construction.

Shared by `run`, `run_grid` and `start`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedax.communication.channel import Channel
from fedax.core.client import Solver
from fedax.core.directions import Mode, check_mode, find_mode
from fedax.core.hyper import Hyper
from fedax.core.scheduling.devices import Devices
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD, Optax
from fedax.core.task import Task
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import Budget as Budget
from fedax.engine.driver.early_stopping import Divergence as Divergence
from fedax.engine.driver.early_stopping import EarlyStopping, Rule, rules_of
from fedax.engine.round.engine import Engine
from fedax.errors import InvalidInput, UnknownName, shown
from fedax.observe import CentralScore, TrainLoss, TrainScore
from fedax.observe.base import Observer, modes_of
from fedax.utils.numbers import python_number

BAD_CLIENT = ("stop", "drop")
"""The choices of `run(on_bad_client=...)`."""


class Progress(NamedTuple):
    """The argument of a progress hook, after every observation.

    Returning True asks the run to stop.

    Attributes:
        round: rounds that are done.
        rounds: rounds of the whole run.
        seconds: wall time since the run began.
        metrics: by name, what was observed.
        compiling: of `seconds`, those spent on compiling.
        runs: runs that proceed together, as those of `run_grid` do. The metrics are those of the
            first one.
    """

    round: int
    rounds: int
    seconds: float
    metrics: dict[str, Any]
    compiling: float = 0.0
    runs: int = 1

    def __str__(self) -> str:
        """Returns one line, with the metrics that are single numbers."""
        values = [
            f"{name} {value:.4g}" for name, value in self.metrics.items() if np.ndim(value) == 0
        ]
        line = ", ".join([f"round {self.round}/{self.rounds}", f"{self.seconds:.1f} s", *values])
        return f"{line} (first of {self.runs} runs)" if values and self.runs > 1 else line


class Setting(TypedDict, total=False):
    """Keyword arguments that `run`, `run_grid` and `start` share."""

    solver: Solver | optax.GradientTransformation | None
    schedule: Schedule | None
    engine: Engine | None
    channel: Channel | None
    devices: Devices | None
    params: Any


class Options(Setting, total=False):
    """Keyword arguments that `run` and `run_grid` share; None stands for the default."""

    rounds: int
    observe: Sequence[Observer] | None
    observe_every: int
    stop: Rule | Sequence[Rule] | None
    keep_best: str | None
    mode: Mode | None
    progress: Callable[[Progress], bool | None] | bool | None
    checkpoint: str | Path | None
    checkpoint_every: int
    personal: bool
    on_bad_client: str


def no_shared_memory(field: str, channel: Channel, engine: str) -> InvalidInput:
    """Returns the error about a codec whose receivers store memories, on an engine without them."""
    codec = type(channel.up).__name__
    reason = f"{codec} needs memories at the receiver, which the engine {engine} does not have"
    return InvalidInput.because(field, reason, "Error feedback runs there.")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What a run needs beside algorithm, task and seed. `fedax.run` documents every field.

    `solvers` and `schedules` are those of the algorithms of a grid, one for each, if they differ;
    `solver` and `schedule` are the first then.

    Raises:
        InvalidInput: `rounds` or `observe_every` out of range, or more rounds than the schedule
            has.
    """

    solver: Solver = dataclasses.field(default_factory=SGD)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    engine: Engine = dataclasses.field(default_factory=Simulation)
    channel: Channel | None = None
    devices: Devices | None = None
    rounds: int = 100
    observe: Sequence[Observer] | None = None
    observe_every: int = 1
    stop: Rule | Sequence[Rule] | None = None
    keep_best: str | None = None
    mode: str | None = None
    progress: Callable[[Progress], bool | None] | bool | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int = 10
    personal: bool = False
    on_bad_client: str = "stop"
    params: Any = None
    solvers: tuple[Solver, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "RunOptions":
        """Returns the record of keyword arguments, of which None stands for the default.

        Raises:
            UnknownName: an unknown argument; the message holds the nearest one.
        """
        # the lists of a grid come as `solver` and `schedule`
        field_names = [
            field.name
            for field in dataclasses.fields(cls)
            if field.name not in ("solvers", "schedules")
        ]
        for name in arguments:
            if name not in field_names:
                raise UnknownName.among("option of a run", name, field_names)
        # None counts as not given, so that a caller can pass its own optional arguments on
        values = {name: value for name, value in arguments.items() if value is not None}
        return cls(
            **values | ({"solver": as_solver(values["solver"])} if "solver" in values else {})
        )

    def __post_init__(self) -> None:
        kinds = {
            "solver": Solver,
            "schedule": Schedule,
            "engine": Engine,
            "channel": Channel,
            "devices": Devices,
        }
        for name, kind in kinds.items():
            optional = name in ("channel", "devices")
            check_kind(f"run({name}=...)", getattr(self, name), kind, optional)
        for observer in self.observe or ():
            check_kind("run(observe=...)", observer, Observer)
        for name, low in (("rounds", 0), ("observe_every", 1), ("checkpoint_every", 1)):
            value = python_number(getattr(self, name))
            object.__setattr__(self, name, value)
            Hyper(name, low, low=low).check("run", value)
        Hyper("on_bad_client", "stop", choices=BAD_CLIENT).check("run", self.on_bad_client)
        server = self.schedule.server
        devices = server.devices if self.devices is None and server else self.devices
        for rule in self.rules:
            rule.check()
            if not isinstance(rule, Budget):
                continue
            if devices is None or (rule.joules and not isinstance(devices, Devices)):
                raise InvalidInput.of(
                    "run(stop=...)",
                    rule,
                    "rules without devices only on metrics",
                    "Give run(devices=...).",
                )
        self._check_shared_memory()
        check_mode("run(mode=...)", self.mode)
        if self.mode is not None and self.keep_best is None:
            raise InvalidInput.of(
                "run(mode=...)", self.mode, "None without keep_best, whose direction it is"
            )
        max_rounds = self.schedule.rounds
        if max_rounds is not None and self.rounds > max_rounds:
            raise InvalidInput.of(
                "run(rounds=...)",
                self.rounds,
                f"at most {max_rounds}, the number of synchronisation times",
            )

    def _check_shared_memory(self) -> None:
        """Refuses a codec whose receiver has to know the clients' memories where it does not."""
        if self.channel is None or not self.channel.shares_memory:
            return
        if not self.engine.shares_memory:
            raise no_shared_memory("run(engine=...)", self.channel, type(self.engine).__name__)
        if self.schedule.server is not None:
            codec, late = type(self.channel.up).__name__, "late ones are discarded"
            raise InvalidInput.because(
                "Schedule(asynchronous=...)",
                f"{codec} needs to know which messages arrive, and {late}",
                "Error feedback runs there.",
            )

    def with_default_observers(self, task: Task) -> "RunOptions":
        """Returns the options with default observers if none were given.

        These are the training loss and the scores of the task, such as accuracy. With privacy they
        are the scores on a test set at the server, if there is one.

        With `on_bad_client="drop"` there are none by default, because the losses of bad clients
        need not be finite.
        """
        if self.observe is not None or self.on_bad_client == "drop":
            return self
        if self.channel is not None and self.channel.privacy is not None:
            # what clients have is measured only for those who ask: no noise covers it
            scores = () if task.central is None else task.scores
            return dataclasses.replace(self, observe=tuple(map(CentralScore, scores)))
        # on test examples if there are any: scores of training say less about the model
        kind = TrainScore if task.test_set is None else CentralScore
        return dataclasses.replace(self, observe=(TrainLoss(), *map(kind, task.scores)))

    def with_directions(self, task: Task) -> "RunOptions":
        """Returns the options with directions (max or min) of metrics that select models or end
        runs.

        Raises:
            InvalidInput: a metric without a known direction.
        """
        modes = modes_of(self.observe or (), task)
        # a direction told for the same metric in `EarlyStopping` also counts for `keep_best`
        rules, mode = tuple(rule.resolve(modes) for rule in self.rules), self.mode
        if self.keep_best is not None:
            stated_modes: list[Mode | None] = [
                rule.mode
                for rule in rules
                if isinstance(rule, EarlyStopping) and rule.metric == self.keep_best
            ]
            mode = cast(Mode | None, mode) or next(iter(stated_modes), None)
            hint = f'Say keep_best="{self.keep_best}", mode="max" or mode="min".'
            mode = find_mode("run(keep_best=...)", self.keep_best, mode, modes, hint)
        return dataclasses.replace(self, stop=rules, mode=mode)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that end the run early."""
        return rules_of(self.stop)

    @property
    def best_by(self) -> str | None:
        """The metric whose best model is kept: `keep_best`, or that of the first rule of early
        stopping.
        """
        return self.keep_best or (
            self._early_stopping_rules[0].metric if self._early_stopping_rules else None
        )

    @property
    def best_mode(self) -> Mode:
        """The direction of `best_by`, of options `with_directions`."""
        mode = (
            cast(Mode | None, self.mode)
            if self.keep_best is not None
            else self._early_stopping_rules[0].mode
        )
        assert mode is not None, "options without directions"
        return mode

    @property
    def _early_stopping_rules(self) -> list[EarlyStopping]:
        return [rule for rule in self.rules if isinstance(rule, EarlyStopping)]

    @property
    def periods(self) -> tuple[int, ...]:
        """Rounds after multiples of which the loop pauses."""
        return (
            (self.observe_every,)
            if self.checkpoint is None
            else (self.observe_every, self.checkpoint_every)
        )


def as_solver(value: Any) -> Any:
    """Returns an Optax optimizer as a solver; other values are returned as they are."""
    return Optax(value) if isinstance(value, optax.GradientTransformation) else value


def check_kind(
    field: str, value: Any, kind: type | tuple[type, ...], optional: bool = False
) -> None:
    """Raises `InvalidInput` for anything but an object of a class."""
    if not isinstance(value, kind) and not (optional and value is None):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        allowed = "an object of " + " or ".join(cls.__name__ for cls in kinds)
        allowed += ", or None" if optional else ""
        # the text of a task or a schedule fills the screen
        is_record = isinstance(value, eqx.Module)
        got = f"an object of {type(value).__name__}" if is_record else shown(value)
        raise InvalidInput.found(field, got, allowed, _advice(value, kinds[0]))


def _advice(value: Any, kind: type) -> str:
    """Returns a sentence on what to write instead of a value of the wrong type."""
    if isinstance(value, type) and issubclass(value, kind):
        return f"Write {value.__name__}(), with parentheses."
    if kind in (Solver, Schedule) and isinstance(value, list | tuple):
        name = kind.__name__.lower()
        return f"Several {name}s are a grid: run_grid([algorithm], task, {name}=[...])."
    if kind is Solver and isinstance(value, int | float):
        return f"Write fedax.SGD({value!r})."
    return ""


def require_concrete(name: str, *arguments: Any) -> None:
    """Refuses a call inside a transformation of JAX, where arrays have no values.

    Args:
        name: of the function, for the message.
        arguments: its arguments.

    Raises:
        InvalidInput: called inside `jax.jit`, or with an array of `jax.vmap` or `jax.grad`.
    """
    # inside `jax.jit` even a new array is a tracer
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((jnp.zeros(()), arguments))):
        hint = "Call it outside. For several settings at once there is run_grid."
        raise InvalidInput.because(name, "called inside jax.jit, jax.vmap or jax.grad", hint)
