r"""The theory of decentralized FedAvg with momentum: drift, consensus, rates, step sizes, and when
fewer bits pay.

m clients train K steps of size $\eta$ with momentum $\theta$ between two exchanges over a mixing
matrix whose second largest eigenvalue is $\lambda$ in absolute value; $f = \frac1m \sum_i f_i$,
each $f_i$ is L-smooth. All start at one point.

Three steps of the paper's proofs do not hold. What is proved here differs, and each function says
how.

1. Lemma 4 bounds $\sum_j \lambda^{t-1-j}$ twice by $\frac{1}{1-\lambda}$ and keeps one of them.
2. Eq. (18) drops $\theta^2 (y^{K-1} - y^{K-2})$. A gradient of step k acts with
   $\frac{1 - \theta^{K-k}}{1 - \theta}$, so that K steps act like `effective_steps`, not like
   $\frac{K-\theta}{1-\theta}$.
3. The proof of Theorem 1 applies Lemma 3, on $\lVert y^{t,k}(i) - x^t(i) \rVert$, to
   $\lVert y^{t,k}(i) - \bar x^t \rVert$.

Source: Sun, Li, Wang, Decentralized Federated Averaging (arXiv:2104.11375).
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import scipy  # imports what is asked for, and only then

from fedax.core import InvalidInput
from fedax.theory._limits import check, check_rate


@dataclass(frozen=True)
class Setting:
    r"""The constants on which the bounds depend.

    Args:
        smoothness: L, above 0.
        local_variance: $\sigma_l^2$, of the minibatch gradients; at least 0.
        global_variance:
            $\sigma_g^2 = \frac1m \sum_i \sup_x \lVert \nabla f_i(x) - \nabla f(x) \rVert^2$, at
            least 0. Assumption 2 has the supremum outside the mean, but Lemma 3 needs each client
            at another point.
        gradient_bound: B, of all $\lVert \nabla f_i \rVert$ (Assumption 3); at least 0.
        local_steps: K, at least 1.
        rate: $\eta$, above 0.
        momentum: $\theta$ in [0, 1).
        mixing: $\lambda$ in [0, 1) of one mixing matrix that all rounds share, `Graph.lam`; 0 for
            the complete graph. The mean over a period, which `Graph.lam` is for a graph that
            changes, is no $\lambda$ of the lemmas: single rounds may contract less.

    Raises:
        InvalidInput: a number out of its range.
    """

    smoothness: float
    local_variance: float
    global_variance: float
    gradient_bound: float
    local_steps: int
    rate: float
    momentum: float = 0.0
    mixing: float = 0.0

    def __post_init__(self) -> None:
        check("Setting", **asdict(self))

    @property
    def c1(self) -> float:
        r"""$C_1 = 8K\sigma_l^2 + 32K^2\sigma_g^2 + \frac{64K^2\theta^2}{(1-\theta)^2}(\sigma_l^2 +
        B^2)$,
        of Lemma 3.
        """
        k = self.local_steps
        inertia = self.momentum / (1 - self.momentum)
        noise = self.local_variance + self.gradient_bound**2
        return (
            8 * k * self.local_variance
            + 32 * k**2 * self.global_variance
            + 64 * (k * inertia) ** 2 * noise
        )

    @property
    def c2(self) -> float:
        r"""$C_2 = C_1 + 32K^2B^2$, of Lemma 4."""
        return self.c1 + 32 * (self.local_steps * self.gradient_bound) ** 2


@dataclass(frozen=True)
class Rounding:
    r"""The setting of quantized messages.

    Args:
        dim: d, at least 1.
        width: s, the distance of the values that can be sent, above 0.
        kind: `"stochastic"`, without bias, or `"down"`, whose error reaches s in each entry.
            Assumption 4 grants both a mean square of $\frac{d}{4} s^2$; rounding down has up to
            $d s^2$.
        clients: m, at least 1; rounding without bias gains from many.

    Raises:
        InvalidInput: a number out of its range.
    """

    dim: int
    width: float
    kind: Literal["stochastic", "down"] = "stochastic"
    clients: int = 1

    def __post_init__(self) -> None:
        check("Rounding", dim=self.dim, width=self.width, clients=self.clients)

    @property
    def square(self) -> float:
        """$d s^2$."""
        return self.dim * self.width**2


def consensus_bound(setting: Setting, rounding: Rounding | None = None) -> float:
    r"""Returns a bound on the consensus error,
    $\frac1m \sum_i \mathbb E \lVert x^t(i) - \bar x^t \rVert^2$, at most.

    $$ \frac{\lambda^2}{(1-\lambda)^2} \cdot \begin{cases} C_2 \eta^2 & \text{nothing rounded} \\
       C_2 \eta^2 + \frac14 d s^2 & \text{stochastic rounding} \\ (\sqrt{C_2} \eta + \sqrt d s)^2 &
       \text{rounding down} \end{cases} $$

    As $X^t - PX^t = \sum_{j<t} (W^{t-j} - P)(Z^j - X^j)$, its norm is at most
    $\sum_j \lambda^{t-j} \lVert Z^j - X^j \rVert$, and the sum of the weights enters squared. The
    paper has $\frac{C_2 \eta^2}{1-\lambda}$ (9), which a ring of 100 clients with opposed linear
    losses exceeds 7.9-fold, and $\frac{2 C_2 \eta^2 + 2 d s^2}{1-\lambda}$ (10).

    With rounding it is for models that are mixed whole,
    $x^{t+1}(i) = \sum_l w_{il} (x^t(l) + Q(z^t(l) - x^t(l)))$, as eq. (16) has it. Under eq. (7)
    the models' old differences are never mixed, and no bound holds.

    Args:
        setting: see `Setting`; $\eta$ at most $\frac{1}{8LK}$.
        rounding: see `Rounding`; None if nothing is rounded.

    Raises:
        InvalidInput: a step size for which nothing is proved.

    >>> setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=0.125, mixing=0.5)
    >>> consensus_bound(setting), consensus_bound(setting, Rounding(dim=16, width=0.5))
    (0.5, 1.5)

    Source: Lemmas 4 and 5, corrected.
    """
    largest = 1 / (8 * setting.smoothness * setting.local_steps)
    check_rate("Setting(rate=...)", setting.rate, largest, "1/(8LK)")
    # the parts of training and of rounding, without the factor of the mixing matrix
    moved = setting.c2 * setting.rate**2
    rounded = rounding.square if rounding else 0.0
    down = rounding is not None and rounding.kind == "down"
    # an error with a mean adds up in norm, one without bias only in squares
    total = (math.sqrt(moved) + math.sqrt(rounded)) ** 2 if down else moved + rounded / 4
    return total * (setting.mixing / (1 - setting.mixing)) ** 2


def effective_steps(*, local_steps: int, momentum: float) -> float:
    r"""Returns $S = \sum_{j=1}^{K} \frac{1 - \theta^j}{1 - \theta}$, the steps without momentum
    that K steps with it are worth.

    On a linear loss, exactly: $y^{t,K} = x^t - \eta S g$. The paper's
    $\tilde K = \frac{K-\theta}{1-\theta}$ is larger for $K \ge 2$.

    Args:
        local_steps: K, at least 1.
        momentum: $\theta$ in [0, 1).

    Raises:
        InvalidInput: a number out of its range.

    >>> effective_steps(local_steps=2, momentum=0.5)
    2.5

    Source: eq. (18), corrected.
    """
    check("effective_steps", local_steps=local_steps, momentum=momentum)
    # the sum in closed form
    return (
        local_steps / (1 - momentum) - momentum * (1 - momentum**local_steps) / (1 - momentum) ** 2
    )


class Constants(NamedTuple):
    r"""The descent $\gamma$ of a round, and the parts of the floor: $\alpha$ of local training,
    $\beta$ of missing consensus.
    """

    gamma: float
    alpha: float
    beta: float


def constants(setting: Setting, rounding: Rounding | None = None) -> Constants:
    r"""Returns the constants of the theorems.

    $$ \gamma = \eta S - 128 K^2 \eta^2 D, \qquad \gamma\alpha = 2 D C_1 \eta^2 + R, \qquad
       \gamma\beta = 2 V (\eta S L^2 + 64 L^2 K^2 \eta^2 D), $$

    with $S$ of `effective_steps`, $V$ of `consensus_bound`, $D = \eta S L^2 + \frac L2$ (or
    $\eta S L^2 + L$ if rounded down), and for rounding $R = \frac{L d s^2}{4 m}$ without bias,
    $2 B \sqrt d s + 2 L d s^2$ down.

    Derivation:
    $\mathbb E f(\bar x^{t+1}) \le f + \mathbb E \langle \nabla f, \Delta \rangle + \frac L2 \mathbb
    E \lVert \Delta \rVert^2$
    at $\bar x^t$, where $\Delta$ is the mean of $-\eta \sum_k c_k \nabla f_i(y^{t,k}(i))$ with
    $\sum_k c_k = S$. The inner product is at most
    $-\frac{\eta S}{2} \lVert \nabla f \rVert^2 + \frac{\eta S L^2}{2} \max_k \frac1m \sum_i \lVert
    \bar x - y^{t,k}(i) \rVert^2$,
    the last distance squared at most $2 V$ and twice Lemma 3, where the gradients at $x^t(i)$ are
    $2 L^2 V + 2 \lVert \nabla f(\bar x) \rVert^2$.

    Args:
        setting, rounding: as in `consensus_bound`.

    Returns:
        `gamma` of 0 or less says that the step size is too large for the theorems; see
        `largest_step_size`.

    Raises:
        InvalidInput: a step size for which nothing is proved.

    >>> found = constants(Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=1e-3))
    >>> round(found.gamma, 9), found.alpha, found.beta
    (0.000935872, 0.0, 0.0)

    Source: Theorems 1 and 3, eqs. (20) and (23), corrected.
    """
    eta = setting.rate
    smooth = setting.smoothness
    k = setting.local_steps
    steps = effective_steps(local_steps=k, momentum=setting.momentum)
    # `rounding_term` is R, and 0 if nothing is rounded
    curved = eta * steps * smooth**2
    rounding_term = 0.0
    # D, whose second part doubles where rounding has a mean
    descent = curved + smooth / 2
    if rounding and rounding.kind == "down":
        descent = curved + smooth
        rounding_term = (
            2 * setting.gradient_bound * math.sqrt(rounding.square) + 2 * smooth * rounding.square
        )
    elif rounding:
        # without bias the clients' errors average out
        rounding_term = smooth * rounding.square / (4 * rounding.clients)
    # the descent of a round; alpha and beta are divided by it below
    gamma = eta * steps - 128 * k**2 * eta**2 * descent
    alpha = 2 * descent * setting.c1 * eta**2 + rounding_term
    beta = (
        2 * consensus_bound(setting, rounding) * (curved + 64 * smooth**2 * k**2 * eta**2 * descent)
    )
    return Constants(gamma, alpha / gamma, beta / gamma)


def stationarity_bound(
    setting: Setting, rounding: Rounding | None = None, *, gap: float, rounds: int
) -> float:
    r"""Returns a bound on the squared gradient at the mean model in the best of T rounds.

    $$ \min_{t \le T} \mathbb E \lVert \nabla f(\bar x^t) \rVert^2 \le \frac{2 (f(\bar x^1) - \min
    f)}{\gamma T} + \alpha + \beta. $$

    Args:
        setting, rounding: as in `consensus_bound`; $\eta$ below `largest_step_size`.
        gap: $f(\bar x^1) - \min f$, at least 0.
        rounds: T, at least 1.

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=1e-3)
    >>> stationarity_bound(setting, gap=1.0, rounds=1000).__round__(6)
    2.137044

    Source: Theorem 1; with rounding Theorem 3.
    """
    check("stationarity_bound", gap=gap, rounds=rounds)
    terms = _descent_constants("stationarity_bound", setting, rounding)
    return 2 * gap / (terms.gamma * rounds) + terms.alpha + terms.beta


def pl_bound(
    setting: Setting, rounding: Rounding | None = None, *, gap: float, rounds: int, curvature: float
) -> float:
    r"""Returns
    $\mathbb E f(\bar x^T) - \min f \le (1 - \nu\gamma)^T (f(\bar x^0) - \min f) + \frac{\alpha +
    \beta}{2\nu}$.

    Args:
        setting, rounding, gap, rounds: as in `stationarity_bound`.
        curvature: $\nu$ with $\lVert \nabla f \rVert^2 \ge 2 \nu (f - \min f)$ (8), above 0.

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=1e-3)
    >>> pl_bound(setting, gap=1.0, rounds=1000, curvature=1.0).__round__(4)
    0.3921

    Source: Theorem 2; with rounding Theorem 3.
    """
    check("pl_bound", gap=gap, rounds=rounds, curvature=curvature)
    terms = _descent_constants("pl_bound", setting, rounding)
    # a factor below 0 would mean that one round is enough
    return max(1 - curvature * terms.gamma, 0.0) ** rounds * gap + (terms.alpha + terms.beta) / (
        2 * curvature
    )


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
    return (math.sqrt(1 + ratio / 8) - 1) / (4 * smoothness * steps)


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
    factor = 0.5 if rounding and rounding.kind == "down" else 1.0

    def value(log: float) -> float:
        return stationarity_bound(
            replace(setting, rate=math.exp(log)), rounding, gap=gap, rounds=rounds
        )

    # on a logarithmic scale, over 13 decades below the largest step size
    high = math.log(largest * factor * (1 - 1e-9))
    result: Any = scipy.optimize.minimize_scalar(value, bounds=(high - 30, high), method="bounded")
    return math.exp(float(result.x))


def bit_threshold(*, dim: int) -> float:
    r"""Returns the bits below which the quantised method sends less, if it takes $r = \frac94$
    times the rounds, as in the paper.

    $b < \frac{32}{r} - \frac{32}{d} = \frac{128}{9} - \frac{32}{d}$.

    It is $(32 + db) r < 32 d$; Proposition 3 prints a plus.

    Args:
        dim: d, at least 1.

    Raises:
        InvalidInput: a number out of its range.

    >>> round(bit_threshold(dim=199_210), 2)
    14.22

    Source: Proposition 3, corrected.
    """
    check("bit_threshold", dim=dim)
    return 128 / 9 - 32 / dim


def _descent_constants(function: str, setting: Setting, rounding: Rounding | None) -> Constants:
    terms = constants(setting, rounding)
    if terms.gamma <= 0:
        raise InvalidInput.of(
            f"{function}(setting.rate)", setting.rate, "step sizes below `largest_step_size`"
        )
    return terms
