"""Rounds with a deadline or with more clients than they need: which ones count, and what the rounds
cost.

`Schedule(over_select=...)` and `Schedule(deadline=...)` ask for it. A compiled round is given the
clients that count, as if the others had dropped out.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from fedax.core.algorithm import Algorithm
from fedax.core.history import JOULES, SECONDS
from fedax.core.scheduling.deadline import Answers, first_answers
from fedax.core.scheduling.devices import Devices
from fedax.core.scheduling.schedule import Schedule
from fedax.engine.round.client import Setup
from fedax.engine.round.timing.clock import WorkCount, check_counted
from fedax.engine.round.timing.inspection import only_phase
from fedax.errors import InvalidInput
from fedax.utils.random import stream


@dataclasses.dataclass(frozen=True)
class Cutoff:
    """A method's only phase in rounds that do not wait for all clients, static.

    Compiled programs do not depend on it: all of them are equal.

    Attributes:
        devices: bound to the clients.
        bits: of one message down and up.
        gradients: minibatch gradients of a local step, and gradients over all the client's
            examples.
    """

    devices: Devices = dataclasses.field(compare=False)
    bits: tuple[int, int] = dataclasses.field(compare=False)
    gradients: tuple[int, int] = dataclasses.field(compare=False)

    def timetable(self, setup: Setup, root: Key[Array, ""]) -> "AnswerTable":
        """Returns the answers of the run with a root key."""
        return AnswerTable(self, setup, root)


class _Round(NamedTuple):
    """The clients of a round that count, how many it asked, and what it takes."""

    clients: np.ndarray
    asked: int
    seconds: float
    joules: float


class AnswerTable:
    """The clients that count in each round of a run, computed for the rounds that are asked for."""

    def __init__(self, cutoff: Cutoff, setup: Setup, root: Key[Array, ""]) -> None:
        self.cutoff, self.root, self.work = cutoff, root, WorkCount(setup, root)
        self.programs = setup.task.programs
        self.offsets, clients = jnp.asarray(setup.population.offsets), setup.population.clients
        self.schedule, self.invitation = setup.schedule, setup.schedule.invitation(clients)
        # where the server takes a number of answers, a round trains no more clients than these
        self.most = self.schedule.cohort if self.schedule.over_select > 1 else None
        self.capacity = self.most or self.schedule.capacity(clients)
        self._first, self._rounds = 0, list[_Round]()

    def rows(self, first: int, count: int, padded: int | None = None) -> Answers:
        """Returns the answers of some rounds, with a first axis (count,), padded with zeros to
        (padded,).
        """
        self._compute(first, count)
        rows = padded or count
        clients, answered, asked = (
            np.zeros((rows, self.capacity), np.int32),
            *np.zeros((2, rows), np.int32),
        )
        for i, entry in enumerate(self._rounds):
            answered[i], asked[i] = len(entry.clients), entry.asked
            clients[i, : answered[i]] = entry.clients
        return Answers(*map(jnp.asarray, (clients, answered, asked)))

    def notes(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Returns the seconds and the joules of some rounds, shape (count,)."""
        self._compute(first, count)
        columns = (
            [entry.seconds for entry in self._rounds],
            [entry.joules for entry in self._rounds],
        )
        return {
            name: np.asarray(column, np.float64)
            for name, column in zip((SECONDS, JOULES), columns, strict=True)
        }

    def _compute(self, first: int, count: int) -> None:
        if (self._first, len(self._rounds)) == (first, count):
            return
        # rounded up to powers of two, so that few programs serve all numbers of rounds
        rounds = first + jnp.arange(1 << max(count - 1, 0).bit_length(), dtype=jnp.int32)
        columns = self.programs.call(
            _draw_cohorts, self.invitation, self.root, rounds, self.offsets
        )
        ids, asked = (np.asarray(column) for column in columns)
        self._first = first
        self._rounds = [self._compute_round(first + i, ids[i, : asked[i]]) for i in range(count)]

    def _compute_round(self, t: int, asked: np.ndarray) -> _Round:
        cutoff, devices = self.cutoff, self.cutoff.devices
        down, up = cutoff.bits
        examples = self.work(asked, t, cutoff.gradients, devices.passes)
        seconds = devices.seconds(asked, t, down, up, examples)
        deadline = math.inf if self.schedule.deadline is None else self.schedule.deadline
        counts, end = first_answers(asked, seconds, self.most, deadline)
        late, joules = asked[~counts], devices.joules(asked, t, down, up, examples)[counts].sum()
        if len(late):  # which have received the message, and work until the round ends
            processed = devices.examples_after(end, late, t, down, examples[~counts])
            joules += devices.joules(late, t, down, 0, processed).sum()
        if len(asked):
            end += devices.seconds_at_server(int(counts.sum()) * up)
        return _Round(asked[counts], len(asked), end, float(joules))


def _draw_cohorts(
    schedule: Schedule,
    root: Key[Array, ""],
    rounds: Int[Array, "rounds"],
    offsets: Int[Array, "bounds"],
) -> tuple[Int[Array, "rounds capacity"], Int[Array, "rounds"]]:
    """Draws the clients that each round asks, see `RoundContext.sample`."""

    def draw_round(t: Int[Array, ""]) -> tuple[Int[Array, "capacity"], Int[Array, ""]]:
        available = schedule.available_in(root, t, offsets.shape[0] - 1)
        ids, count = schedule.draw(stream(root, "cohort", t, 0), offsets, None, available)
        return ids, jnp.asarray(count, jnp.int32)

    return jax.vmap(draw_round)(rounds)


def cutoff_of(algorithm: Algorithm[Any], setup: Setup, devices: Devices | None) -> Cutoff | None:
    """Returns the rule of a schedule that does not wait for all clients; None if it waits.

    Raises:
        InvalidInput: no devices, a method of several phases, privacy, or a solver whose work is not
            counted.
    """
    if (field := setup.schedule.cutoff_field) is None:
        return None
    if devices is None:
        raise InvalidInput.because(
            field, "the clients that count follow from their devices", "Give run(devices=...)."
        )
    if setup.channel is not None and setup.channel.privacy is not None:
        reason = (
            "no account of privacy is known where fast clients count more often, which "
            "Channel(privacy=...) asks for"
        )
        raise InvalidInput.because(field, reason)
    check_counted(setup, devices)
    phase = only_phase(algorithm, setup, field)
    return Cutoff(devices, phase.bits, phase.gradients)
