r"""The theory of ProxSkip, or Scaffnew, for strongly convex losses.

M clients, each $f_m$ is L-smooth and $\mu$-strongly convex, all count alike; steps of size $\gamma$
with full gradients, and after each of them with probability p an averaging. The minimum is $x_*$,
and the shifts tend to $h_m^* = \nabla f_m(x_*)$.

Source: Mishchenko, Malinovsky, Stich and Richtarik, ProxSkip: Yes! Local Gradient Steps Provably
Lead to Communication Acceleration! Finally!, ICML 2022; the paper was not read. The inequality is
tested with the exact mean over the coin on random quadratics.
"""

import numpy as np
from jaxtyping import Array, Float

from fedax.core import InvalidInput
from fedax.theory._limits import check, rows

Models = Float[Array | np.ndarray, "clients dim"]


def lyapunov(*, models: Models, shifts: Models, rate: float, probability: float) -> float:
    r"""Returns
    $\Psi = \sum_m \lVert x_m - x_* \rVert^2 + \frac{\gamma^2}{p^2} \sum_m \lVert h_m - h_m^*
    \rVert^2$.

    Args:
        models: $x_m - x_*$ of every client.
        shifts: $h_m - h_m^*$ of every client.
        rate: $\gamma$, above 0.
        probability: p, in (0, 1].

    Raises:
        InvalidInput: a number out of its range.

    >>> lyapunov(models=np.array([[1.0]]), shifts=np.array([[2.0]]), rate=0.5, probability=0.5)
    5.0
    """
    check("lyapunov", rate=rate)
    _check_probability("lyapunov", probability)
    x, h = rows("lyapunov", "models", models), rows("lyapunov", "shifts", shifts)
    return float((x**2).sum() + (rate / probability) ** 2 * (h**2).sum())


def contraction(
    *, strong_convexity: float, smoothness: float, rate: float, probability: float
) -> float:
    r"""Returns the factor by which a step multiplies `lyapunov` in the mean, at most.

    $$ \mathbb E\, \Psi_{t+1} \le \max\{1 - \gamma\mu,\; 1 - p^2\}\, \Psi_t, \qquad \gamma \le
    \tfrac1L. $$

    Args:
        strong_convexity: $\mu$, above 0 and at most L.
        smoothness: L, that of the least smooth client; above 0.
        rate: $\gamma$, above 0 and at most 1/L.
        probability: p, in (0, 1].

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> contraction(strong_convexity=1.0, smoothness=4.0, rate=0.25, probability=0.5)
    0.75
    """
    check("contraction", smoothness=smoothness, rate=rate)
    _check_probability("contraction", probability)
    if not 0 < strong_convexity <= smoothness:
        raise InvalidInput.of(
            "contraction(strong_convexity=...)", strong_convexity, f"numbers in (0, {smoothness:g}]"
        )
    if rate * smoothness > 1 + 1e-12:
        raise InvalidInput.of("contraction(rate=...)", rate, f"at most 1/L = {1 / smoothness:g}")
    return max(1 - rate * strong_convexity, 1 - probability**2)


def _check_probability(function: str, probability: float) -> None:
    if not 0 < probability <= 1:
        raise InvalidInput.of(f"{function}(probability=...)", probability, "numbers in (0, 1]")
