"""Server steps of an asynchronous server: whether a method fits one, and when its clients arrive.

`Schedule(asynchronous=...)` asks for it. A method's round stays as it is written: `sample` returns
the clients whose uploads a server step takes, each works on the downlink that it received, and the
server takes its upload as a change of the current model
(`fedax.engine.round.backend.PastVersions`).
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.communication.channel import bits_of, decode, encode
from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, Memory, Upload
from fedax.core.scheduling.asynchronous import Arrivals, Asynchronous, Timetable
from fedax.core.scheduling.devices import Devices
from fedax.engine.round.backend import PhaseResult, PhaseWork, vectors
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.footprint import Probe, RecordingBackend
from fedax.engine.round.timing.clock import WorkCount
from fedax.errors import InvalidInput
from fedax.utils.memory_check import bytes_of, check_room
from fedax.utils.random import Index, stream

FIELD = "Schedule(asynchronous=...)"


@dataclasses.dataclass(frozen=True)
class ServerSteps:
    """A method's only phase under an asynchronous server, static.

    Compiled programs depend on what is compared: the others are read between the rounds.

    Attributes:
        server: as it was asked for.
        near: number of the vector sent down whose changes go up; None if the upload is a change
            itself.
        form: arrays of what is sent down, as shapes and types.
        bits: of one message down and up.
        gradients: minibatch gradients of a local step, and gradients over all the client's
            examples.
        rounds: server steps that the run is to have.
    """

    server: Asynchronous = dataclasses.field(compare=False)
    uploads: str
    near: int | None
    form: PyTree = dataclasses.field(compare=False)
    bits: tuple[int, int] = dataclasses.field(compare=False)
    gradients: tuple[int, int] = dataclasses.field(compare=False)
    rounds: int = dataclasses.field(compare=False)

    def timetable(self, setup: Setup, root: Key[Array, ""]) -> Timetable:
        """Returns the timetable of the run with a root key."""
        schedule, sizes = setup.schedule, np.asarray(setup.population.sizes, np.int64)
        offsets = jnp.asarray(setup.population.offsets)
        cohort = schedule.capacity(len(sizes))
        down, up = self.bits

        server, passes = self.server, _passes(self.server)

        def amounts(clients: np.ndarray, version: int) -> tuple[Any, ...]:
            return clients, version, down, up, counted(clients, version, self.gradients, passes)

        def seconds(clients: np.ndarray, version: int) -> np.ndarray:
            return server.devices.seconds(*amounts(clients, version))

        def joules(clients: np.ndarray, version: int) -> np.ndarray:
            return server.devices.joules(*amounts(clients, version))

        def draw(version: int) -> np.ndarray:
            return np.asarray(_draw_cohort(schedule, root, jnp.int32(version), offsets))

        counted = WorkCount(setup, root)
        seed = np.asarray(jax.random.key_data(stream(root, "dispatch"))).tolist()
        weights = sizes if schedule.rule.by_size else np.ones_like(sizes)
        spent = joules if isinstance(server.devices, Devices) else None
        return Timetable(server, cohort, weights, seconds, draw, seed, spent)

    def empty(self) -> PyTree:
        """Returns the stored downlinks of a run before its first step, with one slot."""
        return jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), self.form)

    def grown(
        self, downlinks: PyTree, timetables: list[Timetable], steps: int, axis: int = 0
    ) -> PyTree:
        """Returns stored downlinks with the slots that some server steps need, and those that the
        whole run will need.

        Args:
            downlinks: of all runs of a program.
            timetables: of the runs.
            steps: server steps from the beginning.
            axis: of the slots in the arrays.
        """
        slots = max(timetable.slots(max(steps, self.rounds)) for timetable in timetables)
        if steps > self.rounds:  # of a session: another number of slots is another program
            slots = 1 << (slots - 1).bit_length()
        check_room(
            FIELD,
            slots,
            slots * len(timetables) * bytes_of(self.form),
            "versions of the model that are in use",
        )

        def pad(leaf: Array) -> Array:
            more = max(slots - leaf.shape[axis], 0)
            return (
                jnp.pad(leaf, [(0, more if i == axis else 0) for i in range(leaf.ndim)])
                if more
                else leaf
            )

        return jax.tree.map(pad, downlinks)


@eqx.filter_jit
def _draw_cohort(
    schedule: Any, root: Key[Array, ""], round: Index, offsets: Int[Array, "bounds"]
) -> Int[Array, "cohort"]:
    """Draws the cohort of a synchronous round, see `RoundContext.sample`."""
    return schedule.draw(stream(root, "cohort", round, 0), offsets)[0]


def server_steps_of(algorithm: Algorithm[Any], setup: Setup, rounds: int) -> ServerSteps | None:
    """Returns the server steps of a method; None if its server waits for its cohorts.

    Raises:
        InvalidInput: a method, a solver, a channel or a task that does not fit, with the reason; no
            devices.
    """
    server, name, channel = setup.schedule.server, type(algorithm).__name__, setup.channel
    if server is None:
        return None
    if channel is not None and channel.privacy is not None:
        reason = "no account of privacy is known for uploads of several versions"
        raise InvalidInput.because(FIELD, f"{reason}, which Channel(privacy=...) asks for")
    if setup.task.state is not None and setup.task.state_policy == "average":
        reason = (
            "the model's state, such as batch statistics, is averaged, and a mean of stale ones "
            "would discard newer ones"
        )
        raise InvalidInput.because(FIELD, reason, "Freeze it.")
    if not setup.solver.is_counted and _passes(server) is None:
        reason = f"how long {type(setup.solver).__name__} works depends on the data"
        raise InvalidInput.because(
            FIELD,
            reason,
            "Declare its cost: Asynchronous(passes=...) or Devices(passes=...), in passes over "
            "the examples.",
        )
    backend = _InspectionBackend(dataclasses.replace(setup, channel=None), channel, name)

    def one_round() -> None:
        root, w = jax.random.key(0), jnp.zeros(setup.layout.dim, setup.layout.dtype)
        state = algorithm.init(RoundContext(RecordingBackend(backend.setup), 0, root), w)
        algorithm.round(_InspectionContext(backend, 1, root), state)

    jax.eval_shape(one_round)
    if backend.problem is not None:
        raise backend.problem
    if backend.found is None:
        raise _refused(name, "a round without any phase has no arrivals")
    near, form, bits = backend.found
    if near is None and server.uploads == "models":
        raise _refused(
            name,
            'uploads="models" mixes models, and its uploads are changes',
            'Write uploads="changes".',
        )
    phase = backend.phases[-1]
    gradients = phase.step_gradients, phase.full_gradients
    return ServerSteps(server, server.uploads, near, form, bits, gradients, rounds)


def _passes(server: Asynchronous) -> float | None:
    """Returns the passes that a client's work counts as, None where it is counted."""
    return getattr(server.devices, "passes", None) if server.passes is None else server.passes


