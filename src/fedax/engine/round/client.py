"""A client inside a compiled program: traced number, traced size, ragged data by offset."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.channel import Channel
from fedax.core.client import Carry, Client, Minibatch, Solver
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Population, Ragged, Task, piece
from fedax.engine.compilation.descent import can_rewrite_steps, rewrite_descent_steps
from fedax.engine.compilation.fused_loop import fused_loop
from fedax.engine.compilation.jaxpr import stage
from fedax.engine.compilation.scopes import profiler_scope
from fedax.engine.round.permutation import shuffled, shuffled_by_size
from fedax.utils.layout import Layout, accumulator, share_of
from fedax.utils.random import Index, stream

FETCH_ROWS, FETCH_BYTES = 512, 1 << 18
"""The most examples, and bytes, that one client fetches for several steps at once."""

WINDOW_BYTES = 1 << 15
"""Up to so many bytes, a client's examples are copied before it works: XLA gives every gather from a large array to all threads,
however few rows it has, which takes longer than the work of a small client."""

FEW_PIECES = 64
"""Pieces of a batch up to which a plain sum is as exact as one piece is."""
DRAWN_PIECE = 32
"""Examples at once where batches have drawn sizes: a small batch must not cost what a large one does."""


class Setup(eqx.Module):
    """All that a round needs beside algorithm, state and keys.

    `population` has everybody's sizes; `task` the examples that are here, of client `first` on: everybody's, or one peer's.
    `microbatch` is the most examples that pass through the model at once; larger and full batches are accumulated.
    `placement` is how the clients of a cohort follow each other (see `Simulation`). With `drop`, clients whose uploads are not
    finite are left out of their phase. With `offloads`, the clients' memories lie outside the devices. `private` is the
    `fedax.engine.round.privacy.Private` of a run with privacy. With `kernels`, the steps of small models are single kernels
    where they can be (see `fused_loop`).
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
    private: Any = eqx.field(static=True, default=None)
    kernels: bool = eqx.field(static=True, default=False)


class Part(NamedTuple):
    """One client's examples in a flat array of many clients'."""

    arrays: Mapping[str, Any]
    offset: Int[Array, ""]
    size: Int[Array, ""]

    @classmethod
    def of(cls, data: Ragged, k: Index) -> "Part":
        arrays, offset, size = data.located(k)
        row = sum(values.dtype.itemsize * math.prod(values.shape[1:]) for values in arrays.values())
        if row * data.largest <= WINDOW_BYTES < row * data.total:
            begin = jnp.minimum(offset, data.total - data.largest)
            return cls(piece(arrays, begin, data.largest), offset - begin, size)
        return cls(arrays, offset, size)

    def rows(self, position: Int[Array, "some"], singly: bool = False) -> dict[str, Array]:
        """The examples at some positions, copied together or one after the other; the last one in place of those it lacks."""
        rows = self.offset + jnp.clip(position, 0, self.size - 1)
        if singly:
            found = {name: jnp.zeros((len(rows), *values.shape[1:]), values.dtype) for name, values in self.arrays.items()}

            def copy(i: Index, found: dict[str, Array]) -> dict[str, Array]:
                cut, put = jax.lax.dynamic_index_in_dim, jax.lax.dynamic_update_index_in_dim
                return {name: put(found[name], cut(values, rows[i]), i, 0) for name, values in self.arrays.items()}

            return jax.lax.fori_loop(0, len(rows), copy, found)
        return {name: jnp.asarray(values).at[rows].get(mode="clip") for name, values in self.arrays.items()}


def _loop(count: Index, step: Callable[[Index, Carry], Carry], carry: Carry) -> Carry:
    return jax.lax.fori_loop(jnp.int32(0), count, step, carry)


