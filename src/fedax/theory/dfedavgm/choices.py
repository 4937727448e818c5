"""Step sizes and bits of decentralized FedAvg that its bounds suggest."""

import math
from dataclasses import replace
from typing import Any

import scipy  # imports what is asked for, and only then

from fedax.core import InvalidInput
from fedax.theory._limits import check
from fedax.theory.dfedavgm.bounds import Rounding, Setting, effective_steps, stationarity_bound


def largest_step_size(*, smoothness: float, local_steps: int, momentum: float = 0.0) -> float:
    r"""Returns the step size at which $\gamma = 0$; below it the theorems hold.

    The root of $128 K^2 L^2 S \eta^2 + 64 K^2 L \eta = S$; without momentum
    $\eta \approx \frac{0.0152}{LK}$. It is the strictest of all conditions, also in the paper,
    where $64 L^2 K^2 \eta^2 + 64 L K \eta < 1$ makes it $\frac{0.0154}{LK}$.

    Args:
        smoothness: L, above 0.
        local_steps: K, at least 1.
        momentum: $\theta$ in [0, 1).

    Raises:
        InvalidInput: a number out of its range.

    >>> round(largest_step_size(smoothness=2.0, local_steps=5), 6)
    0.001517

    Source: Theorem 1, the condition on $\eta$, corrected.
    """
    check("largest_step_size", smoothness=smoothness, local_steps=local_steps, momentum=momentum)
    steps = effective_steps(local_steps=local_steps, momentum=momentum)
    # (S/K)^2; below is the positive root of the quadratic equation of the docstring
    ratio = (steps / local_steps) ** 2
    return min(
        (math.sqrt(1 + ratio / 8) - 1) / (4 * smoothness * steps),
        1 / (8 * smoothness * local_steps),
    )


def step_size(*, smoothness: float, local_steps: int, rounds: int) -> float:
    r"""Returns $\eta = \frac{1}{LK\sqrt T}$, with which the bound falls like $\frac{1}{\sqrt T}$.

    It is below `largest_step_size` from about 4,350 rounds on.

    >>> step_size(smoothness=2.0, local_steps=5, rounds=10_000)
    0.001

    Source: Propositions 1 and 3, Theorem 3.
    """
    check("step_size", smoothness=smoothness, local_steps=local_steps, rounds=rounds)
    return 1 / (smoothness * local_steps * math.sqrt(rounds))


def best_step_size(
    setting: Setting, rounding: Rounding | None = None, *, gap: float, rounds: int
) -> float:
    """Returns the step size with the smallest `stationarity_bound`, found numerically; the
    setting's own one does not count.

    Args:
        setting, rounding, gap, rounds: as in `stationarity_bound`.

    Raises:
        InvalidInput: a number out of its range.

    >>> setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=1e-3)
    >>> best_step_size(setting, gap=1.0, rounds=1000).__round__(4)
    0.0076

    Source: Theorem 1, minimised.
    """
    largest = largest_step_size(
        smoothness=setting.smoothness, local_steps=setting.local_steps, momentum=setting.momentum
    )
    # rounding down doubles a part of D, so half of the step size is safe
    factor = 0.5 if rounding is not None and rounding.kind == "down" else 1.0

    def value(log: float) -> float:
        return stationarity_bound(
            replace(setting, rate=math.exp(log)), rounding, gap=gap, rounds=rounds
        )

    # on a logarithmic scale, over 13 decades below the largest step size
    high = math.log(largest * factor * (1 - 1e-9))
    result: Any = scipy.optimize.minimize_scalar(value, bounds=(high - 30, high), method="bounded")
    return math.exp(float(result.x))


def pl_step_size(*, curvature: float, local_steps: int, rounds: int) -> float:
    r"""Returns $\eta = \frac{\ln T}{\nu K T}$, with which the bound of Theorem 2 falls like
    $\frac{\ln T}{T}$.

    The first term is $(1 - \nu\gamma)^T \approx e^{-\nu \eta K T} = \frac1T$. The paper has
    $\frac{1}{\nu K T \ln T}$, its $c_3 = -1$ for 1, with which the first term tends to
    $e^{-1/\ln T} \to 1$: nothing is learned.

    Args:
        curvature: $\nu$, above 0.
        local_steps: K, at least 1.
        rounds: T, at least 2.

    Raises:
        InvalidInput: a number out of its range.

    >>> pl_step_size(curvature=1.0, local_steps=5, rounds=1000).__round__(6)
    0.001382

    Source: Proposition 2, corrected.
    """
    check("pl_step_size", curvature=curvature, local_steps=local_steps, rounds=rounds)
    if rounds < 2:
        raise InvalidInput.of("pl_step_size(rounds=...)", rounds, "whole numbers >= 2")
    return math.log(rounds) / (curvature * local_steps * rounds)


