"""The options of runs as one frozen record, checked on construction.

Shared by `run`, `run_grid` and `start`.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedax import observe
from fedax.communication.channel import Channel
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.directions import Mode, check_mode, find_mode
from fedax.core.hyper import MOST_COUNT
from fedax.core.scheduling.devices import Devices
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD, Optax, optax_call
from fedax.core.task import Task
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import Budget as Budget
from fedax.engine.driver.early_stopping import Divergence as Divergence
from fedax.engine.driver.early_stopping import EarlyStopping, Rule, rules_of
from fedax.engine.round.engine import Engine
from fedax.errors import InvalidInput, UnknownName
from fedax.observe import HoldoutScore, TrainLoss, TrainScore
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
        kinds |= {"checkpoint": (str, Path), "personal": bool, "keep_best": str}
        for name, kind in kinds.items():
            optional = name in ("channel", "devices", "checkpoint", "keep_best")
            check_kind(f"run({name}=...)", getattr(self, name), kind, optional)
        observers = () if self.observe is None else self.observe
        if not isinstance(observers, Sequence) or isinstance(observers, str):
            hint = (
                f"Write observe=[{type(observers).__name__}(...)]."
                if isinstance(observers, Observer)
                else ""
            )
            raise InvalidInput.of("run(observe=...)", observers, "a list of observers", hint)
        for observer in observers:
            check_kind("run(observe=...)", observer, Observer)
        if not (
            self.progress is None or isinstance(self.progress, bool) or callable(self.progress)
        ):
            raise InvalidInput.of(
                "run(progress=...)", self.progress, "a function of a Progress, or True for a bar"
            )
        for name in ("rounds", "observe_every", "checkpoint_every"):
            object.__setattr__(self, name, python_number(getattr(self, name)))
        check_count("rounds", self.rounds, 0, MOST_COUNT)
        check_count("observe_every", self.observe_every, 1, MOST_COUNT)
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
        if self.on_bad_client not in BAD_CLIENT:
            raise InvalidInput.of(
                "run(on_bad_client=...)", self.on_bad_client, f"one of {BAD_CLIENT}"
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
            scores = () if task.holdout is None else task.scores
            return dataclasses.replace(self, observe=tuple(map(HoldoutScore, scores)))
        # on test examples if there are any: scores of training say less about the model
        kind = TrainScore if task.test_set is None else HoldoutScore
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
        # the text of a task, a schedule or a network fills the screen
        if isinstance(value, eqx.Module) or _is_torch_module(value):
            raise InvalidInput.found(
                field, f"an object of {type(value).__name__}", allowed, _advice(value, kinds[0])
            )
        raise InvalidInput.of(field, value, allowed, _advice(value, kinds[0]))


def _advice(value: Any, kind: type) -> str:
    """Returns a sentence on what to write instead of a value of the wrong type."""
    if isinstance(value, type) and issubclass(value, kind):
        return f"Write {value.__name__}(), with parentheses."
    if kind is Solver and isinstance(value, Sequence) and not isinstance(value, str):
        return "Several solvers are a grid: run_grid([algorithm], task, solver=[...])."
    if kind is Schedule and isinstance(value, Sequence) and not isinstance(value, str):
        return "Several schedules are a grid: run_grid([algorithm], task, schedule=[...])."
    if kind is Task and _is_torch_module(value):
        return "Write fedax.tasks.from_torch(net, loss, clients)."
    if kind is Solver and isinstance(value, int | float) and not isinstance(value, bool):
        return f"Write fedax.SGD({value!r})."
    if kind is Solver and isinstance(value, str) and value.lower() == "sgd":
        return "Write fedax.SGD(0.01)."
    if kind is Solver and (call := optax_call(value)):
        return f"Write fedax.Optax({call})."
    if isinstance(value, str) and kind in (Algorithm, Task):
        suggestion = _suggest_call(kind, value)
        return f"Write {suggestion}." if suggestion else ""
    if isinstance(value, str) and kind in (Observer, Engine):
        prefix, names = (
            ("fedax.observe.", [name for name in vars(observe) if name[0].isupper()])
            if kind is Observer
            else ("fedax.", ["Simulation", "Eager", "MPI"])
        )
        lowered = {name.lower(): name for name in names}
        suggestion = difflib.get_close_matches(value.lower().replace("_", ""), lowered, n=1)
        return f"Write {prefix}{lowered[suggestion[0]]}()." if suggestion else ""
    return ""


def _is_torch_module(value: Any) -> bool:
    """Returns whether a value is a module of PyTorch, which is not imported for that."""
    return any(base.__module__.startswith("torch.nn.") for base in type(value).__mro__)


def _suggest_call(kind: type, name: str) -> str:
    """Returns how to make the algorithm or task whose name is near to a text, or nothing."""
    import fedax

    if kind is Task:
        calls = {
            candidate: f"fedax.tasks.{candidate}()"
            for candidate in ("digits", "synthetic")
            if hasattr(fedax.tasks, candidate)
        }
    else:
        classes = {
            candidate: getattr(fedax, candidate)
            for candidate in dir(fedax)
            if candidate[0].isupper()
        }
        methods = [
            candidate
            for candidate, value in classes.items()
            if isinstance(value, type) and issubclass(value, Algorithm)
        ]
        calls = {candidate.lower(): f"fedax.{candidate}()" for candidate in methods}
    matches = difflib.get_close_matches(name.lower().replace("_", ""), calls, n=1)
    return calls[matches[0]] if matches else ""


def check_count(name: str, value: Any, low: int, high: float = math.inf) -> None:
    """Raises `InvalidInput` for anything but a whole number from `low` to `high`.

    NumPy integers are allowed.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not low <= value <= high:
        allowed = (
            f"whole numbers >= {low}"
            if high == math.inf
            else (f"whole numbers from {low} to {high}")
        )
        raise InvalidInput.of(f"run({name}=...)", value, allowed)


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
