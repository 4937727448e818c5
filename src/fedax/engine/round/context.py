"""Executes one round: the verbs that algorithms call, the same on every backend.

`average`, `gather` and `exchange` are phases. A phase encodes what the server
sends, hands the clients' work to the backend, combines the uploads, and counts the traffic. In a
simulation all of this is traced once and compiled; on the other backends it runs in Python, round
after round.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.channel import bits_of, encode
from fedax.core.bound_model import state_from_mean
from fedax.core.carry import NOTHING, RunCarry
from fedax.core.federation import ClientStates, Cohort, Federation, Gathered, Upload, is_states
from fedax.core.scheduling.timeline import Row
from fedax.core.validation.own_methods import check_state
from fedax.engine.round.aggregation import weighted_mean, weighted_sum
from fedax.engine.round.backend import Backend
from fedax.engine.round.phase import (
    STATE,
    ModelState,
    PastVersions,
    PhaseResult,
    PhaseWork,
    Sent,
    SolverState,
    Stage,
    became_non_finite,
    message_stages,
    name_of,
    refuse,
)
from fedax.errors import FedaxError
from fedax.graphs import Graph
from fedax.utils.layout import share_of
from fedax.utils.random import Index, stream


class EmptyPhaseError(FedaxError):
    """Raised by a phase without clients.

    The backend abandons the round and leaves the state as it was.
    """


class PhaseTraffic(eqx.Module):
    """Messages of one phase in a round, or in several ones with a first axis over them.

    Attributes:
        down, up: bits of one message, or of all where the backend measures them.
        sent: messages down.
        messages: messages up.
        clients: who worked, and padding, where the seconds of the phase follow from it; None
            elsewhere.
        links: on a graph with a clock, the messages that each client received and sent.
    """

    down: int = eqx.field(static=True)
    up: int = eqx.field(static=True)
    sent: Int[Array, "*rounds"]
    messages: Int[Array, "*rounds"]
    clients: Int[Array, "*rounds capacity"] | None = None
    links: Int[Array, "*rounds 2 clients"] | None = None


class RoundReport(NamedTuple):
    """What a round tells beside the new state.

    Attributes:
        logged: values that the algorithm and the backend logged, by name.
        traffic: of every phase.
        broken: the first part that is not finite (see `fedax.engine.round.backend`), 0 for none.
        bad_client: the client it belongs to, -1 for none.
        left_out: clients whose uploads did not count, in any order, padded with -1.
    """

    logged: dict[str, Any]
    traffic: list[PhaseTraffic]
    broken: Int[Array, ""]
    bad_client: Int[Array, ""]
    left_out: Int[Array, "some"]


class RoundContext(Federation):
    """The `fed` of one round, through which an algorithm reaches the clients.

    Collects logged values, traffic, the first part that is not finite, and the last cohort.

    Args:
        backend: dispatches the work to the clients.
        round: its number, from 0.
        root: root key of all random streams.
        carry: what the run carries to this round; by default nothing, as in a method's `init`.
        row: who counts, where that is known before the round; None if the round draws its cohort.

    Attributes:
        is_abandoned: whether a phase found no clients, so that the round must not change anything.
            A compiled round runs to its end nevertheless, so there it is a traced boolean. A round
            in Python ends with the phase.
    """

    def __init__(
        self,
        backend: Backend,
        round: Index,
        root: Key[Array, ""],
        carry: RunCarry = NOTHING,
        row: Row | None = None,
    ) -> None:
        self.backend = backend
        self.setup = backend.setup
        self.round = round
        self.root = root
        self.clients = self.setup.population.clients
        self.layout = self.setup.layout
        self.equal_weights = self.setup.schedule.weights == "equal"
        self.carry = carry
        self.row = row
        # who worked is reported for the seconds of the round, unless it is known before
        self.is_clocked = self.setup.timing is not None and row is None
        # noise hides who took part, so nothing that is published may depend on it
        self.hides_cohort = self.setup.private is not None and self.setup.private.central
        self.logged: dict[str, Any] = {}
        self.traffic: list[PhaseTraffic] = []
        # clients and the codes of their results, one array (2, capacity) for each phase
        self.broken: list[Int[Array, "2 capacity"]] = []
        self.is_abandoned: Any = False
        self.last: Cohort | None = None
        # ids of cohorts, and the draw that they are from, see `TracedPhase`
        self.origins: list[tuple[Any, int | str]] = []
        self._draws = 0
        self._occurrences: dict[str, int] = {}

    def end(self, state: Any) -> RunCarry:
        """Returns what the run carries on, with the algorithm's new state, which is checked."""
        # a round may return numbers of Python or NumPy, as `init` may
        state = jax.tree.map(jnp.asarray, state)
        check_state(self.setup.algorithm.round, self.carry.state, state)
        return self.carry._replace(state=state)

    @property
    def everyone(self) -> Cohort:
        return self._build_cohort(
            jnp.arange(self.clients, dtype=jnp.int32), self.clients, "everyone"
        )

    def sample(self, weights: Float[Array, "clients"] | None = None) -> Cohort:
        schedule = self.setup.schedule
        available = schedule.available_in(self.root, self.round, self.clients)
        if available is not None:
            self.log(available=available.sum(dtype=jnp.int32))
        # ids have the static shape (capacity,); in a compiled round `count` is traced
        count: Index
        number = self._draws
        self._draws = self._draws + 1
        if self.row is None:
            key = self.backend.cohort_key(stream(self.root, "cohort", self.round, number))
            with jax.named_scope("fedax.cohort"):
                ids, count = schedule.draw(
                    key, jnp.asarray(self.setup.population.offsets), weights, available
                )
        else:
            ids = jnp.asarray(self.row.clients)
            count = ids.shape[0] if self.row.working is None else self.row.working
        if available is not None:
            # under a deadline also those who did not answer
            drawn = count if self.row is None else self.row.sent
            self.log(drawn=jnp.asarray(drawn, jnp.int32))
        ids, count = self.backend.strip_padding(ids, count)
        return self._build_cohort(ids, count, number if weights is None else "weighted")

    def _build_cohort(self, ids: Int[Array, "capacity"], count: Index, draw: int | str) -> Cohort:
        """Returns clients with their weights, from the schedule's draw of this number, from
        everyone, or from a draw by an algorithm's own weights.
        """
        self.origins.append((ids, draw))
        schedule = self.setup.schedule
        population = self.setup.population
        share = share_of(population.sizes_of(ids), population.total, self.layout.dtype)
        is_sampled = isinstance(draw, int)
        cohort = schedule.weigh(ids, count, share, self.clients, is_sampled)
        if not (self.hides_cohort and is_sampled):
            return cohort
        # the noisy mean is divided by this expected number. Poisson sampling, dropouts and
        # availability make the actual one random: it would leak, and would count twice
        expected = (schedule.cohort or self.clients) / self.clients
        coverage = jnp.asarray(expected, cohort.coverage.dtype)
        return dataclasses.replace(cohort, coverage=coverage)

    def key(self, purpose: str) -> Key[Array, ""]:
        return stream(self.root, "server", self.round, purpose)

    def client_states(self, initial: PyTree) -> ClientStates:
        return self.backend.client_states(initial)

    @property
    def answered(self) -> Cohort:
        assert self.last is not None, "no phase yet"
        return self.last

    def log(self, **values: Array | np.int64 | float) -> None:
        for name, raw in values.items():
            value = raw if isinstance(raw, np.generic) else jnp.asarray(raw)
            if self.is_abandoned is not False:
                value = jnp.where(
                    self.is_abandoned, self.logged.get(name, missing_value(value)), value
                )
            self.logged[name] = value

    def average(
        self,
        work: Callable[..., Upload[Any]],
        cohort: Cohort,
        *down: PyTree,
        states: ClientStates | None = None,
    ) -> Any:
        phase_work, result = self._phase(work, cohort, down, states, gather=False)
        mean = self._mean(phase_work, cohort, result)
        if isinstance(mean, Sent):  # the model's state was averaged beside the upload
            self._take_state(mean.state)
            mean = mean.value
        return mean if states is None else (mean, result.client_states["own"])

    def _take_state(self, mean: PyTree) -> None:
        """Takes the mean of the clients' model states, in real numbers, as the model's state."""
        state = state_from_mean(mean, self.carry.model_state)
        self.carry = self.carry._replace(model_state=state)

    def _mean(self, phase_work: PhaseWork, cohort: Cohort, result: PhaseResult) -> PyTree:
        """Returns the mean of the uploads: the weighted one, unless a stage makes another."""
        if result.rows is not None:
            values, weights = result.rows
            columns = [weights]
            if result.upload.weight is not None:
                by_default = jnp.where(self._is_counted(cohort, result), cohort.weights, 0)
                columns.append(by_default)
            terms = values, jnp.ones_like(weights)
            sums = sum((weighted_sum(terms, column) for column in columns), ())
            result = result._replace(sums=sums)
        key = functools.partial(self.backend.noise_key, self.key(f"privacy {len(self.traffic)}"))
        for stage in phase_work.stages:
            made = stage.mean(result, phase_work.received, key, self.carry.bounds)
            if made is None:
                continue
            mean, bounds, unclipped = made
            if bounds is not None and unclipped is not None:
                self.carry = self.carry._replace(bounds=bounds)
                earlier = self.logged.get("unclipped", jnp.zeros(0, unclipped.dtype))
                self.log(clip=bounds, unclipped=jnp.concatenate([earlier, unclipped]))
            return mean
        return weighted_mean(result.sums, result.form)

    def gather(
        self,
        work: Callable[..., Upload[Any]],
        cohort: Cohort,
        *down: PyTree,
        states: ClientStates | None = None,
    ) -> Any:
        _, result = self._phase(work, cohort, down, states, gather=True)
        # in the cohort's order, leaves (capacity, ...); rows of padding are zero
        values, weights = result.rows
        valid = self._is_counted(cohort, result)
        if isinstance(values, Sent):
            model_states = Gathered(values.state, weights, cohort.ids, valid)
            self._take_state(model_states.mean())
            values = values.value
        gathered = Gathered(values, weights, cohort.ids, valid)
        return gathered if states is None else (gathered, result.client_states["own"])

    def exchange(
        self,
        graph: Graph,
        send: Callable[..., Upload[Any]],
        receive: Callable[..., Any],
        states: ClientStates,
    ) -> ClientStates:
        graph.check_population(self.clients)
        channel = self.setup.channel
        rule = self.setup.schedule.conditions.availability
        shares_memory = channel is not None and channel.shares_memory
        refuse(
            "a method without a server",
            {
                "its nodes wait for each other; leave out Conditions(availability=...)": rule
                is not None,
                "its mixing weights have to add up to one; leave out "
                'run(on_bad_client="drop")': self.setup.drop,
                "the codec of Channel(up=...) has a memory of its receivers, and its graph "
                "changes": shares_memory and graph.changes,
            },
        )
        everyone = self.everyone
        links_key = stream(self.root, "links", self.round, len(self.traffic))
        neighbours, weights = graph.at(self.round, links_key)
        # first half: every node sends, and the backend sums each node's neighbours
        sending, client_states = self._prepare(send, (), states, is_graph=True)
        reason = "no server sees the uploads together, in which clients of an attack agree"
        refuse("Channel(attack=...)", {reason: any(stage.gathers for stage in sending.stages)})
        result, received = self.backend.exchange(
            sending, everyone, client_states, neighbours, weights
        )
        result = self._store(result, everyone, client_states)
        reason = "an Upload with a weight; the graph has the weights"
        refuse("exchange(send=...)", {reason: result.upload.weight is not None})
        is_link = neighbours != neighbours[:, :1]  # the first column is the node itself
        self._account(everyone, sending, result, is_link.sum(dtype=jnp.int32))
        if self.is_clocked:
            sent_counts = (
                jnp.zeros(self.clients, jnp.int32).at[neighbours].add(is_link.astype(jnp.int32))
            )
            links = jnp.stack([is_link.sum(1, dtype=jnp.int32), sent_counts])
            self.traffic[-1] = dataclasses.replace(self.traffic[-1], links=links)
        # second half: every node works on what it received, and sends nothing
        client_states = {"own": result.client_states["own"], "received": received}
        stages = self._state_stages(client_states, is_graph=True)
        occurrence = self._next_occurrence(receive)
        receiving = PhaseWork(
            receive, (), self.root, self.round, occurrence, tuple(stages), receives=True
        )
        received_result = self.backend.work(receiving, everyone, client_states, False)
        received_result = self._store(received_result, everyone, client_states)
        self._record_broken(everyone, received_result)
        self._keep_states(received_result)
        return received_result.client_states["own"]

    def _phase(
        self,
        work: Callable[..., Upload[Any]],
        cohort: Cohort,
        down: Any,
        states: ClientStates | None,
        gather: bool,
    ) -> tuple[PhaseWork, PhaseResult]:
        """Runs a phase: prepares the work, dispatches it, and accounts for the result.

        Raises:
            EmptyPhaseError: it has no clients, and no stage makes a result of none.
        """
        phase_work, client_states = self._prepare(work, down, states)
        # only rounds in Python know the number of clients here; compiled ones run a phase of no
        # clients to its end and discard the round
        if isinstance(cohort.count, int) and cohort.count == 0:
            made = (stage.empty(client_states) for stage in phase_work.stages)
            result = next((result for result in made if result is not None), None)
            if result is None:
                if self.row is not None:  # all were late, but received the message
                    bits = bits_of(phase_work.sent_down)
                    self.traffic.append(PhaseTraffic(bits, 0, self.row.sent, jnp.int32(0)))
                raise EmptyPhaseError
        else:
            gathers = gather or any(stage.gathers for stage in phase_work.stages)
            result = self.backend.work(phase_work, cohort, client_states, gathers)
            result = self._store(result, cohort, client_states)
            for stage in reversed(phase_work.stages):
                result = stage.combine(result, cohort, self._is_counted(cohort, result))
        self._account(cohort, phase_work, result, cohort.count)
        return phase_work, result

    def _store(
        self, result: PhaseResult, cohort: Cohort, states: dict[str, ClientStates]
    ) -> PhaseResult:
        """Stores the rows of the clients that count; returns the result with the new states."""
        # padding and clients that are left out get an id out of range, which `put` ignores
        ids = jnp.where(self._is_counted(cohort, result), cohort.ids, self.clients)
        with jax.named_scope("fedax.memory"):
            new = {name: states[name].put(ids, rows) for name, rows in result.client_states.items()}
        return result._replace(client_states=states | new)

    def _prepare(
        self,
        work: Callable[..., Upload[Any]],
        down: Any,
        states: ClientStates | None,
        is_graph: bool = False,
    ) -> tuple[PhaseWork, dict[str, ClientStates]]:
        """Returns the phase's work with what the server sends, and the client states that it
        uses.
        """
        channel = self.setup.channel
        private = self.setup.private
        phase = len(self.traffic)
        if channel is not None and channel.down is not None:
            down = encode(down, channel.down, self.key(f"downlink {phase}"))[0]
        occurrence = self._next_occurrence(work)
        client_states = {} if states is None else {"own": states}
        # every phase has its own memories of the codec, because messages of different phases differ
        if channel is not None and channel.has_memory:
            client_states["lost"] = self.carry.lost[phase]
        protection: tuple[Stage, ...] = ()
        if private is not None:
            protection = (private.stage(name_of(work), occurrence, self.carry.bounds),)
        state_stages = self._state_stages(client_states, is_graph)
        stages = [*message_stages(channel, self.clients, protection, state_stages)]
        timing = self.setup.timing
        row = self.row
        if timing is not None and timing.late is not None and row is not None and row.versions:
            downlinks = PastVersions.store(self.carry.downlinks, down, row.versions)
            self.carry = self.carry._replace(downlinks=downlinks)
            stages.append(PastVersions(downlinks, row.versions, timing.late))
            staleness = self.round - jnp.asarray(row.versions.numbers)
            self.log(
                staleness=staleness.astype(self.layout.dtype).mean(),
                discarded=jnp.asarray(row.discarded),
            )
        phase_work = PhaseWork(work, down, self.root, self.round, occurrence, tuple(stages))
        return phase_work, client_states

    def _state_stages(self, client_states: dict[str, ClientStates], is_graph: bool) -> list[Stage]:
        """Returns the stages of the states of solver and model, and adds what clients store for
        them to `client_states`.
        """
        stages: list[Stage] = []
        if self.carry.solver_states is not None:
            client_states["solver"] = self.carry.solver_states
            stages.append(SolverState())
        state = self.carry.model_state
        if state is None:
            return stages
        # clients store the model's state themselves, or no server sends one
        if isinstance(state, ClientStates):
            client_states["model"] = state
        if isinstance(state, ClientStates) or is_graph:
            state = None
        sends = self.setup.task.state_policy == "average"
        return [*stages, ModelState(state, sends, is_graph)]

    def _keep_states(self, result: PhaseResult) -> None:
        """Keeps what the clients store for model and solver after a phase."""
        names = {"model": "model_state", "solver": "solver_states"}
        states = result.client_states
        kept = {field: states[name] for name, field in names.items() if name in states}
        self.carry = self.carry._replace(**kept)

    def _next_occurrence(self, work: Callable[..., Any]) -> int:
        """Returns how often this work function ran before in the round.

        Random streams of a phase depend on it.
        """
        name = name_of(work)
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]

    def _is_counted(self, cohort: Cohort, result: PhaseResult) -> Bool[Array, "capacity"]:
        """Returns which places of a cohort count: no padding, and no client left out."""
        return cohort.works & (result.broken == 0) if self.setup.drop else cohort.works

    def _counted_participants(self, cohort: Cohort, result: PhaseResult) -> Cohort:
        """Returns the clients of a cohort whose uploads count."""
        # with central privacy an upload that is not finite counts as 0, so that who was left out
        # stays hidden
        if not self.setup.drop or self.hides_cohort:
            return cohort
        counts = self._is_counted(cohort, result)
        # clients that count come first, in the cohort's order
        order = jnp.argsort(~counts, stable=True)
        ids, count = self.backend.strip_padding(cohort.ids[order], jnp.sum(counts, dtype=jnp.int32))
        order = order[: ids.shape[0]]
        total = cohort.objective_weights.sum()
        counted_weights = jnp.where(counts, cohort.objective_weights, 0)
        coverage = cohort.coverage * counted_weights.sum() / jnp.where(total > 0, total, 1)
        return Cohort(ids, count, cohort.weights[order], counted_weights[order], coverage)

    def _account(
        self, cohort: Cohort, phase_work: PhaseWork, result: PhaseResult, messages: Index
    ) -> None:
        """Records the participants, client states, traffic, logged values and failures of a phase.

        Args:
            cohort: the clients asked.
            phase_work: their work.
            result: what came back.
            messages: how many messages went in each direction.

        Raises:
            EmptyPhaseError: no upload counts, on a backend that knows so while the round runs.
        """
        was_abandoned = self.is_abandoned
        if was_abandoned is not False:
            # earlier in the round a phase had no clients
            messages = jnp.where(was_abandoned, 0, messages)
        self._record_broken(cohort, result)
        self.last = self._counted_participants(cohort, result)
        # before the round is abandoned, in which nothing is logged
        self.log(**result.logged)
        if not self.hides_cohort:
            self.is_abandoned = self.is_abandoned | (self.last.count == 0)
        if "lost" in result.client_states:
            lost = list(self.carry.lost)
            lost[len(self.traffic)] = result.client_states["lost"]
            self.carry = self.carry._replace(lost=tuple(lost))
        self._keep_states(result)
        down = bits_of(phase_work.sent_down)
        up = bits_of((result.upload.value, result.upload.weight))
        # a backend that measures has the sum over all clients, as of one message
        if result.sent is not None:
            down, up, messages = *result.sent, 1
        sent = messages
        # not all who receive the message send in this round, and some uploads are discarded
        if self.row is not None:
            sent = self.row.sent
            messages = messages + self.row.discarded
        # who worked, for the seconds of the phase
        clients = cohort.ids if self.is_clocked else None
        traffic = PhaseTraffic(down, up, jnp.int32(sent), jnp.int32(messages), clients)
        self.traffic.append(traffic)
        is_known = isinstance(self.last.count, int)
        if is_known and self.last.count == 0 and not self.hides_cohort:
            raise EmptyPhaseError

    def _record_broken(self, cohort: Cohort, result: PhaseResult) -> None:
        codes = jnp.where(self.is_abandoned, 0, result.broken)
        self.broken.append(jnp.stack([cohort.ids, codes]))

    def report(self, after: PyTree) -> RoundReport:
        """Returns the report of the round, given the algorithm's state after it."""
        # clients' states are left out: the clients have checked theirs, row by row
        states = self.carry.state, after
        old, new = (eqx.filter(s, is_states, inverse=True, is_leaf=is_states) for s in states)
        # the first column stands for a round in which all is finite
        ids, codes = jnp.concatenate([jnp.zeros((2, 1), jnp.int32), *self.broken], axis=1)
        left_out = jnp.zeros(0, jnp.int32)
        if self.setup.drop:
            left_out = jnp.where(codes > 0, ids, -1)
            codes = jnp.zeros_like(codes)
        index = jnp.argmax(codes > 0)
        broken = codes[index]
        bad_client = jnp.where(broken > 0, ids[index], -1)
        broken = jnp.where((broken == 0) & became_non_finite(old, new), STATE, broken)
        broken = jnp.where(self.is_abandoned, 0, broken)
        bad_client = jnp.where(self.is_abandoned, -1, bad_client)
        return RoundReport(self.logged, self.traffic, broken, bad_client, left_out)


def missing_value(like: Any) -> Any:
    """Returns what stands for a value that a round did not log: NaN, or 0 for whole numbers."""
    is_real = jnp.issubdtype(like.dtype, jnp.inexact)
    return np.full(like.shape, np.nan if is_real else 0, like.dtype)
