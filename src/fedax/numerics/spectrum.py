"""Largest eigenvalues of matrices that are given by their rows."""

from typing import Any

import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Float

_DENSE = 1500
"""Up to this size all eigenvalues are computed, from 1 second on a core on it is the largest one
alone.
"""


def mean_outer_norm(rows: Float[np.ndarray, "examples features"]) -> float:
    r"""Returns $\lambda_{\max}(X^\top X) / n$ of n rows X, in double precision.

    >>> mean_outer_norm(np.array([[3.0, 0.0], [0.0, 1.0]]))
    4.5
    """
    x = np.asarray(rows, float)
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    if len(gram) <= _DENSE:
        return float(np.linalg.eigvalsh(gram)[-1]) / len(x)
    lanczos: Any = scipy.sparse.linalg.eigsh
    start = np.random.default_rng(0).normal(size=len(gram))
    return float(lanczos(gram, k=1, v0=start, return_eigenvectors=False)[0]) / len(x)
