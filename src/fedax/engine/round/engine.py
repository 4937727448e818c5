"""Interface between the loop over rounds and an engine: `Engine` builds a `Program`, which runs
rounds.

`RunCarry` is what a run carries from round to round, `Log` what its rounds report.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.federation import Memory, with_memories
from fedax.core.history import History, Outcome
from fedax.core.scheduling.asynchronous import Timetable
from fedax.core.task import Task
from fedax.core.validation.own_methods import call_init, call_round
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.round.backend import MEMORY, STATE, UPLOAD, Backend
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.footprint import RecordingBackend, trace_footprint
from fedax.engine.round.timing.deadline import AnswerTable
from fedax.engine.round.traffic import missing_value
from fedax.observe.base import Observer, on_host
from fedax.utils.random import stream


class Log(NamedTuple):
    """The reports of rounds of one run, each array with a first axis (rounds,).

    See `RoundReport` for the last three.
    """

    notes: dict[str, np.ndarray]
    down: np.ndarray
    up: np.ndarray
    broken: np.ndarray
    bad_client: np.ndarray
    left_out: np.ndarray

    def with_times(self, timetable: Timetable | AnswerTable, first: int) -> "Log":
        """Returns the log with the times of server steps or rounds, in seconds of 64 bits whatever
        the type of the model, and their joules.

        `first` is the number of the first of these rounds.
        """
        return self._replace(notes=self.notes | timetable.notes(first, len(self.down)))

    def failure(self, first: int) -> Outcome:
        """Returns the outcome: ok, or the first part that is not finite.

        `first` is the number of the first of these rounds.
        """
        # only the first failure: what follows it in the same run is its consequence
        bad = np.flatnonzero(self.broken)
        if not len(bad):
            return Outcome()
        part, client = PARTS[int(self.broken[bad[0]])], int(self.bad_client[bad[0]])
        return Outcome("non-finite", first + int(bad[0]), None if client < 0 else client, part)


PARTS = {UPLOAD: None, MEMORY: "the memory", STATE: "the server state"}


class RunCarry(NamedTuple):
    """What a run carries from round to round, the carry of the scan over rounds.

    Attributes:
        state: the algorithm's own.
        lost: for each phase, what the clients store for the codec, if that has memory.
        model_state: the model's (such as batch statistics), or a memory with one for each client;
            None if none changes.
        bounds: of adaptive clipping; None where there is none.
        downlinks: of an asynchronous server, what was sent down with the versions in use; None
            where there is none.
        solver_states: what the clients store for the solver; None where it starts afresh in every
            round.
    """

    state: Any
    lost: tuple[Memory, ...] = ()
    model_state: Any = None
    bounds: Any = None
    downlinks: Any = None
    solver_states: Memory | None = None

    @property
    def by_name(self) -> dict[str, Any]:
        """Returns what a `RoundContext` takes by name only."""
        return {"downlinks": self.downlinks, "solver_states": self.solver_states}

    @classmethod
    def of(cls, history: History) -> "RunCarry":
        """Returns what a history continues from."""
        states = history.downlinks, history.solver_states
        return cls(history.state, history.lost, history.model_state, history.bounds, *states)


class PersonalModels(NamedTuple):
    """The model that one client uses itself, or those of all with a first axis (clients,).

    Attributes:
        models: flat, shape (dim,).
        states: in which each of them is evaluated, such as batch statistics: after the work that
            makes the model, which may train. None if the model has no state that changes.
    """

    models: Float[Array, "*clients dim"]
    states: PyTree = None


def to_device(carry: RunCarry) -> RunCarry:
    """Moves all memories to the device, for engines that keep them there."""
    return with_memories(carry, lambda memory: memory.here())


def initial_carry(
    backend: Backend, algorithm: Algorithm[Any], root: Key[Array, ""], w: Float[Array, "dim"]
) -> RunCarry:
    """Returns the carry before round 0: the algorithm's initial state, and the codec's memories."""
    # a separate root, because with the run's root the draws of `init` would be those of round 0
    state = call_init(algorithm, RoundContext(backend, 0, stream(root, "init")), w)
    channel, task, steps = backend.setup.channel, backend.setup.task, backend.setup.asynchronous
    downlinks = None if steps is None else steps.initial_downlinks()
    bounds = None if backend.setup.private is None else backend.setup.private.initial_bounds()
    # codec and model state need the phases of a round, which cost a trace
    codec = channel.up if channel is not None and channel.has_memory else None
    changing = task.state is not None and task.state_policy != "frozen"
    initial = backend.setup.solver.initial_state(backend.setup.layout.unravel(w))
    solver_states = None if initial is None else backend.memory(initial)
    carry = RunCarry(state, bounds=bounds, downlinks=downlinks, solver_states=solver_states)
    if codec is None and not changing:
        return carry
    phases = trace_footprint(algorithm, backend.setup).phases
    lost = ()
    if codec is not None:
        # one memory for every vector that the phase codes
        memories = [
            tuple(codec.initial_memory(length, w.dtype) for length in phase.codable)
            for phase in phases
        ]
        lost = tuple(map(backend.memory, memories))
    if not changing:
        return carry._replace(lost=lost)
    # without a server, every node has its own state
    is_per_client = task.state_policy == "local" or any(phase.links for phase in phases)
    model_state = (
        backend.memory(task.state) if is_per_client else jax.tree.map(jnp.array, task.state)
    )
    return carry._replace(lost=lost, model_state=model_state)


def trace_programs(algorithm: Algorithm[Any], setup: Setup) -> list[Any]:
    """Returns the jaxprs of the algorithm's start and a round at the server, and of the
    clients' work in each of its phases, with the channel. Gradients are marks in them.
    """
    backend = RecordingBackend(setup)

    def one_round(w: Float[Array, "dim"], round: Int[Array, ""]) -> Any:
        root = jax.random.key(0)
        carry = initial_carry(backend, algorithm, root, w)
        fed = RoundContext(backend, round, root, *carry[1:4], **carry.by_name)
        return call_round(algorithm, fed, carry.state)

    w = jnp.zeros(setup.layout.dim, setup.layout.dtype)
    program = jax.make_jaxpr(one_round)(w, jnp.int32(0))
    return [program, *backend.programs]


def stack_notes(notes: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Stacks the notes of several rounds by name; NaN, or 0, where a round did not reach one."""
    none = {
        name: missing_value(np.asarray(value)) for round in notes for name, value in round.items()
    }
    return {
        name: np.stack([np.asarray(round.get(name, value)) for round in notes])
        for name, value in none.items()
    }


