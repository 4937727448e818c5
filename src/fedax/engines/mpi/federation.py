"""The verbs of a round among MPI peers: every rank runs the same round, and works for its own client."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.channel import bits_of, opened
from fedax.core.federation import Cohort, Federation, Gathered, Memory, Upload
from fedax.core.keys import stream
from fedax.core.schedule import cohort_weights
from fedax.engines.client import Setup
from fedax.engines.eager import NobodyError
from fedax.engines.gossip import Sending, finite_rows
from fedax.engines.mpi.peer import PeerClient, PeerMemory, Peers, Place, decoded, encoded
from fedax.graphs import Graph


@eqx.filter_jit
def _work(work: Any, setup: Setup, place: Place, round: Any, root: Any, occurrence: int, arguments: Any) -> Any:
    return work(PeerClient(setup, place, round, root, occurrence), *arguments)


class MPIFederation(Federation):
    """One round of one rank. Means are sums over all ranks; what only the server knows, every rank computes alike."""

    def __init__(self, setup: Setup, peers: Peers, round: int, root: Key[Array, ""]) -> None:
        self.setup, self.peers, self.round, self.root = setup, peers, round, root
        self.clients = peers.comm.size
        self.notes: dict[str, Any] = {}
        self._down = self._up = 0
        self._bad = self.clients
        self.last: Cohort | None = None
        self._draws = 0
        self._occurrences: dict[str, int] = {}

    @property
    def down(self) -> int:
        return self.peers.comm.allreduce(self._down)

    @property
    def up(self) -> int:
        return self.peers.comm.allreduce(self._up)

    @property
    def bad_client(self) -> int:
        first = min(self.peers.comm.allgather(self._bad))
        return first if first < self.clients else -1

    @property
    def everyone(self) -> Cohort:
        return self._cohort(jnp.arange(self.clients, dtype=jnp.int32), drawn=False)

    def sample(self, odds: Float[Array, "clients"] | None = None) -> Cohort:
        key = stream(self.root, "cohort", self.round, self._draws)
        self._draws += 1
        ids, count = self.setup.schedule.draw(key, jnp.asarray(self.peers.population.train.offsets), odds)
        return self._cohort(ids[: int(count)], drawn=odds is None)

    def _cohort(self, ids: Array, drawn: bool) -> Cohort:
        sizes = np.asarray(self.peers.population.train.sizes)
        share = jnp.asarray(sizes[np.asarray(ids)] / sizes.sum(), self.setup.layout.dtype)
        return Cohort(ids, ids.shape[0], *cohort_weights(self.setup.schedule, ids, share, ids.shape[0], self.clients, drawn))

    def key(self, purpose: str) -> Key[Array, ""]:
        return stream(self.root, "server", self.round, purpose)

    def memory(self, initial: PyTree) -> Memory:
        return PeerMemory(initial(jnp.int32(self.peers.rank)) if callable(initial) else initial, self.peers)

    def note(self, **values: Array | float) -> None:
        self.notes.update({name: np.asarray(value) for name, value in values.items()})

    def average(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        upload, places, memory = self._phase(work, cohort, down, memory)
        default = sum((cohort.weights[i] for i in places), jnp.zeros((), cohort.weights.dtype))
        given = default if upload.weight is None else len(places) * upload.weight.astype(default.dtype)

        def weighted(weight: Array) -> PyTree:
            return jax.tree.map(lambda x: jnp.where(weight > 0, weight.astype(x.dtype) * x, 0), upload.value)

        sums, total = self.peers.sum((weighted(given), given))
        if upload.weight is not None and not float(total) > 0:  # all own weights are zero: the default ones count
            sums, total = self.peers.sum((weighted(default), default))
        mean = jax.tree.map(lambda x: x / total.astype(x.dtype), sums)
        return mean if memory is None else (mean, memory)

    def gather(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        upload, _, memory = self._phase(work, cohort, down, memory)
        values = jax.tree.map(lambda rows: rows[cohort.ids], self.peers.rows(upload.value))
        weights = cohort.weights if upload.weight is None else self.peers.rows(upload.weight)[cohort.ids]
        gathered = Gathered(values, weights, cohort.ids, jnp.ones(cohort.ids.shape[0], bool))
        return gathered if memory is None else (gathered, memory)

    def exchange(
        self, graph: Graph, send: Callable[..., Upload[Any]], receive: Callable[..., Any], memory: Memory
    ) -> Memory:
        graph.check_population(self.clients)
        self.last = self.everyone
        neighbours, weights = (np.asarray(table)[self.peers.rank] for table in graph.at(int(self.round)))
        upload, in_hand = self._upload(Sending(send), (memory._rows,))
        linked = neighbours != neighbours[0]
        others = neighbours[linked].tolist()
        comm = self.peers.comm.Create_dist_graph_adjacent(others, others)
        payload = encoded(upload.value)
        arrived = comm.neighbor_allgather(payload)
        comm.Free()
        self._up += bits_of(upload.value) * len(others)
        self.note(wire_bytes=self.peers.comm.allreduce(sum(map(len, payload)) * len(others)))

        mine = decoded(payload, upload.value)
        terms = [(weights[0], mine)]
        terms += [(w, decoded(data, upload.value)) for w, data in zip(weights[linked], arrived, strict=True)]
        scaled = [jax.tree.map(lambda u, w=w: jnp.asarray(w, u.dtype) * u, value) for w, value in terms]
        received = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *scaled)
        after = self._do(receive, self._occurrence(receive), (in_hand, received))
        if not bool(finite_rows(jax.tree.map(lambda leaf: leaf[None], after))[0]):
            self._bad = self.peers.rank
        return PeerMemory(after, self.peers)

    def _phase(
        self, work: Callable[..., Upload[Any]], cohort: Cohort, down: Any, memory: Memory | None
    ) -> tuple[Upload[Any], list[int], Memory | None]:
        """The rank's upload (zeros if it does not take part), its places in the cohort, and its new memory."""
        if cohort.ids.shape[0] == 0:
            raise NobodyError
        self.last = cohort
        places = np.flatnonzero(np.asarray(cohort.ids) == self.peers.rank).tolist()
        arguments = (*down, *(() if memory is None else (memory._rows,)))
        if not places:
            occurrence = self._occurrence(work)
            shape = eqx.filter_eval_shape(_work, *self._job(work, occurrence, arguments))
            value, weight = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (opened_shape(shape), shape.weight))
            return Upload(value, weight), places, memory
        upload, after = self._upload(work, arguments)
        weight_bits = 0 if upload.weight is None else bits_of(upload.weight)
        self._up += len(places) * (bits_of(upload.value) + weight_bits)
        self._down += len(places) * bits_of(list(down))
        upload = Upload(opened(upload.value)[0], upload.weight)
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(upload.value)):
            self._bad = min(self._bad, self.peers.rank)
        return upload, places, None if memory is None else PeerMemory(after, self.peers)

    def _upload(self, work: Callable[..., Upload[Any]], arguments: Any) -> tuple[Upload[Any], Any]:
        upload = self._do(work, self._occurrence(work), arguments)
        return upload, upload.memory

    def _do(self, work: Callable[..., Any], occurrence: int, arguments: Any) -> Any:
        return _work(*self._job(work, occurrence, arguments))

    def _job(self, work: Callable[..., Any], occurrence: int, arguments: Any) -> tuple[Any, ...]:
        sizes = np.asarray(self.peers.population.train.sizes)
        share = jnp.asarray(sizes[self.peers.rank] / sizes.sum(), self.setup.layout.dtype)
        place = Place(jnp.int32(self.peers.rank), share)
        return work, self.setup, place, jnp.int32(self.round), self.root, occurrence, arguments

    def _occurrence(self, work: Callable[..., Any]) -> int:
        name = getattr(work, "__name__", type(work).__name__)
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]


def opened_shape(upload: Any) -> PyTree:
    """The shapes of an upload's value with its messages opened."""
    return eqx.filter_eval_shape(lambda value: opened(value)[0], upload.value)
