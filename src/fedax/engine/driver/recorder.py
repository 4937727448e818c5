"""Builds the history of a run as it grows: observations, logs of rounds, the outcome, the best
model.
"""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.core.directions import Mode, is_better
from fedax.core.history import JOULES, SECONDS, Best, History, Outcome
from fedax.core.traffic import Traffic
from fedax.engine.compilation.cache import compile_clock
from fedax.engine.driver.early_stopping import Budget, EarlyStopping, Rule
from fedax.engine.driver.options import RunOptions
from fedax.engine.round.engine import Log, RunCarry, merge_logs
from fedax.errors import InvalidInput


class Rows:
    """A growing array of values of one shape, whose capacity doubles when it is full.

    A list of what an engine returns would keep a buffer of the device, and kilobytes beside it, for
    every number.

    >>> rows = Rows()
    >>> rows.append(np.float64(1.0))
    >>> rows.append(np.float64(2.0))
    >>> rows.all().tolist(), float(rows.last)
    ([1.0, 2.0], 2.0)

    Args:
        values: the first rows.
    """

    def __init__(self, values: np.ndarray | None = None) -> None:
        self._buffer, self._count = (None, 0) if values is None else (np.array(values), len(values))

    def append(self, value: Any) -> None:
        """Appends a row. Refuses one of another shape than the others."""
        value = np.asarray(value)
        if self._buffer is None:
            self._buffer = np.empty((8, *value.shape), value.dtype)
        if value.shape != self._buffer.shape[1:]:
            raise ValueError(
                f"a row of shape {value.shape} among rows of shape {self._buffer.shape[1:]}"
            )
        # the type widens as well, if a metric is whole in one observation and real in the next
        if self._count == len(self._buffer) or self._buffer.dtype != value.dtype:
            larger = np.empty(
                (max(8, 2 * self._count), *value.shape),
                np.result_type(self._buffer.dtype, value.dtype),
            )
            larger[: self._count] = self._buffer[: self._count]
            self._buffer = larger
        self._buffer[self._count] = value
        self._count += 1

    @property
    def last(self) -> Any:
        """The newest row."""
        assert self._buffer is not None, "no rows yet"
        return self._buffer[self._count - 1]

    def all(self) -> np.ndarray:
        """Returns all rows, as a copy."""
        assert self._buffer is not None, "no rows yet"
        return self._buffer[: self._count].copy()


LOSSES = ("train_loss", "objective")
"""Metrics that must be finite in a run that is ok."""
_ENDED = ("stopped", "diverged", "non-finite")
"""Outcomes of runs that ended by themselves."""
_ENDED_BY = "ended_by"
_BUDGET = "budget"
"""Entry of `History.origin` of a run that a budget ended."""


class Clock:
    """Measures the seconds of a run from now on."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._compiled = compile_clock().seconds

    def continue_from(self, history: History) -> None:
        """Adds the seconds of the history that the run continues."""
        self._begun -= history.seconds[-1]
        self._compiled -= history.compiling[-1]

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begun

    @property
    def compiling(self) -> float:
        """Seconds of `now` that were spent on compiling."""
        return compile_clock().seconds - self._compiled


def has_ended(history: History, rules: Sequence[Rule]) -> bool:
    """Returns whether a history has ended by itself, so that no rounds are added to it.

    A history that a budget ended goes on if the budgets among the present rules leave something. A
    budget of privacy needs no rule: it bounds the rounds of the run.
    """
    if was_ended_by_budget(history):
        spent = _spent(history.notes)
        return any(rule.is_spent(*spent) for rule in rules if isinstance(rule, Budget))
    return history.outcome.kind in _ENDED


def was_ended_by_budget(history: History) -> bool:
    """Returns whether a budget of privacy, time or energy ended a run."""
    return (history.origin or {}).get(_ENDED_BY) == _BUDGET


def _spent(notes: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Returns the seconds on the virtual clock and the joules of some rounds."""
    nothing = np.zeros(0)
    seconds = notes.get(SECONDS, nothing)
    times = notes.get("clock", nothing)
    # rounds that a run took without devices have NaN: they cost nothing
    joules = float(np.nansum(notes.get(JOULES, nothing)))
    # an asynchronous server notes the time since the start of the run
    if len(timed := np.flatnonzero(~np.isnan(times))):
        last = int(timed[-1])
        return float(times[last] + np.nansum(seconds[last + 1 :])), joules
    return float(np.nansum(seconds)), joules


