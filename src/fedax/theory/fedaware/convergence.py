"""Drift under unequal work, the error of momenta, and stationarity; see the package."""

import numpy as np
from jaxtyping import Array, Float, Int

from fedax.core import InvalidInput
from fedax.theory._limits import check, shares
from fedax.theory.fedaware.definitions import Weights


def heterogeneity(
    *,
    local_steps: Int[Array | np.ndarray, "clients"],
    rate: float,
    dissimilarities: Float[Array | np.ndarray, "clients"],
    weights: Weights | None = None,
) -> float:
    r"""Returns $\Phi_{\text{Hetero}} = 30 \eta_l \sum_i \lambda_i (K_i - K_{\min}) \zeta_i(x^t)$, 0
    for equal work.

    The paper leaves $\lambda_i$ out, which is N times as much for equal weights; its derivation has
    it.

    Args:
        local_steps: $K_i$, at least 1.
        rate: $\eta_l$, above 0.
        dissimilarities: $\zeta_i(x^t)$; see `dissimilarities`.
        weights: $\lambda_i$, of sum 1; equal ones by default.

    Raises:
        InvalidInput: a number out of its range.

    >>> heterogeneity(local_steps=np.array([1, 3]), rate=0.5, dissimilarities=np.ones(2))
    15.0

    Source: Corollary 3.2, corrected.
    """
    k = np.asarray(local_steps, float)
    check("heterogeneity", rate=rate, variance=np.asarray(dissimilarities))
    client_weights = shares("heterogeneity", weights, len(k))
    return float(30 * rate * (client_weights * (k - k.min())) @ np.asarray(dissimilarities))


def stationarity_bound(
    *, gap: float, rate: float, smoothness: float, errors: Float[Array | np.ndarray, "rounds"]
) -> float:
    r"""Returns a bound on the squared gradient in the best of T rounds, for any directions d.

    $$ \min_{t < T} \lVert \nabla f(x^t) \rVert^2 \le \frac{2 (f(x^0) - \min f)}{\eta T}
       + \frac1T \sum_t \lVert d^t - \nabla f(x^t) \rVert^2, $$

    as
    $f(x - \eta d) \le f - \frac\eta2 \lVert \nabla f \rVert^2 - \frac\eta2 (1 - L\eta) \lVert d
    \rVert^2 + \frac\eta2 \lVert d - \nabla f \rVert^2$.
    It stands in for Theorem 4.1, whose $\rho^t = 1 - \sqrt g - g - \ldots$ is negative as soon as
    one of equal clients gets no weight (then $g = N + \chi^2 - 2\chi \ge 1$), whose (24) takes the
    shortest combination to be longer than $\nabla f$, and which rests on Lemma 4.1.

    Args:
        gap: $f(x^0) - \min f$, at least 0.
        rate: $\eta$, above 0 and at most $\frac1L$.
        smoothness: L, above 0.
        errors: $\lVert d^t - \nabla f(x^t) \rVert$ of each round, or bounds of it; at
            least 0.

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> stationarity_bound(gap=1.0, rate=0.5, smoothness=1.0, errors=np.zeros(8))
    0.5

    Source: Theorem 4.1, replaced.
    """
    error_array = np.asarray(errors, float)
    check("stationarity_bound", gap=gap, smoothness=smoothness, error=error_array)
    if not 0 < rate <= 1 / smoothness * (1 + 1e-12):
        raise InvalidInput.of(
            "stationarity_bound(rate=...)", rate, f"numbers in (0, 1/L = {1 / smoothness:g}]"
        )
    return 2 * gap / (rate * len(error_array)) + float(np.mean(error_array**2))
