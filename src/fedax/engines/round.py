"""The engine of a round: cohorts, streams, phases, weights, channel and books, whatever carries the work to the clients."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.core.channel import bits_of, coded, pack, unpack
from fedax.core.errors import FedaxError, InvalidInput
from fedax.core.federation import Cohort, Federation, Gathered, Memory, Upload
from fedax.core.keys import Index, stream
from fedax.core.layout import share_of
from fedax.core.schedule import cohort_weights
from fedax.engines.transport import Answer, Job, Transport
from fedax.graphs import Graph


class NobodyError(FedaxError):
    """A phase without clients: the round leaves the state as it was."""


class Round(Federation):
    """One round over a transport. Keeps notes, traffic, the first non-finite client and the last cohort on the way.

    Args:
        transport: how work reaches the clients.
        round: its number.
        root: of all random streams.
        lost: for each phase what the clients' last messages lost, if the channel has feedback.
    """

    def __init__(self, transport: Transport, round: Index, root: Key[Array, ""], lost: Sequence[Memory] = ()) -> None:
        self.transport, self.setup, self.round, self.root = transport, transport.setup, round, root
        self.clients, self.lost = self.setup.population.clients, list(lost)
        self.notes: dict[str, Any] = {}
        self.traffic: list[dict[str, Any]] = []
        self.bad_client: Int[Array, ""] = jnp.int32(-1)
        self.nobody: Any = False
        self.last: Cohort | None = None
        self._draws = 0
        self._occurrences: dict[str, int] = {}

    @property
    def everyone(self) -> Cohort:
        return self._cohort(jnp.arange(self.clients, dtype=jnp.int32), self.clients, drawn=False)

    def sample(self, weights: Float[Array, "clients"] | None = None) -> Cohort:
        key = stream(self.root, "cohort", self.round, self._draws)
        self._draws += 1
        drawn = self.setup.schedule.draw(key, jnp.asarray(self.setup.population.offsets), weights)
        return self._cohort(*self.transport.present(*drawn), drawn=weights is None)

    def _cohort(self, ids: Int[Array, "capacity"], count: Index, drawn: bool) -> Cohort:
        population = self.setup.population
        share = share_of(population.sizes_of(ids), population.total, self.setup.layout.dtype)
        return Cohort(ids, count, *cohort_weights(self.setup.schedule, ids, share, count, self.clients, drawn))

    def key(self, purpose: str) -> Key[Array, ""]:
        return stream(self.root, "server", self.round, purpose)

    def memory(self, initial: PyTree) -> Memory:
        return self.transport.memory(initial)

    def note(self, **values: Array | float) -> None:
        self.notes.update({n: v if isinstance(v, np.generic) else jnp.asarray(v) for n, v in values.items()})

    def average(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        answer = self._phase(work, cohort, down, memory, gather=False)
        total, weight, *default = answer.sums
        if default:  # an algorithm's own weights may all be zero
            total = jax.tree.map(lambda x, y: jnp.where(weight > 0, x, y), total, default[0])
            weight = jnp.where(weight > 0, weight, default[1])
        mean = jax.tree.map(lambda x, like: (x / weight.astype(x.dtype)).astype(like.dtype), total, answer.form)
        return mean if memory is None else (mean, answer.held["own"])

    def gather(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        answer = self._phase(work, cohort, down, memory, gather=True)
        valid = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        values, weights = answer.rows
        gathered = Gathered(values, weights, cohort.ids, valid)
        return gathered if memory is None else (gathered, answer.held["own"])

    def exchange(
        self, graph: Graph, send: Callable[..., Upload[Any]], receive: Callable[..., Any], memory: Memory
    ) -> Memory:
        graph.check_population(self.clients)
        everyone, (neighbours, weights) = self.everyone, graph.at(self.round)
        job, held = self._job(send, (), memory)
        answer, received = self.transport.exchange(job, everyone, held, neighbours, weights)
        if answer.upload.weight is not None:
            raise InvalidInput.found("exchange(send=...)", "an Upload with a weight", "none: the graph has the weights")
        links = (neighbours != neighbours[:, :1]).sum(dtype=jnp.int32)
        self._book(everyone, job, answer, links)
        in_hand = {"own": answer.held["own"], "received": received}
        job = Job(receive, (), None, self.root, self.round, self._occurrence(receive), receives=True)
        after = self.transport.work(job, everyone, in_hand, False)
        self._check(everyone, after)
        return after.held["own"]

    def _phase(
        self, work: Callable[..., Upload[Any]], cohort: Cohort, down: Any, memory: Memory | None, gather: bool
    ) -> Answer:
        job, held = self._job(work, down, memory)
        if isinstance(cohort.count, int) and cohort.count == 0:
            raise NobodyError
        answer = self.transport.work(job, cohort, held, gather)
        self._book(cohort, job, answer, cohort.count)
        return answer

    def _job(self, work: Callable[..., Upload[Any]], down: Any, memory: Memory | None) -> tuple[Job, dict[str, Memory]]:
        """The phase's work with what the server sends, and the clients' memories that it takes and leaves."""
        channel, phase, held = self.setup.channel, len(self.traffic), {} if memory is None else {"own": memory}
        if channel is not None and channel.down is not None:
            down = coded(down, channel.down, self.key(f"downlink {phase}"))[0]
        if channel is not None and channel.feedback:
            held["lost"] = self.lost[phase]
        codec = None if channel is None else channel.up
        return Job(work, down, codec, self.root, self.round, self._occurrence(work)), held

    def _occurrence(self, work: Callable[..., Any]) -> int:
        name = getattr(work, "__name__", type(work).__name__)
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]

    def _book(self, cohort: Cohort, job: Job, answer: Answer, messages: Index) -> None:
        """Counts a phase's bits and takes over what it left behind; `messages` is how many were sent."""
        self.nobody, self.last = self.nobody | (cohort.count == 0), cohort
        if "lost" in answer.held:
            self.lost[len(self.traffic)] = answer.held["lost"]
        up = bits_of(answer.upload.value) + (0 if answer.upload.weight is None else bits_of(answer.upload.weight))
        entry = {"down": pack(bits_of(job.down)), "up": pack(up), "messages": messages}
        self.traffic.append(jax.tree.map(jnp.int32, entry))
        if answer.clipped is not None:
            self.note(overflow=self.notes.get("overflow", jnp.int32(0)) + answer.clipped)
        self.note(**answer.notes)
        self._check(cohort, answer)

    def _check(self, cohort: Cohort, answer: Answer) -> None:
        capacity = cohort.ids.shape[0]
        bad = cohort.ids[jnp.minimum(answer.bad, capacity - 1)]
        self.bad_client = jnp.where((self.bad_client < 0) & (answer.bad < capacity), bad, self.bad_client)

    @property
    def report(self) -> tuple[dict[str, Any], list[dict[str, Any]], Array]:
        """Notes, traffic of every phase, the first non-finite client (-1 for none)."""
        return self.notes, self.traffic, jnp.where(self.nobody, -1, self.bad_client)


def bits_spent(traffic: Sequence[dict[str, Any]], way: str, rounds: tuple[int, ...] = ()) -> Any:
    """The bits of a round's phases in one direction; of several rounds, if the traffic has such a first axis."""
    return sum((unpack(*phase[way]) * np.asarray(phase["messages"]) for phase in traffic), np.zeros(rounds, np.int64))