def _not_observed(value: Any) -> np.ndarray:
    """Returns what stands for a value of a metric that was not observed: NaN, in its shape."""
    value = np.asarray(value)
    is_real = jnp.issubdtype(value.dtype, jnp.inexact)
    return np.full(value.shape, np.nan, value.dtype if is_real else np.float64)


class Recorder:
    """Grows the history of one algorithm, until it ends.

    Args:
        algorithm: its name.
        clock: of the run.
        drops: whether clients may be left out, see `run(on_bad_client=...)`.
        modes: directions of the metrics.
        previous: the history that the run continues, if any.
        ended: whether that has ended by itself, so that it stays as it is.

    Attributes:
        ended: whether the history is complete.
        ended_by_budget: whether a budget ended it, which may be raised when it is continued.
        final: of a run that ended before others of its program, the carry that it ended with.
    """

    def __init__(
        self,
        algorithm: str,
        clock: Clock,
        drops: bool,
        modes: Mapping[str, Mode],
        previous: History | None = None,
        ended: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.clock = clock
        self.drops = drops
        self.previous = previous
        self.outcome = Outcome()
        # metrics of the history that are no longer observed keep their directions
        self.modes: dict[str, Mode] = {**(previous.modes if previous else {}), **modes}
        self.rounds: list[int] = [int(t) for t in previous.rounds] if previous else []
        self.seconds: list[float] = list(previous.seconds) if previous else []
        self.compiling: list[float] = list(previous.compiling) if previous else []
        self.metrics: dict[str, Rows] = (
            {k: Rows(v) for k, v in previous.metrics.items()} if previous else {}
        )
        self.logs: list[Log] = []
        self.spent = list(_spent(previous.notes if previous else {}))
        self.ended = False
        self.final = None
        self.best = previous.best if previous else None
        self.ended_by_budget = False
        if previous and ended:
            self.outcome = previous.outcome
            self.ended = True
            self.final = RunCarry.of(previous)
            self.ended_by_budget = was_ended_by_budget(previous)
        # from a checkpoint between two observations: the run ends at the next one
        elif previous and previous.outcome.kind == "non-finite":
            self.outcome = previous.outcome

    @property
    def is_running(self) -> bool:
        return self.outcome.kind == "ok"

    @property
    def latest(self) -> dict[str, Any]:
        return {name: values.last for name, values in self.metrics.items()}

    def add(self, log: Log, first: int) -> None:
        if self.ended:
            return
        if "clock" in log.notes:  # of an asynchronous server
            self.spent[0] = float(log.notes["clock"][-1])
        for i, name in enumerate((SECONDS, JOULES)):
            self.spent[i] += float(log.notes[name].sum()) if name in log.notes else 0.0
        self.logs.append(jax.tree.map(np.array, log))  # not the device's buffers
        # logs of similar length are merged, so that n calls leave log n logs and a row is copied
        # log n times
        while len(self.logs) > 1 and len(self.logs[-2].down) <= len(self.logs[-1].down):
            self.logs[-2:] = [merge_logs(self.logs[-2:])]
        self.outcome = log.failure(first) if self.is_running else self.outcome

    def observe(self, metrics: dict[str, np.ndarray], done: int, options: RunOptions) -> bool:
        """Records the metrics after `done` rounds and applies the stopping rules.

        Returns whether the model is better than the best so far.
        """
        # of a grid that is continued, some members may have this observation already
        if self.ended or self.rounds[-1:] == [done]:
            return False
        self._append(metrics)
        self.rounds.append(done)
        self.seconds.append(self.clock.now)
        self.compiling.append(self.clock.compiling)
        broken = [name for name in LOSSES if name in metrics and not np.isfinite(metrics[name])]
        # the initial model (done = 0) counts as an observation of a rule, but cannot end the run
        for rule in options.rules:
            # a run whose loss is not finite is not ok, whatever would stop it now
            if isinstance(rule, Budget):
                if self.is_running and done and not broken and rule.is_spent(*self.spent):
                    self.outcome = Outcome(rule.kind, done - 1)
                    self.ended_by_budget = True
                continue
            values = self._values(rule.metric, metrics, f"run(stop=...), {rule}")
            if not self.is_running or not done:
                continue
            if isinstance(rule, EarlyStopping) and not math.isfinite(values[-1]):
                self.outcome = Outcome("non-finite", done - 1, part=rule.metric)
            elif rule.fires(self.rounds, values) and not (broken and rule.kind == "stopped"):
                self.outcome = Outcome(rule.kind, done - 1)
        if self.is_running and done and broken:
            self.outcome = Outcome("non-finite", done - 1, part=broken[0])
        self.ended = not self.is_running
        if (metric := options.best_by) is None:
            return False
        value = self._values(metric, metrics, "run(keep_best=...)")[-1]
        return self._improves(metric, value, done, options)

    def reconsider_best(self, done: int, options: RunOptions) -> bool:
        """Chooses the best model of the history that the run continues, which may have been chosen
        by another metric or direction.

        There are two candidates: the best model until now if it is that by the same metric, and
        the model after `done` rounds if it was observed. The other models are gone.

        Returns whether the model after `done` rounds is the best.
        """
        if self.ended or (metric := options.best_by) is None:
            return False
        if self.best is not None and self.best.metric != metric:
            self.best = None
        rows = self.metrics.get(metric)
        if rows is None or np.ndim(rows.last) or self.rounds[-1] != done:
            return False
        return self._improves(metric, float(rows.last), done, options)

    def _improves(self, metric: str, value: float, done: int, options: RunOptions) -> bool:
        """Returns whether a value is better than the best one, whose place it then takes."""
        if not is_better(value, None if self.best is None else self.best.value, options.best_mode):
            return False
        # the loop stores the model: here only its metrics are known
        self.best = Best(metric, done, value, None)
        return True

    def store_best(self, params: Any, state: Any) -> None:
        """Stores the model that has just become the best."""
        assert self.best is not None, "nothing was better"
        self.best = dataclasses.replace(self.best, params=params, state=state)

    def end_by_budget(self, done: int) -> None:
        """Ends the run because the budget of privacy is spent."""
        if self.is_running:
            self.outcome = Outcome("stopped", done - 1)
            self.ended_by_budget = True

    def mark_origin(self, origin: dict[str, Any]) -> dict[str, Any]:
        """Returns the origin of the history, see `History.origin`, with the end by a budget."""
        return origin | ({_ENDED_BY: _BUDGET} if self.ended_by_budget else {})

    def interrupt(self, done: int) -> None:
        if self.is_running:
            self.outcome = Outcome("interrupted", done)

    def _append(self, metrics: dict[str, np.ndarray]) -> None:
        """Appends an observation to the columns of all metrics.

        A run may be continued with other observers. A metric is NaN where it was not observed.
        """
        for name, value in metrics.items():
            if name not in self.metrics:
                earlier = np.repeat(_not_observed(value)[None], len(self.rounds), axis=0)
                self.metrics[name] = Rows(earlier) if self.rounds else Rows()
            self.metrics[name].append(value)
        for name in self.metrics.keys() - metrics.keys():
            self.metrics[name].append(_not_observed(self.metrics[name].last))

    def _values(self, metric: str, observed: Mapping[str, np.ndarray], field: str) -> list[float]:
        """Returns the course of a metric, one of those that are observed now."""
        if metric not in observed or self.metrics[metric].all().ndim != 1:
            raise InvalidInput.of(
                field, metric, f"None, or observers that give {metric}, one number each"
            )
        return self.metrics[metric].all().astype(float).tolist()

    def finish(self, params: Any, carry: RunCarry) -> History:
        previous = self.previous if self.previous and len(self.previous.bits.up) else None
        past: list[Log] = []
        # the rounds before a resumption join as one log; what failed in them ended that run
        if previous:
            notes = {name: values for name, values in previous.notes.items() if name != "dropped"}
            left_out = previous.notes.get("dropped", np.zeros((len(previous.bits.up), 0)))
            nothing = np.zeros(0)
            past.append(
                Log(notes, previous.bits.down, previous.bits.up, nothing, nothing, left_out)
            )
        log = merge_logs([*past, *self.logs])
        # clients that earlier rounds left out stay known if later ones leave out none
        drops = self.drops or (previous is not None and "dropped" in previous.notes)
        notes = log.notes | ({"dropped": log.left_out} if drops else {})
        metrics = {name: values.all() for name, values in self.metrics.items()}
        rounds, seconds, compiled = (
            np.asarray(values) for values in (self.rounds, self.seconds, self.compiling)
        )
        books = Traffic(log.down, log.up), self.outcome, seconds, compiled
        modes: dict[str, Mode] = {
            name: mode for name, mode in self.modes.items() if name in metrics
        }
        return History(
            self.algorithm,
            rounds,
            metrics,
            notes,
            params,
            *books,
            **carry._asdict(),
            best=self.best,
            modes=modes,
        )
