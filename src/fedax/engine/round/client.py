"""A client inside a compiled program, from its rows in the flat training data to the gradient of a
minibatch.

One program serves all clients, so the client's number, its size and its number of steps are traced.
All clients' examples lie in one flat array, and a client is an offset and a size in it. Minibatches
have the static shape of the widest one; rows beyond the client's examples have weight 0. Those of a
model with a state, whose outputs may depend on all rows, are filled with the client's first ones.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.channel import Channel
from fedax.core.client import Carry, Client, Minibatch, Solver
from fedax.core.federation import HiddenMemory, with_memories
from fedax.core.scheduling.local_work import Work
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Population, Ragged, Task, piece
from fedax.engine.compilation.fused_loop import fused_loop
from fedax.numerics.permutation import permutation, permutation_by_size
from fedax.utils.layout import Layout, accumulator, share_of
from fedax.utils.random import Index, stream

FETCH_ROWS, FETCH_BYTES = 512, 1 << 18
"""Limits of one fetch for several steps: examples, and bytes."""

WINDOW_BYTES = 1 << 15
"""Size up to which all of a client's examples are copied before it works.

XLA splits every gather from a large array over all threads, however few rows it has, which takes
longer than the work of a small client.
"""

FEW_PIECES = 64
"""Number of pieces of a batch up to which a plain sum is as exact as the sum over one piece."""
DRAWN_PIECE = 32
"""Examples in a piece where batch sizes are drawn at random: a small batch must not cost what the
largest one does."""


class Setup(eqx.Module):
    """What a round needs beside the algorithm, its state and the random keys.

    Attributes:
        task: the model, the loss and the examples on this process: those of all clients, or of one
            rank.
        solver: of local problems.
        schedule: sampling, local work and batches.
        layout: between the model's pytree and flat vectors of shape (dim,).
        population: sizes of all clients, also of those whose examples are on other processes.
        channel: codecs, attacks and privacy; None if messages arrive as they are sent.
        first: number of the client whose examples come first in `task`.
        microbatch: the most examples that pass through the model at once; larger batches accumulate
            gradients.
        placement: how the clients of a cohort follow each other, see `Simulation`.
        chunk: clients that work at once with `placement="chunked"`.
        devices: over which a cohort is divided.
        drop: whether clients with an upload that is not finite are left out of their phase.
        offloads: whether clients' memories lie outside the devices.
        solvers: of the algorithms of a sweep, one for each, where they differ in real
            hyperparameters; else empty.
        schedules: the same, where they differ in probabilities.
        private: the `fedax.engine.round.privacy.Private` of a run with privacy.
        asynchronous: the `fedax.engine.round.timing.asynchronous.ServerSteps` of a run with an
            asynchronous server.
        clock: the `fedax.engine.round.timing.clock.VirtualClock` of a run with devices.
        cutoff: the `fedax.engine.round.timing.deadline.Cutoff` of a run whose rounds do not wait
            for all clients.
        kernels: whether steps of small models may be fused (see `fused_loop`).
    """

    task: Task
    solver: Solver
    schedule: Schedule
    layout: Layout
    population: Population
    channel: Channel | None = None
    first: int = eqx.field(static=True, default=0)
    microbatch: int = eqx.field(static=True, default=256)
    placement: Literal["sequential", "chunked"] = eqx.field(static=True, default="sequential")
    chunk: int = eqx.field(static=True, default=1)
    devices: int = eqx.field(static=True, default=1)
    drop: bool = eqx.field(static=True, default=False)
    offloads: bool = eqx.field(static=True, default=False)
    solvers: tuple[Solver, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    private: Any = eqx.field(static=True, default=None)
    asynchronous: Any = eqx.field(static=True, default=None)
    clock: Any = eqx.field(static=True, default=None)
    cutoff: Any = eqx.field(static=True, default=None)
    kernels: bool = eqx.field(static=True, default=False)

    def published(self, tree: PyTree) -> PyTree:
        """Returns a carry, or a part of one, as the run publishes it.

        With privacy it has no clients' memories, which no noise covers.
        """
        if self.private is None:
            return tree
        return with_memories(tree, lambda _: HiddenMemory())


Fetch: TypeAlias = Callable[[Index, int], dict[str, Array]]
"""Returns examples by the place of the first one and their number, each array of shape (number,
...)."""


class Part(NamedTuple):
    """One client's examples: rows `offset` to `offset + size` of flat arrays (examples, ...)."""

    arrays: Mapping[str, Any]
    offset: Int[Array, ""]
    size: Int[Array, ""]

    @classmethod
    def of(cls, data: Ragged, k: Index) -> "Part":
        arrays, offset, size = data.located(k)
        row_bytes = sum(
            values.dtype.itemsize * math.prod(values.shape[1:]) for values in arrays.values()
        )
        if row_bytes * data.largest <= WINDOW_BYTES < row_bytes * data.total:
            begin = jnp.minimum(offset, data.total - data.largest)
            return cls(piece(arrays, begin, data.largest), offset - begin, size)
        return cls(arrays, offset, size)

    def rows(self, position: Int[Array, "some"], singly: bool = False) -> dict[str, Array]:
        """Gathers examples by their position within the client.

        Positions past the end give the last example.

        `singly` copies them one after the other, as a fused kernel needs it, which cannot contain a
        gather.
        """
        indices = self.offset + jnp.clip(position, 0, self.size - 1)
        if singly:
            buffers = {
                name: jnp.zeros((len(indices), *values.shape[1:]), values.dtype)
                for name, values in self.arrays.items()
            }

            def copy(i: Index, buffers: dict[str, Array]) -> dict[str, Array]:
                cut, put = jax.lax.dynamic_index_in_dim, jax.lax.dynamic_update_index_in_dim
                return {
                    name: put(buffers[name], cut(values, indices[i]), i, 0)
                    for name, values in self.arrays.items()
                }

            return jax.lax.fori_loop(0, len(indices), copy, buffers)
        return {
            name: jnp.asarray(values).at[indices].get(mode="clip")
            for name, values in self.arrays.items()
        }


