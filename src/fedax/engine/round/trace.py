"""Traces rounds of a method abstractly: what every phase sends, stores and computes.

A method declares nothing. Footprints, the accounting of privacy, virtual clocks, the fingerprint of
a run and Flower's messages are read from these records.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.channel import bits_of, decode, is_message, is_vector
from fedax.core.algorithm import Algorithm
from fedax.core.carry import RunCarry
from fedax.core.client import Carry, Client, Minibatch, Solver
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.core.hyper import bound_to
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD
from fedax.core.task import Task
from fedax.core.validation.misuse import explained
from fedax.engine.compilation.jaxpr import subjaxprs, trip_count
from fedax.engine.round.backend import Backend
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.phase import PhaseResult, PhaseWork, name_of, to_shapes, vectors, zeros
from fedax.errors import InvalidInput
from fedax.utils.random import stream


class TracedPhase(NamedTuple):
    """A phase of a traced round. Arrays are shapes and types.

    Attributes:
        work: the work function; on a graph the one that sends.
        occurrence: how often a function of its name ran before in the round.
        draw: number of the schedule's draw that the clients are from, "everyone", "weighted" for a
            draw by the algorithm's own weights, or None for other clients.
        everyone: whether as many clients work as there are.
        gather: whether the server takes single uploads.
        links: whether uploads go to neighbours on a graph.
        down: what is sent down, messages of a codec unopened.
        beside: what is sent down beside it, such as the model's state.
        upload: as the work function returns it.
        near: number of the vector sent down that is the reference of the upload; None if none is.
        up: the upload's value and weight as they are sent, messages unopened.
        states: what is stored for one client, by name.
        stored: the names of the states that the work leaves.
        programs: the jaxprs of a client's work, with marks for gradients; on a graph that of the
            half that sends and that of the half that receives.
    """

    work: Callable[..., Any]
    occurrence: int
    draw: int | str | None
    everyone: bool
    gather: bool
    links: bool
    down: PyTree
    beside: PyTree
    upload: Upload[Any]
    near: int | None
    up: tuple[PyTree, PyTree]
    states: dict[str, PyTree]
    stored: tuple[str, ...]
    programs: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Name of the work function."""
        return name_of(self.work)

    @property
    def bits(self) -> tuple[int, int]:
        """Bits of one message down and up; the model's state travels beside them."""
        return bits_of((self.down, self.beside)), bits_of(self.up)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the vectors of the upload that a channel codes."""
        leaves = jax.tree.leaves(self.upload.value, is_leaf=is_message)
        return tuple(leaf.shape[0] for leaf in leaves if is_vector(leaf))

    @property
    def gradients(self) -> tuple[int, int]:
        """Minibatch gradients of a local step, and gradients over all the client's examples."""
        step, full = (
            sum(_count_calls(program.jaxpr, mark) for program in self.programs)
            for mark in (_mark_minibatch_gradient, _mark_full_gradient)
        )
        return step, full


class Trace(NamedTuple):
    """Traced rounds of a method.

    Attributes:
        rounds: the phases of each round.
        memories: one client's row of each state, in the order in which they were made.
        state: the algorithm's state after the last round.
    """

    rounds: list[list[TracedPhase]]
    memories: list[PyTree]
    state: Any


def trace(
    setup: Setup,
    rounds: tuple[int, ...] = (1,),
    states: type[ClientStates] = ClientStates,
) -> Trace:
    """Traces some rounds of a method, one after the other.

    With a channel they begin with what clients store for its codec and the model's state.

    Args:
        setup: of the rounds, with the channel through which messages go.
        rounds: their numbers; by default round 1, because some methods do more in round 0.
        states: the class of the clients' states.
    """
    backend = TracingBackend(setup, states)
    done: list[list[TracedPhase]] = []

    def run() -> Any:
        root = jax.random.key(0)
        w = jnp.zeros(setup.layout.dim, setup.layout.dtype)
        start = start_run if setup.channel is None else initial_carry
        carry = start(backend, root, w)
        for t in rounds:
            backend.phases = []
            fed = RoundContext(backend, t, root, carry)
            backend.origins = fed.origins
            with explained(setup.algorithm.round):
                carry = fed.end(setup.algorithm.round(fed, carry.state))
            done.append(backend.phases)
        return carry.state

    state = jax.eval_shape(run)
    return Trace(done, backend.memories, state)


