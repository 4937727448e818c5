"""Drift under unequal work, the error of momenta, and stationarity; see the package."""

import math

import numpy as np
from jaxtyping import Array, Float, Int

from fedax.core import InvalidInput
from fedax.theory._limits import check, shares
from fedax.theory.fedaware.definitions import Divergence, Weights


def drift_bound(
    *,
    local_steps: Int[Array | np.ndarray, "clients"],
    rate: float,
    smoothness: float,
    local_variance: float,
    dissimilarities: Float[Array | np.ndarray, "clients"],
    gradient: float,
) -> Float[np.ndarray, "clients"]:
    r"""Returns bounds on the drift of each client from the global model in its $K_i$ local steps.

    $$ \mathbb E \lVert x_i^{t,k} - x^t \rVert^2 \le 5 K_i \eta_l^2 (\sigma_l^2 + 6 K_i \zeta_i + 6
    K_i \lVert \nabla f(x^t) \rVert^2). $$

    The recursion needs $6 K_i \eta_l^2 L^2 \le \frac{1}{K_i - 1} - \frac{1}{2K_i - 1}$, for which
    $\eta_l \le \frac{1}{\sqrt{12} L K_i}$ is enough; the paper does not ask for it.

    Args:
        local_steps: $K_i$, at least 1.
        rate: $\eta_l$, above 0 and at most $\frac{1}{\sqrt{12} L K_i}$ for every client.
        smoothness: L, above 0.
        local_variance: $\sigma_l^2$, at least 0.
        dissimilarities: $\zeta_i(x^t)$; see `dissimilarities`.
        gradient: $\lVert \nabla f(x^t) \rVert$, at least 0.

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> given = {"smoothness": 1.0, "local_variance": 0.0, "gradient": 1.0, "rate": 0.125}
    >>> drift_bound(local_steps=np.array([1, 2]), dissimilarities=np.zeros(2), **given).tolist()
    [0.46875, 1.875]

    Source: Lemma A.1.
    """
    k = _check_steps("drift_bound", local_steps, rate, smoothness)
    check(
        "drift_bound",
        local_variance=local_variance,
        variance=np.asarray(dissimilarities),
        gradient=gradient,
    )
    return 5 * k * rate**2 * (local_variance + 6 * k * (np.asarray(dissimilarities) + gradient**2))


