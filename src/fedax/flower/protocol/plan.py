"""The phases of a run as server and clients both know them: which work functions there are, and
what they exchange.

Both trace the same round of the same algorithm. A message then needs a work function's name and
arrays, nothing else, and every array has a known shape and type before it arrives.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fedax.communication.channel import Channel
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.federation import Cohort, Memory
from fedax.core.scheduling.schedule import Schedule
from fedax.engine.compilation.fingerprint import Fingerprinter
from fedax.engine.round.backend import PhaseResult, PhaseWork
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.engine import initial_carry
from fedax.engine.round.footprint import Probe, RecordingBackend
from fedax.errors import InvalidInput
from fedax.utils.layout import Layout

PROTOCOL = 4
"""The version of the messages."""


class Phase(NamedTuple):
    """One work function and the forms of its messages: shapes and types in place of arrays.

    Attributes:
        work: the function.
        down: what it is sent, messages of a codec unopened.
        up: its upload, a pair of value and weight, messages unopened.
        held: the client's memories that it takes, by name.
        kept: the names of those that it leaves.
        gather: whether the server takes single uploads.
    """

    work: Callable[..., Any]
    down: PyTree
    up: PyTree
    held: dict[str, PyTree]
    kept: tuple[str, ...]
    gather: bool = False


class Own(NamedTuple):
    """The model that a client uses itself: its work function, and the forms of what it is sent and
    of its memory.
    """

    work: Callable[..., Any]
    down: PyTree
    memory: PyTree | None


class Plan(NamedTuple):
    """All phases by the name of their work functions; several of one name differ in their forms."""

    phases: dict[str, list[Phase]]
    own: Own | None


class Planning(RecordingBackend):
    """Traces a round and keeps the forms of what would be sent."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.plan: dict[str, list[Phase]] = {}

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, held: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        result = super().work(phase_work, cohort, held, gather)
        rows = {name: memory.of(cohort.ids[0]) for name, memory in held.items()}
        kept = jax.eval_shape(lambda: phase_work(Probe(self.setup, phase_work), rows))[1]
        up = form((result.upload.value, result.upload.weight))
        phase = Phase(
            phase_work.work, form(phase_work.down), up, form(rows), tuple(sorted(kept)), gather
        )
        known = self.plan.setdefault(phase_work.work.__name__, [])
        if not any(_same(phase, other) for other in known):
            known.append(phase)
        return result

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        held: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        hint = (
            "Run it on MPI peers, `mpiexec -n 5 fedax run FILE --engine mpi`, or in a simulation."
        )
        reason = "a method without a server, and Flower's clients talk to a server only"
        raise InvalidInput.because("Flower engine", reason, hint)


def plan_of(algorithm: Algorithm[Any], setup: Setup) -> Plan:
    """Returns the phases of an algorithm in a setup.

    Raises:
        InvalidInput: a method without a server, a model with a state that changes.
    """
    if setup.task.state is not None and setup.task.state_policy != "frozen":
        hint = (
            "Replace batch norm by group norm, or freeze statistics that are trained already by "
            "state_policy='frozen'. A simulation and MPI can change them."
        )
        raise InvalidInput.because(
            "Flower engine", "a model with a state that changes, which is not sent", hint
        )
    if getattr(setup.solver, "keep", False):
        hint = "Let it start afresh by keep=False, or use a simulation or MPI."
        raise InvalidInput.because(
            "Flower engine", "a solver with keep=True, whose state clients do not store there", hint
        )
    backend = Planning(setup)
    own: list[Own] = []

    def two_rounds() -> None:
        root, w = jax.random.key(0), jnp.zeros(setup.layout.dim, setup.layout.dtype)
        carry = initial_carry(backend, algorithm, root, w)
        for t in (0, 1):  # a first round may be another one
            state = algorithm.round(
                RoundContext(backend, t, root, carry.lost, None, carry.bounds), carry.state
            )
        how = algorithm.personal(state)
        if how is not None:
            memory = None if how.memory is None else form(how.memory.of(jnp.int32(0)))
            own.append(Own(how.work, form(how.down), memory))

    jax.eval_shape(two_rounds)
    return Plan(backend.plan, own[0] if own else None)


def form(tree: PyTree) -> PyTree:
    """Replaces arrays by shapes and types."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _same(one: Phase, other: Phase) -> bool:
    return jax.tree.structure(one[1:4]) == jax.tree.structure(other[1:4]) and jax.tree.leaves(
        one[1:4]
    ) == jax.tree.leaves(other[1:4])


class Assignment(NamedTuple):
    """A run that clients take part in: what a client has to know besides its examples.

    Server and clients need equal assignments. A client refuses the messages of any other run.

    Attributes:
        algorithm: the method.
        solver: the local solver.
        schedule: the work of a round.
        channel: codecs, privacy and attacks, None for plain messages.

    >>> import fedax
    >>> from fedax.flower import Assignment
    >>> run = Assignment(fedax.FedAvg(), fedax.SGD(0.5), fedax.Schedule(steps=2))
    >>> run.schedule.steps, run.channel is None
    (2, True)
    """

    algorithm: Algorithm[Any]
    solver: Solver
    schedule: Schedule
    channel: Channel | None = None

    def name(self, layout: Layout) -> str:
        """Returns a hash that is the same for equal assignments, hyperparameters and all."""
        vector = jax.ShapeDtypeStruct((layout.dim,), layout.dtype)
        params = jax.eval_shape(layout.unravel, vector)
        describe = Fingerprinter((params, vector))
        facts = {name: describe(value, name) for name, value in self._asdict().items()}
        facts["model"] = [str(layout.treedef), layout.shapes, layout.dtype]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