def start_run(backend: Backend, root: Key[Array, ""], w: Float[Array, "dim"]) -> RunCarry:
    """Returns the carry before round 0 as far as it does not depend on the phases of a round."""
    # a separate root, because with the run's root the draws of `init` would be those of round 0
    algorithm = backend.setup.algorithm
    fed = RoundContext(backend, 0, stream(root, "init"))
    with explained(algorithm.init):
        state = algorithm.init(fed, w)
    if fed.traffic:
        raise InvalidInput.because("init", "clients work in it; let them do so in a round")
    # numbers of Python are arrays after a round
    state = jax.tree.map(jnp.asarray, state)
    initial = backend.setup.solver.initial_state(backend.setup.layout.unravel(w))
    solver_states = None if initial is None else backend.client_states(initial)
    # that the server sends and averages
    task = backend.setup.task
    model_state = task.state if task.state_policy == "average" else None
    return RunCarry(state, model_state=model_state, solver_states=solver_states)


def initial_carry(backend: Backend, root: Key[Array, ""], w: Float[Array, "dim"]) -> RunCarry:
    """Returns the carry before round 0: the algorithm's initial state, and what clients store."""
    carry = start_run(backend, root, w)
    setup = backend.setup
    task = setup.task
    if setup.timing is not None and setup.timing.late is not None:
        carry = carry._replace(downlinks=zeros(setup.timing.late.form, 1))
    if setup.private is not None:
        carry = carry._replace(bounds=setup.private.initial_bounds())
    # codec and model state need the phases of a round, which cost a trace
    codec = setup.channel.up if setup.channel is not None and setup.channel.has_memory else None
    is_changing = task.state is not None and task.state_policy != "frozen"
    if codec is None and not is_changing:
        return carry
    (phases,) = trace(dataclasses.replace(setup, channel=None)).rounds
    if codec is not None:
        # one memory for every vector that the phase codes
        memories = [
            tuple(codec.initial_memory(length, w.dtype) for length in phase.lengths)
            for phase in phases
        ]
        carry = carry._replace(lost=tuple(map(backend.client_states, memories)))
    # without a server, every node has its own state
    if is_changing and (task.state_policy == "local" or any(phase.links for phase in phases)):
        carry = carry._replace(model_state=backend.client_states(task.state))
    elif is_changing:
        carry = carry._replace(model_state=jax.tree.map(jnp.array, task.state))
    return carry


