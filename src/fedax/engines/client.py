"""A client inside a compiled program: traced number, traced size, ragged data by offset."""

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.core.client import Carry, Client, Minibatch
from fedax.core.keys import Index, stream
from fedax.core.layout import Layout
from fedax.core.schedule import Schedule
from fedax.core.solver import Solver
from fedax.core.task import Task
from fedax.engines.order import shuffled, shuffled_by_size

FETCH_ROWS, FETCH_BYTES = 512, 1 << 18
"""The most examples, and bytes, that one client fetches for several steps at once."""


class Setup(eqx.Module):
    """All that a round needs beside algorithm, state and keys.

    `microbatch` is the most examples that pass through the model at once; larger and full batches are accumulated.
    `placement` is how the clients of a cohort follow each other (see `Simulation`).
    """

    task: Task
    solver: Solver
    schedule: Schedule
    layout: Layout
    microbatch: int = eqx.field(static=True, default=256)
    placement: Literal["sequential", "chunked"] = eqx.field(static=True, default="sequential")
    chunk: int = eqx.field(static=True, default=1)
    devices: int = eqx.field(static=True, default=1)


class CompiledClient(Client):
    """See `Client`. `active` is False for fillers of a chunk, which take no steps."""

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
        offsets = jnp.asarray(setup.task.train.offsets)
        self.offset = offsets[index]
        self.size = offsets[index + 1] - self.offset
        self.share = self.size.astype(setup.layout.dtype) / setup.task.train.total
        self.steps = jnp.where(active, jnp.asarray(setup.schedule.steps_of(self.size), jnp.int32), 0)

    def loss(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        return self._all().loss(self.layout.unravel(w))

    def gradient(self, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        return self.layout.ravel(self._all().gradient(self.layout.unravel(w)))

    def _all(self) -> "Slice":
        return Slice(self, None, jnp.int32(0), self.task.train.largest, None)

    def run(self, step: Callable[[Carry, Minibatch], Carry], carry: Carry) -> Carry:
        full = self.schedule.batch_size == "full"
        width = self.task.train.largest if full else min(int(self.schedule.batch_size), self.task.train.largest)
        per_epoch = jnp.int32(1) if full else (self.size + width - 1) // width
        order_key, noise_key = self.key("order"), self.key("noise")
        at_once = self._fetched_at_once(width)

        def epoch(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            number, done, carry = state
            order = None if full else self._order(jax.random.fold_in(order_key, number), width * at_once)
            count = jnp.minimum(per_epoch, self.steps - done)

            def block(b: Index, carry: Carry) -> Carry:
                first = b * at_once
                fetched = self.fetch(order, first * width, at_once * width) if at_once > 1 else None

                def one(i: Index, carry: Carry) -> Carry:
                    number = first + i
                    key = jax.random.fold_in(noise_key, done + number)
                    return step(carry, Slice(self, order, number * width, width, key, fetched, i * width))

                if at_once == 1:
                    return one(jnp.int32(0), carry)
                return jax.lax.fori_loop(jnp.int32(0), jnp.minimum(at_once, count - first), one, carry)

            blocks = (count + at_once - 1) // at_once
            return number + 1, done + count, jax.lax.fori_loop(jnp.int32(0), blocks, block, carry)

        start = (jnp.int32(0), jnp.int32(0), carry)
        return jax.lax.while_loop(lambda state: state[1] < self.steps, epoch, start)[2]

    def _order(self, key: Key[Array, ""], width: int) -> Int[Array, "padded"] | None:
        if self.schedule.order == "given":
            return None
        largest = self.task.train.largest
        if self.setup.placement == "sequential":
            return shuffled_by_size(key, self.size, largest, largest + width)
        return jnp.pad(shuffled(key, self.size, largest), (0, width))  # a slice of the last batch must not run over the end

    def _fetched_at_once(self, width: int) -> int:
        """Steps whose examples are fetched together: on a CPU, a small gather costs far more a row than a large one."""
        if self.setup.placement != "sequential" or width > self.setup.microbatch:
            return 1
        arrays = self.task.train.arrays.values()
        row = sum(values.dtype.itemsize * math.prod(values.shape[1:]) for values in arrays)
        return max(1, min(FETCH_ROWS, FETCH_BYTES // max(row, 1)) // width)

    def fetch(self, order: Int[Array, "padded"] | None, begin: Index, count: int) -> dict[str, Array]:
        """The client's examples `begin` to `begin + count` in the given order; its last one in place of those it lacks."""
        if order is None:
            position = begin + jnp.arange(count, dtype=jnp.int32)
        else:
            position = jax.lax.dynamic_slice_in_dim(order, begin, count)
        rows = self.offset + jnp.minimum(position, self.size - 1)
        arrays = self.task.train.arrays.items()
        return {name: jnp.asarray(values).at[rows].get(mode="promise_in_bounds") for name, values in arrays}


class Slice(Minibatch):
    """`width` examples from `begin` on in the given order, as far as the client has them; in pieces if too many.

    They are rows `place` on of `fetched`, if that is given.
    """

    def __init__(
        self,
        client: CompiledClient,
        order: Int[Array, "padded"] | None,
        begin: Index,
        width: int,
        key: Any,
        fetched: dict[str, Array] | None = None,
        place: Index = 0,
    ) -> None:
        self.client, self.order, self.begin, self.key = client, order, begin, key
        self.fetched, self.place = fetched, place
        self.piece = min(width, client.setup.microbatch)
        self.count = jnp.minimum(width, client.size - begin)
        self.whole = self.piece == width

    def loss(self, params: PyTree) -> Float[Array, ""]:
        value = self._total(self._objective, params)
        l2 = self.client.task.l2
        return value + l2 / 2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params)) if l2 else value

    def gradient(self, params: PyTree) -> PyTree:
        gradient = self._total(jax.grad(self._objective), params)
        l2 = self.client.task.l2
        return jax.tree.map(lambda g, w: g + l2 * w, gradient, params) if l2 else gradient

    def _objective(self, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any) -> Float[Array, ""]:
        task = self.client.task
        return task.total(task.loss, params, data, weight, key)

    def _total(self, function: Callable[..., Any], params: PyTree) -> Any:
        if self.whole:
            return function(params, *self._rows(0))

        def add(i: Index, total: Any) -> Any:
            return jax.tree.map(jnp.add, total, function(params, *self._rows(i)))

        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: function(params, *self._rows(0))))
        return jax.lax.fori_loop(0, (self.count + self.piece - 1) // self.piece, add, zero)

    def _rows(self, piece: Index) -> tuple[dict[str, Array], Float[Array, "batch"], Any]:
        """The examples of one piece, and weights that sum to one over all pieces."""
        client = self.client
        place = piece * self.piece + jnp.arange(self.piece, dtype=jnp.int32)
        weight = jnp.where(place < self.count, 1 / self.count.astype(client.layout.dtype), 0)
        if self.fetched is None:
            data = client.fetch(self.order, self.begin + piece * self.piece, self.piece)
        else:
            data = {
                name: jax.lax.dynamic_slice_in_dim(values, self.place, self.piece) for name, values in self.fetched.items()
            }
        return data, weight, None if self.key is None else jax.random.fold_in(self.key, piece)
