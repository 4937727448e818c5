"""The interface between the loop and an engine."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core.algorithm import Algorithm
from fedax.core.federation import Memory, with_memories
from fedax.core.history import Outcome
from fedax.core.task import Task
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.round.backend import MEMORY, STATE, UPLOAD, Transport
from fedax.engine.round.client import Setup
from fedax.engine.round.context import Round, missing
from fedax.engine.round.footprint import look
from fedax.observe.base import Observer, on_host
from fedax.utils.arguments import checked_arguments
from fedax.utils.random import stream


class Log(NamedTuple):
    """The reports of rounds of one run, each array with a first axis (rounds,); see `Report` for the last three."""

    notes: dict[str, np.ndarray]
    down: np.ndarray
    up: np.ndarray
    broken: np.ndarray
    bad_client: np.ndarray
    left_out: np.ndarray

    def failure(self, first: int) -> Outcome:
        """The outcome by these rounds, of which the first has a number: the first part that is not finite, or ok."""
        bad = np.flatnonzero(self.broken)
        if not len(bad):
            return Outcome()
        part, client = PARTS[int(self.broken[bad[0]])], int(self.bad_client[bad[0]])
        return Outcome("non-finite", first + int(bad[0]), None if client < 0 else client, part)


PARTS = {UPLOAD: None, MEMORY: "the memory", STATE: "the server state"}


class Carried(NamedTuple):
    """The carry of a run from round to round.

    Attributes:
        state: the algorithm's.
        lost: for each phase what the clients' last messages lost.
        model_state: the model's, or the clients' memories of theirs; None if it has none that changes.
        bounds: of adaptive clipping; None where there is none.
    """

    state: Any
    lost: tuple[Memory, ...] = ()
    model_state: Any = None
    bounds: Any = None


def landed(carried: Carried) -> Carried:
    """With all memories on the device, for engines that keep them there."""
    return with_memories(carried, lambda memory: memory.here())


def begin(transport: Transport, algorithm: Algorithm[Any], root: Key[Array, ""], w: Float[Array, "dim"]) -> Carried:
    """The start of a run at a model; before it nothing was lost."""
    # a root of its own: below the run's root, the draws of `init` would be those of round 0
    state = algorithm.init(Round(transport, 0, stream(root, "init")), w)
    channel, task = transport.setup.channel, transport.setup.task
    bounds = None if transport.setup.private is None else transport.setup.private.start()
    feedback, changing = channel is not None and channel.feedback, task.state is not None and task.state_policy != "frozen"
    if not feedback and not changing:
        return Carried(state, bounds=bounds)
    phases = look(algorithm, transport.setup).phases
    nothing = [tuple(jnp.zeros(length, w.dtype) for length in phase.codable) for phase in phases]
    lost = tuple(map(transport.memory, nothing)) if feedback else ()
    if not changing:
        return Carried(state, lost, bounds=bounds)
    apart = task.state_policy == "local" or any(phase.links for phase in phases)  # without a server, every node has its own
    return Carried(state, lost, transport.memory(task.state) if apart else jax.tree.map(jnp.array, task.state), bounds)


def stacked(notes: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The notes of several rounds by name; NaN, or 0 for whole numbers, where a round did not get to one."""
    none = {name: missing(np.asarray(value)) for round in notes for name, value in round.items()}
    return {name: np.stack([np.asarray(round.get(name, value)) for round in notes]) for name, value in none.items()}


def merged(logs: Sequence[Log]) -> Log:
    """The log of all rounds of some logs, with a note of any of them; see `stacked`."""
    forms = {name: missing(values[0]) for log in logs for name, values in log.notes.items()}
    notes = {
        name: np.concatenate([log.notes.get(name, np.repeat(form[None], len(log.down), axis=0)) for log in logs])
        for name, form in forms.items()
    }
    names = ("down", "up", "broken", "bad_client")
    columns = (np.concatenate([np.zeros(0, np.int64), *(getattr(log, name) for log in logs)]) for name in names)
    left_out = numbers([row for log in logs for row in log.left_out])
    return Log(notes, **dict(zip(names, columns, strict=True)), left_out=left_out)


