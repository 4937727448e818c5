"""The timelines of runs: who counts in a round, and the seconds and joules that it takes.

A server that waits for its cohorts draws them in the compiled round, which reports who worked. With
a deadline, with more clients than needed, or with an asynchronous server those who count follow
from the devices alone: they are computed before training, in plain NumPy, and a compiled round is
given them as a row.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from fedax.core.history import JOULES, SECONDS
from fedax.core.scheduling.asynchronous import Asynchronous, ServerSteps
from fedax.core.scheduling.clock import Clock, Cost
from fedax.core.scheduling.deadline import first_answers
from fedax.core.scheduling.schedule import Schedule
from fedax.core.scheduling.timeline import KnownTimeline, Row, Timeline
from fedax.engine.round.client import Setup, local_work
from fedax.engine.round.context import PhaseTraffic
from fedax.engine.round.phase import is_array, refuse
from fedax.engine.round.timing import LateUploads, Timing
from fedax.engine.round.trace import TracedPhase, trace
from fedax.errors import InvalidInput
from fedax.examples.ragged import Population
from fedax.utils.random import Index, stream


class PhaseCosts:
    """Costs of phases on the clients' devices, and the clients that the schedule draws.

    Args:
        timing: of the run.
        setup: of the run.
        root: its root key.
    """

    def __init__(self, timing: Timing, setup: Setup, root: Key[Array, ""]) -> None:
        self.timing = timing
        self.setup = setup
        self.root = root
        self.sizes = np.asarray(setup.population.sizes, np.int64)
        schedule = setup.schedule
        changes = (
            schedule.drawn or schedule.times is not None or schedule.sync_probability is not None
        )
        everyone = np.arange(len(self.sizes))
        self.fixed = None if changes else self._count_step_examples(everyone, 0)

    def cost(
        self,
        clients: Int[np.ndarray, "some"],
        round: int,
        bits: tuple[Any, Any] | None = None,
        gradients: tuple[int, int] | None = None,
    ) -> Cost:
        """Returns what a phase costs each of some clients.

        Args:
            clients: their numbers.
            round: the number of the round.
            bits: down and up, by default those of the only phase.
            gradients: minibatch gradients of a local step, and gradients over all examples, by
                default those of the only phase.
        """
        clock = self.timing.clock
        step, full = gradients or self.timing.gradients[0]
        sizes = self.sizes[clients]
        examples = full * sizes
        # where the work depends on the data
        if clock.passes is not None:
            examples = clock.passes * sizes * float(step + full > 0)
        elif step:
            steps = (
                self._count_step_examples(clients, round)
                if self.fixed is None
                else self.fixed[clients]
            )
            examples = step * steps + full * sizes
        down, up = bits or self.timing.bits
        arguments = clients, round, down, up, examples
        return Cost(examples, clock.seconds(*arguments), clock.joules(*arguments))

    def draw(self, schedule: Schedule, round: int) -> np.ndarray:
        """Returns the clients that a schedule draws in a round."""
        offsets = jnp.asarray(self.setup.population.offsets)
        call = self.setup.task.programs.call
        ids, asked = call(_draw_cohort, schedule, self.root, jnp.int32(round), offsets)
        return np.asarray(ids)[: int(asked)]

    def _count_step_examples(self, clients: Int[np.ndarray, "some"], round: int) -> np.ndarray:
        """Returns the examples in the minibatches of each client's steps; the last one of an epoch
        may be short.
        """
        # rounded up to powers of two, so that few programs serve all numbers of clients
        padded = np.resize(clients, 1 << max(len(clients) - 1, 0).bit_length())
        columns = self.setup.task.programs.call(
            _draw_local_work,
            self.setup.schedule,
            self.setup.population,
            self.root,
            jnp.int32(round),
            jnp.asarray(padded, jnp.int32),
        )
        steps, batch = (np.asarray(column, np.int64)[: len(clients)] for column in columns)
        sizes = self.sizes[clients]
        epochs, remaining = np.divmod(steps, -(-sizes // batch))
        return epochs * sizes + np.minimum(remaining * batch, sizes)


def _draw_local_work(
    schedule: Schedule,
    population: Population,
    root: Key[Array, ""],
    round: Index,
    clients: Int[Array, "some"],
) -> tuple[Int[Array, "some"], Int[Array, "some"]]:
    def draw_work(k: Index, size: Index) -> tuple[Array, Array]:
        steps, batch = local_work(schedule, root, round, k, size)
        return jnp.asarray(steps, jnp.int32), jnp.asarray(batch, jnp.int32)

    return jax.vmap(draw_work)(clients, population.sizes_of(clients))


def _draw_cohort(
    schedule: Schedule, root: Key[Array, ""], round: Index, offsets: Int[Array, "bounds"]
) -> tuple[Int[Array, "capacity"], Index]:
    """Draws the clients that a round asks, see `RoundContext.sample`."""
    available = schedule.available_in(root, round, offsets.shape[0] - 1)
    return schedule.draw(stream(root, "cohort", round, 0), offsets, None, available)


class RoundTimeline(PhaseCosts, Timeline):
    """Rounds of a server that waits for its cohorts, or of nodes without a server."""

    def logged(
        self, first: int, count: int, traffic: Sequence[PhaseTraffic]
    ) -> dict[str, np.ndarray]:
        totals = {name: np.zeros(count) for name in (SECONDS, JOULES)}
        # an abandoned round in Python has fewer
        for phase, gradients in zip(traffic, self.timing.gradients, strict=False):
            assert phase.clients is not None, "of a run with a clock"
            phase = jax.tree.map(np.asarray, phase)
            for i in range(count):
                clients = phase.clients[i]
                bits: tuple[Any, Any] = phase.down, phase.up
                if phase.links is None:
                    clients = clients[: phase.sent[i]]
                    if not len(clients):
                        continue
                # every node sends its message to its neighbours, and receives theirs
                else:
                    incoming, outgoing = phase.links[i][:, clients].astype(np.int64)
                    bits = phase.down + incoming * phase.up, outgoing * phase.up
                cost = self.cost(clients, first + i, bits, gradients)
                # a client that was drawn twice does both jobs, one after the other
                _, client_index = np.unique(clients, return_inverse=True)
                totals[SECONDS][i] += np.bincount(client_index, cost.seconds).max()
                totals[JOULES][i] += cost.joules.sum()
                if phase.links is None:
                    uploaded = len(clients) * float(phase.up)
                    totals[SECONDS][i] += self.timing.clock.seconds_at_server(uploaded)
        return totals


class DeadlineTimeline(PhaseCosts, KnownTimeline):
    """Rounds that do not wait for all clients: the server asks more than it needs, or ends a round
    at a deadline.
    """

    def __init__(self, timing: Timing, setup: Setup, root: Key[Array, ""]) -> None:
        super().__init__(timing, setup, root)
        clients = len(self.sizes)
        schedule = setup.schedule
        conditions = schedule.conditions
        self.invitation = schedule.invitation(clients)
        self.deadline = math.inf if conditions.deadline is None else conditions.deadline
        # where the server takes a number of answers, a round trains no more clients than these
        self.most = schedule.cohort if conditions.over_select > 1 else None
        self.capacity = self.most or schedule.capacity(clients)
        self._known: dict[int, Row] = {}

    def steps(self, first: int, count: int) -> list[Row]:
        # asked for before the rounds, for their rows, and after them, for the log
        rounds = range(first, first + count)
        self._known = {t: self._known.get(t) or self._compute_round(t) for t in rounds}
        return [*self._known.values()]

    def logged(
        self, first: int, count: int, traffic: Sequence[PhaseTraffic] = ()
    ) -> dict[str, np.ndarray]:
        rows: Any = self.rows(first, count)
        return super().logged(first, count) | {"late": rows.sent - rows.working}

    def _compute_round(self, t: int) -> Row:
        clock = self.timing.clock
        asked = self.draw(self.invitation, t)
        down, up = self.timing.bits
        cost = self.cost(asked, t)
        counts, end = first_answers(asked, cost.seconds, self.most, self.deadline)
        working = int(counts.sum())
        late = asked[~counts]
        # the late ones have received the message, and work until the round ends
        processed = clock.examples_after(end, late, t, down, cost.examples[~counts])
        joules = cost.joules[counts].sum() + clock.joules(late, t, down, 0, processed).sum()
        if len(asked):
            end += clock.seconds_at_server(working * up)
        padding = (0, self.capacity - working)
        columns: Any = (np.pad(asked[counts], padding), working, len(asked), 0, end, joules)
        return Row(*columns)


def timeline_of(setup: Setup, root: Key[Array, ""]) -> Timeline:
    """Returns the timeline of the run with a root key."""
    timing = setup.timing
    schedule = setup.schedule
    if timing is None:
        return Timeline()
    if schedule.asynchronous is not None:
        costs = PhaseCosts(timing, setup, root)
        cohort = schedule.capacity(len(costs.sizes))
        return ServerSteps(
            schedule.asynchronous,
            cohort,
            costs.sizes if schedule.sampling.by_size else np.ones_like(costs.sizes),
            np.asarray(jax.random.key_data(stream(root, "dispatch"))).tolist(),
            costs.cost,
            lambda version: costs.draw(schedule, version),
            timing.clock.seconds_at_server(cohort * timing.bits[1]),
        )
    kind = RoundTimeline if schedule.timed_field is None else DeadlineTimeline
    return kind(timing, setup, root)


def timing_of(setup: Setup, clock: Clock | None, rounds: int) -> Timing | None:
    """Returns the timing of a method's rounds; None for a run without devices.

    Args:
        setup: of its rounds.
        clock: of the run.
        rounds: of the run.

    Raises:
        InvalidInput: a method, a solver, a channel or a task that does not fit, with the reason; no
            devices.
    """
    schedule = setup.schedule
    server = schedule.asynchronous
    field = schedule.timed_field
    if clock is None:
        if field is None:
            return None
        reason = "the clients that count follow from their devices"
        raise InvalidInput.because(field, reason, "Give run(clock=...).")
    # work that depends on the data
    if not setup.solver.is_counted and clock.passes is None:
        reason = f"how long {type(setup.solver).__name__} works depends on the data"
        hint = "Declare its cost: Clock(passes=...), in passes over the examples."
        raise InvalidInput.because("run(clock=...)", reason, hint)
    if field is None:
        # without a channel, which does not change the work
        (phases,) = trace(dataclasses.replace(setup, channel=None)).rounds
        return Timing(clock, tuple(phase.gradients for phase in phases))
    refusal = f"{field}, {type(setup.algorithm).__name__}"
    phase = _trace_only_phase(setup, refusal)
    late = None
    if server is not None:
        near = _find_reference(phase, setup, server, refusal)
        late = LateUploads(near, server.uploads, eqx.filter(phase.down, is_array), rounds)
    return Timing(clock, (phase.gradients,), phase.bits, late)


def _trace_only_phase(setup: Setup, refusal: str) -> TracedPhase:
    """Traces the only phase of a method, with the run's channel.

    Args:
        setup: of its rounds.
        refusal: the option that needs it and the method, for messages.

    Raises:
        InvalidInput: another number of phases than one, a phase whose clients the schedule has not
            drawn, privacy.
    """
    channel = setup.channel
    if channel is not None:  # what an attack sends is as long as what it replaces
        setup = dataclasses.replace(setup, channel=dataclasses.replace(channel, attack=None))
    (phases,) = trace(setup).rounds
    if not phases:
        raise InvalidInput.because(refusal, "a round without any phase has no arrivals")
    phase, *later = phases
    refuse(
        refusal,
        {
            "no account of privacy is known where fast clients count more often, which "
            "Channel(privacy=...) asks for": channel is not None and channel.privacy is not None,
            "a method without a server has no cohort, its nodes wait for each other": phase.links,
            f"phase {phase.name} asks clients that the schedule has not drawn, such as everyone, "
            "or those of a draw by weights": not isinstance(phase.draw, int),
            f"phase {later[0].name if later else phase.name} follows another one, and between the "
            "two the server would wait for all clients": later,
        },
    )
    return phase


def _find_reference(
    phase: TracedPhase, setup: Setup, server: Asynchronous, refusal: str
) -> int | None:
    """Returns the number of the vector sent down whose changes go up, None if the upload is a
    change itself.

    Raises:
        InvalidInput: uploads that lose their meaning when they are late, with the reason.
    """
    upload = phase.upload
    near = phase.near
    averages = setup.task.state is not None and setup.task.state_policy == "average"
    refuse(
        refusal,
        {
            "the model's state, such as batch statistics, is averaged, and a mean of stale ones "
            "would discard newer ones": averages,
            f"uploads of phase {phase.name} are neither changes, Upload(change, is_change=True), "
            "nor models with one of the vectors sent down as their reference, Upload(model, "
            "reference=w)": near is None and not upload.is_change,
            'uploads="models" mixes models, and its uploads are changes; write '
            'uploads="changes"': near is None and server.uploads == "models",
        },
    )
    return near
