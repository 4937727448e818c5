"""The engine of a round: cohorts, streams, phases, weights, channel and books, whatever carries the work to the clients."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.channel import bits_of, coded, opened
from fedax.core.federation import Cohort, Federation, Gathered, Memory, Upload
from fedax.core.scheduling.schedule import cohort_weights
from fedax.core.traffic import pack, unpack
from fedax.engine.compilation.scopes import profiler_scope
from fedax.engine.round.backend import STATE, Answer, Job, Transport, turned
from fedax.engine.round.model_state import Sent, mean_of_rows, settled
from fedax.errors import FedaxError, InvalidInput
from fedax.graphs import Graph
from fedax.utils.layout import share_of
from fedax.utils.random import Index, stream


class NobodyError(FedaxError):
    """A phase without clients: the round leaves the state as it was."""


class Report(NamedTuple):
    """A round's report.

    Attributes:
        notes: of algorithm and transport, by name.
        traffic: of every phase.
        broken: the first part that is not finite (see `fedax.engine.round.backend`), 0 for none.
        bad_client: the client it belongs to, -1 for none.
        left_out: clients whose uploads did not count, in any order, among -1.
    """

    notes: dict[str, Any]
    traffic: list[dict[str, Any]]
    broken: Int[Array, ""]
    bad_client: Int[Array, ""]
    left_out: Int[Array, "some"]


class Round(Federation):
    """One round over a transport. Keeps notes, traffic, the first part that is not finite and the last cohort on the way.

    Args:
        transport: how work reaches the clients.
        round: its number.
        root: of all random streams.
        lost: for each phase what the clients' last messages lost, if the channel has feedback.
        model_state: the model's state, or the clients' memories of theirs; None if it has none that changes.
        bounds: of adaptive clipping, None where they do not change.
    """

    def __init__(
        self,
        transport: Transport,
        round: Index,
        root: Key[Array, ""],
        lost: Sequence[Memory] = (),
        model_state: Any = None,
        bounds: Float[Array, "parts"] | None = None,
    ) -> None:
        self.transport, self.setup, self.round, self.root = transport, transport.setup, round, root
        self.clients, self.lost, self.layout = self.setup.population.clients, list(lost), self.setup.layout
        self.model_state, self.bounds = model_state, bounds
        self.notes: dict[str, Any] = {}
        self.traffic: list[dict[str, Any]] = []
        self.broken: Int[Array, ""] = jnp.int32(0)
        self.bad_client: Int[Array, ""] = jnp.int32(-1)
        self.left_out: list[Int[Array, "capacity"]] = []
        self.nobody: Any = False
        self.last: Cohort | None = None
        self._draws = 0
        self._occurrences: dict[str, int] = {}

    @property
    def everyone(self) -> Cohort:
        return self._cohort(jnp.arange(self.clients, dtype=jnp.int32), self.clients, drawn=False)

    def sample(self, weights: Float[Array, "clients"] | None = None) -> Cohort:
        key = self.transport.cohort_key(stream(self.root, "cohort", self.round, self._draws))
        self._draws += 1
        there, schedule = None, self.setup.schedule
        if schedule.reach is not None:
            there = schedule.reach.there(stream(self.root, "available", self.round), self.round, self.clients)
            self.note(available=there.sum(dtype=jnp.int32))
        with profiler_scope("cohort"):
            drawn = schedule.draw(key, jnp.asarray(self.setup.population.offsets), weights, there)
        if there is not None:
            self.note(drawn=jnp.asarray(drawn[1], jnp.int32))
        return self._cohort(*self.transport.present(*drawn), drawn=weights is None)

    def _cohort(self, ids: Int[Array, "capacity"], count: Index, drawn: bool) -> Cohort:
        population = self.setup.population
        share = share_of(population.sizes_of(ids), population.total, self.setup.layout.dtype)
        weights, terms, part = cohort_weights(self.setup.schedule, ids, share, count, self.clients, drawn)
        if self._noised and drawn and self.setup.schedule.cohort is not None:  # how many came is nobody's to know
            part = jnp.asarray(self.setup.schedule.cohort / self.clients, part.dtype)
        return Cohort(ids, count, weights, terms, part)

    @property
    def _noised(self) -> bool:
        """Whether means are those of `Privacy`."""
        return self.setup.private is not None and self.setup.private.central

    def key(self, purpose: str) -> Key[Array, ""]:
        return stream(self.root, "server", self.round, purpose)

    def memory(self, initial: PyTree) -> Memory:
        return self.transport.memory(initial)

    @property
    def answered(self) -> Cohort:
        assert self.last is not None, "no phase yet"
        return self.last

    def note(self, **values: Array | np.int64 | float) -> None:
        for name, given in values.items():
            value = given if isinstance(given, np.generic) else jnp.asarray(given)
            if self.nobody is not False:  # the rounds in Python end with the phase that nobody takes part in
                value = jnp.where(self.nobody, self.notes.get(name, missing(value)), value)
            self.notes[name] = value

    def average(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        job, answer = self._phase(work, cohort, down, memory, gather=False)
        if self._noised:
            mean = self._noisy(job, answer)
            return mean if memory is None else (mean, answer.held["own"])
        total, weight, *default = answer.sums
        if default:  # an algorithm's own weights may all be zero
            total = jax.tree.map(lambda x, y: jnp.where(weight > 0, x, y), total, default[0])
            weight = jnp.where(weight > 0, weight, default[1])
        mean = jax.tree.map(lambda x, like: (x / weight.astype(x.dtype)).astype(like.dtype), total, answer.form)
        if isinstance(mean, Sent):
            self.model_state, mean = settled(mean.state, self.model_state), mean.value
        return mean if memory is None else (mean, answer.held["own"])

    def _noisy(self, job: Job, answer: Answer) -> PyTree:
        """The mean with noise; adaptive clipping goes on to its next bounds."""
        private, total = self.setup.private, answer.sums[0]
        assert job.bounding is not None, "a phase without bounds has no noise"
        phase, key = private.phase(job), self.key(f"privacy {len(self.traffic)}")
        key = self.transport.noise_key(key, (total, job.bounding.bounds))
        mean = private.mean(phase, total, job.bounding, opened(job.down)[0], key)
        if self.bounds is not None:
            self.bounds, share = private.adapted(phase, total, self.bounds, key)
            self.note(
                clip=self.bounds, unclipped=jnp.concatenate([self.notes.get("unclipped", jnp.zeros(0, share.dtype)), share])
            )
        return jax.tree.map(lambda x, like: x.astype(like.dtype), mean, answer.form)

    def gather(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        _, answer = self._phase(work, cohort, down, memory, gather=True)
        values, weights = answer.rows
        valid = self._there(cohort, answer)
        if isinstance(values, Sent):
            states = Gathered(values.state, weights, cohort.ids, valid)
            self.model_state, values = settled(mean_of_rows(states), self.model_state), values.value
        gathered = Gathered(values, weights, cohort.ids, valid)
        return gathered if memory is None else (gathered, answer.held["own"])

    def exchange(
        self, graph: Graph, send: Callable[..., Upload[Any]], receive: Callable[..., Any], memory: Memory
    ) -> Memory:
        if self.setup.drop:
            allowed = '"stop" for methods without a server, whose mixing weights have to add up to one'
            raise InvalidInput.of("run(on_bad_client=...)", "drop", allowed)
        graph.check_population(self.clients)
        everyone, (neighbours, weights) = self.everyone, graph.at(self.round)
        job, held = self._job(send, (), memory)
        job = dataclasses.replace(job, model_state=None)  # of nodes, who have their own
        answer, received = self.transport.exchange(job, everyone, held, neighbours, weights)
        if answer.upload.weight is not None:
            raise InvalidInput.found("exchange(send=...)", "an Upload with a weight", "none: the graph has the weights")
        links = (neighbours != neighbours[:, :1]).sum(dtype=jnp.int32)
        self._book(everyone, job, answer, links)
        in_hand = {name: answer.held[name] for name in ("own", "model") if name in answer.held} | {"received": received}
        job = Job(receive, (), None, self.root, self.round, self._occurrence(receive), receives=True)
        after = self.transport.work(job, everyone, in_hand, False)
        self._check(everyone, after)
        self.model_state = after.held.get("model", self.model_state)
        return after.held["own"]

    def _there(self, cohort: Cohort, answer: Answer) -> Bool[Array, "capacity"]:
        """The places of a cohort whose uploads count."""
        present = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        return present & (answer.broken == 0) if self.setup.drop else present

    def _without_left_out(self, cohort: Cohort, answer: Answer) -> Cohort:
        """The clients of a cohort whose uploads count, as a cohort of their own."""
        if not self.setup.drop:
            return cohort
        if self._noised:  # they count as clients whose upload is 0
            return cohort
        there = self._there(cohort, answer)
        order = jnp.argsort(~there, stable=True)
        ids, count = self.transport.present(cohort.ids[order], jnp.sum(there, dtype=jnp.int32))
        order, whole, terms = order[: ids.shape[0]], cohort.terms.sum(), jnp.where(there, cohort.terms, 0)
        part = cohort.part * terms.sum() / jnp.where(whole > 0, whole, 1)
        return Cohort(ids, count, cohort.weights[order], terms[order], part)

    def _phase(
        self, work: Callable[..., Upload[Any]], cohort: Cohort, down: Any, memory: Memory | None, gather: bool
    ) -> tuple[Job, Answer]:
        job, held = self._job(work, down, memory)
        if isinstance(cohort.count, int) and cohort.count == 0:
            if not self._noised:
                raise NobodyError
            answer = self.setup.private.phase(job).empty(held)  # that nobody came is hidden as well
        else:
            answer = self.transport.work(job, cohort, held, gather)
        self._book(cohort, job, answer, cohort.count)
        return job, answer

    def _job(self, work: Callable[..., Upload[Any]], down: Any, memory: Memory | None) -> tuple[Job, dict[str, Memory]]:
        """The phase's work with what the server sends, and the clients' memories that it takes and leaves."""
        channel, phase, held = self.setup.channel, len(self.traffic), {} if memory is None else {"own": memory}
        if channel is not None and channel.down is not None:
            down = coded(down, channel.down, self.key(f"downlink {phase}"))[0]
        if channel is not None and channel.feedback:
            held["lost"] = self.lost[phase]
        attack = None if channel is None else channel.attack
        members = np.zeros(0) if attack is None else attack.members(self.clients)
        more: dict[str, Any] = {"attack": attack, "hostile": jnp.asarray(members)} if len(members) else {}
        codec, state = None if channel is None else channel.up, self.model_state
        if isinstance(state, Memory):
            held["model"], state = state, None
        more |= {"model_state": state, "sends_state": self._sends_state}
        job = Job(work, down, codec, self.root, self.round, self._occurrence(work), **more)
        return (job if self.setup.private is None else self.setup.private.job(job, self.bounds)), held

    @property
    def _sends_state(self) -> bool:
        """Whether the model's state is averaged: by the server, or with those of the neighbours."""
        return self.model_state is not None and self.setup.task.state_policy == "average"

    def _occurrence(self, work: Callable[..., Any]) -> int:
        name = getattr(work, "__name__", type(work).__name__)
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]

    def _book(self, cohort: Cohort, job: Job, answer: Answer, messages: Index) -> None:
        """Counts a phase's bits and takes over what it left behind; `messages` is how many were sent."""
        if self.nobody is not False:
            messages = jnp.where(self.nobody, 0, messages)
        abandoned, self.last = self.nobody, self._without_left_out(cohort, answer)
        if self.setup.drop:
            left_out = (answer.broken > 0) & jnp.logical_not(abandoned)
            self.left_out.append(jnp.where(left_out, cohort.ids, -1))
        self.nobody = abandoned if self._noised else abandoned | (self.last.count == 0)
        if "lost" in answer.held:
            self.lost[len(self.traffic)] = answer.held["lost"]
        self.model_state = answer.held.get("model", self.model_state)
        up = bits_of(answer.upload.value) + (0 if answer.upload.weight is None else bits_of(answer.upload.weight))
        down = bits_of(job.down) + (0 if job.model_state is None else bits_of(job.model_state))
        counts = {"down": down, "up": up, "messages": messages}
        if answer.sent is not None:
            counts = dict(zip(counts, (*answer.sent, 1), strict=True))
        entry = {name: count if name == "messages" else pack(count) for name, count in counts.items()}
        self.traffic.append(jax.tree.map(jnp.int32, entry))
        if answer.clipped is not None:
            self.note(overflow=self.notes.get("overflow", jnp.int32(0)) + answer.clipped)
        self.note(**answer.notes)
        self._check(cohort, answer)
        if isinstance(self.last.count, int) and self.last.count == 0 and not self._noised:
            raise NobodyError

    def _check(self, cohort: Cohort, answer: Answer) -> None:
        if self.setup.drop or not answer.broken.shape[0]:
            return
        place = jnp.argmax(answer.broken > 0)
        first = (self.broken == 0) & (answer.broken[place] > 0)
        self.broken = jnp.where(first, answer.broken[place], self.broken)
        self.bad_client = jnp.where(first, cohort.ids[place], self.bad_client)

    def report(self, before: PyTree, after: PyTree) -> Report:
        """The report of the round that led from one state of the algorithm to another."""
        own, new = (jax.tree.map(lambda x: None if _opaque(x) else x, tree, is_leaf=_opaque) for tree in (before, after))
        state = jnp.where((self.broken == 0) & turned(own, new), STATE, self.broken)
        broken, bad = (jnp.where(self.nobody, least, x) for least, x in ((0, state), (-1, self.bad_client)))
        left_out = jnp.concatenate([jnp.zeros(0, jnp.int32), *self.left_out])
        return Report(self.notes, self.traffic, broken, bad, left_out)


def missing(like: Any) -> Any:
    """In place of a note of a round that did not get to it: NaN, or 0 for whole numbers."""
    dtype = np.asarray(like).dtype if isinstance(like, np.ndarray | np.generic) else like.dtype
    return np.full(np.shape(like), np.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def _opaque(node: Any) -> bool:
    """Whether it is the clients' memory, of which they looked at their own."""
    return isinstance(node, Memory)


def bits_spent(traffic: Sequence[dict[str, Any]], way: str, rounds: tuple[int, ...] = ()) -> Any:
    """The bits of a round's phases in one direction; of several rounds, if the traffic has such a first axis."""
    return sum((unpack(*phase[way]) * np.asarray(phase["messages"]) for phase in traffic), np.zeros(rounds, np.int64))
