r"""The theory of FedBC: bounds of the multipliers, how far local models are from the global one,
and stationarity.

N devices, $f = \frac1N \sum_i f_i$, each $f_i$ is $L_i$-smooth. A round of `fedax.FedBC` has
$\nabla f_i(x_i) + 2 \lambda_i (x_i - z) = e_i$ with $\lVert e_i \rVert^2 \le \varepsilon$ (25), a
dual step of size $\alpha$ on $c_i = \lVert x_i - z \rVert^2 - \gamma_i$, and z the mean of the
local models by the new multipliers. The bounds are for rounds of all devices.

The paper's proofs lose a factor 2 from (54) to (55), where $2\lambda_i$ becomes $\lambda_i$, a
square in (69), where $4\lambda^2$ becomes $2\lambda$, and the factor $2M_1^2$ of two terms in (72).
The functions have what remains true.

Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815).
"""

import math
from typing import NamedTuple

import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Array, Float

from fedax.core import InvalidInput
from fedax.theory._limits import check

PerDevice = Float[Array | np.ndarray, "clients"]
Models = Float[Array | np.ndarray, "clients dim"]


class Interval(NamedTuple):
    """Bounds `low` and `high` of the multipliers, one for each device; the upper ones are not
    reached.
    """

    low: Float[np.ndarray, "clients"]
    high: Float[np.ndarray, "clients"]


def multiplier_bounds(smoothness: PerDevice) -> Interval:
    r"""Returns the bounds $\Lambda$ of the multipliers in the analysis:
    `FedBC(lam_min=..., lam_max=...)`.

    $\lambda_i \in [1 + L_i, (1 + L_i)^2 / L_i)$.

    The lower bound makes the Lagrangian descend (43). The upper one serves (61), where $\lambda_j$
    need not appear: it cancels in $\frac{1}{a_i a_j} a_j L_i$. With it cancelled,
    $2 \lambda_i > L_i$ alone is enough; see `consensus_bound`.

    Args:
        smoothness: $L_i$, above 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> found = multiplier_bounds(np.array([1.0, 4.0]))
    >>> found.low.tolist(), found.high.tolist()
    ([2.0, 5.0], [4.0, 6.25])

    Source: before (43), and after (61).
    """
    check("multiplier_bounds", smoothness=smoothness)
    smoothness_array = np.asarray(smoothness, float)
    return Interval(1 + smoothness_array, (1 + smoothness_array) ** 2 / smoothness_array)


def heterogeneity(gradients: Models, *, low: float, high: float) -> float:
    r"""Returns the dissimilarity of the devices' gradients at one x under the multipliers that are
    worst for it.

    $$ \delta = \max_{i \ne j} \max_{a, b \in [\lambda_{\min}, \lambda_{\max}]} \lVert a \nabla
    f_i(x) - b \nabla f_j(x) \rVert. $$

    A convex function of (a, b) is largest in a corner. Identical devices have
    $(\lambda_{\max} - \lambda_{\min}) \lVert \nabla f \rVert$, not 0.

    Args:
        gradients: every device's full gradient at x.
        low, high: $\lambda_{\min}$ and $\lambda_{\max}$, at least 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> heterogeneity(np.array([[1.0], [-1.0]]), low=2.0, high=3.0)
    6.0

    Source: Assumption 4.3.
    """
    gradient_rows = np.asarray(gradients, float)
    check("heterogeneity", multiplier=np.array([low, high]))
    ends = {low, high}
    # shape (clients, clients): inner products would cancel where devices are nearly alike
    corners = [
        scipy.spatial.distance.cdist(a * gradient_rows, b * gradient_rows)
        for a in ends
        for b in ends
    ]
    lengths = np.max(corners, axis=0)
    # a device is not compared with itself
    np.fill_diagonal(lengths, 0)
    return float(lengths.max())


