"""The options of runs as one frozen record, checked on construction.

Shared by `run`, `run_grid` and `start`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar, get_args

import numpy as np
import optax

from fedax.communication.channel import Channel
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.directions import find_mode
from fedax.core.hyper import declared, hyper
from fedax.core.scheduling.clock import Clock
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD, Optax
from fedax.core.task import Task
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import BaseRule, Budget, EarlyStopping, Rule
from fedax.engine.round.engine import Engine
from fedax.errors import InvalidInput
from fedax.observe import CentralScore, ClientAccuracy, TrainLoss, TrainScore
from fedax.observe.base import Observer, modes_of
from fedax.utils.numbers import convert_fields

Function = TypeVar("Function", bound=Callable[..., Any])

BAD_CLIENT = ("stop", "drop")
"""The choices of `run(on_bad_client=...)`."""


class Progress(NamedTuple):
    """The argument of a progress hook, after every observation.

    Returning True asks the run to stop.

    Attributes:
        round: rounds that are done.
        rounds: rounds of the whole run.
        seconds: wall time since the run began.
        metrics: by name, what was observed; of `run_grid` those of the first run.
    """

    round: int
    rounds: int
    seconds: float
    metrics: dict[str, Any]

    def __str__(self) -> str:
        """Returns one line, with the metrics that are single numbers."""
        values = [
            f"{name} {value:.4g}" for name, value in self.metrics.items() if np.ndim(value) == 0
        ]
        return ", ".join([f"round {self.round}/{self.rounds}", f"{self.seconds:.1f} s", *values])


class Setting(TypedDict, total=False):
    """Keyword arguments that `run`, `run_grid` and `start` share."""

    solver: Solver | optax.GradientTransformation | None
    schedule: Schedule | None
    engine: Engine | None
    channel: Channel | None
    clock: Clock | None
    params: Any


class Options(Setting, total=False):
    """Keyword arguments that `run` and `run_grid` share; None stands for the default."""

    rounds: int
    observe: Sequence[Observer] | None
    observe_every: int
    stop: Rule | Sequence[Rule] | None
    keep_best: str | None
    progress: Callable[[Progress], bool | None] | bool | str | None
    checkpoint: str | Path | None
    checkpoint_every: int
    personal: bool
    on_bad_client: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run needs beside algorithm, task and seed. `fedax.run` documents every field.

    Raises:
        InvalidInput: `rounds` or `observe_every` out of range, or more rounds than the schedule
            has.
    """

    solver: Solver = dataclasses.field(default_factory=SGD)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    engine: Engine = dataclasses.field(default_factory=Simulation)
    channel: Channel | None = None
    clock: Clock | None = None
    rounds: int = hyper(100, low=0)
    observe: Sequence[Observer] | None = None
    observe_every: int = hyper(1, low=1)
    stop: Rule | Sequence[Rule] | None = None
    keep_best: str | None = None
    progress: Callable[[Progress], bool | None] | bool | str | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int = hyper(10, low=1)
    personal: bool = False
    on_bad_client: str = hyper("stop", choices=BAD_CLIENT)
    params: Any = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "RunOptions":
        """Returns the record of keyword arguments, of which None stands for the default."""
        # None counts as not given, so that a caller can pass its own optional arguments on
        given = {name: value for name, value in arguments.items() if value is not None}
        if isinstance(given.get("solver"), optax.GradientTransformation):
            given["solver"] = Optax(given["solver"])
        return cls(**given)

    def __post_init__(self) -> None:
        kinds = {"solver": Solver, "schedule": Schedule, "engine": Engine}
        kinds |= {"channel": Channel, "clock": Clock}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is not None:
                check_kind(f"run({name}=...)", value, kind)
        for observer in self.observe or ():
            check_kind("run(observe=...)", observer, Observer)
        convert_fields(self)
        for name, limits in declared(self).items():
            limits.check("run", getattr(self, name))
        for rule in self.rules:
            check_kind("run(stop=...)", rule, BaseRule)
            if isinstance(rule, Budget) and self.clock is None:
                allowed = "rules without devices only on metrics"
                raise InvalidInput.of("run(stop=...)", rule, allowed, "Give run(clock=...).")
        # a codec whose receiver has to know the clients' states
        reason = (
            "a codec needs memories at the receiver, and there are none. Error feedback runs there"
        )
        if self.channel is not None and self.channel.shares_memory:
            if not self.engine.in_process:
                raise InvalidInput.because("run(engine=...)", reason)
            # late messages are discarded
            if self.schedule.asynchronous is not None:
                raise InvalidInput.because("Schedule(asynchronous=...)", reason)
        max_rounds = self.schedule.rounds
        if max_rounds is not None and self.rounds > max_rounds:
            allowed = f"at most {max_rounds}, the number of synchronisation times"
            raise InvalidInput.of("run(rounds=...)", self.rounds, allowed)

    def resolve(self, task: Task, algorithm: Algorithm) -> "RunOptions":
        """Returns the options with default observers and the metric of the best model.

        Raises:
            InvalidInput: an observer that the task cannot serve, a metric without a known
                direction.
        """
        observers = self.observe
        if observers is None:
            observers = self._default_observers(task, algorithm)
        for observer in observers:
            observer.check(task)
        selecting = [rule.metric for rule in self.rules if isinstance(rule, EarlyStopping)]
        if self.keep_best is not None:
            selecting.insert(0, self.keep_best)
        modes = modes_of(observers, task)
        ending = [rule.metric for rule in self.rules if not isinstance(rule, Budget)]
        for metric in (*selecting, *ending):
            hint = 'State it, "max" or "min": modes={"mae": "min"} of a task, mode= of an observer.'
            find_mode("run(keep_best=..., stop=...)", metric, None, modes, hint)
        return dataclasses.replace(
            self,
            observe=observers,
            keep_best=selecting[0] if selecting else None,
            checkpoint_every=self.checkpoint_every if self.engine.is_simulated else 1,
        )

    def _default_observers(self, task: Task, algorithm: Algorithm) -> Sequence[Observer]:
        """Returns the training loss and the scores of the task, such as accuracy; those of the
        clients' own models, too, for a method that has such and clients with test examples.

        With privacy they are the scores on a test set at the server, if there is one. With
        `on_bad_client="drop"` there are none, because the losses of bad clients need not be finite.
        """
        if self.on_bad_client == "drop":
            return ()
        if self.channel is not None and self.channel.privacy is not None:
            # what clients have is measured only for those who ask: no noise covers it
            return () if task.central is None else tuple(map(CentralScore, task.scores))
        # on test examples if there are any: scores of training say less about the model
        kind = TrainScore if task.test_set is None else CentralScore
        own: list[Observer] = []
        if task.test is not None and type(algorithm).personal is not Algorithm.personal:
            scores = task.scores.keys() & task.score_modes.keys()
            own = [ClientAccuracy(score, personal=True) for score in sorted(scores)]
        return (TrainLoss(), *map(kind, task.scores), *own)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that end the run early."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, BaseRule) else tuple(self.stop)

    @property
    def periods(self) -> list[int]:
        """Rounds after multiples of which the loop pauses."""
        saving = [] if self.checkpoint is None else [self.checkpoint_every]
        return [self.observe_every, *saving]


def check_kind(field: str, value: Any, kind: type) -> None:
    """Raises `InvalidInput` for anything but an object of a class."""
    if not isinstance(value, kind):
        raise InvalidInput.of(field, value, f"an object of {kind.__name__}")


def with_named_options(function: Function) -> Function:
    """Puts the options that a function takes by keyword into its signature, which help and
    completion read.
    """
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()
    known = inspect.signature(RunOptions).parameters
    options = [known[name] for name in get_args(rest.annotation)[0].__annotations__]
    setattr(function, "__signature__", signature.replace(parameters=own + options))  # noqa: B010
    return function
