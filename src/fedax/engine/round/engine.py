"""Interface between the loop over rounds and an engine: `Engine` builds a `Program`, which runs
rounds.

`Log` is what the rounds of a run report.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core.algorithm import Algorithm
from fedax.core.carry import RunCarry
from fedax.core.client import Solver
from fedax.core.history import Outcome
from fedax.core.scheduling.schedule import Schedule
from fedax.core.scheduling.timeline import Timeline
from fedax.core.task import Task
from fedax.core.traffic import Traffic
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundReport, missing_value
from fedax.engine.round.phase import MEMORY, STATE, UPLOAD
from fedax.observe.base import Observer, on_host


class Log(NamedTuple):
    """What some rounds of one run report.

    Attributes:
        logged: by name, first axis (rounds,).
        bits: of each round.
        outcome: ok, or the first part that is not finite.
        left_out: for each round the clients whose uploads did not count, see `RoundReport`.
    """

    logged: dict[str, np.ndarray]
    bits: Traffic
    outcome: Outcome
    left_out: list[np.ndarray]

    @classmethod
    def of(cls, report: RoundReport, timeline: Timeline, first: int) -> "Log":
        """Returns the log of some rounds, from their reports with a first axis (rounds,).

        `first` is the number of the first of these rounds.
        """
        broken = np.asarray(report.broken)
        count = len(broken)
        down, up = np.zeros((2, count), np.int64)
        for phase in report.traffic:
            down += phase.down * np.asarray(phase.sent, np.int64)
            up += phase.up * np.asarray(phase.messages, np.int64)
        # copies: a view would keep the rows of rounds that the call did not make
        logged = {name: np.array(values) for name, values in report.logged.items()}
        logged |= timeline.logged(first, count, report.traffic)
        outcome = Outcome()
        if broken.any():
            # only the first failure: what follows it in the same run is its consequence
            i = int(np.argmax(broken > 0))
            client = int(report.bad_client[i])
            named = None if client < 0 else client
            outcome = Outcome("non-finite", first + i, named, PARTS[int(broken[i])])
        return cls(logged, Traffic(down, up), outcome, [*np.array(report.left_out)])


PARTS = {UPLOAD: None, MEMORY: "the state", STATE: "the server state"}


def merge_logs(logs: Sequence[Log]) -> Log:
    """Concatenates logs of consecutive rounds.

    A value that only some of them have is NaN, or 0, in the others.
    """
    forms = {name: missing_value(values[0]) for log in logs for name, values in log.logged.items()}
    logged = {
        name: np.concatenate(
            [log.logged.get(name, np.repeat(form[None], len(log.bits.up), axis=0)) for log in logs]
        )
        for name, form in forms.items()
    }
    none = np.zeros(0, np.int64)
    down = np.concatenate([none, *(log.bits.down for log in logs)])
    up = np.concatenate([none, *(log.bits.up for log in logs)])
    failures = (log.outcome for log in logs if not log.outcome.ok)
    left_out = [clients for log in logs for clients in log.left_out]
    return Log(logged, Traffic(down, up), next(failures, Outcome()), left_out)


def pad_client_sets(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Pads sets of client numbers, ascending, to one array with -1.

    >>> pad_client_sets([np.array([-1, 4, 2, 4]), np.array([-1])])
    array([[ 2,  4],
           [-1, -1]], dtype=int32)
    """
    sets = [np.unique(row[row >= 0]) for row in rows]
    full = np.full((len(sets), max(map(len, sets), default=0)), -1, np.int32)
    for row, ids in zip(full, sets, strict=True):
        row[: len(ids)] = ids
    return full


class Setting(NamedTuple):
    """What differs between the settings of a program, as arrays; a run is one with one seed."""

    algorithm: Algorithm[Any]
    solver: Solver
    schedule: Schedule

    def of(self, setup: Setup) -> Setup:
        """Returns the setup of this setting."""
        return dataclasses.replace(setup, **self._asdict())


class ProgramInputs(NamedTuple):
    """What a program of rounds is built from.

    Attributes:
        settings: which differ in real numbers only.
        setup: of the first setting, as `Engine.prepared` returns it.
        roots: the key of each seed's random streams.
        longest: the most rounds that one `advance` will be asked for.
    """

    settings: Sequence[Setting]
    setup: Setup
    roots: Sequence[Key[Array, ""]]
    longest: int


class Program(ABC):
    """Runs rounds of several settings with several seeds.

    Runs are in order: the first setting with all seeds, then the next.

    The caller keeps the states between calls. What they hold, such as a first axis over runs, is up
    to the engine.
    """

    def check(self, observers: Sequence[Observer]) -> None:  # noqa: B027
        """Refuses observers that the engine cannot serve.

        Called before round 0, so that nothing is compiled or asked of clients for a run that cannot
        end well.
        """

    @abstractmethod
    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        """Returns the states before round 0, from the initial model of each seed."""

    @abstractmethod
    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        """Runs rounds `first` to `first + count - 1` of all runs.

        May consume the buffers of the given states.
        """

    @abstractmethod
    def observe(self, states: Any, observers: Sequence[Observer]) -> list[dict[str, Any]]:
        """Computes for each run the metrics of all observers."""

    @abstractmethod
    def split(self, states: Any) -> list[RunCarry]:
        """Returns the carry of each run."""

    def gather_carries(self, states: Any) -> list[RunCarry]:
        """Returns the carries for a checkpoint."""
        return self.split(states)

    @abstractmethod
    def join(self, carry: Sequence[RunCarry]) -> Any:
        """Inverts `split`, on copies."""


class Engine(ABC):
    """Where runs are computed: in one process, on several ranks, or on clients' devices.

    Attributes:
        process_group: the processes that take part.
        in_process: whether one process has the server and all clients, so that it knows what
            clients store for a codec, and may run the steps of an asynchronous server.
        is_simulated: whether this process plays the clients, so that it may let them collude.
            Otherwise rounds may take long, and a checkpoint follows each of them.
    """

    process_group: ProcessGroup = ProcessGroup()
    in_process: ClassVar[bool] = False
    is_simulated: ClassVar[bool] = True

    def describe_clients(self) -> dict[str, str]:
        """Returns the examples of clients elsewhere in words, by client; empty if there are none.

        Checkpoints store them: a run is continued with the same ones.
        """
        return {}

    def prepared(self, setup: Setup) -> Setup:
        """Returns the setup of this process, such as with the examples of one rank."""
        return setup

    @abstractmethod
    def program(self, inputs: ProgramInputs) -> Program:
        """Builds the program of rounds for all settings with all root keys."""


def compute_metrics(
    program: Program, states: Any, observers: Sequence[Observer], task: Task
) -> list[dict[str, np.ndarray]]:
    """Computes each run's metrics of all observers, including those computed on the host."""
    runs = jax.tree.map(np.asarray, program.observe(states, observers))
    return [on_host(observers, metrics, task) for metrics in runs]