def _run_loop(count: Index, step: Callable[[Index, Carry], Carry], carry: Carry) -> Carry:
    return jax.lax.fori_loop(jnp.int32(0), count, step, carry)


def local_work(setup: Setup, root: Key[Array, ""], round: Index, k: Index, size: Index) -> Work:
    """Draws the steps and the batch size of client k, which has `size` examples."""
    # the streams have no phase in their names, so all phases of a round see the same draw
    client_key, round_key = stream(root, "work", round, k), stream(root, "work", round)
    return setup.schedule.work(client_key, size, round, round_key)


class CompiledClient(Client):
    """See `Client`. `active` is False for the padding of a chunk: it takes no steps.

    Attributes:
        stride: examples from the beginning of a minibatch to that of the next: `batch`, or more
            where the client has fewer examples than that. A number of Python where it can be.
    """

    def __init__(
        self,
        setup: Setup,
        index: Index,
        round: Index,
        root: Key[Array, ""],
        occurrence: int,
        active: Bool[Array, ""] | bool = True,
    ) -> None:
        streams = stream(root, "client", round, index, occurrence)
        super().__init__(setup.task, setup.solver, setup.schedule, setup.layout, streams)
        self.setup, self.index, self.round = setup, index, round
        self.examples = self.locate(setup.task.train)
        self.size = self.examples.size
        self.share = share_of(self.size, setup.population.total, setup.layout.dtype)
        work = local_work(setup, root, round, index, self.size)
        # a number in the schedule stays static: a client with fewer examples has one batch an epoch
        self.stride = self.widest if isinstance(work.batch, int) else work.batch
        self.steps = jnp.where(active, jnp.asarray(work.steps, jnp.int32), 0)

    @property
    def batch(self) -> Int[Array, ""]:  # type: ignore[override]
        return jnp.minimum(self.stride, self.size)

    def locate(self, data: Ragged) -> Part:
        """Returns the client's rows of some data."""
        return Part.of(data, self.index - self.setup.first)

    def loss(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        return self._all_examples().loss(self.layout.unravel(w))

    def gradient(self, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        return self.layout.ravel(self._all_examples().gradient(self.layout.unravel(w)))

    def _all_examples(self) -> "Slice":
        return Slice(self, self.fetch, jnp.int32(0), self.size, None, self.task.train.largest)

    def first(self, count: int, split: Literal["train", "test"] = "train") -> "Slice":
        data = getattr(self.task, split)
        part = self.locate(data)
        fetch = functools.partial(self.fetch, part=part)
        return Slice(
            self, fetch, jnp.int32(0), jnp.minimum(count, part.size), None, min(count, data.largest)
        )

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        """Runs the local steps, `carry = step(carry, minibatch, ...)`, epoch after epoch.

        The steps of small models run as one fused kernel. Others run in blocks that fetch their
        examples together where that pays. Both see the same minibatches and keys, so the choice
        changes speed only.
        """
        loop = _LocalLoop(self, step, batches)
        if self.schedule.batch_size == "full" or self.schedule.order == "given":
            # all epochs have one order, so that all steps may be one kernel
            fused_carry = loop.run_fused(self.order(None), jnp.int32(0), self.steps, carry)
            if fused_carry is not None:
                return fused_carry
        # a `while` loop, because the number of epochs follows from the client's size
        # number of the epoch, steps done before it, carry
        start = (jnp.int32(0), jnp.int32(0), carry)
        return jax.lax.while_loop(lambda state: state[1] < self.steps, loop.run_epoch, start)[2]

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
        largest, width = self.task.train.largest, self.widest * self.steps_per_fetch()
        position = jnp.arange(largest + width, dtype=jnp.int32)
        with jax.named_scope("fedax.examples"):
            if key is None:
                order = position if self.task.couples else None
            elif self.setup.placement == "sequential":
                order = permutation_by_size(key, self.size, largest, largest + width)
            else:
                # padded, because the slice of the last batch must not run over the end: XLA would
                # move it back
                order = jnp.pad(permutation(key, self.size, largest), (0, width))
            if order is None or not self.task.couples:
                return order
            return order[position % jnp.maximum(self.size, 1)]

    def steps_per_fetch(self) -> int:
        """Returns how many steps fetch their examples together.

        On a CPU, a small gather costs far more a row than a large one.
        """
        width = self.stride
        if (
            self.setup.placement != "sequential"
            or not isinstance(width, int)
            or self.widest > self.setup.microbatch
        ):
            return 1
        arrays = self.task.train.arrays.values()
        row_bytes = sum(values.dtype.itemsize * math.prod(values.shape[1:]) for values in arrays)
        return max(1, min(FETCH_ROWS, FETCH_BYTES // max(row_bytes, 1)) // width)

    def fetch(
        self,
        begin: Index,
        count: int,
        order: Int[Array, "padded"] | None = None,
        singly: bool = False,
        part: Part | None = None,
    ) -> dict[str, Array]:
        """Fetches examples `begin` to `begin + count`, each array of shape (count, ...).

        Args:
            begin: place of the first one.
            count: how many.
            order: permutation of the examples, None for the given order.
            singly: see `Part.rows`.
            part: rows to take them from, by default the training examples.
        """
        position = begin + jnp.arange(count, dtype=jnp.int32)
        with jax.named_scope("fedax.examples"):
            position = (
                position if order is None else jax.lax.dynamic_slice_in_dim(order, begin, count)
            )
            return (part or self.examples).rows(position, singly)


class _LocalLoop:
    """The local steps of one client, in three layers: epochs, blocks that fetch together, steps.

    In all of them `order` is the epoch's permutation of the examples (None for the given order),
    and `done` the number of steps before the epoch. Counts are traced, because clients have
    different sizes.

    Attributes:
        client: whose steps.
        step: takes the carry, the step's minibatch, and those of the next steps.
        batches: how many minibatches a step takes.
        stride: examples from the beginning of a minibatch to that of the next.
        per_epoch: steps of an epoch.
        per_block: steps of a block.
    """

    def __init__(self, client: CompiledClient, step: Callable[..., Carry], batches: int) -> None:
        self.client, self.step, self.batches, self.stride = client, step, batches, client.stride
        self.per_epoch = (client.size + self.stride - 1) // self.stride
        # a step that sees later minibatches too would need them beyond its block
        self.per_block = 1 if batches > 1 else client.steps_per_fetch()
        self.order_key, self.noise_key = client.key("order"), client.key("noise")

    def run_epoch(self, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Runs one epoch, or what is left of the steps."""
        number, done, carry = state
        schedule = self.client.schedule
        is_shuffled = schedule.order == "shuffled" and schedule.batch_size != "full"
        order = self.client.order(
            jax.random.fold_in(self.order_key, number) if is_shuffled else None
        )
        count = jnp.minimum(self.per_epoch, self.client.steps - done)
        # a kernel of one epoch, where not all epochs could be one
        fused_carry = self.run_fused(order, done, count, carry)
        return (
            number + 1,
            done + count,
            self.run_blocks(order, done, count, carry) if fused_carry is None else fused_carry,
        )

    def run_fused(self, order: Any, done: Index, count: Index, carry: Any) -> Any:
        """Runs `count` steps as one kernel; returns None where the steps cannot be fused."""

        def body(i: Index, carry: Any) -> Any:
            number = i % self.per_epoch
            fetch = functools.partial(self.client.fetch, order=order, singly=True)
            return self.run_step(number, fetch, done + i - number, carry)

        return fused_loop(count, body, carry) if self.client.setup.kernels else None

    def run_blocks(self, order: Any, done: Index, count: Index, carry: Any) -> Any:
        """Runs `count` steps of an epoch in blocks, which fetch their examples at once."""

        def run_block(b: Index, carry: Any) -> Any:
            first = b * self.per_block
            if self.per_block == 1:
                return self.run_step(
                    first, functools.partial(self.client.fetch, order=order), done, carry
                )
            # arrays of shape (per_block * widest, ...); step i takes rows from i * stride on
            fetched = self.client.fetch(
                first * self.stride, self.per_block * self.client.widest, order
            )

            def body(i: Index, carry: Any) -> Any:
                def cut(begin: Index, count: int) -> dict[str, Array]:
                    return piece(fetched, i * self.stride, count)

                return self.run_step(first + i, cut, done, carry)

            return _run_loop(jnp.minimum(self.per_block, count - first), body, carry)

        return _run_loop((count + self.per_block - 1) // self.per_block, run_block, carry)

    def run_step(self, number: Index, fetch: Fetch, done: Index, carry: Any) -> Any:
        """Runs step `number` of the epoch.

        Its key follows from the steps of all epochs before it.
        """

        def minibatch(begin: Index, key: Any) -> Slice:
            return Slice(
                self.client, fetch, begin, jnp.minimum(self.stride, self.client.size - begin), key
            )

        # from the end of the epoch on, steps that see several minibatches get its first ones
        noise = jax.random.fold_in(self.noise_key, done + number)
        following = [
            minibatch((number + j) % self.per_epoch * self.stride, jax.random.fold_in(noise, j))
            for j in range(1, self.batches)
        ]
        return self.step(carry, minibatch(number * self.stride, noise), *following)


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
        self.client, self.fetch, self.begin, self.count, self.key = client, fetch, begin, count, key
        is_random_size = max_count is None and isinstance(client.schedule.batch_size, tuple)
        # a static bound: shapes of a compiled program cannot follow the client's size
        widest = max_count or client.widest
        self.piece = min(widest, client.setup.microbatch, DRAWN_PIECE if is_random_size else widest)
        self.stride = client.stride
        self.is_filled = key is not None and client.task.couples
        if self.is_filled:  # batch statistics need the whole batch at once
            self.piece = widest
            self.count = widest
        self.widest, self.is_whole, self.has_many_pieces = (
            widest,
            self.piece == widest,
            widest > FEW_PIECES * self.piece,
        )

    def loss(self, params: PyTree) -> Float[Array, ""]:
        with jax.named_scope("fedax.gradients"):
            value = self._sum_pieces(self._objective, params)
        l2 = self.client.task.l2
        return (
            value + l2 / 2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
            if l2
            else value
        )

    def gradient(self, params: PyTree) -> PyTree:
        with jax.named_scope("fedax.gradients"):
            # a training step also updates the state
            if self.key is not None and self.client.model_state is not None:
                gradient, state = jax.grad(self._with_state, has_aux=True)(
                    params, *self._piece_inputs(0)
                )
                self.client.take_over(state)
            else:
                gradient = self._sum_pieces(jax.grad(self._objective), params)
        # beside the differentiated loss, so that pieces do not add it several times
        l2 = self.client.task.l2
        return jax.tree.map(lambda g, w: g + l2 * w, gradient, params) if l2 else gradient

    def mean_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        return self._sum_pieces(self._sum_of(function), params)

    def gradient_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        return self._sum_pieces(jax.grad(self._sum_of(function)), params)

    def _sum_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        task = self.client.task.at(self.client.model_state)
        return lambda params, data, weight, key: task.sums(function, params, data, weight, key)

    def _objective(
        self, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any
    ) -> Float[Array, ""]:
        return self._with_state(params, data, weight, key)[0]

    def _with_state(
        self, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any
    ) -> Any:
        return self.client.task.at(self.client.model_state).trained(params, data, weight, key)

    def _sum_pieces(self, function: Callable[..., Any], params: PyTree) -> Any:
        """Sums a function of the parameters over all pieces, in a wide type."""
        if self.is_whole:
            return function(params, *self._piece_inputs(0))

        form = jax.eval_shape(lambda: function(params, *self._piece_inputs(0)))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulator(leaf.dtype)), form)
        pieces = (self.count + self.piece - 1) // self.piece

        def add(i: Index, sums: Any) -> Any:
            return jax.tree.map(
                lambda a, b: a + b.astype(a.dtype), sums, function(params, *self._piece_inputs(i))
            )

        def narrow(sums: Any) -> Any:
            return jax.tree.map(lambda a, like: a.astype(like.dtype), sums, form)

        if not self.has_many_pieces:
            return narrow(jax.lax.fori_loop(0, pieces, add, zero))
        # the error of a sum grows with its number of terms: n pieces are added in sqrt(n) groups of
        # sqrt(n)
        group = math.isqrt(-(-self.widest // self.piece))

        def add_group(j: Index, sums: Any) -> Any:
            first = j * group
            group_sum = jax.lax.fori_loop(first, jnp.minimum(first + group, pieces), add, zero)
            return jax.tree.map(jnp.add, sums, group_sum)

        return narrow(jax.lax.fori_loop(0, (pieces + group - 1) // group, add_group, zero))

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