def heterogeneity(
    *,
    local_steps: Int[Array | np.ndarray, "clients"],
    rate: float,
    dissimilarities: Float[Array | np.ndarray, "clients"],
    weights: Weights | None = None,
    as_printed: bool = False,
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
        as_printed: whether to leave the weights out.

    Raises:
        InvalidInput: a number out of its range.

    >>> heterogeneity(local_steps=np.array([1, 3]), rate=0.5, dissimilarities=np.ones(2))
    15.0

    Source: Corollary 3.2, corrected.
    """
    k = np.asarray(local_steps, float)
    check("heterogeneity", rate=rate, variance=np.asarray(dissimilarities))
    # the paper sums without weights
    client_weights = np.ones(len(k)) if as_printed else shares("heterogeneity", weights, len(k))
    return float(30 * rate * (client_weights * (k - k.min())) @ np.asarray(dissimilarities))


def mean_drift_bound(
    *,
    local_steps: Int[Array | np.ndarray, "clients"],
    rate: float,
    smoothness: float,
    local_variance: float,
    dissimilarities: Float[Array | np.ndarray, "clients"],
    gradient: float,
    weights: Weights | None = None,
) -> float:
    r"""Returns a bound on the mean drift of the clients.

    $$ \sum_i \lambda_i \mathbb E \lVert x_i^{t,k} - x^t \rVert^2 \le \Phi_{\text{Hetero}}
       + 5 \eta_l (\sigma_l^2 + 6 K_{\min} \sigma_g^2 + 6 \tilde K \lVert \nabla f \rVert^2). $$

    $\tilde K = \sum_i \lambda_i K_i$ and $\sigma_g^2 = \sum_i \lambda_i \zeta_i$, $\Phi$ of
    `heterogeneity`. For equal work it is Lemma 3.2, which the paper's $K_{\min}^2$ is not.

    Args:
        local_steps, smoothness, local_variance, dissimilarities, gradient: as in `drift_bound`.
        rate: $\eta_l$, above 0, at most $\frac{1}{K_i}$ and $\frac{1}{\sqrt{12} L K_i}$ for every
            client.
        weights: $\lambda_i$, of sum 1; equal ones by default.

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> given = {"smoothness": 1.0, "local_variance": 0.0, "gradient": 1.0, "rate": 0.125}
    >>> mean_drift_bound(local_steps=np.array([2, 2]), dissimilarities=np.zeros(2), **given)
    7.5

    Source: Lemma 3.2 and Corollary 3.2, eqs. (4) and (5), corrected.
    """
    # 1/sqrt(12) for L turns the same check into the rate of at most 1/K_i
    k = _check_steps("mean_drift_bound", local_steps, rate, max(smoothness, 1 / math.sqrt(12)))
    check(
        "mean_drift_bound", smoothness=smoothness, local_variance=local_variance, gradient=gradient
    )
    client_weights = shares("mean_drift_bound", weights, len(k))
    zeta = np.asarray(dissimilarities, float)
    heterogeneity_term = heterogeneity(
        local_steps=local_steps, rate=rate, dissimilarities=zeta, weights=client_weights
    )
    return heterogeneity_term + 5 * rate * float(
        local_variance
        + 6 * k.min() * (client_weights @ zeta)
        + 6 * (client_weights @ k) * gradient**2
    )


def momentum_error_bound(
    *, error: float, moved: float, drift: float, smoothness: float, share: float
) -> float:
    r"""Returns a bound on the momenta's error after a round, from the error before it.

    The error is $e_t = \sum_i \lambda_i \mathbb E \lVert m_i^t - \nabla f_i(x^t) \rVert^2$.

    $$ e_t \le \Big(1 - \frac\beta2\Big) e_{t-1} + \frac{2 L^2}{\beta} \lVert x^t - x^{t-1} \rVert^2
    + \beta r_t, \qquad \beta = (1 - \alpha) p. $$

    Derivation: with probability p the momentum is $\alpha m + (1-\alpha) g$, so by convexity
    $\mathbb E \lVert m^t - \nabla f_i \rVert^2 \le (1 - \beta) \lVert m^{t-1} - \nabla f_i(x^t)
    \rVert^2 + \beta \lVert g - \nabla f_i(x^t) \rVert^2$,
    and the first square is at most $(1 + \frac\beta2)$ and $(1 + \frac2\beta)$ times those of
    $m^{t-1} - \nabla f_i(x^{t-1})$ and $L (x^t - x^{t-1})$. Lemma 4.1 has $\beta^2 L^2$ times the
    drift instead, by which a momentum that is never renewed ($\beta = 0$) would have no error.

    Args:
        error: $e_{t-1}$, at least 0.
        moved: $\lVert x^t - x^{t-1} \rVert$, at least 0.
        drift: $r_t = \sum_i \lambda_i \mathbb E \lVert g_i - \nabla f_i(x^t) \rVert^2$, of the
            updates in the scale of gradients; at least 0.
        smoothness: L, above 0.
        share: $\beta = (1-\alpha) p$, above 0 and at most 1.

    Raises:
        InvalidInput: a number out of its range.

    >>> momentum_error_bound(error=1.0, moved=0.0, drift=0.0, smoothness=1.0, share=0.5)
    0.75

    Source: Lemma 4.1 and Lemma B.1, replaced.
    """
    check(
        "momentum_error_bound",
        error=error,
        moved=moved,
        drift=drift,
        smoothness=smoothness,
        share=share,
    )
    if not share:
        raise InvalidInput.of("momentum_error_bound(share=...)", share, "numbers in (0, 1]")
    return (1 - share / 2) * error + 2 * (smoothness * moved) ** 2 / share + share * drift


def direction_error_bound(*, found: Divergence, global_variance: float, error: float) -> float:
    r"""Returns a bound on how far FedAWARE's direction is from the gradient.

    $\lVert d - \nabla f \rVert \le \sqrt{\chi_P^2} \sigma_g + \sqrt{e}$.

    Args:
        found: see `divergence`.
        global_variance: $\sigma_g^2$, at least 0.
        error: $e = \sum_i \tilde\lambda_i \lVert m_i - \nabla f_i \rVert^2$, at least 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> from fedax.theory.fedaware import divergence
    >>> direction_error_bound(
    ...     found=divergence(np.array([1.0, 0.0])), global_variance=4.0, error=1.0
    ... )
    3.0

    Source: replaces eq. (14).
    """
    check("direction_error_bound", global_variance=global_variance, error=error)
    return math.sqrt(found.pearson * global_variance) + math.sqrt(error)


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
        errors: $\lVert d^t - \nabla f(x^t) \rVert$ of each round, or bounds of
            `direction_error_bound`; at least 0.

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


def _check_steps(
    function: str, local_steps: Int[Array | np.ndarray, "clients"], rate: float, smoothness: float
) -> np.ndarray:
    k = np.asarray(local_steps)
    check(function, smoothness=smoothness)
    if not np.all(k >= 1):
        raise InvalidInput.of(f"{function}(local_steps=...)", k.tolist(), "whole numbers >= 1")
    largest = 1 / (math.sqrt(12) * smoothness * float(k.max()))
    if not 0 < rate <= largest * (1 + 1e-12):
        raise InvalidInput.of(
            f"{function}(rate=...)",
            rate,
            f"numbers in (0, {largest:g}], for the client with the most steps",
        )
    return k.astype(float)
