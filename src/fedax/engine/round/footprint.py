"""Derives phases, traffic, memory and gradients of a round by tracing the algorithm abstractly.

Nothing is declared.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.communication.channel import bits_of, decode, is_message, is_vector
from fedax.core.algorithm import Algorithm
from fedax.core.client import Carry, Client, Minibatch, Solver
from fedax.core.federation import Cohort, Memory
from fedax.core.hyper import as_arrays, bound_to, declared
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD
from fedax.core.task import Task
from fedax.core.validation.own_methods import call_init, call_round
from fedax.engine.compilation.jaxpr import subjaxprs, trip_count
from fedax.engine.round.backend import Backend, PhaseResult, PhaseWork, zeros
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.model_state import Sent, shared_state
from fedax.examples.federated import FederatedData
from fedax.utils.layout import Layout
from fedax.utils.random import stream


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
        codable: the lengths of the vectors of the upload that a channel would code.
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
    codable: tuple[int, ...]
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
    algorithm: Algorithm[Any],
    task: Task | None = None,
    *,
    solver: Solver | None = None,
    clients: int = 5,
) -> Footprint:
    """Returns phases, traffic, memory and gradients of a round of this algorithm, from round 1 on.

    Args:
        algorithm: the method.
        task: for its model; by default a small one stands in.
        solver: of local problems; `SGD(0.01)` by default.
        clients: of the stand-in, of which all but two are drawn.

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
        task = _make_small_task(clients)
        # its clients have no names
        by_name = {
            name: limits.default
            for name, limits in declared(algorithm).items()
            if isinstance(getattr(algorithm, name), Mapping)
        }
        algorithm = dataclasses.replace(algorithm, **by_name)
    else:
        algorithm = bound_to(algorithm, task.names, task.train.clients)
        clients = task.train.clients
    layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
    schedule = Schedule(cohort=max(clients - 2, 1))
    return trace_footprint(
        algorithm,
        Setup(
            task, as_arrays(solver or SGD(), layout.dtype), schedule, layout, task.train.population
        ),
    )


def trace_footprint(algorithm: Algorithm[Any], setup: Setup) -> Footprint:
    """Traces the footprint of an algorithm in a setup, without its channel."""
    # without a channel: bits are those of uncompressed messages, and residuals are not memory
    backend = RecordingBackend(dataclasses.replace(setup, channel=None))

    def one_round() -> None:
        root, w = jax.random.key(0), jnp.zeros(setup.layout.dim, setup.layout.dtype)
        state = call_init(algorithm, RoundContext(backend, 0, root), w)
        # round 1, because some methods do more in round 0
        solver_states = setup.solver.initial_state(setup.layout.unravel(w))
        solver_states = None if solver_states is None else backend.memory(solver_states)
        model_state = shared_state(setup.task)
        fed = RoundContext(backend, 1, root, model_state=model_state, solver_states=solver_states)
        call_round(algorithm, fed, state)

    jax.eval_shape(one_round)
    return Footprint(
        tuple(backend.phases), Amount(*map(sum, zip((0, 0), *backend.kept, strict=True)))
    )