def _refused(name: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput.because(f"{FIELD}, {name}", reason, hint)


class _InspectionContext(RoundContext):
    """A round that remembers the clients of its draw."""

    def sample(self, weights: Float[Array, "clients"] | None = None) -> Cohort:
        backend: Any = self.backend
        if weights is not None:
            raise _refused(
                backend.name,
                "it draws its clients by weights, and the arrivals are not drawn by them",
            )
        cohort = super().sample()
        backend.drawn = cohort.ids
        return cohort


class _Phase(NamedTuple):
    """What a run needs to know of the only phase, see `ServerSteps`."""

    near: int | None
    form: PyTree
    bits: tuple[int, int]


class _InspectionBackend(RecordingBackend):
    """Traces a round, and refuses methods whose uploads lose their meaning when they arrive
    late.
    """

    def __init__(self, setup: Setup, channel: Any, name: str) -> None:
        super().__init__(setup)
        self.channel, self.name = channel, name
        self.drawn: Any = None
        self.found: _Phase | None = None
        # of the upload, raised after a message about the phases
        self.problem: InvalidInput | None = None

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        raise _refused(self.name, "a method without a server has no server steps")

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        if self.found is not None:
            reason = (
                f"phase {phase_work.name} follows another one, and between the two the server "
                "would wait for all clients"
            )
            raise _refused(self.name, reason)
        # by identity: a cohort keeps the ids of its draw
        if cohort.ids is not self.drawn:
            reason = (
                f"phase {phase_work.name} asks clients that the schedule has not drawn, "
                "such as everyone"
            )
            raise _refused(self.name, reason)
        down = decode(phase_work.down)[0]
        rows = [client_states["own"].of(cohort.ids[0])] if "own" in client_states else []
        upload = phase_work.work(Probe(self.setup, phase_work), *down, *rows)
        self.found = _Phase(
            self._place_of_reference(upload, down, phase_work.name),
            *self._messages(phase_work, upload),
        )
        return super().work(phase_work, cohort, client_states, gather)

    def _place_of_reference(self, upload: Upload[Any], down: PyTree, phase: str) -> int | None:
        if upload.is_change:
            return None
        if upload.reference is None:
            reason = (
                f"uploads of phase {phase} say neither where their model started nor that "
                "they are changes"
            )
            hint = "Write Upload(model, reference=w), or Upload(change, is_change=True)."
            self.problem = _refused(self.name, reason, hint)
            return None
        # by identity: while tracing, a vector that was sent down is the very object that the work
        # function saw
        near = next((i for i, v in enumerate(vectors(down)) if v is upload.reference), None)
        if near is None:
            reason = (
                f"the reference of uploads of phase {phase} is none of the vectors sent down, "
                "whose newest version is known"
            )
            self.problem = _refused(self.name, reason)
        return near

    def _messages(
        self, phase_work: PhaseWork, upload: Upload[Any]
    ) -> tuple[PyTree, tuple[int, int]]:
        """Returns the arrays sent down as shapes and types, and the bits of one message down and
        up.
        """
        down, up, key = phase_work.down, upload.value, jax.random.key(0)
        if self.channel is not None and self.channel.down is not None:
            down = encode(down, self.channel.down.with_layout(self.setup.layout), key)[0]
        if self.channel is not None and self.channel.up is not None:
            codec = self.channel.up.with_layout(self.setup.layout)
            up = encode(up, codec, key, upload.reference)[0]
        weight = 0 if upload.weight is None else bits_of(upload.weight)
        form = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            eqx.filter(down, eqx.is_array),
        )
        return form, (bits_of(down), bits_of(up) + weight)


def row_of(arrivals: Arrivals | None, step: Index) -> Arrivals | None:
    """Returns one row of some arrivals."""
    return jax.tree.map(lambda rows: rows[step], arrivals)
