"""The verbs of a round inside a compiled program."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.core.channel import bits_of, opened, pack
from fedax.core.federation import Cohort, Federation, Gathered, Memory, Upload
from fedax.core.keys import Index, stream
from fedax.core.layout import accumulator, share_of
from fedax.core.schedule import cohort_weights
from fedax.engines.client import CompiledClient, Setup
from fedax.engines.gossip import Receiving, Sending, finite_rows
from fedax.engines.simulation.placement import longest_first
from fedax.engines.view import nobody
from fedax.graphs import Graph, mixed


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("clients",))


class SimulatedFederation(Federation):
    """One round, traced. Collects traffic, notes, the first non-finite upload and the last cohort on the way."""

    def __init__(self, setup: Setup, round: Index, root: Key[Array, ""]) -> None:
        self.setup, self.round, self.root = setup, round, root
        self.clients = setup.task.train.clients
        self.notes: dict[str, Array] = {}
        self.traffic: list[dict[str, Any]] = []
        self.bad_client: Int[Array, ""] = jnp.int32(-1)
        self.nobody = jnp.bool_(False)
        self.last: Cohort | None = None
        self._draws = 0
        self._occurrences: dict[str, int] = {}

    @property
    def everyone(self) -> Cohort:
        return self._cohort(jnp.arange(self.clients, dtype=jnp.int32), self.clients, drawn=False)

    def sample(self, odds: Float[Array, "clients"] | None = None) -> Cohort:
        key = stream(self.root, "cohort", self.round, self._draws)
        self._draws += 1
        ids, count = self.setup.schedule.draw(key, jnp.asarray(self.setup.task.train.offsets), odds)
        return self._cohort(ids, count, drawn=odds is None)

    def _cohort(self, ids: Int[Array, "capacity"], count: Index, drawn: bool) -> Cohort:
        data = self.setup.task.train
        share = share_of(data.sizes_of(ids), data.total, self.setup.layout.dtype)
        return Cohort(ids, count, *cohort_weights(self.setup.schedule, ids, share, count, self.clients, drawn))

    def key(self, purpose: str) -> Key[Array, ""]:
        return stream(self.root, "server", self.round, purpose)

    def memory(self, initial: PyTree) -> Memory:
        if callable(initial):
            return Memory(jax.vmap(initial)(jnp.arange(self.clients, dtype=jnp.int32)))
        return Memory(jax.tree.map(lambda x: jnp.broadcast_to(x, (self.clients, *jnp.shape(x))), initial))

    @property
    def worked(self) -> Cohort:
        """The clients of the last phase; none if somewhere nobody was there, so that the state stays as it was."""
        if self.last is None:
            return nobody(0, self.setup.layout.dtype)
        return eqx.tree_at(lambda c: c.count, self.last, jnp.where(self.nobody, 0, jnp.asarray(self.last.count, jnp.int32)))

    def note(self, **values: Array | float) -> None:
        self.notes.update({name: jnp.asarray(value) for name, value in values.items()})

    def average(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        mean, _, memory = self._phase(work, cohort, down, memory, keep=False)
        return mean if memory is None else (mean, memory)

    def gather(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        _, (values, weights), memory = self._phase(work, cohort, down, memory, keep=True)
        valid = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        gathered = Gathered(values, weights, cohort.ids, valid)
        return gathered if memory is None else (gathered, memory)

    def exchange(
        self, graph: Graph, send: Callable[..., Upload[Any]], receive: Callable[..., Any], memory: Memory
    ) -> Memory:
        graph.check_population(self.clients)
        everyone, neighbours, weights = self.everyone, *graph.at(self.round)
        links = (neighbours != neighbours[:, :1]).sum(dtype=jnp.int32)
        _, (sent, _), in_hand = self._phase(Sending(send), everyone, (), memory, True, links)
        received = self._mixed(sent, neighbours, weights)
        _, _, after = self._phase(Receiving(receive), everyone, (received,), in_hand, False, 0)
        assert after is not None
        finite = finite_rows(after._rows)
        bad = jnp.argmin(finite).astype(jnp.int32)
        self.bad_client = jnp.where((self.bad_client < 0) & ~finite[bad], bad, self.bad_client)
        return after

    def _mixed(self, sent: Any, neighbours: Array, weights: Array) -> Any:
        """What everybody receives; on a mesh, every device adds up for its part of the clients."""
        devices = self.setup.devices
        if devices == 1:
            return mixed(sent, neighbours, weights)
        filled = ((0, -self.clients % devices), (0, 0))
        tables = jnp.pad(neighbours, filled), jnp.pad(weights, filled)
        split = P("clients")
        program = jax.shard_map(mixed, mesh=mesh_of(devices), in_specs=(P(), split, split), out_specs=split, check_vma=False)
        return jax.tree.map(lambda rows: rows[: self.clients], program(sent, *tables))

    def _phase(
        self,
        work: Callable[..., Upload[Any]],
        cohort: Cohort,
        down: Any,
        memory: Memory | None,
        keep: bool,
        messages: Index | None = None,
    ) -> tuple[Any, Any, Memory | None]:
        """Runs one phase: the mean of the uploads (unless `keep`), the uploads (if `keep`), the new memory.

        `messages` is how many are sent, if that is not one by each participant.
        """
        setup, capacity = self.setup, cohort.ids.shape[0]
        name = getattr(work, "__name__", type(work).__name__)
        occurrence = self._occurrences[name] = self._occurrences.get(name, -1) + 1
        held = None if memory is None else jax.tree.map(lambda rows: jnp.asarray(rows)[cohort.ids], memory._rows)
        self.nobody, self.last = self.nobody | jnp.asarray(cohort.count == 0), cohort

        table, counts = longest_first(self._load(cohort.ids), cohort.count, setup.devices)

        # everything traced goes in as an argument, never by closure: a mesh sees arguments only
        job = _Job(work, setup, cohort, down, held, self.root, self.round, occurrence)
        upload = jax.eval_shape(job.upload, jnp.int32(0), jnp.bool_(True))
        shapes = jax.eval_shape(job.result, upload, jnp.int32(0))
        self._record(down, upload, cohort.count if messages is None else messages)
        sums, kept, remembered, bad, clipped = self._place(job, table, counts, shapes, keep)
        if clipped is not None:
            self.note(overflow=self.notes.get("overflow", jnp.int32(0)) + clipped)

        self.bad_client = jnp.where(
            (self.bad_client < 0) & (bad < capacity), cohort.ids[jnp.minimum(bad, capacity - 1)], self.bad_client
        )
        if memory is not None:
            # a filler's id is out of range, so its row is dropped
            ids = jnp.where(jnp.arange(capacity, dtype=jnp.int32) < cohort.count, cohort.ids, self.clients)
            memory = Memory(_put(memory._rows, ids, remembered))
        return None if keep else _mean(sums, shapes[0]), kept, memory

    def _load(self, ids: Int[Array, "capacity"]) -> Int[Array, "capacity"]:
        """How long the clients will take, in examples per round."""

        def one(k: Index, size: Index) -> Int[Array, ""]:
            steps, batch = self.setup.schedule.work(stream(self.root, "work", self.round, k), size, self.round)
            return jnp.asarray(steps, jnp.int32) * jnp.minimum(batch, size)

        return jax.vmap(one)(ids, self.setup.task.train.sizes_of(ids))

    def _record(self, down: Any, upload: Upload[Any], messages: Index) -> None:
        up = bits_of(upload.value) + (0 if upload.weight is None else bits_of(upload.weight))
        entry = {"down": pack(bits_of(down)), "up": pack(up), "messages": jnp.asarray(messages, jnp.int32)}
        self.traffic.append(jax.tree.map(jnp.int32, entry))

    def _place(self, job: Any, table: Array, counts: Array, shapes: Any, keep: bool) -> Any:
        """Works the clients off, on one device or on the mesh, and adds up what the devices have."""
        if self.setup.devices == 1:
            return self._work_off(job, table[0], counts[0], shapes, keep)

        arrays, code = eqx.partition(job, eqx.is_array)

        def on_device(places: Array, count: Array, arrays: Any) -> Any:
            own = eqx.combine(arrays, code)
            sums, kept, remembered, bad, clipped = self._work_off(own, places[0], count[0], shapes, keep)
            sums, kept, remembered, clipped = jax.lax.psum((sums, kept, remembered, clipped), "clients")
            return sums, kept, remembered, jax.lax.pmin(bad, "clients"), clipped

        mesh, split = mesh_of(self.setup.devices), P("clients")
        program = jax.shard_map(on_device, mesh=mesh, in_specs=(split, split, P()), out_specs=P(), check_vma=False)
        return program(table, counts, arrays)

    def _work_off(self, job: Any, places: Array, count: Array, shapes: Any, keep: bool) -> Any:
        """One device's clients in order, `chunk` at a time. Results of a place stand in its row; other rows are zero."""
        capacity, chunk = places.shape[0], self.setup.chunk
        value_shape, weight_shape, memory_shape, default_shape, _, clipped_shape = shapes
        places = jnp.pad(places, (0, chunk))
        sums = (value_shape, default_shape)
        if weight_shape is not None:
            sums = (*sums, *sums)
        kept = _zeros((value_shape, default_shape), capacity) if keep else None
        start = (
            None if keep else (_zeros(_wide(sums)),) * 2,  # totals, and what rounding added to them
            kept,
            _zeros(memory_shape, capacity),
            jnp.int32(capacity),
            _zeros(clipped_shape),
        )

        def some(i: Index, state: Any) -> Any:
            sums, kept, remembered, bad, clipped = state
            mine = jax.lax.dynamic_slice_in_dim(places, i * chunk, chunk)
            active = i * chunk + jnp.arange(chunk, dtype=jnp.int32) < count
            if chunk == 1:
                results = jax.tree.map(lambda x: x[None], job(mine[0], jnp.bool_(True)))
            else:
                results = jax.vmap(job)(mine, active)
            value, weight, memory, default, finite, over = results
            if chunk > 1:
                value, weight, default = _where(active, (value, weight, default), 0)
            given = default if weight is None else weight.astype(default.dtype)
            rows = jnp.where(active, mine, capacity)
            if keep:
                kept = _put(kept, rows, (value, given))
            else:
                sums = _plus(sums, (value, given) if weight is None else (value, given, value, default))
            bad = jnp.minimum(bad, jnp.min(jnp.where(active & ~finite, mine, capacity)))
            if over is not None:
                clipped = clipped + jnp.where(active, over, 0).sum(dtype=jnp.int32)
            return sums, kept, _put(remembered, rows, memory), bad, clipped

        sums, *rest = jax.lax.fori_loop(0, (count + chunk - 1) // chunk, some, start)
        return None if keep else jax.tree.map(jnp.subtract, *sums), *rest


class _Job(eqx.Module):
    """A phase's work for one place of the cohort."""

    work: Callable[..., Upload[Any]]
    setup: Setup
    cohort: Cohort
    down: Any
    held: Any
    root: Key[Array, ""]
    round: Index
    occurrence: int = eqx.field(static=True)

    def __call__(self, place: Index, active: Array) -> Any:
        return self.result(self.upload(place, active), place)

    def upload(self, place: Index, active: Array) -> Upload[Any]:
        """What the client sends, messages unopened."""
        client = CompiledClient(self.setup, self.cohort.ids[place], self.round, self.root, self.occurrence, active)
        own = () if self.held is None else (jax.tree.map(lambda rows: rows[place], self.held),)
        return self.work(client, *self.down, *own)

    def result(self, upload: Upload[Any], place: Index) -> Any:
        """Value, its weight, the new memory, the default weight, whether the value is finite, what was clipped."""
        value, clipped = opened(upload.value)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(value)], bool))
        return value, upload.weight, upload.memory, self.cohort.weights[place], finite, clipped