def _make_small_task(clients: int) -> Task:
    start = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
    # with two classes, which some methods need
    examples = FederatedData.from_arrays([{"x": [0.0], "y": [0]}] * clients)

    def predict(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch classes"]:
        return jax.nn.softmax(examples["x"][:, None] * params["b"][None])

    return Task(
        lambda key: start,
        lambda params, examples, key: examples["x"] * params["a"].sum(),
        examples,
        predictor=predict,
    )


class RecordingBackend(Backend):
    """Backend that computes nothing: traces each phase's work at one client, and returns zeros."""

    padded = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.phases: list[PhaseCost] = []
        self.kept: list[Amount] = []
        self.programs: list[Any] = []

    def memory(self, initial: PyTree) -> Memory:
        memory = super().memory(initial)
        self.kept.append(self._amount(jax.eval_shape(memory.of, jnp.int32(0))))
        return memory

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        rows = {name: memory.of(cohort.ids[0]) for name, memory in client_states.items()}
        program, (upload, new_rows) = jax.make_jaxpr(
            lambda: phase_work(Probe(self.setup, phase_work), rows), return_shape=True
        )()
        self.programs.append(program)
        self._record(
            phase_work,
            cohort,
            upload,
            (
                _count_calls(program.jaxpr, _mark_minibatch_gradient),
                _count_calls(program.jaxpr, _mark_full_gradient),
            ),
        )
        value, clipped = decode(zeros(upload.value))
        value = phase_work.adjust_upload(value)
        capacity = cohort.ids.shape[0]
        new_states = {
            name: client_states[name].put(cohort.ids, zeros(rows, capacity))
            for name, rows in new_rows.items()
        }
        gathered = (
            jax.tree.map(lambda x: jnp.broadcast_to(x, (capacity, *x.shape)), value),
            cohort.weights,
        )
        return PhaseResult(
            upload,
            (value, cohort.coverage),
            gathered,
            new_states,
            jnp.zeros(capacity, jnp.int32),
            clipped,
        )

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        result = self.work(phase_work, everyone, client_states, True)
        self.phases[-1] = self.phases[-1]._replace(links=True)
        return result, Memory(result.rows[0])

    def _record(
        self, phase_work: PhaseWork, cohort: Cohort, upload: Any, gradients: tuple[int, int]
    ) -> None:
        step, full = gradients
        # the second half of an exchange, whose first half is the last phase
        if phase_work.receives:
            previous = self.phases[-1]
            step, full = previous.step_gradients + step, previous.full_gradients + full
            self.phases[-1] = previous._replace(step_gradients=step, full_gradients=full)
            return
        message = (upload.value, upload.weight)
        value = upload.value.value if isinstance(upload.value, Sent) else upload.value
        leaves = jax.tree.leaves(value, is_leaf=is_message)
        coded, codable = (
            any(map(is_message, leaves)),
            tuple(leaf.shape[0] for leaf in leaves if is_vector(leaf)),
        )
        everyone = cohort.ids.shape[0] == self.setup.population.clients
        down = (
            phase_work.down
            if phase_work.model_state is None
            else (phase_work.down, phase_work.model_state)
        )
        amounts = self._amount(down), self._amount(message)
        bits = bits_of(down), bits_of(message)
        self.phases.append(
            PhaseCost(phase_work.name, everyone, False, coded, *amounts, *bits, codable, step, full)
        )

    def _amount(self, tree: PyTree) -> Amount:
        # a vector of the model's length counts as a model, everything else by its numbers
        leaves, dim = jax.tree.leaves(tree, is_leaf=is_message), self.setup.layout.dim
        counts_as_model = [
            is_message(leaf) or (is_vector(leaf) and leaf.shape[0] == dim) for leaf in leaves
        ]
        return Amount(
            sum(counts_as_model),
            sum(
                leaf.size
                for leaf, is_model in zip(leaves, counts_as_model, strict=True)
                if not is_model
            ),
        )


class Probe(Client):
    """A client without examples, whose gradients are marks in the jaxpr, to be counted."""

    def __init__(self, setup: Setup, phase_work: PhaseWork) -> None:
        super().__init__(
            setup.task, setup.solver, setup.schedule, setup.layout, stream(phase_work.root, "probe")
        )
        self.index = self.size = self.steps = self.batch = jnp.int32(1)
        self.round, self.share = phase_work.round, jnp.ones((), setup.layout.dtype)

    def loss(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        return w.sum()

    def gradient(self, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        return _mark_full_gradient(w)

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        """Traces one step; footprints count costs per step."""
        return step(carry, *[ProbeBatch(self)] * batches)

    def first(self, count: int, split: Literal["train", "test"] = "train") -> "ProbeBatch":
        return ProbeBatch(self)


class ProbeBatch(Minibatch):
    """A minibatch of a probe."""

    def __init__(self, client: Probe) -> None:
        self.client = client

    def loss(self, params: PyTree) -> Float[Array, ""]:
        return jnp.stack([leaf.sum() for leaf in jax.tree.leaves(params)]).sum()

    def gradient(self, params: PyTree) -> PyTree:
        return _mark_minibatch_gradient(params)

    def hessian_product(self, params: PyTree, direction: PyTree) -> PyTree:
        return _mark_minibatch_gradient(params)

    def mean_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        task = self.client.task
        row = {name: jnp.zeros((1, *x.shape[1:]), x.dtype) for name, x in task.train.arrays.items()}
        sums = jax.eval_shape(
            lambda: task.sums(function, params, row, jnp.ones(1, self.client.layout.dtype), None)
        )
        return zeros(sums)

    def gradient_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        return _mark_minibatch_gradient(params)


# jitted functions appear in a jaxpr as calls with their names, by which they are counted
@jax.jit
def _mark_full_gradient(w: Any) -> Any:
    return 2 * w


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