class TracingBackend(Backend):
    """Backend that computes nothing: traces each phase's work at one client, and returns zeros.

    Attributes:
        phases: since the list was last renewed.
        origins: of the cohorts, see `RoundContext`.
        memories: see `Trace`.
    """

    padded = True

    def __init__(self, setup: Setup, states: type[ClientStates] = ClientStates) -> None:
        self.setup = setup
        self.states_class = states
        self.memories: list[PyTree] = []
        self.phases: list[TracedPhase] = []
        self.origins: list[tuple[Any, int | str]] = []

    def client_states(self, initial: PyTree) -> ClientStates:
        states = self.states_class(super().client_states(initial).all())
        self.memories.append(jax.eval_shape(states.of, jnp.int32(0)))
        return states

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates], gather: bool
    ) -> PhaseResult:
        rows = {name: memory.of(cohort.ids[0]) for name, memory in states.items()}
        upload: Upload[Any] | None = None
        near = None

        def work() -> tuple[Upload[Any], dict[str, PyTree]]:
            nonlocal upload, near
            client = Probe(self.setup, phase_work)
            inputs = phase_work.inputs(client, rows)
            returned = phase_work.run(client, inputs)
            upload = to_shapes(jax.tree.map(jnp.asarray, returned))
            # by identity: while tracing, a vector that was sent down is the very object that the
            # work function saw
            sent = vectors(inputs[: len(phase_work.down)])
            near = next((i for i, v in enumerate(sent) if v is returned.reference), None)
            return phase_work.send(client, returned, rows)

        program, (sent, new_rows) = jax.make_jaxpr(work, return_shape=True)()
        if phase_work.receives:  # the other half of an exchange, which sends nothing
            phase = self.phases[-1]
            self.phases[-1] = phase._replace(links=True, programs=(*phase.programs, program))
        else:
            assert upload is not None
            self.phases.append(
                TracedPhase(
                    work=phase_work.work,
                    occurrence=phase_work.occurrence,
                    draw=next((draw for ids, draw in self.origins if ids is cohort.ids), None),
                    everyone=cohort.ids.shape[0] == self.setup.population.clients,
                    gather=gather,
                    links=False,
                    down=to_shapes(phase_work.down),
                    beside=to_shapes([stage.beside for stage in phase_work.stages]),
                    upload=upload,
                    near=near,
                    up=to_shapes((sent.value, sent.weight)),
                    states=to_shapes(rows),
                    stored=tuple(sorted(new_rows)),
                    programs=(program,),
                )
            )
        value = phase_work.open(decode(zeros(sent.value)))
        capacity = cohort.ids.shape[0]
        gathered = jax.tree.map(lambda x: jnp.broadcast_to(x, (capacity, *x.shape)), value)
        broken = jnp.zeros(capacity, jnp.int32)
        stored = zeros(new_rows, capacity)
        return PhaseResult(sent, None, (gathered, cohort.weights), stored, broken)


class Probe(Client):
    """A client without examples, whose gradients are marks in the jaxpr, to be counted."""

    def __init__(self, setup: Setup, phase_work: PhaseWork) -> None:
        super().__init__(
            setup.task, setup.solver, setup.schedule, setup.layout, stream(phase_work.root, "probe")
        )
        self.index = self.size = self.steps = self.batch = jnp.int32(1)
        self.round = phase_work.round
        self.share = jnp.ones((), setup.layout.dtype)

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        """Traces one step; footprints count costs per step."""
        return step(carry, *[ProbeBatch(self, _mark_minibatch_gradient)] * batches)

    def first(self, count: int, split: Literal["train", "test"] = "train") -> "ProbeBatch":
        return ProbeBatch(self, _mark_full_gradient)


class ProbeBatch(Minibatch):
    """A minibatch of a probe, or several examples at once.

    Args:
        client: whose they are.
        mark: of a gradient by them.
    """

    def __init__(self, client: Probe, mark: Callable[[PyTree], PyTree]) -> None:
        self.client = client
        self.mark = mark

    def loss(self, params: PyTree) -> Float[Array, ""]:
        return jnp.stack([leaf.sum() for leaf in jax.tree.leaves(params)]).sum()

    def gradient(self, params: PyTree) -> PyTree:
        return self.mark(params)

    def hessian_product(self, params: PyTree, direction: PyTree) -> PyTree:
        return self.mark(params)

    def mean_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        task = self.client.task
        row = {name: jnp.zeros((1, *x.shape[1:]), x.dtype) for name, x in task.train.arrays.items()}
        return task.sums(function, params, row, jnp.ones(1, self.client.layout.dtype), None)

    def gradient_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        return self.mark(params)


# jitted functions appear in a jaxpr as calls with their names, by which they are counted
@jax.jit
def _mark_full_gradient(params: Any) -> Any:
    return jax.tree.map(lambda x: 2 * x, params)


@jax.jit
def _mark_minibatch_gradient(params: Any) -> Any:
    return jax.tree.map(lambda x: 2 * x, params)


def _count_calls(program: Any, mark: Any) -> int:
    """Counts the calls of a mark in a jaxpr.

    A loop of known length counts with its trip count, any other loop once.
    """
    total = 0
    for equation in program.eqns:
        if equation.params.get("name") == mark.__name__:
            total += 1
            continue
        total += (trip_count(equation) or 1) * sum(
            _count_calls(program, mark) for program in subjaxprs(equation)
        )
    return total


