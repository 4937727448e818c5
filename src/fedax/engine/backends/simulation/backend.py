"""Transport inside a compiled program: clients in turn or in chunks, on one device or a mesh."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PyTree

from fedax.communication.channel import opened
from fedax.core.federation import Cohort, Memory, Upload
from fedax.engine.backends.simulation.client_state_store import OffloadedMemory
from fedax.engine.backends.simulation.placement import assign_longest_first
from fedax.engine.compilation.jaxpr import stage
from fedax.engine.compilation.scopes import part
from fedax.engine.round.aggregation import plus_weighted, total
from fedax.engine.round.backend import Answer, Job, Transport
from fedax.engine.round.client import CompiledClient, Setup
from fedax.graphs import mixed
from fedax.utils.layout import accumulator
from fedax.utils.memory_check import bytes_of, check_memories, check_room
from fedax.utils.random import Index, stream


def client_mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("clients",))


class SimulatedTransport(Transport):
    """Clients as places of a padded cohort, traced."""

    padded = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def memory(self, initial: PyTree) -> Memory:
        if self.setup.offloads:
            return OffloadedMemory.starting(initial, self.setup.population.clients)
        check_memories(self.setup.population.clients, initial)
        return super().memory(initial)

    def work(self, job: Job, cohort: Cohort, held: dict[str, Memory], gather: bool) -> Answer:
        with part("cohort"):
            table, counts = assign_longest_first(self._load(job, cohort.ids), cohort.count, self.setup.devices)
        with part("memory"):
            rows = {name: memory.take(cohort.ids) for name, memory in held.items()}
        phase = _Phase(job, self.setup, cohort, rows)
        upload, (sums, gathered, remembered, broken, clipped) = self._place(phase, table, counts, gather)
        # the number of a place that is only padding, or left out, is nobody's, so its row is passed over
        there = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        there = there & (broken == 0) if self.setup.drop else there
        ids = jnp.where(there, cohort.ids, self.setup.population.clients)
        with part("memory"):
            after = {name: held[name].put(ids, rows) for name, rows in remembered.items()}
        return Answer(upload, sums, gathered, after, broken, clipped)

    def exchange(
        self, job: Job, everyone: Cohort, held: dict[str, Memory], neighbours: Array, weights: Array
    ) -> tuple[Answer, Memory]:
        answer = self.work(job, everyone, held, True)
        return answer, Memory(self._mixed(answer.rows[0], neighbours, weights))

    def _mixed(self, sent: Any, neighbours: Array, weights: Array) -> Any:
        """Everybody's received sums; on a mesh, every device adds up for its part of the clients."""
        devices, clients = self.setup.devices, self.setup.population.clients
        if devices == 1:
            return mixed(sent, neighbours, weights)
        filled = ((0, -clients % devices), (0, 0))
        tables = jnp.pad(neighbours, filled), jnp.pad(weights, filled)
        split = P("clients")
        program = jax.shard_map(
            mixed, mesh=client_mesh(devices), in_specs=(P(), split, split), out_specs=split, check_vma=False
        )
        return jax.tree.map(lambda rows: rows[:clients], program(sent, *tables))

    def _load(self, job: Job, ids: Int[Array, "capacity"]) -> Int[Array, "capacity"]:
        """The clients' loads, in examples per round."""

        def one(k: Index, size: Index) -> Int[Array, ""]:
            steps, batch = self.setup.schedule.work(stream(job.root, "work", job.round, k), size, job.round)
            return jnp.asarray(steps, jnp.int32) * jnp.minimum(batch, size)

        return jax.vmap(one)(ids, self.setup.population.sizes_of(ids))

    def _place(self, phase: "_Phase", table: Array, counts: Array, keep: bool) -> tuple[Upload[Any], Any]:
        """Works the clients off, on one device or on the mesh, and adds up what the devices have; an upload's form, and results."""
        if self.setup.devices == 1:
            with part("aggregation"):
                return self._work_off(phase, table[0], counts[0], keep)

        arrays, code = eqx.partition(phase, eqx.is_array)
        forms = []

        # every device has all of the table: divided, it would be dealt in parts, which meet after every place
        def on_device(table: Array, counts: Array, arrays: Any) -> Any:
            device = jax.lax.axis_index("clients")
            form, results = self._work_off(eqx.combine(arrays, code), table[device], counts[device], keep)
            forms.append(form)
            return jax.lax.psum(results, "clients")

        program = jax.shard_map(
            on_device, mesh=client_mesh(self.setup.devices), in_specs=P(), out_specs=P(), check_vma=False
        )
        with part("aggregation"):
            results = program(table, counts, arrays)
        return forms[0], results

    def _work_off(self, phase: "_Phase", places: Array, count: Array, keep: bool) -> tuple[Upload[Any], Any]:
        """One device's clients in order, `chunk` at a time. Results of a place stand in its row; other rows are zero."""
        capacity, chunk = places.shape[0], self.setup.chunk
        work = stage(phase, jnp.int32(0), jnp.bool_(True))
        (value_shape, weight_shape, memory_shape, default_shape, _, clipped_shape), form = work.out_shapes
        if keep:
            check_room(f"gather({phase.job.name})", capacity, capacity * bytes_of(value_shape), "uploads together")
        places = jnp.pad(places, (0, chunk))
        sums = (value_shape, default_shape)
        if weight_shape is not None:
            sums = (*sums, *sums)
        kept = _zeros((value_shape, default_shape), capacity) if keep else None
        start = (
            None if keep else (_zeros(_wide(sums)),) * 2,  # totals, and what rounding added to them
            kept,
            _zeros(memory_shape, capacity),
            jnp.zeros(capacity, jnp.int32),
            _zeros(clipped_shape),
        )

        def some(i: Index, state: Any) -> Any:
            sums, kept, remembered, broken, clipped = state
            mine = jax.lax.dynamic_slice_in_dim(places, i * chunk, chunk)
            active = i * chunk + jnp.arange(chunk, dtype=jnp.int32) < count
            if chunk == 1:
                results = jax.tree.map(lambda x: x[None], work(mine[0], jnp.bool_(True))[0])
            else:
                results = jax.vmap(lambda place, active: work(place, active)[0])(mine, active)
            value, weight, memory, default, part, over = results
            there = active & (part == 0) if self.setup.drop else active
            if chunk > 1 or self.setup.drop:
                value, weight, default = _where(there, (value, weight, default), 0)
            given = default if weight is None else weight.astype(default.dtype)
            rows = jnp.where(active, mine, capacity)
            if keep:
                kept = _put(kept, rows, (value, given))
            else:
                sums = _added(sums, (value, given) if weight is None else (value, given, value, default))
            broken = broken.at[rows].set(part, mode="drop")
            if over is not None:
                clipped = clipped + jnp.where(active, over, 0).sum(dtype=jnp.int32)
            return sums, kept, _put(remembered, rows, memory), broken, clipped

        sums, *rest = jax.lax.fori_loop(0, (count + chunk - 1) // chunk, some, start)
        return form, (None if keep else total(sums), *rest)


class _Phase(eqx.Module):
    """A phase's work for one place of the cohort."""

    job: Job
    setup: Setup
    cohort: Cohort
    held: Any

    def __call__(self, place: Index, active: Array) -> tuple[Any, Upload[Any]]:
        """The result, and the upload as it is sent, for its form alone."""
        upload, kept = self.upload(place, active)
        return self.result(upload, kept, place), upload

    def own(self, place: Index) -> Any:
        """The client's memories before the phase."""
        return jax.tree.map(lambda rows: rows[place], self.held)

    def upload(self, place: Index, active: Array) -> tuple[Upload[Any], Any]:
        """The client's upload, messages unopened, and the memories that it keeps."""
        job = self.job
        with part(f"work.{job.name}"):
            client = CompiledClient(self.setup, self.cohort.ids[place], job.round, job.root, job.occurrence, active)
            return job(client, self.own(place))

    def result(self, upload: Upload[Any], kept: Any, place: Index) -> Any:
        """Value, its weight, what is kept, the default weight, the part that is not finite, what was clipped."""
        value, clipped = opened(upload.value)
        broken = self.job.broken((value, upload.weight), self.own(place), kept)
        return self.job.bounded(value), upload.weight, kept, self.cohort.weights[place], broken, clipped


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


def _added(sums: tuple[Any, Any], chunk: tuple[Any, ...]) -> tuple[Any, Any]:
    """The pair of sums with the weighted values, and the weights, of a chunk of both in turn."""
    form = jax.tree.structure(sums[0])
    pairs = iter(list(zip(*map(jax.tree.leaves, sums), strict=True)))
    added = []
    for value, weights in zip(chunk[::2], chunk[1::2], strict=True):
        added += [plus_weighted(next(pairs), leaf, weights) for leaf in jax.tree.leaves(value)]
        added.append(plus_weighted(next(pairs), jnp.ones_like(weights), weights))
    totals, lost = zip(*added, strict=True)
    return jax.tree.unflatten(form, totals), jax.tree.unflatten(form, lost)