def merge_logs(logs: Sequence[Log]) -> Log:
    """Concatenates logs of consecutive rounds.

    Notes that some of them lack are filled up, see `stack_notes`.
    """
    # a note that only some rounds have is NaN (or 0) in the others
    forms = {name: missing_value(values[0]) for log in logs for name, values in log.notes.items()}
    notes = {
        name: np.concatenate(
            [log.notes.get(name, np.repeat(form[None], len(log.down), axis=0)) for log in logs]
        )
        for name, form in forms.items()
    }
    names = ("down", "up", "broken", "bad_client")
    columns = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(log, name) for log in logs)])
        for name in names
    )
    left_out = pad_client_sets([row for log in logs for row in log.left_out])
    return Log(notes, **dict(zip(names, columns, strict=True)), left_out=left_out)


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


class Program(ABC):
    """Runs rounds of several algorithms with several seeds.

    Runs are in order: the first algorithm with all seeds, then the next.

    The caller keeps the states between calls. What they hold, such as a first axis over runs, is up
    to the engine.
    """

    def check(self, observers: Sequence[Observer], personal: bool) -> None:  # noqa: B027
        """Refuses observers, or `personal`, that the engine cannot serve.

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

    def copy(self, states: Any) -> Any:
        """Returns states that `advance` may consume while the given ones stay; the given ones where
        clients' states are off the devices.
        """
        return jax.tree.map(
            lambda leaf: jnp.array(leaf) if isinstance(leaf, jax.Array) else leaf, states
        )

    @abstractmethod
    def observe(
        self, states: Any, observers: Sequence[Observer], done: int
    ) -> list[dict[str, np.ndarray]]:
        """Computes for each run the metrics of all observers after `done` rounds."""

    @abstractmethod
    def personal(self, states: Any) -> list[PersonalModels]:
        """Returns for each run the models that the clients use themselves."""

    @abstractmethod
    def split(self, states: Any) -> list[RunCarry]:
        """Returns the carry of each run."""

    def gather_carries(self, states: Any) -> list[RunCarry]:
        """Returns the carries, with all clients' memories on the rank that writes files."""
        return self.split(states)

    @abstractmethod
    def join(self, carry: Sequence[RunCarry]) -> Any:
        """Inverts `split`, on copies."""


class Engine(ABC):
    """Where runs are computed: in one process, on several ranks, or on clients' devices.

    Attributes:
        process_group: the processes that take part.
        is_asynchronous: whether it runs the server steps of an asynchronous server.
        shares_memory: whether receivers know the clients' memories of a codec.
        is_simulated: whether this process plays the clients, so that it may let them collude.
        checkpoint_seconds: the most time between checkpoints where rounds may take long; None for
            no bound.
    """

    process_group: ProcessGroup = ProcessGroup()
    is_asynchronous: ClassVar[bool] = False
    shares_memory: ClassVar[bool] = False
    is_simulated: ClassVar[bool] = True
    checkpoint_seconds: float | None = None

    def __repr__(self) -> str:
        """The constructor's call with the arguments that differ from its defaults, as far as they
        are plain values.
        """
        parameters = inspect.signature(type(self).__init__).parameters
        arguments = {
            name: (getattr(self, name, p.default), p.default) for name, p in parameters.items()
        }
        changed = {
            name: value
            for name, (value, default) in arguments.items()
            if isinstance(value, str | int | float) and value != default
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        return f"{type(self).__name__}({shown})"

    def has_all(self, task: Task) -> bool:
        """Returns whether this process has all clients' examples."""
        return True

    def describe_clients(self) -> dict[str, str]:
        """Returns the examples of clients elsewhere in words, by client; empty if there are none.

        Checkpoints store them: a run is continued with the same ones.
        """
        return {}

    def prepared(self, setup: Setup) -> Setup:
        """Returns the setup of this process, such as with the examples of one rank."""
        return setup

    @abstractmethod
    def program(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        longest: int,
    ) -> Program:
        """Builds the program of rounds for all algorithms with all root keys.

        Several algorithms are of one class and differ in real hyperparameters only. `setup` comes
        from `prepared`, and `longest` is the most rounds that one `advance` will be asked for.
        """


def compute_metrics(
    program: Program, states: Any, observers: Sequence[Observer], done: int, task: Task
) -> list[dict[str, np.ndarray]]:
    """Computes each run's metrics of all observers, including those computed on the host."""
    return [
        on_host(observers, metrics, task) for metrics in program.observe(states, observers, done)
    ]
