"""The ranges of the quantities that the papers' formulas are made of, declared once for all of
them.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedax.core import InvalidInput
from fedax.core.hyper import Hyper

_POSITIVE = "smoothness accuracy rate mu price curvature rho width dual_rate"
_NOT_NEGATIVE = (
    "distance variance dissimilarities gap spread concavity moved gradient error global_variance "
    "local_variance gradient_bound heterogeneity tolerance multiplier violation"
)


def _ranges(names: str, default: float = 1.0, **limits: Any) -> dict[str, Hyper]:
    limits = {"high": math.inf, "open_high": True} | limits
    return {name: Hyper(name, default, **limits) for name in names.split()}


_LIMITS = {
    **_ranges(_POSITIVE, low=0.0, open_low=True),
    **_ranges(_NOT_NEGATIVE, low=0.0),
    **_ranges("dissimilarity", low=1.0),
    **_ranges("inexactness momentum mixing", low=0.0, high=1.0),
    **_ranges("interval steps clients local_steps rounds dim", default=1, low=1),
}


def check(function: str, **values: Any) -> None:
    """Raises `InvalidInput` naming `function(name=...)`, the value and its range; arrays have one
    value for each client.
    """
    for name, value in values.items():
        # a quantity may be one number or one for each client
        limits = dataclasses.replace(_LIMITS[name], per_client=np.ndim(value) > 0)
        limits.check(function, value)


def check_rate(where: str, rate: float, largest: float, formula: str) -> None:
    """Refuses step sizes above the largest for which something is proved."""
    # with room for rounding, so that the largest itself is allowed
    if not 0 < rate <= largest * (1 + 1e-12):
        raise InvalidInput.of(where, rate, f"numbers in (0, {formula} = {largest:g}]")


def shares(
    function: str,
    weights: Iterable[float] | np.ndarray | None,
    clients: int,
    positive: bool = False,
) -> np.ndarray:
    """Returns the clients' weights, equal ones by default.

    Refuses weights that are below 0 (or 0 if `positive`), or not of sum 1.
    """
    if weights is None:
        return np.full(clients, 1 / clients)
    array = np.asarray(weights, float)
    fits = np.all(array > 0) if positive else np.all(array >= 0)
    # weights that come from single precision have a sum of about 1
    is_one = math.isclose(float(array.sum()), 1, rel_tol=1e-5)
    if array.shape != (clients,) or not fits or not is_one:
        least = "above" if positive else "of at least"
        allowed = f"one number {least} 0 for each of {clients} clients, of sum 1"
        raise InvalidInput.of(f"{function}(weights=...)", array.tolist(), allowed)
    return array
