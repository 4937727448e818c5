"""Runs that are stepped by hand (`start`, `Session`)."""

from typing import Any, NamedTuple, SupportsIndex, Unpack

import jax
import numpy as np
from jaxtyping import PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.history import Outcome
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.engine.driver.grid import Grid, not_published
from fedax.engine.driver.options import RunOptions, Setting, with_named_options
from fedax.engine.round.engine import compute_metrics
from fedax.errors import InvalidInput
from fedax.observe.base import Observer


class RunState(NamedTuple):
    """A run between two rounds.

    Attributes:
        round: rounds completed.
        value: what the engine carries from round to round.
    """

    round: int
    value: Any


class Report(NamedTuple):
    """A round's report.

    Attributes:
        round: its number, from 0.
        logged: what the algorithm reported with `log`, by name.
        down, up: bits sent by all participants, see `Traffic`.
        outcome: ok, or the first part of the round that is not finite.
    """

    round: int
    logged: dict[str, np.ndarray]
    down: int
    up: int
    outcome: Outcome


class Session:
    """One run, stepped by hand. `start` returns it.

    Args:
        grid: the one run that it steps.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._program = grid, grid.program

    def init(self) -> RunState:
        """Returns the state before round 0."""
        return RunState(0, self._grid.init())

    def step(self, state: RunState) -> tuple[RunState, Report]:
        """Takes one round.

        A simulation takes the given state over: JAX refuses its deleted arrays afterwards.

        Raises:
            InvalidInput: the round would exceed the budget of `Privacy`, or the synchronisation
                times of the schedule.
        """
        max_rounds = self._grid.options.schedule.rounds
        if max_rounds is not None and state.round >= max_rounds:
            allowed = f"at most {max_rounds} rounds, the number of synchronisation times"
            raise InvalidInput.found("Session.step", f"round {state.round + 1}", allowed)
        # before the round: what it would release cannot be taken back
        if self._grid.private is not None:
            self._grid.private.check_budget(state.round + 1)
        value, (log,) = self._program.advance(state.value, state.round, 1)
        logged = {name: values[0] for name, values in log.logged.items()}
        report = Report(
            state.round, logged, int(log.down[0]), int(log.up[0]), log.failure(state.round)
        )
        return RunState(state.round + 1, value), report

    def spent(self, state: RunState) -> float | None:
        """Returns the epsilon that the rounds up to a state have spent.

        Returns None without noise, which has no guarantee.
        """
        return None if self._grid.private is None else self._grid.private.epsilon_after(state.round)

    def observe(self, state: RunState, *observers: Observer) -> dict[str, Any]:
        """Computes the metrics of some observers, by name."""
        for observer in observers:
            observer.check(self._grid.task)
        task = self._grid.seen_task
        return compute_metrics(self._program, state.value, observers, state.round, task)[0]

    def params(self, state: RunState) -> PyTree:
        """Returns the global model as the user's own pytree."""
        (carry,) = self._program.split(state.value)
        return self._grid.params(self._grid.members[0], carry)

    def personal(self, state: RunState) -> PyTree:
        """Returns the models that the clients use: the user's pytree with a first axis
        (clients,).
        """
        if self._grid.private is not None:
            raise not_published("Session.personal")
        return jax.vmap(self._grid.layout.unravel)(self._program.personal(state.value)[0].models)


@with_named_options
def start(
    algorithm: Algorithm[Any], task: Task, *, seed: SupportsIndex = 0, **setting: Unpack[Setting]
) -> Session:
    """Starts a run that is stepped by hand: the same rounds as those of `run`, to the same bits.

    Args:
        algorithm, task, seed: as `run`.
        setting: `solver`, `schedule`, `engine`, `channel`, `clock` and `params` of `run`.

    Example:
        >>> import fedax
        >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
        >>> session = fedax.start(fedax.FedAvg(), task, solver=fedax.SGD(0.5))
        >>> state = session.init()
        >>> for _ in range(3):
        ...     state, report = session.step(state)
        >>> state.round, report.outcome.ok, round(float(session.params(state)), 4)
        (3, True, 3.0625)
        >>> round(float(session.observe(state, fedax.observe.TrainLoss())["train_loss"]), 4)
        2.2207

    Raises:
        InvalidInput: as `run`.
    """
    # a session has no number of rounds, but a schedule with synchronisation times bounds it
    schedule = setting.get("schedule")
    rounds = schedule.rounds if isinstance(schedule, Schedule) else None
    return Session(Grid([algorithm], task, [seed], RunOptions.of({**setting, "rounds": rounds})))
