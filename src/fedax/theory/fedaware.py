r"""The theory of FedAWARE: diversity of gradients, surrogate weights, drift under unequal work, and
the error of momenta.

N clients with weights $\lambda_i$ of sum 1, $f = \sum_i \lambda_i f_i$, each $f_i$ is L-smooth. A
round of `fedax.FedAWARE` steps along $d = \sum_i \tilde\lambda_i m_i$, the shortest convex
combination of the clients' momenta $m_i$, here in the scale of gradients (local updates divided by
$\eta_l K_i$).

Source: Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via Gradient Diversity
Maximization (arXiv:2310.02702).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from fedax.theory._limits import check, check_rate, shares

Weights = Float[Array | np.ndarray, "clients"]
Gradients = Float[Array | np.ndarray, "clients dim"]


def diversity(
    gradients: Gradients, weights: Weights | None = None, surrogate: Weights | None = None
) -> float:
    r"""Returns the diversity D of gradients, or $\tilde D$ with surrogate weights $\tilde\lambda$.

    $$ D(x) = \frac{\sqrt{\sum_i \lambda_i \lVert \nabla f_i \rVert^2}}{\lVert \sum_i \lambda_i
    \nabla f_i \rVert}, \qquad
       \tilde D(x) = \frac{\sqrt{\sum_i \lambda_i \lVert \nabla f_i \rVert^2}}{\lVert \sum_i
       \tilde\lambda_i \nabla f_i \rVert}. $$

    Args:
        gradients: $\nabla f_i(x)$, every client's full gradient.
        weights: $\lambda_i$, of sum 1; equal ones by default.
        surrogate: $\tilde\lambda_i$ for the sum in the denominator; by default the weights. The
            shortest combination has the largest $\tilde D$ of all.

    Returns:
        At least 1 with the weights themselves; with a surrogate it may be less, which the paper's
        (6) excludes. Infinity if the denominator vanishes alone.

    Raises:
        InvalidInput: weights that are none.

    >>> gradients = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> (
    ...     diversity(gradients).__round__(6),
    ...     diversity(gradients, surrogate=np.array([0.2, 0.8])).__round__(6),
    ... )
    (1.414214, 1.767767)

    Source: Definitions 3.1 and 3.2, eqs. (3) and (6).
    """
    gradient_rows = np.asarray(gradients, float)
    client_weights = shares("diversity", weights, len(gradient_rows))
    mean_weights = client_weights
    if surrogate is not None:
        mean_weights = shares("diversity", surrogate, len(gradient_rows))
    denominator = float(np.linalg.norm(mean_weights @ gradient_rows))
    numerator = math.sqrt(float(client_weights @ np.sum(gradient_rows**2, axis=1)))
    # 0/0 counts as equal gradients
    return numerator / denominator if denominator else math.inf if numerator else 1.0


def dissimilarities(
    gradients: Gradients, weights: Weights | None = None
) -> Float[np.ndarray, "clients"]:
    r"""Returns $\zeta_i(x) = \lVert \nabla f_i(x) - \nabla f(x) \rVert^2$ of every client; their
    mean is $\sigma_g^2$ at x.

    Args:
        gradients: of the clients at x, shape (clients, dim).
        weights: of the clients, at least 0, of sum 1; None for equal ones.

    Raises:
        InvalidInput: other shapes or weights.

    >>> dissimilarities(np.array([[1.0], [-1.0]])).tolist()
    [1.0, 1.0]

    Source: Corollary 3.2.
    """
    gradient_rows = np.asarray(gradients, float)
    client_weights = shares("dissimilarities", weights, len(gradient_rows))
    return np.sum((gradient_rows - client_weights @ gradient_rows) ** 2, axis=1)


class Divergence(NamedTuple):
    r"""The divergence of surrogate weights from the clients' own.

    Attributes:
        square: $\chi^2_{\tilde\lambda \| \lambda} = \sum_i \tilde\lambda_i^2 / \lambda_i^2$.
        linear: $\chi_{\tilde\lambda \| \lambda} = \sum_i \tilde\lambda_i / \lambda_i$.
        gap: $N + \chi^2 - 2\chi = \sum_i (\tilde\lambda_i - \lambda_i)^2 / \lambda_i^2$, 0 for
            equal weights.
        pearson: $\sum_i (\tilde\lambda_i - \lambda_i)^2 / \lambda_i$, the usual chi-squared
            divergence; at most `gap`.
    """

    square: float
    linear: float
    gap: float
    pearson: float


def divergence(surrogate: Weights, weights: Weights | None = None) -> Divergence:
    r"""Returns the paper's $\chi^2$ and $\chi$ of surrogate weights $\tilde\lambda$ against
    $\lambda$, with their use.

    Args:
        surrogate: $\tilde\lambda$, at least 0, of sum 1.
        weights: $\lambda$, above 0, of sum 1; equal ones by default.

    Raises:
        InvalidInput: weights that are none.

    >>> divergence(np.array([1.0, 0.0]))
    Divergence(square=4.0, linear=2.0, gap=2.0, pearson=1.0)

    Source: Theorem 4.1 and Appendix B, before eq. (14).
    """
    tilde = shares("divergence", surrogate, len(surrogate))
    client_weights = shares("divergence", weights, len(tilde), positive=True)
    ratio = tilde / client_weights
    return Divergence(
        float(np.sum(ratio**2)),
        float(np.sum(ratio)),
        float(np.sum((ratio - 1) ** 2)),
        float(np.sum(client_weights * (ratio - 1) ** 2)),
    )


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
    k = np.asarray(local_steps)
    zeta = np.asarray(dissimilarities)
    check("heterogeneity", local_steps=k, rate=rate, dissimilarities=zeta)
    client_weights = shares("heterogeneity", weights, len(k))
    return float(30 * rate * (client_weights * (k - k.min())) @ zeta)


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
    check_rate("stationarity_bound(rate=...)", rate, 1 / smoothness, "1/L")
    return 2 * gap / (rate * len(error_array)) + float(np.mean(error_array**2))
