"""A client inside a compiled program, from its rows in the flat training data to the gradient of a
minibatch.

One program serves all clients, so the client's number, its size and its number of steps are traced.
All clients' examples lie in one flat array, and a client is an offset and a size in it. Minibatches
have the static shape of the widest one; rows beyond the client's examples have weight 0. Those of a
model with a state, whose outputs may depend on all rows, are filled with the client's first ones.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.channel import Channel
from fedax.core.algorithm import Algorithm
from fedax.core.client import Carry, Client, Minibatch, Solver
from fedax.core.federation import HiddenStates, with_states
from fedax.core.hyper import as_arrays
from fedax.core.scheduling.schedule import Schedule, Work
from fedax.core.task import Task
from fedax.engine.compilation.fused_loop import fused_loop, gather_singly
from fedax.engine.round.aggregation import add_compensated, finalize, no_terms
from fedax.engine.round.block_fetch import (
    Fetch,
    Gather,
    gather_rows,
    run_in_blocks,
    steps_per_fetch,
)
from fedax.engine.round.private import Private
from fedax.engine.round.timing import Timing
from fedax.examples.ragged import Population, Ragged
from fedax.numerics.permutation import permutation, permutation_by_size
from fedax.utils.layout import Layout, share_of
from fedax.utils.random import Index, stream

DRAWN_PIECE = 32
"""Examples in a piece where batch sizes are drawn at random: a small batch must not cost what the
largest one does."""


class Placement(NamedTuple):
    """How the clients of a simulation are placed on its devices, static.

    Attributes:
        microbatch: the most examples that pass through the model at once; larger batches accumulate
            gradients.
        chunk: clients that work at once, see `Simulation`.
        devices: over which a cohort is divided.
        offloads: whether clients' states lie outside the devices.
        kernels: whether steps of small models may be fused (see `fused_loop`).
    """

    microbatch: int = 256
    chunk: int = 1
    devices: int = 1
    offloads: bool = False
    kernels: bool = False


class Setup(eqx.Module):
    """What a round needs beside its state and the random keys.

    Attributes:
        algorithm: the method.
        task: the model, the loss and the examples on this process: those of all clients, or of one
            rank.
        solver: of local problems.
        schedule: sampling, local work and batches.
        layout: between the model's pytree and flat vectors of shape (dim,).
        population: sizes of all clients, also of those whose examples are on other processes.
        channel: codecs, attacks and privacy; None if messages arrive as they are sent.
        first: number of the client whose examples come first in `task`.
        placement: of the clients on the devices of a simulation.
        drop: whether clients with an upload that is not finite are left out of their phase.
        private: of a run with privacy.
        timing: of a run with devices.
    """

    algorithm: Algorithm[Any]
    task: Task
    solver: Solver
    schedule: Schedule
    layout: Layout
    population: Population
    channel: Channel | None = None
    first: Index = 0
    placement: Placement = eqx.field(static=True, default=Placement())
    drop: bool = eqx.field(static=True, default=False)
    private: Private | None = eqx.field(static=True, default=None)
    timing: Timing | None = eqx.field(static=True, default=None)

    @classmethod
    def of(
        cls,
        algorithm: Algorithm[Any],
        task: Task,
        schedule: Schedule,
        solver: Solver,
        channel: Channel | None = None,
    ) -> "Setup":
        """Makes the setup of a task whose clients are all in this process."""
        layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
        algorithm, solver = as_arrays((algorithm, solver), layout.dtype)
        return cls(algorithm, task, solver, schedule, layout, task.train.population, channel)

    @property
    def has_equal_weights(self) -> bool:
        """Whether all clients have the same weight in the objective."""
        return self.algorithm.equal_weights or self.schedule.weights == "equal"

    def published(self, tree: PyTree) -> PyTree:
        """Returns a carry, or a part of one, as the run publishes it.

        With privacy it has no clients' states, which no noise covers.
        """
        if self.private is None:
            return tree
        return with_states(tree, lambda _: HiddenStates())


ClientRows: TypeAlias = tuple[Mapping[str, Any], Int[Array, ""], Int[Array, ""]]
"""One client's examples, rows of flat arrays (examples, ...): the arrays, the number of its first
row, and how many it has."""


def local_work(
    schedule: Schedule, root: Key[Array, ""], round: Index, k: Index, size: Index
) -> Work:
    """Draws the steps and the batch size of client k, which has `size` examples."""
    # the streams have no phase in their names, so all phases of a round see the same draw
    client_key = stream(root, "work", round, k)
    round_key = stream(root, "work", round)
    return schedule.work(client_key, size, round, round_key)


class CompiledClient(Client):
    """See `Client`. By default one that is looked at outside of a round.

    `active` is False for the padding of a chunk: it takes no steps.

    Attributes:
        stride: examples from the beginning of a minibatch to that of the next: `batch`, or more
            where the client has fewer examples than that. A number of Python where it can be.
    """

    def __init__(
        self,
        setup: Setup,
        index: Index,
        round: Index = 0,
        root: Key[Array, ""] | None = None,
        occurrence: int = 0,
        active: Bool[Array, ""] | bool = True,
    ) -> None:
        root = jax.random.key(0) if root is None else root
        streams = stream(root, "client", round, index, occurrence)
        super().__init__(setup.task, setup.solver, setup.schedule, setup.layout, streams)
        self.setup = setup
        self.index = index
        self.round = round
        self.examples = self.locate(setup.task.train)
        self.size = self.examples[2]
        self.share = share_of(self.size, setup.population.total, setup.layout.dtype)
        work = local_work(setup.schedule, root, round, index, self.size)
        # a number in the schedule stays static: a client with fewer examples has one batch an epoch
        self.stride = self.widest if isinstance(work.batch, int) else work.batch
        self.steps = jnp.where(active, jnp.asarray(work.steps, jnp.int32), 0)

    @property
    def batch(self) -> Int[Array, ""]:  # type: ignore[override]
        return jnp.minimum(self.stride, self.size)

    def locate(self, data: Ragged) -> ClientRows:
        """Returns the client's rows of some data."""
        return data.located(self.index - self.setup.first)

    def first(self, count: int, split: str = "train") -> "Slice":
        data = getattr(self.task, split)
        rows = self.examples if split == "train" else self.locate(data)
        fetch = functools.partial(self.fetch, rows=rows)
        size = jnp.minimum(count, rows[2])
        return Slice(self, fetch, jnp.int32(0), size, None, min(count, data.largest))

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        """Runs the local steps, `carry = step(carry, minibatch, ...)`, epoch after epoch.

        The steps of small models run as one fused kernel. Others run in blocks that fetch their
        examples together where that pays. All see the same minibatches and keys, so the choice
        changes speed only. Counts are traced, because clients have different sizes.
        """
        stride = self.stride
        per_epoch = (self.size + stride - 1) // stride
        is_shuffled = self.schedule.order == "shuffled" and self.schedule.batch_size != "full"
        order_key = self.key("order")
        noise_key = self.key("noise")
        # a step that sees later minibatches too would need them beyond its block
        block = 1 if batches > 1 else self.steps_per_fetch

        def run_step(done: Index, fetch: Fetch, i: Index, carry: Carry) -> Carry:
            # step i from the beginning of an epoch, before which `done` steps were taken
            def minibatch(number: Index, key: Any) -> Slice:
                begin = number * stride
                return Slice(self, fetch, begin, jnp.minimum(stride, self.size - begin), key)

            # from the end of the epoch on, steps that see several minibatches get its first ones
            noise = jax.random.fold_in(noise_key, done + i)
            following = [
                minibatch((i + j) % per_epoch, jax.random.fold_in(noise, j))
                for j in range(1, batches)
            ]
            return step(carry, minibatch(i % per_epoch, noise), *following)

        def run_epoch(state: tuple[Index, Index, Carry]) -> tuple[Index, Index, Carry]:
            epoch, done, carry = state
            order = self.order(jax.random.fold_in(order_key, epoch) if is_shuffled else None)
            fetch = functools.partial(self.fetch, order=order)
            if self.setup.placement.kernels:
                # if all epochs have one order, all steps may be one kernel
                left = self.steps - done
                count = jnp.minimum(per_epoch, left) if is_shuffled else left
                singly = functools.partial(fetch, gather=gather_singly)
                fused = fused_loop(count, functools.partial(run_step, done, singly), carry)
                if fused is not None:
                    return epoch + 1, done + count, fused
            count = jnp.minimum(per_epoch, self.steps - done)
            body = functools.partial(run_step, done)
            carry = run_in_blocks(count, block, stride, self.widest, fetch, body, carry)
            return epoch + 1, done + count, carry

        # a `while` loop, because the number of epochs follows from the client's size
        start = jnp.int32(0), jnp.int32(0), carry
        return jax.lax.while_loop(lambda state: state[1] < self.steps, run_epoch, start)[2]

    @property
    def widest(self) -> int:
        """The most examples in a minibatch of any client: the static shape of minibatches."""
        return self.schedule.widest(self.task.train.largest, filled=self.task.couples)

    def order(self, key: Key[Array, ""] | None) -> Int[Array, "padded"] | None:
        """Returns the order of the examples in an epoch, shape (largest + padding,).

        After the last example padding follows, or the first ones again where minibatches are
        filled. Returns None for the given order without filling.

        Args:
            key: of the permutation, None for the given order.
        """
        largest = self.task.train.largest
        width = self.widest * self.steps_per_fetch
        position = jnp.arange(largest + width, dtype=jnp.int32)
        with jax.named_scope("fedax.examples"):
            if key is None:
                order = position if self.task.couples else None
            elif self.setup.placement.chunk == 1:
                order = permutation_by_size(key, self.size, largest, largest + width)
            else:
                # padded, because the slice of the last batch must not run over the end: XLA would
                # move it back
                order = jnp.pad(permutation(key, self.size, largest), (0, width))
            if order is None or not self.task.couples:
                return order
            return order[position % jnp.maximum(self.size, 1)]

    @property
    def steps_per_fetch(self) -> int:
        """How many steps fetch their examples together."""
        placement = self.setup.placement
        is_whole = self.widest <= placement.microbatch
        if placement.chunk > 1 or not isinstance(self.stride, int) or not is_whole:
            return 1
        return steps_per_fetch(self.task.train.arrays, self.stride)

    def fetch(
        self,
        begin: Index,
        count: int,
        order: Int[Array, "padded"] | None = None,
        rows: ClientRows | None = None,
        gather: Gather = gather_rows,
    ) -> dict[str, Array]:
        """Fetches examples `begin` to `begin + count`, each array of shape (count, ...).

        Args:
            begin: place of the first one.
            count: how many.
            order: permutation of the examples, None for the given order.
            rows: to take them from, by default the training examples.
            gather: copies rows of arrays.
        """
        position = begin + jnp.arange(count, dtype=jnp.int32)
        with jax.named_scope("fedax.examples"):
            if order is not None:
                position = jax.lax.dynamic_slice_in_dim(order, begin, count)
            arrays, offset, size = rows or self.examples
            # past the client's end, its last example
            return gather(arrays, offset + jnp.clip(position, 0, size - 1))


