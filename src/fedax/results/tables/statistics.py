"""Statistics of comparisons: paired t-tests on the draws of the data, corrected for their
number.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # `scipy.stats` is imported on demand
from scipy import special

LEVEL = 0.05
"""Significance level of every verdict; intervals have the confidence 1 - LEVEL."""
_LARGE = 1e6  # from here on numbers have an exponent


class Effect(NamedTuple):
    """Mean difference with its confidence interval.

    Attributes:
        mean, low, high: the mean over the units and its 95 % confidence interval (Student's t); NaN
            where there is none.
        ahead, behind: p-values of the two verdicts, that it is above and that it is below zero,
            each twice the one-sided one, so that it is at most `LEVEL` where the interval is above
            (below) zero.
        units: how many there are.
        unit: `"draws"` of the data or `"seeds"`.
    """

    mean: float
    low: float
    high: float
    ahead: float
    behind: float
    units: int
    unit: str


def interval_text(mean: float, low: float, high: float, sign: str = "") -> str:
    """Returns a mean with its interval where there is one.

    >>> interval_text(1.2, 0.3, 2.1, "+")
    '+1.2 [0.3, 2.1]'
    """
    interval = f" [{digits(low)}, {digits(high)}]" if math.isfinite(low) else ""
    return f"{digits(mean, sign)}{interval}"


def digits(value: float, sign: str = "") -> str:
    """Returns a number with three significant digits, and with all digits before the point of
    numbers below a million.

    >>> digits(0.12345), digits(1234.5), digits(2.0, "+"), digits(2.5e6)
    ('0.123', '1234', '+2', '2.5e+06')
    """
    return f"{value:{sign}.0f}" if 1000 <= abs(value) < _LARGE else f"{value:{sign}.3g}"


def mean_text(mean: float, deviation: float = math.nan, sign: str = " ± ") -> str:
    """Formats a mean with its deviation, with decimals up to the deviation's second significant
    digit.

    Without a deviation, or with one of zero, the mean has three significant digits. All digits
    before the point are shown. Numbers below 1e-4 and from a million on have an exponent.

    >>> mean_text(0.0012446, 1e-5), mean_text(1235.5678, 1.0), mean_text(88.98)
    ('0.001245 ± 0.000010', '1235.6 ± 1.0', '89.0')
    >>> mean_text(3.1e-7, 1e-8), mean_text(196923771.0, 137402040.0)
    ('3.10e-07 ± 1.0e-08', '2.0e+08 ± 1.4e+08')
    """
    has_deviation = math.isfinite(deviation)
    # the decimal exponent of the last digit shown
    last = _exponent(deviation, 2) - 1 if has_deviation and deviation else _exponent(mean, 3) - 2
    if mean:
        # more than six digits of a mean of single-precision numbers are rounding errors
        last = max(last, _exponent(mean, 6) - 5)
    size = max(abs(mean), deviation) if has_deviation else abs(mean)
    if 0 < size < 1e-4 or size >= _LARGE:
        text = f"{mean:z.{max(_exponent(mean, 3) - last, 0)}e}" if mean else "0"
        return text + (f"{sign}{deviation:.1e}" if has_deviation else "")
    decimals = max(-last, 0)
    text = f"{mean:z.{decimals}f}"
    if not has_deviation:
        return text
    # a deviation that is not zero is not shown as zero
    is_hidden = deviation > 0 and round(deviation, decimals) == 0
    return text + sign + (f"{deviation:.1e}" if is_hidden else f"{deviation:.{decimals}f}")


def _exponent(value: float, count: int) -> int:
    """Returns the decimal exponent of a number that is rounded to `count` significant digits."""
    return int(f"{value:.{count - 1}e}".partition("e")[2])


def units_of(values: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns the units of statistics: the means over the seeds of each draw of the data if there
    are several, else the seeds.

    Args:
        values: of runs, shape (..., runs).
        draws: of the same runs, shape (runs,).
    """
    distinct = np.unique(draws)
    if len(distinct) < 2:
        return values, "seeds"
    with np.errstate(invalid="ignore"):
        means = np.stack([values[..., draws == draw].mean(-1) for draw in distinct], -1)
    # means of both infinities are NaN, although no value is: level, so 0
    is_level = np.isnan(means) & ~np.isnan(values).any(-1, keepdims=True)
    return np.where(is_level, 0.0, means), "draws"


def deviation_of(values: np.ndarray) -> float:
    """Returns the sample standard deviation; NaN for a single value and where one is not finite.

    >>> deviation_of(np.array([1.0, 3.0])), deviation_of(np.array([1.0]))
    (1.4142135623730951, nan)
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(values.std(ddof=1))


def effect_of(values: np.ndarray, unit: str, exact: bool = False) -> Effect:
    """Computes the effect that differences of some units show.

    With infinite differences (runs that never reach a value) it is the sign test. With `exact`
    ones, which do not depend on chance, all units have to agree. A single unit decides nothing.

    >>> effect = effect_of(np.array([1.0, 1.2, 1.1]), "seeds")
    >>> interval_text(effect.mean, effect.low, effect.high, "+")
    '+1.1 [0.852, 1.35]'
    """
    count = len(values)
    above = int((values > 0).sum())
    below = int((values < 0).sum())
    effect = Effect(math.nan, math.nan, math.nan, 1.0, 1.0, count, unit)
    if not count:
        return effect
    finite = np.isfinite(values).all()
    # of infinite values the median is still meaningful
    effect = effect._replace(mean=float(values.mean() if finite else np.median(values)))
    if exact:
        # all units agree (p = 0), or nothing is decided (p = 1)
        return effect._replace(ahead=float(above < count), behind=float(below < count))
    if not finite:
        # the sign test: at least k of the units on one side, if both sides were equally likely
        p = [min(2 * float(scipy.stats.binom.sf(k - 1, count, 0.5)), 1.0) for k in (above, below)]
        return effect._replace(ahead=p[0], behind=p[1])
    if count == 1:
        return effect
    mean = effect.mean
    error = float(values.std(ddof=1)) / math.sqrt(count)
    reach = float(special.stdtrit(count - 1, 1 - LEVEL / 2)) * error
    # without any spread t is infinite
    ratio = abs(mean) / error if error else math.inf
    # twice the one-sided p-value, see `Effect`
    p = 2 * float(special.stdtr(count - 1, -ratio))
    return effect._replace(
        low=mean - reach,
        high=mean + reach,
        ahead=p if mean > 0 else 1.0,
        behind=p if mean < 0 else 1.0,
    )


def ratio_of(a: np.ndarray, b: np.ndarray, unit: str, exact: bool = False) -> Effect:
    r"""Computes the ratio of two means of paired values with Fieller's interval.

    The interval has the factors m for which Student's t-test does not reject that $a - m b$ is zero
    in the mean: it lies above m if and only if `effect_of(a - m * b, unit)` does. There is none
    where the mean of b does not differ from zero (p > 0.05), nor for infinite values.

    Args:
        a, b: shape (units,).
        unit: `"draws"` or `"seeds"`.
        exact: the values do not depend on chance, so that there is no interval.

    >>> ratio = ratio_of(np.array([4.0, 4.2, 4.1]), np.array([2.0, 2.1, 1.9]), "seeds")
    >>> interval_text(ratio.mean, ratio.low, ratio.high)
    '2.05 [1.85, 2.3]'
    """
    effect = effect_of(np.array([]), unit)
    count = len(a)
    if not count:
        return effect
    finite = bool(np.isfinite([a, b]).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.mean(a) / np.mean(b) if finite else np.median(a / b)
    effect = effect._replace(mean=float(mean), units=count)
    if exact or count == 1 or not finite:
        return effect
    # covariances of the means, and the squared quantile of t
    c = np.cov(a, b) / count
    r2 = float(special.stdtrit(count - 1, 1 - LEVEL / 2)) ** 2
    # coefficients of the quadratic in m that Fieller's interval solves
    means = np.array([a.mean(), b.mean()])
    top, both, _, below = (np.outer(means, means) - r2 * c).ravel()
    # b may be 0 in the mean: the set of factors is not an interval
    if below <= 0:
        return effect
    half = math.sqrt(max(both**2 - top * below, 0.0))
    return effect._replace(low=float((both - half) / below), high=float((both + half) / below))


def holm(p: Sequence[float]) -> list[float]:
    """Computes Holm's adjusted p-values (1979), in the order given: at most `LEVEL` where a
    comparison stands among all of them.

    >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    # from the smallest p on, times the number of hypotheses that are left
    scaled = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    # adjusted values do not fall: a larger p is never the more significant one
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()


def partial_conjunction(p: np.ndarray, count: int) -> np.ndarray:
    r"""Computes the p-value of "at least `count` of the n hold": $(n - c + 1)\, p_{(c)}$, under any
    dependence between them.

    With c = n it is the largest p-value (all hold, without any correction), with c = 1
    Bonferroni's, the first step of Holm's. Source: Benjamini and Heller, Screening for partial
    conjunction hypotheses (2008), eq. (3).

    Args:
        p: p-values, shape (..., n).
        count: c, at least 1; more than there are cannot hold (p = 1).

    >>> float(partial_conjunction(np.array([0.01, 0.5, 0.02]), 2))
    0.04
    """
    n = p.shape[-1]
    if count > n:
        return np.ones(p.shape[:-1])
    return np.asarray(np.minimum((n - count + 1) * np.sort(p, axis=-1)[..., count - 1], 1.0))
