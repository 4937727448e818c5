"""Footprint of a method: phases, traffic, memory and gradients of a round, from its trace."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.communication.channel import is_message, is_vector
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.hyper import bound_to, declared
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD
from fedax.core.task import Task
from fedax.engine.round.client import Setup
from fedax.engine.round.trace import TracedPhase, trace
from fedax.examples.federated import FederatedData


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
    schedule = Schedule(cohort=max(clients - 2, 1))
    return trace_footprint(algorithm, Setup.of(task, schedule, solver or SGD()))


def trace_footprint(algorithm: Algorithm[Any], setup: Setup) -> Footprint:
    """Traces the footprint of an algorithm in a setup, without its channel."""
    # without a channel: bits are those of uncompressed messages, and residuals are not memory
    traced = trace(algorithm, dataclasses.replace(setup, channel=None))
    dim = setup.layout.dim
    phases = tuple(_cost_of(phase, dim) for phase in traced.rounds[-1])
    return Footprint(phases, _amount(traced.memories, dim))


def _cost_of(phase: TracedPhase, dim: int) -> PhaseCost:
    down_bits, up_bits = phase.bits
    leaves = jax.tree.leaves(phase.upload.value, is_leaf=is_message)
    step_gradients, full_gradients = phase.gradients
    return PhaseCost(
        work=phase.name,
        everyone=phase.everyone,
        links=phase.links,
        coded=any(map(is_message, leaves)),
        down=_amount((phase.down, phase.beside), dim),
        up=_amount(phase.up, dim),
        down_bits=down_bits,
        up_bits=up_bits,
        step_gradients=step_gradients,
        full_gradients=full_gradients,
    )


def _amount(tree: PyTree, dim: int) -> Amount:
    """Counts what a pytree holds: a vector of the model's length counts as a model."""
    vectors = numbers = 0
    for leaf in jax.tree.leaves(tree, is_leaf=is_message):
        if is_message(leaf) or (is_vector(leaf) and leaf.shape[0] == dim):
            vectors += 1
        else:
            numbers += leaf.size
    return Amount(vectors, numbers)


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
