"""Mean curves over runs. Runs that ended early count until the end of the longest one."""

from collections.abc import Sequence

import numpy as np

from fedax.core.directions import worst_of
from fedax.observe.modes import mode_of
from fedax.results.record import Record
from fedax.results.tables.finals import is_lost
from fedax.results.tables.summary import counted

_POINTS = 500  # of a curve, at most


def aligned(runs: Sequence[Record]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the rounds at which all runs were observed that had not ended, thinned, and where
    each run has them.

    A run that has ended has its last observation there; see `has_ended`.
    """
    # rounds of any observation
    all_rounds = sorted({t for run in runs for t in run.rounds.tolist()})
    # of each run, the rounds of its observations and the last one
    observed = [(set(run.rounds.tolist()), int(run.rounds[-1])) for run in runs]
    rounds = np.array(
        [
            t
            for t in all_rounds
            if all(t in observed_rounds or t > last for observed_rounds, last in observed)
        ]
    )
    # evenly thinned, with the first and the last round
    rounds = rounds[
        np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), _POINTS)).round().astype(int))
    ]
    # positions in each run's curves; after its end, the last one
    return rounds, [
        np.minimum(np.searchsorted(run.rounds, rounds), len(run.rounds) - 1) for run in runs
    ]


def has_ended(runs: Sequence[Record], rounds: np.ndarray) -> np.ndarray:
    """Returns whether each run had ended before each round, shape (runs, rounds)."""
    return np.stack([rounds > run.rounds[-1] for run in runs])


def mean_position(runs: Sequence[Record], curves: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean of rising curves (rounds, bits, seconds) at the rounds of `aligned`.

    After the end of a run the mean grows as that of the others does.
    """
    rounds, indices = aligned(runs)
    values = np.stack(
        [np.asarray(curve, float)[i] for curve, i in zip(curves, indices, strict=True)]
    )
    # both over runs: shapes (runs, rounds) and (rounds,)
    running, mean = ~has_ended(runs, rounds), values.mean(0)
    # in order, because each mean builds on the one before
    for t in np.flatnonzero(~running.all(0)):
        mean[t] = mean[t - 1] + (values[running[:, t], t] - values[running[:, t], t - 1]).mean()
    return mean


def curves_of(runs: Sequence[Record], metric: str, among: Sequence[Record] = ()) -> np.ndarray:
    """Returns the curves of a metric at the rounds of `aligned`, shape (runs, rounds).

    From its end on, a run that diverged counts as the worst of all values that the runs of its task
    have. It is NaN where the metric has no direction, and where all runs have diverged, which
    leaves nothing to take a mean of. Any other run keeps its last value.

    Args:
        runs: the runs, all with the metric.
        metric: a scalar metric.
        among: all runs of the task; `runs` by default.
    """
    among = [run for run in among or runs if metric in run.scalars]
    rounds, indices = aligned(runs)
    values = np.stack(
        [np.asarray(run.scalars[metric], float)[i] for run, i in zip(runs, indices, strict=True)]
    )
    lost = np.array([is_lost(run) for run in runs])[:, None]
    # what made a run non-finite is in its last observation
    # from there on a diverged run has no value
    missing = lost & (has_ended(runs, rounds) | ~np.isfinite(values))
    if not missing.any():
        return values
    mode = mode_of(metric, [run.modes for run in among])
    worst = (
        np.nan
        if mode is None
        else worst_of(np.concatenate([run.scalars[metric] for run in among]), mode)
    )
    # where all are gone there is nothing to average
    return np.where(
        np.all(missing, axis=0, keepdims=True), np.nan, np.where(missing, worst, values)
    )


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean, and the lower and upper end of a band of one standard deviation within the
    range of the values.

    Outside there is nothing: no accuracy above one, and on a logarithmic axis an end near zero
    would fill the chart.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        mean, deviation = (
            values.mean(0),
            values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:]),
        )
        return (
            mean,
            np.maximum(mean - deviation, values.min(0)),
            np.minimum(mean + deviation, values.max(0)),
        )


def describe_early_ends(label: str, runs: Sequence[Record]) -> str:
    """Returns a sentence about the runs that ended before the others, empty if there are none.

    Args:
        label: of the runs.
        runs: of one algorithm on one task.
    """
    last = max(int(run.rounds[-1]) for run in runs)
    lost = [run for run in runs if is_lost(run)]
    short = [run for run in runs if not is_lost(run) and run.rounds[-1] < last]
    phrases = []
    if lost and len(runs) > 1:
        phrases.append(
            f"{len(lost)} of {len(runs)} diverged (after {_format_rounds(lost)}) and "
            f"count{'s' * (len(lost) == 1)} as the worst from there"
        )
    if short:
        phrases.append(
            f"{len(short)} of {len(runs)} ended after {_format_rounds(short)} and "
            f"keep{'s' * (len(short) == 1)} the last value"
        )
    return f"{label}: {', '.join(phrases)}." if phrases else ""


def _format_rounds(runs: Sequence[Record]) -> str:
    ends = sorted({int(run.rounds[-1]) for run in runs})
    if len(ends) == 1:
        return counted(ends[0], "round")
    return f"{ends[0]} to {ends[-1]} rounds"