class CompiledClient(Client):
    """See `Client`. `active` is False for the padding of a chunk, which takes no steps."""

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
        self.examples = self.part(setup.task.train)
        self.size = self.examples.size
        self.share = share_of(self.size, setup.population.total, setup.layout.dtype)
        work = setup.schedule.work(stream(root, "work", round, index), self.size, round)
        self.batch = self.widest if isinstance(work.batch, int) else work.batch
        self.steps = jnp.where(active, jnp.asarray(work.steps, jnp.int32), 0)

    def part(self, data: Ragged) -> Part:
        """The client's part of some data."""
        return Part.of(data, self.index - self.setup.first)

    def loss(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        return self._all().loss(self.layout.unravel(w))

    def gradient(self, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        return self.layout.ravel(self._all().gradient(self.layout.unravel(w)))

    def _all(self) -> "Slice":
        return Slice(self, None, jnp.int32(0), self.size, None, most=self.task.train.largest)

    def first(self, count: int, split: Literal["train", "test"] = "train") -> "Slice":
        data = getattr(self.task, split)
        part = self.part(data)
        return Slice(self, None, jnp.int32(0), jnp.minimum(count, part.size), None, most=min(count, data.largest), part=part)

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        """Steps of small models are one kernel. Of others, several fetch their examples at once where that pays."""
        full, batch = self.schedule.batch_size == "full", self.batch
        per_epoch = (self.size + batch - 1) // batch
        order_key, noise_key = self.key("order"), self.key("noise")
        at_once = 1 if batches > 1 else self._fetched_at_once()

        def at(number: Index, order: Any, done: Index, carry: Carry, **fetched: Any) -> Carry:
            """Step `number` of an epoch before which `done` steps were done."""
            noise = jax.random.fold_in(noise_key, done + number)
            following = [
                Slice(self, order, (number + j) % per_epoch * batch, batch, jax.random.fold_in(noise, j), **fetched)
                for j in range(1, batches)
            ]
            return step(carry, Slice(self, order, number * batch, batch, noise, **fetched), *following)

        def kernel(order: Any, done: Index, count: Index, carry: Carry) -> Carry | None:
            def one(i: Index, carry: Carry) -> Carry:
                number = i % per_epoch
                return at(number, order, done + i - number, carry, singly=True)

            return fused_loop(count, one, carry) if self.setup.kernels else None

        def blocks(order: Any, done: Index, count: Index, carry: Carry) -> Carry:
            def block(b: Index, carry: Carry) -> Carry:
                first = b * at_once
                if at_once == 1:
                    return at(first, order, done, carry)
                fetched = self.fetch(order, first * batch, at_once * self.widest)

                def one(i: Index, carry: Carry) -> Carry:
                    return at(first + i, order, done, carry, fetched=fetched, place=i * batch)

                return self._steps(jnp.minimum(at_once, count - first), one, carry)

            return (self._steps if at_once == 1 else _loop)((count + at_once - 1) // at_once, block, carry)

        def epoch(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            number, done, carry = state
            order = None if full else self._order(jax.random.fold_in(order_key, number))
            count = jnp.minimum(per_epoch, self.steps - done)
            after = kernel(order, done, count, carry)
            return number + 1, done + count, blocks(order, done, count, carry) if after is None else after

        if full or self.schedule.order == "given":
            after = kernel(None, jnp.int32(0), self.steps, carry)
            if after is not None:
                return after
        start = (jnp.int32(0), jnp.int32(0), carry)
        return jax.lax.while_loop(lambda state: state[1] < self.steps, epoch, start)[2]

    def _steps(self, count: Index, step: Callable[[Index, Carry], Carry], carry: Carry) -> Carry:
        """So many steps; those of one client at a time change the kernels of fully connected layers in place."""
        if self.setup.placement == "sequential" and can_rewrite_steps():
            staged = stage(step, jnp.int32(0), carry)
            faster = staged._replace(jaxpr=rewrite_descent_steps(staged.jaxpr))
            return _loop(count, lambda i, carry: faster(i, carry), carry)
        return _loop(count, step, carry)

    @property
    def widest(self) -> int:
        """The most examples of a minibatch, whoever the client is."""
        return self.schedule.widest(self.task.train.largest)

    def _order(self, key: Key[Array, ""]) -> Int[Array, "padded"] | None:
        if self.schedule.order == "given":
            return None
        largest, width = self.task.train.largest, self.widest * self._fetched_at_once()
        with profiler_scope("examples"):
            if self.setup.placement == "sequential":
                return shuffled_by_size(key, self.size, largest, largest + width)
            return jnp.pad(
                shuffled(key, self.size, largest), (0, width)
            )  # a slice of the last batch must not run over the end

    def _fetched_at_once(self) -> int:
        """Steps whose examples are fetched together: on a CPU, a small gather costs far more a row than a large one."""
        width = self.batch
        if self.setup.placement != "sequential" or not isinstance(width, int) or self.widest > self.setup.microbatch:
            return 1
        arrays = self.task.train.arrays.values()
        row = sum(values.dtype.itemsize * math.prod(values.shape[1:]) for values in arrays)
        return max(1, min(FETCH_ROWS, FETCH_BYTES // max(row, 1)) // width)

    def fetch(self, order: Int[Array, "padded"] | None, begin: Index, count: int, singly: bool = False) -> dict[str, Array]:
        """The client's examples `begin` to `begin + count` in the given order."""
        position = begin + jnp.arange(count, dtype=jnp.int32)
        with profiler_scope("examples"):
            return self.examples.rows(
                position if order is None else jax.lax.dynamic_slice_in_dim(order, begin, count), singly
            )


class Slice(Minibatch):
    """`width` examples from `begin` on in the given order, as far as the client has them; in pieces if too many.

    They are rows `place` on of `fetched`, if that is given. `most` bounds `width`, by default as the schedule does; `part` is what
    they are taken from, by default the client's training examples.
    """

    def __init__(
        self,
        client: CompiledClient,
        order: Int[Array, "padded"] | None,
        begin: Index,
        width: Index,
        key: Any,
        *,
        fetched: dict[str, Array] | None = None,
        place: Index = 0,
        most: int | None = None,
        part: Part | None = None,
        singly: bool = False,
    ) -> None:
        self.client, self.order, self.begin, self.key = client, order, begin, key
        self.fetched, self.place, self.part, self.singly = fetched, place, part or client.examples, singly
        drawn = most is None and isinstance(client.schedule.batch_size, tuple)
        widest = most or client.widest
        self.piece = min(widest, client.setup.microbatch, DRAWN_PIECE if drawn else widest)
        if key is not None and client.task.couples:
            self.piece = widest
        self.count = jnp.minimum(width, self.part.size - begin)
        self.widest, self.whole, self.many = widest, self.piece == widest, widest > FEW_PIECES * self.piece

    def loss(self, params: PyTree) -> Float[Array, ""]:
        with profiler_scope("gradients"):
            value = self._total(self._objective, params)
        l2 = self.client.task.l2
        return value + l2 / 2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params)) if l2 else value

    def gradient(self, params: PyTree) -> PyTree:
        with profiler_scope("gradients"):
            if self.key is not None and self.client.model_state is not None:
                gradient, state = jax.grad(self._with_state, has_aux=True)(params, *self._rows(0))
                self.client.take_over(state)
            else:
                gradient = self._total(jax.grad(self._objective), params)
        l2 = self.client.task.l2
        return jax.tree.map(lambda g, w: g + l2 * w, gradient, params) if l2 else gradient

    def _objective(self, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any) -> Float[Array, ""]:
        return self._with_state(params, data, weight, key)[0]

    def _with_state(self, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any) -> Any:
        return self.client.task.at(self.client.model_state).trained(params, data, weight, key)

    def _total(self, function: Callable[..., Any], params: PyTree) -> Any:
        if self.whole:
            return function(params, *self._rows(0))

        form = jax.eval_shape(lambda: function(params, *self._rows(0)))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulator(leaf.dtype)), form)
        pieces = (self.count + self.piece - 1) // self.piece

        def add(i: Index, sums: Any) -> Any:
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, function(params, *self._rows(i)))

        def narrow(sums: Any) -> Any:
            return jax.tree.map(lambda a, like: a.astype(like.dtype), sums, form)

        if not self.many:
            return narrow(jax.lax.fori_loop(0, pieces, add, zero))
        # the error of a sum grows with the number of its terms: sums of as many pieces as there are such sums
        group = math.isqrt(-(-self.widest // self.piece))

        def add_group(j: Index, sums: Any) -> Any:
            first = j * group
            own = jax.lax.fori_loop(first, jnp.minimum(first + group, pieces), add, zero)
            return jax.tree.map(jnp.add, sums, own)

        return narrow(jax.lax.fori_loop(0, (pieces + group - 1) // group, add_group, zero))

    def _rows(self, piece: Index) -> tuple[dict[str, Array], Float[Array, "batch"], Any]:
        """The examples of one piece, and weights that sum to one over all pieces."""
        client = self.client
        place = piece * self.piece + jnp.arange(self.piece, dtype=jnp.int32)
        # a client without examples (of a test split) has a count of zero, and no row counts
        weight = jnp.where(place < self.count, 1 / jnp.maximum(self.count, 1).astype(client.layout.dtype), 0)
        start = self.begin + piece * self.piece
        if self.fetched is not None:
            cut = jax.lax.dynamic_slice_in_dim
            data = {name: cut(values, self.place, self.piece) for name, values in self.fetched.items()}
        elif self.order is not None:
            data = client.fetch(self.order, start, self.piece, self.singly)
        else:
            data = self.part.rows(start + jnp.arange(self.piece, dtype=jnp.int32), self.singly)
        return data, weight, None if self.key is None else jax.random.fold_in(self.key, piece)