class Amount(NamedTuple):
    """Number of model vectors, and of single numbers beside them."""

    vectors: int
    numbers: int


class PhaseCost(NamedTuple):
    """Costs of one phase (a call of `average`, `gather` or `exchange`) for one
    client.

    Attributes:
        work: the work function.
        everyone: whether all clients take part, not a drawn cohort.
        links: whether the upload goes to every neighbour on a graph.
        coded: whether the algorithm codes vectors of its upload itself.
        down, up: what the participant receives and sends.
        down_bits, up_bits: the same in bits, without a channel.
        step_gradients: gradients in every local step; a Hessian-vector product counts as one.
        full_gradients: gradients over all the client's examples. One in a loop of unknown length
            counts once.
    """

    work: str
    everyone: bool
    links: bool
    coded: bool
    down: Amount
    up: Amount
    down_bits: int
    up_bits: int
    step_gradients: int
    full_gradients: int


class Footprint(NamedTuple):
    """Costs of a round of an algorithm, phase by phase.

    Attributes:
        phases: in order.
        memory: what each client keeps from round to round.
    """

    phases: tuple[PhaseCost, ...]
    memory: Amount

    def gradients(self, steps: float, epoch: float) -> float:
        """Returns the minibatch gradients that a client computes in a round with `steps` steps.

        A gradient over all its examples is as many as an `epoch` has.
        """
        return sum(
            phase.step_gradients * steps + phase.full_gradients * epoch for phase in self.phases
        )


def footprint(
    algorithm: Algorithm[Any], task: Task | None = None, *, solver: Solver | None = None
) -> Footprint:
    """Returns phases, traffic, memory and gradients of a round of this algorithm, from round 1 on.

    Args:
        algorithm: the method.
        task: for its model; by default a small one stands in. All but two of its clients are drawn.
        solver: of local problems; `SGD(0.01)` by default.

    >>> import fedax
    >>> scaffold = fedax.footprint(fedax.SCAFFOLD(option="I"))
    >>> (
    ...     [(phase.work, phase.down.vectors, phase.up.vectors) for phase in scaffold.phases],
    ...     scaffold.memory.vectors,
    ... )
    ([('train', 2, 2)], 1)
    >>> scaffold.gradients(steps=20, epoch=5)
    25
    """
    if task is None:
        task = _make_small_task()
    clients = task.train.clients
    algorithm = bound_to(algorithm, task.names, clients)
    schedule = Schedule(cohort=max(clients - 2, 1))
    setup = Setup.of(algorithm, task, schedule, solver or SGD())
    traced = trace(setup)
    dim = setup.layout.dim
    costs: list[PhaseCost] = []
    for phase in traced.rounds[-1]:
        leaves = jax.tree.leaves(phase.upload.value, is_leaf=is_message)
        is_coded = any(map(is_message, leaves))
        amounts = _amount((phase.down, phase.beside), dim), _amount(phase.up, dim)
        kind = phase.name, phase.everyone, phase.links, is_coded
        costs.append(PhaseCost(*kind, *amounts, *phase.bits, *phase.gradients))
    return Footprint(tuple(costs), _amount(traced.memories, dim))


def _amount(tree: PyTree, dim: int) -> Amount:
    """Counts what a pytree holds: a vector of the model's length counts as a model."""
    vectors = numbers = 0
    for leaf in jax.tree.leaves(tree, is_leaf=is_message):
        if is_message(leaf) or (is_vector(leaf) and leaf.shape[0] == dim):
            vectors += 1
        else:
            numbers += leaf.size
    return Amount(vectors, numbers)


def _make_small_task() -> Task:
    # with two classes, which some methods need
    examples = [{"x": [0.0], "y": [0]}] * 5

    def predict(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch classes"]:
        return jax.nn.softmax(examples["x"][:, None] * params["b"][None])

    return Task(
        {"a": jnp.zeros(3), "b": jnp.zeros(2)},
        lambda params, examples, key: examples["x"] * params["a"].sum(),
        examples,
        predictor=predict,
    )
