"""Formulas of FedAWARE that do not hold, as printed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from fedax.core import InvalidInput
from fedax.theory._limits import check, shares
from fedax.theory.fedaware.definitions import Divergence, Weights


def gradient_bound_as_printed(*, gradient_bound: float, surrogate_diversity: float) -> float:
    r"""Returns the bound $\lVert \nabla f(x^t) \rVert \le \tilde G / \tilde D(x^t)$.

    It is false for the surrogate weights of the method.

    $\tilde G / \tilde D$ bounds $\lVert \nabla \tilde f \rVert$ by Definition 3.2. The step from
    $\nabla f$ to $\nabla \tilde f$ is an assumption. The method's $\nabla \tilde f$ is the shortest
    of all convex combinations, so that it holds only where both are equally long.

    Args:
        gradient_bound: $\tilde G = \max_t \sqrt{\sum_i \lambda_i \lVert \nabla f_i(x^t) \rVert^2}$,
            at least 0.
        surrogate_diversity: $\tilde D(x^t)$, above 0; see `diversity`.

    Raises:
        InvalidInput: a number out of its range.

    >>> gradient_bound_as_printed(gradient_bound=3.0, surrogate_diversity=1.5)
    2.0

    Source: Corollary B.1, eq. (24), as printed.
    """
    check(
        "gradient_bound_as_printed",
        gradient_bound=gradient_bound,
        surrogate_diversity=surrogate_diversity,
    )
    return gradient_bound / surrogate_diversity


def rho_as_printed(
    found: Divergence,
    *,
    mean_steps: float,
    share: float,
    smoothness: float,
    gradient_bound: float,
    surrogate_diversity: float,
) -> float:
    r"""Returns the factor of the squared gradient in Theorem 4.1, which the theorem needs above 0.

    $$ \rho^t = 1 - \sqrt g - g - \frac{6 \tilde K \beta L \tilde G \sqrt{\chi^2}}{\tilde D(x^t)},
    \qquad
       g = N + \chi^2 - 2 \chi. $$

    It is negative from g = 0.382 on for all other arguments.

    Args:
        found: $\chi^2$ and g of the round's surrogate weights; see `divergence`.
        mean_steps: $\tilde K = \sum_i \lambda_i K_i$, at least 1.
        share: $\beta$, in [0, 1].
        smoothness: L, above 0.
        gradient_bound, surrogate_diversity: as in `gradient_bound_as_printed`.

    Raises:
        InvalidInput: a number out of its range.

    >>> given = {
    ...     "mean_steps": 1.0,
    ...     "share": 0.5,
    ...     "smoothness": 0.1,
    ...     "gradient_bound": 1.0,
    ...     "surrogate_diversity": 1.0,
    ... }
    >>> rho_as_printed(Divergence(square=4.0, linear=4.0, gap=0.0, pearson=0.0), **given).__round__(
    ...     12
    ... )
    0.4

    Source: Theorem 4.1, after eq. (26), as printed.
    """
    check("rho_as_printed", share=share, smoothness=smoothness, gradient_bound=gradient_bound)
    check("rho_as_printed", mean_steps=mean_steps, surrogate_diversity=surrogate_diversity)
    drift = (
        6
        * mean_steps
        * share
        * smoothness
        * gradient_bound
        * math.sqrt(found.square)
        / surrogate_diversity
    )
    return 1 - math.sqrt(found.gap) - found.gap - drift


def stationarity_as_printed(
    found: Sequence[Divergence],
    *,
    surrogate_diversities: Float[Array | np.ndarray, "rounds"],
    local_steps: Int[Array | np.ndarray, "clients"],
    rate: float,
    share: float,
    smoothness: float,
    gradient_bound: float,
    local_variance: float,
    global_variance: float,
    heterogeneity: float,
    weights: Weights | None = None,
    optimization: float = 0.0,
) -> float:
    r"""Returns the right side of Theorem 4.1, on the squared gradient in the best of T rounds.

    $$ \epsilon_{\text{opt}} + \sum_{t<T} \frac{\beta L \tilde G \sqrt{\chi^2}}{T \rho^t \tilde
    D(x^t)} \sqrt{\sigma^2 +
       \Phi_{\text{Hetero}}}, \qquad \sigma^2 = 5 \eta_l (\sigma_l^2 + 6 K_{\min}^2 \sigma_g^2). $$

    The theorem rests on Lemma 4.1 and on (24), neither of which holds; `stationarity_bound` stands
    in for it.

    Args:
        found: for each round, see `rho_as_printed`; at least one.
        surrogate_diversities: $\tilde D(x^t)$ of each round, above 0.
        local_steps: $K_i$, at least 1.
        rate: $\eta_l$, above 0.
        share, smoothness, gradient_bound: as in `rho_as_printed`.
        local_variance: $\sigma_l^2$, at least 0.
        global_variance: $\sigma_g^2$, at least 0.
        heterogeneity: $\Phi_{\text{Hetero}}$, at least 0; see `heterogeneity` with
            `as_printed=True`.
        weights: $\lambda_i$, of sum 1; equal ones by default.
        optimization: $\epsilon_{\text{opt}}$, the terms that vanish with the server's step size; at
            least 0.

    Raises:
        InvalidInput: a number out of its range, or a round with $\rho^t \le 0$, of which the
            theorem says nothing.

    >>> given = {
    ...     "local_steps": np.array([1]),
    ...     "rate": 0.2,
    ...     "share": 0.5,
    ...     "smoothness": 0.1,
    ...     "gradient_bound": 1.0,
    ... }
    >>> given |= {"local_variance": 1.0, "global_variance": 0.0, "heterogeneity": 0.0}
    >>> same = Divergence(square=4.0, linear=4.0, gap=0.0, pearson=0.0)
    >>> stationarity_as_printed([same], surrogate_diversities=np.ones(1), **given).__round__(12)
    0.25

    Source: Theorem 4.1, eq. (9), as printed.
    """
    function, steps = "stationarity_as_printed", np.asarray(local_steps, float)
    check(function, rate=rate, local_variance=local_variance, global_variance=global_variance)
    check(function, heterogeneity=heterogeneity, gap=optimization)
    if not (len(found) and len(found) == len(surrogate_diversities)):
        lengths = f"{len(found)} divergences and {len(surrogate_diversities)} diversities"
        raise InvalidInput.found(f"{function}(found=...)", lengths, "one of each for every round")
    if not np.all(steps >= 1):
        raise InvalidInput.of(f"{function}(local_steps=...)", steps.tolist(), "whole numbers >= 1")
    mean_steps = float(shares(function, weights, len(steps)) @ steps)
    common: dict[str, Any] = {
        "share": share,
        "smoothness": smoothness,
        "gradient_bound": gradient_bound,
    }
    noise = math.sqrt(
        5 * rate * (local_variance + 6 * steps.min() ** 2 * global_variance) + heterogeneity
    )
    total = optimization
    for divergence, diversity in zip(found, map(float, surrogate_diversities), strict=True):
        rho = rho_as_printed(
            divergence, mean_steps=mean_steps, surrogate_diversity=diversity, **common
        )
        if rho <= 0:
            raise InvalidInput.of(
                f"{function}, rho", rho, "numbers above 0; with others the theorem says nothing"
            )
        # the same product as in rho, without 6 and the mean steps
        drift = share * smoothness * gradient_bound * math.sqrt(divergence.square)
        total += drift * noise / (len(found) * rho * diversity)
    return total
