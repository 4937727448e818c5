"""The phases of a run as server and clients both know them: which work functions there are, and
what they exchange.

Both trace the same round of the same algorithm. A message then needs a work function's name and
arrays, nothing else, and every array has a known shape and type before it arrives.
"""

import functools
import hashlib
import inspect
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.communication.channel import Channel
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.scheduling.schedule import Schedule
from fedax.engine.compilation.identity import describe, strip_addresses
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import to_shapes
from fedax.engine.round.trace import TracedPhase, trace
from fedax.errors import InvalidInput
from fedax.utils.layout import Layout

PROTOCOL = 7
"""The version of the messages. Assignments of another one have other names."""


class OwnModel(NamedTuple):
    """The model that a client uses itself: its work function, and the forms of what it is sent and
    of its state.
    """

    work: Callable[..., Any]
    down: PyTree
    state: PyTree | None


class Plan(NamedTuple):
    """All phases of an algorithm in a setup; an order says the number.

    A function may run several times in a round, with other forms or with other values that it has
    bound. So each of its runs is a phase.
    """

    setup: Setup
    phases: list[TracedPhase]
    own: OwnModel | None
    state: Any


def plan_of(setup: Setup) -> Plan:
    """Returns the phases of the algorithm of a setup.

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
    traced = trace(setup, (0, 1))  # a first round may be another one
    phases = list(itertools.chain(*traced.rounds))
    if any(phase.links for phase in phases):
        hint = (
            "Run it on MPI peers, `mpiexec -n 5 fedax run FILE --engine mpi`, or in a simulation."
        )
        reason = "a method without a server, and Flower's clients talk to a server only"
        raise InvalidInput.because("Flower engine", reason, hint)
    return Plan(setup, phases, _own_model(setup.algorithm, traced.state), traced.state)


def _own_model(algorithm: Algorithm[Any], state: Any) -> OwnModel | None:
    """Returns the model that a client uses itself, given the shapes of the algorithm's state."""

    def own_model(state: Any) -> OwnModel | None:
        personal = algorithm.personal(state)
        if personal is None:
            return None
        own = None if personal.states is None else personal.states.of(jnp.int32(0))
        return OwnModel(personal.work, personal.down, own)

    return to_shapes(eqx.filter_eval_shape(own_model, state))


def fits(
    phase: TracedPhase, work: Callable[..., Any], down: PyTree, states: dict[str, PyTree]
) -> bool:
    """Returns whether a function with these forms has a phase's code, bound values and forms."""
    known = _content_of(phase.work), phase.down, phase.states
    return bool(eqx.tree_equal((_content_of(work), down, states), known))


def _content_of(value: Any) -> Any:
    """Returns what a value is equal by: of a function, its code and the values that it has bound,
    because a round may define it again.
    """
    function = inspect.unwrap(value)
    if isinstance(function, functools.partial):
        return _content_of(function.func), function.args, function.keywords
    if not hasattr(function, "__code__"):
        return value
    bound = [_content_of(cell.cell_contents) for cell in function.__closure__ or ()]
    return function.__code__, function.__defaults__, function.__kwdefaults__, bound


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

    def name(self, layout: Layout, clients: int, l2: float) -> str:
        """Returns a hash that is the same for equal assignments, hyperparameters and all, of runs
        with as many clients and a task with the same l2.

        A run goes on with another budget of privacy, of which each client keeps its own.
        """
        facts = describe(self._asdict(), "assignment")
        facts.pop("assignment.channel.privacy.budget", None)
        facts["run"] = f"{clients} clients, l2 {float(l2)}, protocol {PROTOCOL}"
        facts["model"] = strip_addresses(f"{layout.treedef} {layout.shapes} {layout.dtype}")
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