def _zeros(shapes: Any, rows: int | None = None) -> Any:
    lead = () if rows is None else (rows,)
    return jax.tree.map(lambda shape: jnp.zeros((*lead, *shape.shape), shape.dtype), shapes)


def _where(mask: Array, values: Any, other: float | int) -> Any:
    return jax.tree.map(lambda x: jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, other), values)


def _put(rows: Any, places: Array, values: Any) -> Any:
    return jax.tree.map(lambda all_, new: all_.at[places].set(new, mode="drop"), rows, values)


def _wide(shapes: Any) -> Any:
    """At least 32 bits for sums over clients."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, accumulator(s.dtype)), shapes)


def _plus(sums: tuple[Any, Any], chunk: tuple[Any, ...]) -> tuple[Any, Any]:
    """Adds a chunk to pairs of (weighted sum of values, sum of weights), compensated.

    Source: Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8(1), 1965.
    """

    def weighted(value: Array, weights: Array) -> Array:
        wide = accumulator(value.dtype)
        return (weights.astype(wide).reshape(weights.shape + (1,) * (value.ndim - 1)) * value.astype(wide)).sum(0)

    terms: tuple[Any, ...] = ()
    for value, weights in zip(chunk[::2], chunk[1::2], strict=True):
        terms = (*terms, jax.tree.map(lambda v, w=weights: weighted(v, w), value), weighted(weights, jnp.ones_like(weights)))
    totals, lost = sums
    missing = jax.tree.map(jnp.subtract, terms, lost)
    after = jax.tree.map(jnp.add, totals, missing)
    return after, jax.tree.map(lambda new, old, term: (new - old) - term, after, totals, missing)


def _mean(sums: Any, shapes: Any) -> Any:
    """The weighted mean from its sums; where an algorithm's own weights are all zero, that with the default ones."""
    value, weight, *fallback = sums
    if fallback:
        value = jax.tree.map(lambda x, y: jnp.where(weight > 0, x, y), value, fallback[0])
        weight = jnp.where(weight > 0, weight, fallback[1])
    return jax.tree.map(lambda x, shape: (x / weight.astype(x.dtype)).astype(shape.dtype), value, shapes)
