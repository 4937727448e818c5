"""The phases of a run as server and clients both know them: which work functions there are, and
what they exchange.

Both trace the same round of the same algorithm. A message then needs a work function's name and
arrays, nothing else, and every array has a known shape and type before it arrives.
"""

import hashlib
import inspect
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
from fedax.core.validation.own_methods import call_round
from fedax.engine.compilation.identity import describe, strip_addresses
from fedax.engine.round.backend import PhaseResult, PhaseWork
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.engine import initial_carry
from fedax.engine.round.footprint import Probe, RecordingBackend
from fedax.errors import InvalidInput
from fedax.utils.layout import Layout

PROTOCOL = 5
"""The version of the messages."""


class Phase(NamedTuple):
    """One work function and the forms of its messages: shapes and types in place of arrays.

    A function may run several times in a round, with other forms or with other values that it has
    bound. So each of its runs is a phase.

    Attributes:
        work: the function.
        occurrence: how often a function of this name ran before in the round.
        down: what it is sent, messages of a codec unopened.
        up: its upload, a pair of value and weight, messages unopened.
        held: the client's memories that it takes, by name.
        kept: the names of those that it leaves.
        gather: whether the server takes single uploads.
    """

    work: Callable[..., Any]
    occurrence: int
    down: PyTree
    up: PyTree
    held: dict[str, PyTree]
    kept: tuple[str, ...]
    gather: bool = False

    def fits(self, work: Callable[..., Any], down: PyTree, held: dict[str, PyTree]) -> bool:
        """Returns whether a function with these forms has this phase's code and forms."""
        forms, own_forms = (down, held), (self.down, self.held)
        return (
            _code_of(work) is _code_of(self.work)
            and jax.tree.structure(forms) == jax.tree.structure(own_forms)
            and jax.tree.leaves(forms) == jax.tree.leaves(own_forms)
        )


class OwnModel(NamedTuple):
    """The model that a client uses itself: its work function, and the forms of what it is sent and
    of its memory.
    """

    work: Callable[..., Any]
    down: PyTree
    memory: PyTree | None


class Plan(NamedTuple):
    """All phases by the name of their work functions; of those of one name, an order says the
    number.
    """

    phases: dict[str, list[Phase]]
    own: OwnModel | None


class PlanningBackend(RecordingBackend):
    """Traces a round and keeps the forms of what would be sent."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.plan: dict[str, list[Phase]] = {}

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        result = super().work(phase_work, cohort, client_states, gather)
        states = {name: memory.of(cohort.ids[0]) for name, memory in client_states.items()}
        new_states = jax.eval_shape(lambda: phase_work(Probe(self.setup, phase_work), states))[1]
        up = to_shapes((result.upload.value, result.upload.weight))
        phase = Phase(
            phase_work.work,
            phase_work.occurrence,
            to_shapes(phase_work.down),
            up,
            to_shapes(states),
            tuple(sorted(new_states)),
            gather,
        )
        phases = self.plan.setdefault(phase_work.work.__name__, [])
        is_known = any(
            other.occurrence == phase.occurrence and other.fits(phase.work, phase.down, phase.held)
            for other in phases
        )
        if not is_known:
            phases.append(phase)
        return result

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
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
    backend = PlanningBackend(setup)
    own_models: list[OwnModel] = []

    def two_rounds() -> None:
        root, w = jax.random.key(0), jnp.zeros(setup.layout.dim, setup.layout.dtype)
        carry = initial_carry(backend, algorithm, root, w)
        for t in (0, 1):  # a first round may be another one
            context = RoundContext(backend, t, root, carry.lost, None, carry.bounds)
            state = call_round(algorithm, context, carry.state)
        personal = algorithm.personal(state)
        if personal is not None:
            memory = (
                None if personal.memory is None else to_shapes(personal.memory.of(jnp.int32(0)))
            )
            own_models.append(OwnModel(personal.work, to_shapes(personal.down), memory))

    jax.eval_shape(two_rounds)
    return Plan(backend.plan, own_models[0] if own_models else None)


def to_shapes(tree: PyTree) -> PyTree:
    """Replaces arrays by shapes and types."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _code_of(work: Callable[..., Any]) -> Any:
    """Returns the code of a work function, the same whenever a round defines the function again."""
    return getattr(inspect.unwrap(work), "__code__", None)


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
        facts = describe(self._asdict(), "assignment")
        facts["model"] = strip_addresses(f"{layout.treedef} {layout.shapes} {layout.dtype}")
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