class Slice(Minibatch):
    """A minibatch: `count` examples of the client in some order, from place `begin` on.

    A minibatch of more examples than may pass through the model at once is a sum over pieces of
    equal shape.

    Args:
        client: whose examples they are.
        fetch: returns the examples from a place on, so many that shapes are static.
        begin: place of the first one.
        count: number of examples, which may be traced.
        key: of the loss, for dropout and the like; None for an evaluation.
        max_count: static bound of `count`, by default that of the schedule.
    """

    def __init__(
        self,
        client: CompiledClient,
        fetch: Fetch,
        begin: Index,
        count: Index,
        key: Any,
        max_count: int | None = None,
    ) -> None:
        self.client = client
        self.fetch = fetch
        self.begin = begin
        self.count = count
        self.key = key
        is_random_size = max_count is None and isinstance(client.schedule.batch_size, tuple)
        # a static bound: shapes of a compiled program cannot follow the client's size
        widest = max_count or client.widest
        microbatch = client.setup.placement.microbatch
        self.piece = min(widest, microbatch, DRAWN_PIECE if is_random_size else widest)
        self.stride = client.stride
        self.is_filled = key is not None and client.task.couples
        if self.is_filled:  # batch statistics need the whole batch at once
            self.piece = widest
            self.count = widest
        self.widest = widest

    def loss(self, params: PyTree) -> Float[Array, ""]:
        task = self._task
        with jax.named_scope("fedax.gradients"):
            value = self.sum_pieces(lambda *inputs: task.trained(*inputs)[0], params)
        if task.l2:
            value = value + task.l2 / 2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
        return value

    def gradient(self, params: PyTree) -> PyTree:
        task = self._task
        gradient_and_state = jax.grad(task.trained, has_aux=True)
        with jax.named_scope("fedax.gradients"):
            if self.piece == self.widest:
                gradient, state = gradient_and_state(params, *self._piece_inputs(0))
                # a training step also updates the state
                if self.key is not None and self.client.model_state is not None:
                    self.client.take_over(state)
            else:
                gradient = self.sum_pieces(lambda *inputs: gradient_and_state(*inputs)[0], params)
        # beside the differentiated loss, so that pieces do not add it several times
        if task.l2:
            gradient = jax.tree.map(lambda g, w: g + task.l2 * w, gradient, params)
        return gradient

    def hessian_product(self, params: PyTree, direction: PyTree) -> PyTree:
        task = self._task

        # piece by piece: their number is traced, and JAX differentiates no such loop backwards
        def product(params: PyTree, *inputs: Any) -> PyTree:
            def slope(params: PyTree) -> Any:
                gradient = jax.grad(task.trained, has_aux=True)(params, *inputs)[0]
                return optax.tree.vdot(gradient, direction)

            return jax.grad(slope)(params)

        with jax.named_scope("fedax.gradients"):
            result = self.sum_pieces(product, params)
        if task.l2:
            result = jax.tree.map(lambda h, v: h + task.l2 * v, result, direction)
        return result

    def mean_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        return self.sum_pieces(functools.partial(self._task.sums, function), params)

    def gradient_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        mean = functools.partial(self._task.sums, function)
        return self.sum_pieces(jax.grad(mean), params)

    @property
    def _task(self) -> Task:
        """The task with the model's present state."""
        return self.client.task.at(self.client.model_state)

    def sum_pieces(self, function: Callable[..., Any], params: PyTree) -> Any:
        """Sums a function of the parameters over all pieces, in a wide type."""
        if self.piece == self.widest:
            return function(params, *self._piece_inputs(0))
        form = jax.eval_shape(lambda: function(params, *self._piece_inputs(0)))
        pieces = (self.count + self.piece - 1) // self.piece

        def add(i: Index, sums: PyTree) -> PyTree:
            return add_compensated(sums, function(params, *self._piece_inputs(i)))

        total = finalize(jax.lax.fori_loop(0, pieces, add, no_terms(form)))
        return jax.tree.map(lambda value, like: value.astype(like.dtype), total, form)

    def _piece_inputs(self, piece: Index) -> tuple[dict[str, Array], Float[Array, "batch"], Any]:
        """Returns the examples, the weights and the key of one piece.

        Weights sum to one over all pieces.
        """
        position = piece * self.piece + jnp.arange(self.piece, dtype=jnp.int32)
        # a client without examples (of a test split) has a count of zero, and no row counts
        weight = jnp.where(
            position < self.count,
            1 / jnp.maximum(self.count, 1).astype(self.client.layout.dtype),
            0,
        )
        data = self.fetch(self.begin + piece * self.piece, self.piece)
        if self.is_filled and not isinstance(self.stride, int):
            # a smaller batch is repeated: what follows it belongs to the next one
            data = jax.tree.map(lambda rows: rows[position % self.stride], data)
        return data, weight, None if self.key is None else jax.random.fold_in(self.key, piece)
