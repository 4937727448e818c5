"""Statements of theorems about runs: rows of marks, curves, and means over seeds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports what is asked for, and only then

from fedax.report.drawing.charts import Axis, Kind, Mark, Panel, Series, staggered
from fedax.report.record import Record

ONE_SEED = "is about an expectation, which one seed does not show"


class Check(NamedTuple):
    """An assumption or a promise.

    Attributes:
        name: of its row.
        held: at each observation 1 where it held, 0 where it did not, NaN where nothing is said.
        why: the reason why it is not about the run, to follow "the statement"; None if it is. Then
            it has no marks.
    """

    name: str
    held: np.ndarray
    why: str | None = None


class Held(NamedTuple):
    """The statements of a paper's theory about a run."""

    paper: str
    checks: list[Check]
    panels: list[Panel]


class Interval(NamedTuple):
    """A mean over seeds with the ends of its 95 % confidence interval, each of shape
    (observations,).
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_over_seeds(runs: Sequence[np.ndarray]) -> Interval:
    """Returns means over runs with intervals of Student's t; the ends are NaN for one run.

    Runs that ended early are compared up to there.
    """
    length = min(map(len, runs))
    values = np.array([run[:length] for run in runs], float)
    count, mean = len(values), values.mean(0)
    spread: Any = (
        scipy.stats.t.ppf(0.975, count - 1) * values.std(0, ddof=1) / np.sqrt(count)
        if count > 1
        else np.nan
    )
    # NaN behind the end of the shortest run, so that all series have one length
    low, high = (_pad(end, max(map(len, runs))) for end in (mean - spread, mean + spread))
    return Interval(_pad(mean, len(low)), low, high)


def _pad(values: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([values, np.full(length - len(values), np.nan)])


def decide_sign(excess: Interval) -> np.ndarray:
    """Returns 1 where a mean is certain to be at least 0, 0 where it is certain to be less, and NaN
    where the interval has both.
    """
    return np.where(excess.low >= 0, 1.0, np.where(excess.high < 0, 0.0, np.nan))


def without_marks(check: Check) -> Check:
    """Returns the check without marks if it is not about the run."""
    return check if check.why is None else check._replace(held=np.full(len(check.held), np.nan))


def reasons(checks: Sequence[Check]) -> str:
    """Returns a sentence for each reason, with the names of the rows that have no marks for it."""
    names_by_reason: dict[str, list[str]] = {}
    for check in checks:
        if check.why is not None:
            names_by_reason.setdefault(check.why, []).append(check.name)
    return " ".join(
        f"Not marked: {'; '.join(names)}. The statement {why}."
        for why, names in names_by_reason.items()
    )


def checks_panel(rounds: np.ndarray, checks: Sequence[Check]) -> Panel:
    """Returns a row of marks for each statement."""
    # (label, kind of the marks, value of `held`)
    kinds: tuple[tuple[str, Kind, float], ...] = (
        ("holds", "held", 1.0),
        ("does not hold", "failed", 0.0),
    )
    series = []
    for label, kind, value in kinds:
        # (round, row) of each mark; rows are numbered downwards
        positions = [
            (t, -row) for row, check in enumerate(checks) for t in rounds[check.held == value]
        ]
        x, y = (
            np.array(column, float)
            for column in (zip(*positions, strict=True) if positions else ((), ()))
        )
        series.append(Series(label, 0, x, y, kind=kind))
    ticks = tuple((float(-row), check.name) for row, check in enumerate(checks))
    vertical = Axis("", low=0.6 - len(checks), high=0.6, ticks=ticks)
    # a little room, so that marks at the first and the last round are not cut
    span = float(max(rounds[-1], 1))
    return Panel(
        "Which statement holds",
        Axis("communication rounds", low=-0.02 * span, high=1.02 * span),
        vertical,
        series,
    )


def panel(
    title: str,
    rounds: np.ndarray,
    lines: dict[str, np.ndarray],
    *,
    log: bool = True,
    unit: str = "",
    marks: Sequence[Mark] = (),
) -> Panel:
    """Draws the curves; on a logarithmic axis only positive numbers."""
    series = []
    for index, (label, values) in enumerate(lines.items()):
        drawable = np.asarray(values, float)
        drawable = np.where(
            np.isfinite(drawable) & (drawable > 0 if log else True), drawable, np.nan
        )
        if np.isfinite(drawable).any():
            marked = staggered(len(rounds), index, len(lines))
            series.append(Series(label, index, rounds.astype(float), drawable, marked=marked))
    return Panel(title, Axis("communication rounds"), Axis(unit, log), series, marks)


def series_of(run: Record, *names: str) -> list[np.ndarray] | None:
    """Returns the series of some metrics, if the run has all of them and each says something."""
    series = [np.asarray(run.metrics[name], float) for name in names if name in run.metrics]
    return (
        series
        if len(series) == len(names) and all(np.isfinite(each).any() for each in series)
        else None
    )


def flags(holds: Any, is_stated: Any = True) -> np.ndarray:
    return np.where(is_stated, np.asarray(holds, float), np.nan)