def bit_threshold(*, dim: int, rounds_ratio: float = 9 / 4) -> float:
    r"""Returns the bits below which the quantised method sends less, if it takes r times the
    rounds.

    $b < \frac{32}{r} - \frac{32}{d}$.

    It is $(32 + db) r < 32 d$. For the paper's $r = \frac94$ that is
    $\frac{128}{9} - \frac{32}{d}$; Proposition 3 prints a plus.

    Args:
        dim: d, at least 1.
        rounds_ratio: r, above 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> round(bit_threshold(dim=199_210), 2)
    14.22

    Source: Proposition 3, corrected.
    """
    check("bit_threshold", dim=dim, rounds_ratio=rounds_ratio)
    return 32 / rounds_ratio - 32 / dim


def coarsest_accuracy(
    setting: Setting, rounding: Rounding, *, gap: float, rounds_ratio: float = 9 / 4
) -> float:
    r"""Returns the $\varepsilon$ down to which rounding down costs at most r times the rounds, to
    first order in $\eta$; infinite if it always costs more.

    $$ \varepsilon^2 = \frac{2 r a_1^2}{\sqrt r a_1 - a_2} \Big( \frac KS \Big)^2 L B \sqrt d s,
       \qquad a_1 = 2 L \Delta + \frac{C_1}{K^2}, \qquad a_2 = 2 L \Delta + \frac{2 C_1}{K^2}, $$

    with $S$ of `effective_steps` and
    $\frac{C_1}{K^2} = \frac{8\sigma_l^2}{K} + 32 \sigma_g^2 + \frac{64\theta^2}{(1-\theta)^2}
    (\sigma_l^2 + B^2)$.

    With $\eta = \frac{1}{LK\sqrt T}$, `stationarity_bound` is $\frac KS \frac{a_1}{\sqrt T}$ for
    unrounded messages and $\frac KS (\frac{a_2}{\sqrt T} + 2 L B \sqrt d s \sqrt T)$ for messages
    rounded down, whose D of `constants` is L in place of $\frac L2$. When the first is
    $\varepsilon$, the second is to be $\varepsilon$ after r times as many rounds. Its first part is
    then $\frac{a_2}{\sqrt r a_1} \varepsilon$. If that leaves nothing for rounding, the answer is
    infinite; for $r = \frac94$ it is where $\frac{C_1}{K^2} \ge 2 L \Delta$.

    Proposition 3 has $\varepsilon^2 = 3 (1-\theta)^2 L B \sqrt d s (2 \Delta + \frac{C_1}{K^2})$.
    It omits the L of $\frac{2 \Delta}{\eta K T} = \frac{2 L \Delta}{\sqrt T}$, has $1 - \theta$ for
    $\frac KS$, does not double $C_1$, and leaves a whole $\varepsilon$ for rounding, which makes
    its 3 a 9 even without noise. Rounding without bias costs nothing at this order: then the answer
    is 0.

    Args:
        setting: see `Setting`; its step size does not count.
        rounding: see `Rounding`.
        gap: $\Delta = f(\bar x^0) - \min f$, at least 0.
        rounds_ratio: r, above 1.

    Raises:
        InvalidInput: a number out of its range.

    >>> setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=1e-3)
    >>> coarsest_accuracy(setting, Rounding(dim=4, width=0.25, kind="down"), gap=2.0).__round__(12)
    4.242640687119
    >>> coarsest_accuracy(setting, Rounding(dim=4, width=0.25, kind="stochastic"), gap=2.0)
    0.0

    Source: Proposition 3, corrected.
    """
    check("coarsest_accuracy", gap=gap, rounds_ratio=rounds_ratio)
    if rounds_ratio <= 1:
        raise InvalidInput.of(
            "coarsest_accuracy(rounds_ratio=...)", rounds_ratio, "numbers above 1"
        )
    if rounding.kind == "stochastic":
        return 0.0
    noise = setting.c1 / setting.local_steps**2
    # of the bounds K/S a / sqrt(T) without and with rounding
    unrounded = 2 * setting.smoothness * gap + noise
    rounded = unrounded + noise
    if not unrounded:
        return 0.0
    # what r times the rounds leave for the rounding, as a share of the accuracy
    room = 1 - rounded / (math.sqrt(rounds_ratio) * unrounded)
    if room <= 0:
        return math.inf
    steps = effective_steps(local_steps=setting.local_steps, momentum=setting.momentum)
    scale = (
        (setting.local_steps / steps) ** 2
        * setting.smoothness
        * setting.gradient_bound
        * math.sqrt(rounding.square)
    )
    return math.sqrt(2 * math.sqrt(rounds_ratio) * scale * unrounded / room)
