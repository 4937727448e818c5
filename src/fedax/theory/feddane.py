r"""The theory of FedDANE: how inexact a local solution is, how dissimilar devices are, and how far
a round descends.

$f = \sum_k p_k F_k$, each $F_k$ is L-smooth, $\nabla^2 F_k \succeq -\lambda I$, both draws of a
round are independent and with probabilities $p_k$. One round of `fedax.FedDANE` then has, in
expectation over its devices, $f(w^t) \le f(w^{t-1}) - \rho \lVert \nabla f(w^{t-1}) \rVert^2$.

Source: Li, Sahu, Zaheer, Sanjabi, Smola, Smith, FedDANE: A Federated Newton-Type Method
(arXiv:2001.01920).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Array, Float

from fedax.core import InvalidInput
from fedax.theory import fedaware
from fedax.theory._limits import check, shares

PerDevice = float | Float[Array | np.ndarray, "devices"]


def inexactness(
    solution: Float[Array | np.ndarray, "dim"],
    exact: Float[Array | np.ndarray, "dim"],
    start: Float[Array | np.ndarray, "dim"],
) -> float:
    r"""Returns the solution's error by the exact move.

    $\gamma = \lVert w - \underline w \rVert / \lVert \underline w - w^{t-1} \rVert$.

    Args:
        solution: w, the local solution.
        exact: $\underline w$, the minimiser of the local problem.
        start: $w^{t-1}$, the model that was sent down.

    Returns:
        0 for the exact solution; infinity if the start is the minimiser and the solution is not.

    >>> inexactness(np.array([0.9]), np.array([1.0]), np.array([0.0])).__round__(12)
    0.1

    Source: Definition 1.
    """
    error = math.dist(solution, exact)
    move = math.dist(exact, start)
    return error / move if move else math.inf if error else 0.0


def enough(*, inexactness: float, moved: float, curvature: float) -> float:
    r"""Returns the residual at which a local solver may stop.

    $$ \lVert \nabla P(w) \rVert \le \frac{\gamma (\mu - \lambda)}{1 + \gamma} \lVert w - w^{t-1}
    \rVert, $$

    which makes the inexactness $\gamma$ at most.

    Args:
        inexactness: $\gamma$ in [0, 1).
        moved: $\lVert w - w^{t-1} \rVert$, at least 0.
        curvature: $\mu - \lambda$, above 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> enough(inexactness=0.25, moved=5.0, curvature=1.0)
    1.0

    Source: Definition 1 as a stopping rule.
    """
    check("enough", inexactness=inexactness, moved=moved, curvature=curvature)
    return inexactness * curvature * moved / (1 + inexactness)


def dissimilarity(
    gradients: Float[Array | np.ndarray, "clients dim"],
    weights: Float[Array | np.ndarray, "clients"] | None = None,
) -> float:
    r"""Returns
    $B(w) = \sqrt{\sum_k p_k \lVert \nabla F_k(w) \rVert^2} / \lVert \nabla f(w) \rVert$, 1 for
    identical devices.

    Args:
        gradients: every device's full gradient at w.
        weights: $p_k$, of sum 1; equal ones by default.

    Returns:
        Infinity at a stationary point of f that is none of every device.

    Raises:
        InvalidInput: weights that are none.

    >>> dissimilarity(np.array([[1.0, 0.0], [0.0, 1.0]])).__round__(12)
    1.414213562373

    Source: Definition 2.
    """
    # FedAWARE's diversity, without its rounding below 1
    return max(fedaware.diversity(gradients, weights), 1.0)


def decrease(
    *,
    mu: PerDevice,
    smoothness: PerDevice,
    dissimilarity: float,
    inexactness: PerDevice = 0.0,
    concavity: float = 0.0,
    overall: float | None = None,
    weights: Float[Array | np.ndarray, "devices"] | None = None,
) -> float:
    r"""Returns $\rho$: a round decreases f by $\rho \lVert \nabla f \rVert^2$ in expectation.

    It is below 0 where nothing is promised, and minus infinity for $\mu \le \lambda$.

    $$ \rho = \sum_k p_k \Big( \frac{1}{\mu_k} - \frac{3\gamma_k}{2m_k} -
    \frac{L(1+\gamma_k)^2}{m_k^2}
       - \frac{3L_k}{2\mu_k m_k} \Big)
       - (B^2 - 1) \sum_k p_k \Big( \frac{L(1+\gamma_k)^2}{m_k^2} + \frac{L_k}{\mu_k m_k} +
         \frac{\gamma_k}{m_k} \Big), \qquad m_k = \mu_k - \lambda. $$

    With constants that all devices share this is Theorem 5, and Theorem 3 for convex losses, with
    $\lambda = 0$. Theorem 7 has constants of each device, for convex losses. The paper has $L_k$ in
    place of L in its third term. That term bounds $\frac12 L \lVert w_k - w^{t-1} \rVert^2$, by
    which *f* is above its tangent (the first line of the proof, eq. (21)), so it needs the
    smoothness of f: a flat device with a small $\mu_k$ takes a step that f, curved by the other
    devices, does not survive. The expectation over the cohort is a mean over all devices.

    Args:
        mu: $\mu_k$, above 0, one for all devices or one for each; so `smoothness` $L_k$ (above 0)
            and `inexactness` $\gamma_k$ in [0, 1).
        dissimilarity: B at the model sent down, at least 1; see `dissimilarity`.
        concavity: $\lambda$, at least 0, with which $\nabla^2 F_k \succeq -\lambda I$ for every
            device; 0 for constants of each device.
        overall: L, the smoothness of f; by default $\sum_k p_k L_k$, which it does not exceed.
        weights: $p_k$, of sum 1; equal ones by default.

    Raises:
        InvalidInput: a number out of its range.

    >>> decrease(mu=5.0, smoothness=1.0, dissimilarity=1.0)
    0.1
    >>> decrease(mu=np.array([5.0, 5.0]), smoothness=1.0, dissimilarity=1.0)
    0.1

    Source: Theorems 3 and 5, eqs. (13) and (20); Theorem 7, eq. (28), corrected.
    """
    check(
        "decrease",
        mu=mu,
        smoothness=smoothness,
        dissimilarity=dissimilarity,
        inexactness=inexactness,
        concavity=concavity,
    )
    # single numbers become one for each device
    proximal, smoothness_of_device, gamma = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(value, float)) for value in (mu, smoothness, inexactness))
    )
    if concavity and len(proximal) > 1:
        raise InvalidInput.of(
            "decrease(concavity=...)", concavity, "0 for constants of each device"
        )
    modulus = proximal - concavity
    if modulus.min() <= 0:
        return -math.inf
    p = shares("decrease", weights, len(proximal))
    overall_smoothness = float(p @ smoothness_of_device) if overall is None else overall
    check("decrease", smoothness=overall_smoothness)
    # the terms of the local solutions and of the gradients' correction, which appear twice
    solved = overall_smoothness * (1 + gamma) ** 2 / modulus**2
    corrected = smoothness_of_device / (proximal * modulus)
    first = p @ (1 / proximal - 1.5 * gamma / modulus - solved - 1.5 * corrected)
    excess = dissimilarity**2 - 1
    return float(first - excess * (p @ (solved + corrected + gamma / modulus)))


class Best(NamedTuple):
    r"""The $\mu$ with the largest $\rho$, and that as `decrease`."""

    mu: float
    decrease: float


def best_mu(
    *, smoothness: float, dissimilarity: float, inexactness: float = 0.0, concavity: float = 0.0
) -> Best:
    r"""Returns the $\mu$ with which a round decreases f the most.

    For convex losses solved exactly $\mu = L(4 B^2 + 1)$ and $\rho = \frac{1}{2\mu}$: the maximum
    of $\frac1\mu - \frac{L(2B^2 + 1/2)}{\mu^2}$. Corollary 4 takes $\mu \approx 5LB^2$ for large B,
    which has $\rho \approx \frac{3}{25 L B^2}$; the best has $\frac{1}{8LB^2}$.

    Args:
        smoothness, dissimilarity, inexactness, concavity: as in `decrease`.

    Returns:
        `mu` infinite and `decrease` 0 if the inexactness is so large that no $\mu$ is proved to
        decrease f, which is if $\gamma (B^2 + \frac12) \ge 1$.

    Raises:
        InvalidInput: a number out of its range.

    >>> best_mu(smoothness=1.0, dissimilarity=2.0)
    Best(mu=17.0, decrease=0.029411764705882353)

    Source: Corollary 4, and eqs. (13) and (20).
    """
    constants: dict[str, Any] = {
        "smoothness": smoothness,
        "dissimilarity": dissimilarity,
        "inexactness": inexactness,
        "concavity": concavity,
    }
    check("best_mu", **constants)
    excess = dissimilarity**2 - 1
    # rho = linear / mu - square / mu^2 for convex losses
    linear = 1 - inexactness * (1.5 + excess)
    if linear <= 0:
        return Best(math.inf, 0.0)
    square = smoothness * ((1 + inexactness) ** 2 * (1 + excess) + 1.5 + excess)
    best = 2 * square / linear
    if not concavity:
        return Best(best, linear**2 / (4 * square))
    # rho(mu) rises from -infinity to its only maximum, which lies above that of the convex case
    high = 16 * (best + concavity / linear)
    result: Any = scipy.optimize.minimize_scalar(
        # mu above the concavity, on a logarithmic scale
        lambda log: -decrease(mu=concavity + math.exp(log), **constants),
        bounds=(math.log(best / 2), math.log(high)),
    )
    best = concavity + math.exp(float(result.x))
    return Best(best, decrease(mu=best, **constants))


def rounds(*, gap: float, rho: float, accuracy: float) -> int:
    r"""Returns the rounds after which the squared gradients are at most $\varepsilon$ on average.

    $$ T \ge \frac{\Delta}{\rho \varepsilon} \quad\Rightarrow\quad
       \frac1T \sum_{t<T} \mathbb E \lVert \nabla f(w^t) \rVert^2 \le \varepsilon. $$

    It is the sum of the decreases, so the models are those *before* the T rounds.

    Args:
        gap: $\Delta = f(w^0) - f^*$, at least 0.
        rho: $\rho$ of every round at least, above 0; see `decrease`.
        accuracy: $\varepsilon$, above 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> rounds(gap=1.0, rho=0.1, accuracy=0.5)
    20

    Source: Theorem 6.
    """
    check("rounds", gap=gap, rho=rho, accuracy=accuracy)
    # a quotient that is whole must not be rounded up
    return max(math.ceil(gap / (rho * accuracy) * (1 - 1e-12)), 1)
