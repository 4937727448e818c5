"""Shares that become counts: one rule for all of them."""

from typing import Any

import numpy as np

_ROUNDING = 8 * np.finfo(np.float64).eps
"""Relative error of a share times a count, with room: both are rounded, and so is their product."""


def whole_part(share: Any, count: Any) -> Any:
    r"""Returns $\lfloor \text{share} \cdot \text{count} \rfloor$, corrected for rounding.

    0.29 of 100 is 29.

    In floating point 0.29 times 100 is 28.999999999999996, and (1 - 0.8) times 10 is
    1.9999999999999996. A product that is below a whole number by no more than rounding error is
    that number.

    >>> whole_part(0.29, 100), whole_part(1 - 0.8, 10), whole_part(0.5, np.array([3, 4])).tolist()
    (29, 2, [1, 2])

    Args:
        share: at least 0.
        count: whole numbers, one or an array.
    """
    exact = np.asarray(share * np.asarray(count, np.float64))
    floored = np.floor(exact + _ROUNDING * np.maximum(exact, np.asarray(count, np.float64)))
    return floored.astype(np.int64) if floored.ndim else int(floored)
