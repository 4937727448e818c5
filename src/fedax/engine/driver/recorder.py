"""Builds the history of a run as it grows: observations, logs of rounds, the outcome, the best
model.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedax.core.directions import Mode, is_better
from fedax.core.history import Best, History, Outcome, RunDetails, clock_after
from fedax.engine.driver.early_stopping import Budget, EarlyStopping
from fedax.engine.driver.options import RunOptions
from fedax.engine.round.engine import Log, RunCarry, merge_logs, pad_client_sets

LOSSES = ("train_loss", "objective")
"""Metrics that must be finite in a run that is ok."""


class Recorder:
    """Grows the history of one run, until it ends.

    Args:
        options: of the run, resolved.
        modes: directions of the metrics.

    Attributes:
        ended: whether the history is complete.
        final: of a run that ended before others of its program, the carry that it ended with.
    """

    def __init__(self, options: RunOptions, modes: Mapping[str, Mode]) -> None:
        self.options = options
        self.modes = modes
        self.rounds: list[int] = []
        self.seconds: list[float] = []
        self.metrics: dict[str, list[np.ndarray]] = {}
        self.logs: list[Log] = []
        self.outcome = Outcome()
        self.best: Best | None = None
        self.ended = False
        self.final: RunCarry | None = None

    def continue_from(self, history: History) -> None:
        """Takes over the history that the run continues."""
        self.rounds = history.rounds.tolist()
        self.seconds = history.seconds.tolist()
        self.metrics = {name: list(values) for name, values in history.metrics.items()}
        self.best = history.best
        logged = dict(history.logged)
        bits = history.bits
        left_out = logged.pop("dropped", np.zeros((len(bits.up), 0), np.int32))
        # what failed in these rounds ended that run
        self.logs = [Log(logged, bits, Outcome(), [*left_out])]
        if history.outcome.kind == "non-finite":
            self.outcome = history.outcome
        # a run that was saved or interrupted between two observations ends at its next one
        if self.rounds[-1] < len(bits.up):
            return
        # with the present rules, of which a budget may have become larger
        self._judge_last()
        if self.ended:
            self.final = history.carry

    def lacks(self, done: int) -> bool:
        """Returns whether the model after `done` rounds is still to be observed."""
        return not self.ended and self.rounds[-1] < done

    @property
    def is_running(self) -> bool:
        return self.outcome.kind == "ok"

    @property
    def latest(self) -> dict[str, Any]:
        return {name: values[-1] for name, values in self.metrics.items()}

    def add(self, log: Log) -> None:
        """Takes the log of the next rounds."""
        if self.ended:
            return
        self.logs.append(log)
        if self.is_running:
            self.outcome = log.outcome

    def merged_log(self) -> Log:
        """Returns the log of all rounds so far."""
        self.logs = [merge_logs(self.logs)]
        return self.logs[0]

    def observe(self, metrics: Mapping[str, np.ndarray], done: int, seconds: float) -> bool:
        """Records the metrics after `done` rounds and `seconds`, and applies the stopping rules.

        Returns whether the model is better than the best so far; `best` is then its place, without
        the model.
        """
        # of a grid that is continued, some members may have this observation already
        if self.ended or self.rounds[-1:] == [done]:
            return False
        for name, value in metrics.items():
            # copies: what an engine returns may keep a buffer of the device for every number
            self.metrics.setdefault(name, []).append(np.array(value))
        self.rounds.append(done)
        self.seconds.append(seconds)
        self._judge_last()
        best_by = self.options.keep_best
        if best_by is None:
            return False
        value = float(metrics[best_by])
        if not is_better(value, self.best and self.best.value, self.modes[best_by]):
            return False
        self.best = Best(best_by, done, value, None)
        return True

    def _judge_last(self) -> None:
        """Applies the stopping rules to the last observation."""
        # the initial model counts as an observation of a rule, but cannot end the run
        if self.is_running and self.rounds[-1]:
            self.outcome = self._judge()
        self.ended = not self.is_running

    def _judge(self) -> Outcome:
        """Returns the outcome by the stopping rules, after the last observation."""
        metrics = self.latest
        done = self.rounds[-1]
        # a run whose loss is not finite is not ok, whatever would stop it now
        broken = [name for name in LOSSES if name in metrics and not np.isfinite(metrics[name])]
        for rule in self.options.rules:
            if isinstance(rule, Budget):
                if not broken and rule.is_spent(clock_after(self.merged_log().logged)):
                    return Outcome("stopped", done - 1, by_budget=True)
                continue
            values = [float(value) for value in self.metrics[rule.metric]]
            if isinstance(rule, EarlyStopping) and not math.isfinite(values[-1]):
                return Outcome("non-finite", done - 1, part=rule.metric)
            is_fired = rule.fires(self.rounds, values, self.modes.get(rule.metric))
            if is_fired and not (broken and rule.kind == "stopped"):
                return Outcome(rule.kind, done - 1)
        return Outcome("non-finite", done - 1, part=broken[0]) if broken else self.outcome

    def end(self, outcome: Outcome) -> None:
        """Ends the run before its last round, unless it has ended by itself."""
        if self.is_running:
            self.outcome = outcome

    def finish(self, params: Any, carry: RunCarry, **facts: Any) -> History:
        """Returns the history.

        Args:
            params: the model.
            carry: of the last round.
            facts: further details.
        """
        log = self.merged_log()
        logged = log.logged
        outcome = self.outcome
        names = facts.get("clients")
        if outcome.client is not None and names:
            outcome = dataclasses.replace(outcome, name=names[outcome.client])
        if self.options.on_bad_client == "drop":
            logged = logged | {"dropped": pad_client_sets(log.left_out)}
        return History(
            np.asarray(self.rounds),
            {name: np.stack(values) for name, values in self.metrics.items()},
            logged,
            params,
            log.bits,
            outcome,
            np.asarray(self.seconds),
            carry,
            RunDetails(modes=self.modes, **facts),
            self.best,
        )
