"""Diversity of gradients, and surrogate weights; see the package."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from fedax.theory._limits import check, rows, shares

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
    gradient_rows = rows("diversity", "gradients", gradients)
    client_weights = shares("diversity", weights, len(gradient_rows))
    denominator = float(
        np.linalg.norm(
            (
                client_weights
                if surrogate is None
                else shares("diversity", surrogate, len(gradient_rows))
            )
            @ gradient_rows
        )
    )
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
    gradient_rows = rows("dissimilarities", "gradients", gradients)
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


def surrogate_gradient_bound(
    found: Divergence, *, global_variance: float, gradient: float
) -> float:
    r"""Returns a bound on the squared gradient of the surrogate objective, with the Pearson
    divergence $\chi_P^2$ of its weights.

    $$ \lVert \nabla \tilde f \rVert^2 \le \Big( \lVert \nabla f \rVert + \sqrt{\chi_P^2} \sigma_g
    \Big)^2. $$

    As the differences of the weights have the sum 0,
    $\nabla \tilde f - \nabla f = \sum_i (\tilde\lambda_i - \lambda_i)(\nabla f_i - \nabla f)$,
    whose square is at most $\chi_P^2 \sum_i \lambda_i \zeta_i$. Equal weights give an equality. The
    paper's bound is also true, but looser: $2 (1 + g) \lVert \nabla f \rVert^2 + 2 g \sigma_g^2$
    with its $g = N + \chi^2 - 2 \chi \ge \chi_P^2$. Its (14) and (15) have
    $g \lVert \nabla f \rVert^2$ alone, which is false where $\nabla f = 0$.

    Args:
        found: see `divergence`.
        global_variance: $\sigma_g^2$, at least 0.
        gradient: $\lVert \nabla f(x) \rVert$, at least 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> surrogate_gradient_bound(
    ...     divergence(np.array([1.0, 0.0])), global_variance=4.0, gradient=1.0
    ... )
    9.0

    Source: Theorem 4.2 and Lemma B.2, sharpened.
    """
    check("surrogate_gradient_bound", global_variance=global_variance, gradient=gradient)
    return (gradient + math.sqrt(found.pearson * global_variance)) ** 2
