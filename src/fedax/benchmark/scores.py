"""Scores of a family of tasks, in plain NumPy: performance profiles, their areas and intervals."""

import numpy as np
from jaxtyping import Float

LIMIT = 4.0
"""Factor up to which a profile counts."""
DRAWS, SEED = 10_000, 0
"""Of the bootstrap over tasks."""
CONFIDENCE = 0.95

Table = Float[np.ndarray, "methods tasks"]
PerMethod = Float[np.ndarray, "methods"]


def ratios(costs: Table) -> Table:
    """Returns each cost over the smallest one of its task; infinite where a method never arrives.

    Args:
        costs: at least 0, infinite where the target is not reached.

    >>> ratios(np.array([[10.0, np.inf], [20.0, 5.0]])).tolist()
    [[1.0, inf], [2.0, 1.0]]
    """
    reached = np.isfinite(costs)
    tiny = np.finfo(float).tiny
    finite = np.maximum(np.where(reached, costs, 1.0), tiny)
    best = np.where(reached, finite, np.inf).min(0)
    # where no method reaches the target, the divisor does not matter
    return np.where(reached, finite / np.where(reached.any(0), best, 1.0), np.inf)


def profile(
    found: Table, factors: Float[np.ndarray, "factors"]
) -> Float[np.ndarray, "methods factors"]:
    """Returns the share of tasks on which a method is within a factor of the best.

    Source: Dolan and Moré, Benchmarking optimization software with performance profiles (2002),
    eq. (2.1).

    Args:
        found: ratios of costs.
        factors: at least 1.

    >>> profile(np.array([[1.0, np.inf], [2.0, 1.0]]), np.array([1.0, 2.0])).tolist()
    [[0.5, 0.5], [0.5, 1.0]]
    """
    return (found[:, :, None] <= factors).mean(1)


def area(found: Table, limit: float = LIMIT) -> PerMethod:
    """Returns the area under the profile from 1 to `limit`, over its width, in [0, 1].

    A task with ratio r adds the part of the interval that lies above r.

    >>> area(np.array([[1.0, 4.0], [2.5, 1.0]])).tolist()
    [0.5, 0.75]
    """
    return _parts(found, limit).mean(1)


def interval(
    found: Table, limit: float = LIMIT, draws: int = DRAWS, seed: int = SEED
) -> tuple[PerMethod, PerMethod]:
    """Returns the ends of the percentile bootstrap interval of `area`, over tasks drawn with
    replacement.

    All methods see the same draws.

    >>> low, high = interval(np.array([[1.0, 4.0], [2.5, 1.0]]))
    >>> low.tolist(), high.tolist()
    ([0.0, 0.5], [1.0, 1.0])
    """
    parts, count = _parts(found, limit), found.shape[1]
    drawn = np.random.default_rng(seed).integers(0, count, (draws, count))
    means = parts[:, drawn].mean(2)  # shape (methods, draws)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(means, [tail, 100 - tail], axis=1)
    return low, high


def _parts(found: Table, limit: float) -> Table:
    return np.clip((limit - found) / (limit - 1), 0.0, 1.0)


def typical(costs: Float[np.ndarray, "seeds"]) -> float:
    """Returns the median cost over seeds, infinite if half of the runs or more do not arrive.

    >>> typical(np.array([3.0, np.inf, 1.0])), typical(np.array([1.0, np.inf]))
    (3.0, inf)
    """
    ranked = np.sort(costs)
    middle = ranked[[(len(ranked) - 1) // 2, len(ranked) // 2]]
    return float(middle.mean()) if np.isfinite(middle).all() else float("inf")


def speed_gains(
    own: Float[np.ndarray, "seeds"], reference: Float[np.ndarray, "seeds"]
) -> Float[np.ndarray, "seeds"]:
    """Returns the gain in speed (one over the cost) against a reference with the same seeds.

    In units of the reference's mean speed, or of the method's if the reference never arrives: 0.5
    is half as fast again, -1 never arrives.

    >>> speed_gains(np.array([10.0, np.inf]), np.array([20.0, 20.0])).tolist()
    [1.0, -1.0]
    """
    tiny = np.finfo(float).tiny
    ours, theirs = 1 / np.maximum(own, tiny), 1 / np.maximum(reference, tiny)
    unit = theirs.mean() or ours.mean() or 1.0
    return (ours - theirs) / unit
