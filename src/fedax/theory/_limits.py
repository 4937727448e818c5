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
from fedax.examples.arrays import as_array


def _real_range(name: str, **limits: Any) -> Hyper:
    return Hyper(name, 1.0, **{"high": math.inf, "open_high": True, **limits})


def _ranges(names: str, **limits: Any) -> dict[str, Hyper]:
    return {name: _real_range(name, **limits) for name in names.split()}


_COUNTS = ("interval", "steps", "clients", "local_steps", "rounds", "dim")
_LIMITS = {
    **_ranges(
        "smoothness accuracy rate mu price curvature rho width rounds_ratio dual_rate",
        low=0.0,
        open_low=True,
    ),
    **_ranges(
        "distance variance gap spread concavity moved gradient error global_variance",
        low=0.0,
    ),
    **_ranges(
        "local_variance gradient_bound heterogeneity tolerance multiplier violation", low=0.0
    ),
    **_ranges("dissimilarity", low=1.0),
    **_ranges("inexactness momentum mixing", low=0.0, high=1.0),
    **{name: Hyper(name, 1, low=1, high=math.inf, open_high=True) for name in _COUNTS},
}


def check(function: str, **values: Any) -> None:
    """Raises `InvalidInput` naming `function(name=...)`, the value and its range; arrays have one
    value for each client.
    """
    for name, value in values.items():
        # a quantity may be one number or one for each client
        limits = dataclasses.replace(_LIMITS[name], per_client=np.ndim(value) > 0)
        limits.check(function, int(value) if isinstance(value, np.integer) else value)


def check_weights(function: str, name: str, weights: np.ndarray, positive: bool = False) -> None:
    """Refuses weights of the clients that are below 0 (or 0 if `positive`), or not of sum 1."""
    fits = np.all(weights > 0) if positive else np.all(weights >= 0)
    # weights that come from single precision have a sum of about 1
    if weights.ndim != 1 or not fits or not math.isclose(float(weights.sum()), 1, rel_tol=1e-5):
        allowed = f"one number {'above' if positive else 'of at least'} 0 for each client, of sum 1"
        raise InvalidInput.of(f"{function}({name}=...)", weights.tolist(), allowed)


def rows(function: str, name: str, vectors: Any) -> np.ndarray:
    """Returns one vector for each client, as double precision."""
    array = as_array(vectors, f"{function}({name}=...)").astype(float)
    if array.ndim != 2 or not len(array):
        raise InvalidInput.found(
            f"{function}({name}=...)", f"shape {array.shape}", "one vector for each client"
        )
    return array


def shares(
    function: str,
    weights: Iterable[float] | np.ndarray | None,
    clients: int,
    positive: bool = False,
) -> np.ndarray:
    """Returns the clients' weights, equal ones by default."""
    if weights is None:
        return np.full(clients, 1 / clients)
    array = as_array(weights, f"{function}(weights=...)").astype(float)
    check_weights(function, "weights", array, positive)
    if len(array) != clients:
        raise InvalidInput.found(
            f"{function}(weights=...)", f"{len(array)} numbers", f"{clients}, one for each client"
        )
    return array
