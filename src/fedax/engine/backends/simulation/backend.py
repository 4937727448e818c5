"""Backend of the compiled simulation: runs clients one by one or in chunks, on one device or a
mesh.

A cohort is padded to its capacity, so that all rounds are one program. A *slot* is a position in
the padded cohort.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, PyTree

from fedax.communication.channel import decode
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.engine.backends.simulation.host import OffloadedStates
from fedax.engine.round.aggregation import add_compensated, finalize, no_terms, weighted_sum
from fedax.engine.round.backend import Backend
from fedax.engine.round.client import CompiledClient, Setup, local_work
from fedax.engine.round.phase import PhaseResult, PhaseWork, zeros
from fedax.utils.random import Index


def assign_longest_first(
    loads: Float[Array, "capacity"], count: Index, devices: int
) -> tuple[Array, Array]:
    """Assigns clients to devices, longest first, each to the one with the least work so far (LPT).

    Args:
        loads: work of each slot of the cohort, shape (capacity,).
        count: how many slots are in use.
        devices: number of devices.

    Returns:
        Slots of each device in order of work, shape (devices, capacity), and the number of slots of
        each device, shape (devices,).
    """
    capacity = loads.shape[0]
    present = jnp.arange(capacity, dtype=jnp.int32) < count
    # padding sorts last: its key is 1, those of clients are at most 0
    by_length = jnp.argsort(jnp.where(present, -loads, 1), stable=True).astype(jnp.int32)
    if devices == 1:
        return by_length[None], jnp.asarray(count, jnp.int32)[None]

    def assign(i: Index, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        table, counts, load = state
        device = jnp.argmin(load)
        slot = by_length[i]
        table = table.at[device, counts[device]].set(slot)
        return table, counts.at[device].add(1), load.at[device].add(loads[slot])

    empty = (
        jnp.zeros((devices, capacity), jnp.int32),
        jnp.zeros(devices, jnp.int32),
        jnp.zeros(devices, loads.dtype),
    )
    table, counts, _ = jax.lax.fori_loop(0, count, assign, empty)
    return table, counts


def client_mesh(devices: int) -> Mesh:
    """Returns a mesh of the first devices, with the axis `clients`."""
    return Mesh(np.array(jax.devices()[:devices]), ("clients",))


class SimulationBackend(Backend):
    """Runs the slots of a padded cohort inside a traced program."""

    padded = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def client_states(self, initial: PyTree) -> ClientStates:
        if self.setup.placement.offloads:
            return OffloadedStates.create(initial, self.setup.population.clients)
        return super().client_states(initial)

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates], gather: bool
    ) -> PhaseResult:
        def client_load(slot: Index, k: Index, size: Index) -> Float[Array, ""]:
            """Returns the number of examples that a client processes in this round."""
            round = phase_work.for_slot(slot).round
            steps, batch = local_work(self.setup.schedule, phase_work.root, round, k, size)
            # of a large client a product of whole numbers would overflow
            return jnp.float32(steps) * jnp.float32(jnp.minimum(batch, size))

        with jax.named_scope("fedax.cohort"):
            # slots by device in order of work (devices, capacity), and how many each device has
            # (devices,)
            devices = self.setup.placement.devices
            slots = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32)
            sizes = self.setup.population.sizes_of(cohort.ids)
            loads = jax.vmap(client_load)(slots, cohort.ids, sizes)
            table, counts = assign_longest_first(loads, cohort.count, devices)
        # the rows of the cohort are read once, before the loop, and written once, after it: the
        # loop then carries arrays (capacity, ...) and not those of the whole population
        with jax.named_scope("fedax.memory"):
            rows = {name: memory.take(cohort.ids) for name, memory in states.items()}
        client_work = _ClientWork(phase_work, self.setup, cohort, rows)
        with jax.named_scope("fedax.aggregation"):
            if devices == 1:
                return self._run_device(client_work, table[0], counts[0], gather)
            return self._run_mesh(client_work, table, counts, gather)

    def _run_mesh(
        self, client_work: "_ClientWork", table: Array, counts: Array, gather: bool
    ) -> PhaseResult:
        """Runs all clients on the mesh and adds up the devices' results; see `_run_device`."""
        arrays, static = eqx.partition(client_work, eqx.is_array)
        forms = []

        # Every device gets the whole table. Sharded by device, XLA would exchange parts of it after
        # every slot.
        def on_device(table: Array, counts: Array, arrays: Any) -> Any:
            device = jax.lax.axis_index("clients")
            results = self._run_device(
                eqx.combine(arrays, static), table[device], counts[device], gather
            )
            forms.append(results.upload)
            # a slot's row is zero on all devices but its own
            return jax.lax.psum(results._replace(upload=None), "clients")

        program = jax.shard_map(
            on_device,
            mesh=client_mesh(self.setup.placement.devices),
            in_specs=P(),
            out_specs=P(),
            check_vma=False,
        )
        results = program(table, counts, arrays)
        return results._replace(upload=forms[0])

    def _run_device(
        self, client_work: "_ClientWork", slots: Array, count: Array, gather: bool
    ) -> PhaseResult:
        """Runs one device's clients in order, `chunk` at a time.

        Rows of the result are by slot, shape (capacity, ...); those of other devices' slots are
        zero.

        Args:
            client_work: the work for one slot.
            slots: the device's slots in order of work, shape (capacity,), of which the first
                `count` are in use.
            count: how many clients the device has.
            gather: whether to return all uploads, not their sum.
        """
        capacity = slots.shape[0]
        chunk = self.setup.placement.chunk
        # traced once: the shapes of a result are needed before the loop that computes results
        run_client: Any = eqx.filter_closure_convert(client_work, jnp.int32(0), jnp.bool_(True))
        shapes, form = run_client.out_struct
        slots = jnp.pad(slots, (0, chunk))  # the last chunk may run over the end

        def run_chunk(i: Index, results: PhaseResult) -> PhaseResult:
            chunk_slots = jax.lax.dynamic_slice_in_dim(slots, i * chunk, chunk)
            active = i * chunk + jnp.arange(chunk, dtype=jnp.int32) < count
            # without `vmap`, which would turn loops over a client's steps into masked ones
            if chunk == 1:
                clients = jax.tree.map(
                    lambda x: x[None], run_client(chunk_slots[0], jnp.bool_(True))[0]
                )
            else:
                clients = jax.vmap(lambda slot, active: run_client(slot, active)[0])(
                    chunk_slots, active
                )
            # leaves (chunk, ...), which are added to the results
            value = clients.value
            weights = clients.weights
            if chunk > 1 or self.setup.drop:
                is_counted = active & (clients.broken == 0) if self.setup.drop else active
                # zero the values too: a weight of 0 does not remove what is not finite
                value, weights = jax.tree.map(
                    lambda x: jnp.where(is_counted.reshape(-1, *(1,) * (x.ndim - 1)), x, 0),
                    (value, weights),
                )
            sums = uploads = None
            if gather:
                uploads = value, weights[0]
            else:
                terms = value, jnp.ones_like(weights[0])
                pairs = zip(results.sums, weights, strict=True)
                sums = [add_compensated(pair, weighted_sum(terms, each)) for pair, each in pairs]
            # padding writes out of range, which is dropped
            places = jnp.where(active, chunk_slots, capacity)
            rows = jax.tree.map(
                lambda rows, new: rows.at[places].set(new, mode="drop"),
                (results.rows, results.client_states, results.broken),
                (uploads, clients.client_state, clients.broken),
            )
            return PhaseResult(None, sums, *rows)

        # `count` is traced, so a device with few clients ends its loop early
        start = _empty_result(shapes, capacity, gather)
        results = jax.lax.fori_loop(0, (count + chunk - 1) // chunk, run_chunk, start)
        if not gather:
            results = results._replace(sums=sum(map(finalize, results.sums), ()))
        return results._replace(upload=form)


class _ClientResult(NamedTuple):
    """Result of one client's work in a phase.

    Attributes:
        value: the upload, messages decode.
        weights: the upload's own weight if it has one, then the cohort's weight of the client.
        client_state: what the client stores, by name.
        broken: which part is not finite, see `PhaseWork.broken_part`; int32.
    """

    value: Any
    weights: list[Any]
    client_state: Any
    broken: Any


def _empty_result(shapes: _ClientResult, capacity: int, gather: bool) -> PhaseResult:
    """Returns the result of a device before its first client, given the shapes of one client's.

    Its sums are compensated within the loop.
    """
    weighted = (shapes.value, shapes.weights[0])
    sums = None if gather else [no_terms(weighted)] * len(shapes.weights)
    uploads = zeros(weighted if gather else None, capacity)
    return PhaseResult(None, sums, uploads, *zeros((shapes.client_state, shapes.broken), capacity))


class _ClientWork(eqx.Module):
    """A phase's work for one slot of the cohort.

    `states` has the clients' states by name, rows of shape (capacity, ...).
    """

    phase_work: PhaseWork
    setup: Setup
    cohort: Cohort
    states: Any

    def __call__(self, slot: Index, active: Array) -> tuple[_ClientResult, Upload[Any]]:
        """Returns the result, and the upload not yet decoded, of which only the form is used."""
        phase_work = self.phase_work.for_slot(slot)
        before = jax.tree.map(lambda rows: rows[slot], self.states)
        with jax.named_scope(f"fedax.work.{phase_work.name}"):
            client = CompiledClient(
                self.setup,
                self.cohort.ids[slot],
                phase_work.round,
                phase_work.root,
                phase_work.occurrence,
                active,
            )
            upload, client_state, broken = phase_work(client, before)
        weights = [self.cohort.weights[slot]]
        if upload.weight is not None:
            weights.insert(0, jnp.full_like(weights[0], upload.weight))
        value = phase_work.open(decode(upload.value))
        return _ClientResult(value, weights, client_state, jnp.int32(broken)), upload