def numbers(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Sets of client numbers as one array: each ascending, as wide as the largest, filled up with -1.

    >>> numbers([np.array([-1, 4, 2, 4]), np.array([-1])])
    array([[ 2,  4],
           [-1, -1]], dtype=int32)
    """
    sets = [np.unique(row[row >= 0]) for row in rows]
    full = np.full((len(sets), max(map(len, sets), default=0)), -1, np.int32)
    for row, own in zip(full, sets, strict=True):
        row[: len(own)] = own
    return full


class Program(ABC):
    """The rounds of one or several algorithms with one or several seeds: the first algorithm with all seeds, then the next.

    The states stay with the caller, between rounds; what they hold beside the runs' own is the engine's.

    Attributes:
        fitted: numbers that the engine put in place of a word, see `History.fitted`.
    """

    fitted: Mapping[str, np.ndarray] = {}

    def check(self, observers: Sequence[Observer], personal: bool) -> None:  # noqa: B027
        """Refuses observers that the engine cannot serve, and `personal` if the clients' own models stay with them.

        Called before round 0, so that nothing is compiled or asked of clients for a run that cannot end well.
        """

    @abstractmethod
    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        """The states before round 0, from the initial model of each seed."""

    @abstractmethod
    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        """Rounds `first` to `first + count - 1` of all runs; the given states may be consumed."""

    @abstractmethod
    def observe(self, states: Any, observers: Sequence[Observer], done: int) -> list[dict[str, np.ndarray]]:
        """For each run, the metrics of all observers on its state's model after `done` rounds."""

    @abstractmethod
    def personal(self, states: Any) -> list[Float[Array, "clients dim"]]:
        """For each run, the models that the clients use themselves."""

    @abstractmethod
    def split(self, states: Any) -> list[Carried]:
        """The carry of each run."""

    def whole(self, states: Any) -> list[Carried]:
        """As `split`; with everybody's memories on the rank that keeps files, if several ranks have them."""
        return self.split(states)

    @abstractmethod
    def join(self, carried: Sequence[Carried]) -> Any:
        """The inverse of `split`, on fresh copies."""


@checked_arguments
class Engine(ABC):
    """A place for runs.

    Attributes:
        process_group: the processes that take part.
        checkpoint_seconds: the most time between checkpoints where rounds may take long; None for no bound.
    """

    process_group: ProcessGroup = ProcessGroup()
    checkpoint_seconds: float | None = None

    def has_all(self, task: Task) -> bool:
        """Whether this process has everybody's examples."""
        return True

    def prepared(self, setup: Setup) -> Setup:
        """The setup as it is here, such as with a peer's own examples."""
        return setup

    @abstractmethod
    def program(
        self, algorithms: Sequence[Algorithm[Any]], setup: Setup, roots: Sequence[Key[Array, ""]], longest: int
    ) -> Program:
        """The rounds of all algorithms with all roots of random streams.

        Several algorithms are of one class and differ in real hyperparameters only. `setup` comes from `prepared`, and `longest`
        is the most rounds that one `advance` will be asked for.
        """


def observed(
    program: Program, states: Any, observers: Sequence[Observer], done: int, task: Task
) -> list[dict[str, np.ndarray]]:
    """For each run, the metrics of all observers, with those that they make on the host."""
    return [on_host(observers, seen, task) for seen in program.observe(states, observers, done)]


def starting_point(task: Task, seed: int) -> tuple[Any, Key[Array, ""]]:
    """The initial parameters and the root of all other streams."""
    root = jax.random.key(seed)
    return task.start(jax.random.fold_in(root, 0)), jax.random.fold_in(root, 1)
