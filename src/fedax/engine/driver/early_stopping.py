"""Rules that end a run early: divergence, a metric that no longer improves, and a budget of time or
energy.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from fedax.core.directions import Mode, is_better
from fedax.core.history import ClockReadings
from fedax.core.hyper import Declared, hyper


@dataclasses.dataclass(frozen=True)
class BaseRule(Declared):
    """Base of the rules, which refuse numbers out of range.

    Attributes:
        kind: the outcome of a run that the rule ends.
    """

    kind: ClassVar[Literal["stopped", "diverged"]] = "stopped"


@dataclasses.dataclass(frozen=True)
class Divergence(BaseRule):
    r"""Stops a run once the training loss has risen or is not finite.

    It has risen if $f_t - f_{t-\text{window}} > \text{rise}$.

    Needs the metric `train_loss`. The defaults are FedProx's rule (Li et al. 2020, App. C.3.2).

    Args:
        rise: by how much it may rise.
        window: rounds over which it may, at least 1.
    """

    rise: float = hyper(1.0)
    window: int = hyper(10, low=1)
    metric: ClassVar[str] = "train_loss"
    kind: ClassVar[Literal["stopped", "diverged"]] = "diverged"

    def fires(self, rounds: Sequence[int], values: Sequence[float], mode: Mode | None) -> bool:
        """Returns whether the rule fires at the last of these observations."""
        if not np.isfinite(values[-1]):
            return True
        earlier_losses = [
            loss for t, loss in zip(rounds, values, strict=True) if t <= rounds[-1] - self.window
        ]
        return bool(earlier_losses) and values[-1] - earlier_losses[-1] > self.rise


@dataclasses.dataclass(frozen=True)
class EarlyStopping(BaseRule):
    """Stops a run once a metric has not become better for some rounds.

    The outcome is `stopped`, and ok.

    `History.best` is the best model by the metric, `History.params` the last one. Once the metric
    is not finite, the run ends with the outcome `non-finite`.

    Args:
        metric: that an observer gives.
        patience: rounds without a better value, at least 1.
        min_change: by which a value has to be better to count, at least 0. Whether more or less is
            better, the metric's observer or the task says (`mode=`, `modes=`).

    Example:
        >>> import fedax
        >>> task = fedax.task("digits", clients=5, validation=0.2)
        >>> watch = [fedax.observe.ValidationLoss()]
        >>> rule = fedax.EarlyStopping(
        ...     "validation_loss", patience=3, min_change=100.0
        ... )  # better by 100 it never gets
        >>> history = fedax.run(fedax.FedAvg(), task, observe=watch, stop=rule, rounds=60)
        >>> history.outcome.kind, len(history.bits.up)
        ('stopped', 3)

    Source: Prechelt, Early Stopping - But When?, Neural Networks: Tricks of the Trade, 1998, the
    class UP.
    """

    metric: str = "validation_loss"
    patience: int = hyper(20, low=1)
    min_change: float = hyper(0.0, low=0.0)

    def fires(self, rounds: Sequence[int], values: Sequence[float], mode: Mode | None) -> bool:
        """Returns whether the rule fires at the last of these observations."""
        assert mode is not None, "options are resolved"
        best = None
        since = rounds[0]
        change = self.min_change if mode == "max" else -self.min_change
        for t, value in zip(rounds, values, strict=True):
            if is_better(value, None if best is None else best + change, mode):
                best = value
                since = t
        return rounds[-1] - since >= self.patience


@dataclasses.dataclass(frozen=True)
class Budget(BaseRule):
    """Stops a run at the first observation at which it has spent its hours or joules on the virtual
    clock.

    The outcome is `stopped`, and ok. Needs `run(clock=...)`.

    Args:
        hours: of virtual time, above 0; None for no bound.
        joules: of all clients together, above 0; None for no bound.

    Example:
        >>> import fedax
        >>> task, clock = fedax.task("synthetic", clients=3), fedax.Clock(latency=1800.0)
        >>> history = fedax.run(
        ...     fedax.FedAvg(), task, clock=clock, stop=fedax.Budget(hours=1.0), rounds=60
        ... )
        >>> history.outcome.kind, history.clock.seconds.tolist()
        ('stopped', [0.0, 1800.0, 3600.0])
    """

    hours: float | None = hyper(None, kind=float, low=0.0, open_low=True, optional=True)
    joules: float | None = hyper(None, kind=float, low=0.0, open_low=True, optional=True)

    def is_spent(self, clock: ClockReadings | None) -> bool:
        """Returns whether a run is to end by its clock, None for one without devices so far."""
        if clock is None:
            return False
        seconds = float(clock.seconds[-1])
        joules = float(clock.joules[-1])
        is_late = self.hours is not None and seconds >= 3600 * self.hours
        return is_late or (self.joules is not None and joules >= self.joules)


Rule: TypeAlias = Divergence | EarlyStopping | Budget
"""A rule on the course of one metric, or on what the run has spent."""
