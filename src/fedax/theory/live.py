"""A run held to a theorem, round by round: what was promised, what came, which assumption said
nothing.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from fedax.core import InvalidInput
from fedax.theory import feddane

Series = Float[Array | np.ndarray, "observations"]


class Descent(NamedTuple):
    r"""FedDANE's sufficient decrease along a run, one entry for each round.

    Attributes:
        rho: $\rho$ with the B of that round; minus infinity where $\mu \le \lambda$.
        promised: $\rho \lVert \nabla f \rVert^2$ where $\rho > 0$, else 0.
        measured: $f(w^{t-1}) - f(w^t)$.
    """

    rho: Float[np.ndarray, "rounds"]
    promised: Float[np.ndarray, "rounds"]
    measured: Float[np.ndarray, "rounds"]

    @property
    def said(self) -> float:
        r"""The part of the rounds for which the theorem promises anything: $\rho > 0$."""
        return float(np.mean(self.rho > 0))

    @property
    def fell(self) -> float:
        """The part of the rounds in which f fell."""
        return float(np.mean(self.measured > 0))

    @property
    def kept(self) -> float:
        """The part of the rounds in which f fell by what was promised. With drawn cohorts a promise
        is about the mean of runs.
        """
        return float(np.mean(self.measured >= self.promised))


def feddane_descent(
    *,
    objective: Series,
    gradient: Series,
    dissimilarity: Series,
    mu: float,
    smoothness: float,
    inexactness: float = 0.0,
    concavity: float = 0.0,
) -> Descent:
    r"""Returns which rounds of FedDANE the theory speaks of, and what they brought.

    The theory is about the exact correction with one mu, neither decayed nor pipelined, and about
    cohorts of all devices or independent ones drawn by $p_k$ with replacement
    (`sampling="proportional"`). Of drawn cohorts it promises the mean alone.

    The series are `history.metrics` of a run with `observe=[Objective(), Dissimilarity()]` and
    `observe_every=1`.

    Args:
        objective: f before each round and after the last.
        gradient: $\lVert \nabla f \rVert$ there (`gradient_norm`).
        dissimilarity: B there, at least 1.
        mu, smoothness, inexactness, concavity: as in `feddane.decrease`; here $\mu$ may be
            $\lambda$ or less.

    Raises:
        InvalidInput: series of different lengths or fewer than two entries, or a number out of its
            range.

    >>> found = feddane_descent(
    ...     objective=np.array([2.0, 1.0]),
    ...     gradient=np.array([2.0, 1.0]),
    ...     dissimilarity=np.ones(2),
    ...     mu=5.0,
    ...     smoothness=1.0,
    ... )
    >>> found.promised.tolist(), found.measured.tolist(), found.kept
    ([0.4], [1.0], 1.0)

    Source: Theorems 3 and 5 of FedDANE, and the question of its Section V-C.
    """
    f, g, b = (np.asarray(series, float) for series in (objective, gradient, dissimilarity))
    if len(f) < 2 or not len(f) == len(g) == len(b):
        lengths = f"series of {len(f)}, {len(g)} and {len(b)} observations"
        raise InvalidInput.found(
            "feddane_descent(objective=...)", lengths, "equally many, at least 2"
        )
    options = {"smoothness": smoothness, "inexactness": inexactness, "concavity": concavity}
    rho = [
        # B before each round: the last entry belongs to no round
        feddane.decrease(mu=mu, dissimilarity=b_round, **options) if mu > concavity else -np.inf
        for b_round in b[:-1]
    ]
    rho_by_round = np.array(rho)
    return Descent(
        rho_by_round, np.where(rho_by_round > 0, rho_by_round, 0) * g[:-1] ** 2, f[:-1] - f[1:]
    )