def consensus_bound(
    *, smoothness: float, multiplier: float, error: float, heterogeneity: float
) -> float:
    r"""Returns $\lVert x_i^{t+1} - z^{t+1} \rVert^2$ at most, for every device and round.

    $$ \Big( \frac{\sqrt\varepsilon / \lambda + \delta / 2 \lambda^2}{1 - L / 2\lambda} \Big)^2. $$

    Derivation: from (25) with $a_i = 2\lambda_i$,
    $\lVert x_i - x_j \rVert \le \sqrt\varepsilon (\frac{1}{a_i} + \frac{1}{a_j}) + \frac{1}{a_i
    a_j} \lVert a_j \nabla f_i(x_i) - a_i \nabla f_j(x_j) \rVert$,
    the last norm is at most $a_j L_i \lVert x_i - x_j \rVert + 2 \delta$, and z lies between the
    local models. The paper's (65) has besides a factor S, as it bounds a weighted mean by a sum.

    Args:
        smoothness: L, at least all $L_i$; above 0.
        multiplier: $\lambda$, at most all $\lambda_i$ and above $\frac L2$.
        error: $\varepsilon$, at least 0: the squared gradients of the local problems at the
            local models.
        heterogeneity: $\delta$ at the local models, at least 0; see `heterogeneity`.

    Raises:
        InvalidInput: a number out of its range, or a multiplier for which nothing is proved.

    >>> consensus_bound(smoothness=1.0, multiplier=1.0, error=1.0, heterogeneity=0.0)
    4.0

    Source: Lemma B.2, eqs. (44) and (62), corrected.
    """
    check(
        "consensus_bound",
        smoothness=smoothness,
        multiplier=multiplier,
        error=error,
        heterogeneity=heterogeneity,
    )
    if not multiplier > smoothness / 2:
        raise InvalidInput.of(
            "consensus_bound(multiplier=...)", multiplier, f"numbers above L/2 = {smoothness / 2:g}"
        )
    # the numerator: errors of both solves, and the dissimilarity of the gradients
    numerator = math.sqrt(error) / multiplier + heterogeneity / (2 * multiplier**2)
    return (numerator / (1 - smoothness / (2 * multiplier))) ** 2


def stationarity_bound(
    *,
    gap: float,
    rounds: int,
    error: float,
    smoothness: PerDevice,
    multiplier: float,
    spread: float,
    dual_rate: float,
    violation: float,
    gradient_bound: float,
    tolerance: float = 0.0,
) -> float:
    r"""Returns $\frac1T \sum_{t<T} \lVert \nabla f(z^t) \rVert^2$ at most, from $x_i^0 = z^0$ and
    with $\lambda_i \ge 1 + L_i$.

    $$ \frac{4 M_1^2}{T} (B_0 + \lambda_{\max} \gamma) + (M + 4 M_1^2 \lambda_{\max}) V +
    \varepsilon \Big(4 + \frac{2
       M_1^2}{N} \sum_i \frac{1}{L_i}\Big) + 4 M_1^2 \alpha c^2, $$

    $M_1 = L + 2\lambda_{\max}$, $M = 4 (L^2 + 4 \lambda_{\max}^2)$,
    $B_0 = f(z^0) - \min f + \frac1N \sum_i \frac{G^2}{2L_i}$.

    Args:
        gap: $f(z^0) - \min f$, at least 0.
        rounds: T, at least 1.
        error: $\varepsilon$, at least 0.
        smoothness: $L_i$, above 0.
        multiplier: $\lambda_{\max}$, at least every $1 + L_i$.
        spread: V, of all rounds' $\frac1N \sum_i \lVert x_i^t - z^t \rVert^2$ the largest, or
            `consensus_bound`; at least 0.
        dual_rate: $\alpha$, above 0.
        violation: c, the largest $|\lVert x_i^{t+1} - z^t \rVert^2 - \gamma_i|$; at least 0.
        gradient_bound: G, of all $\lVert \nabla f_i(x_i) \rVert$; at least 0.
        tolerance: $\gamma$, of the $\gamma_i$ the mean; at least 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> given = {
    ...     "error": 0.0,
    ...     "smoothness": np.ones(2),
    ...     "multiplier": 2.0,
    ...     "spread": 0.0,
    ...     "violation": 0.0,
    ...     "dual_rate": 1.0,
    ... }
    >>> stationarity_bound(gap=1.0, rounds=100, gradient_bound=0.0, **given)
    1.0

    Source: Theorem 4.5, eq. (90), corrected.
    """
    check(
        "stationarity_bound",
        gap=gap,
        rounds=rounds,
        error=error,
        smoothness=smoothness,
        multiplier=multiplier,
        spread=spread,
        dual_rate=dual_rate,
        violation=violation,
        gradient_bound=gradient_bound,
        tolerance=tolerance,
    )
    # L, and the mean of 1 / (2 L_i)
    largest = float(np.max(smoothness))
    halves = float(np.mean(0.5 / np.asarray(smoothness)))
    if multiplier < 1 + largest:
        raise InvalidInput.of(
            "stationarity_bound(multiplier=...)", multiplier, f"numbers >= 1 + L = {1 + largest:g}"
        )
    # M_1 squared
    square = (largest + 2 * multiplier) ** 2
    gap_term = 4 * square * (gap + gradient_bound**2 * halves + multiplier * tolerance) / rounds
    spread_term = (4 * (largest**2 + 4 * multiplier**2) + 4 * square * multiplier) * spread
    return (
        gap_term
        + spread_term
        + error * (4 + 4 * square * halves)
        + 4 * square * dual_rate * violation**2
    )
