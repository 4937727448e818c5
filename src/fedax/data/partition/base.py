"""The common part of all partitions."""

from typing import TypeAlias

import numpy as np
from jaxtyping import Int

from fedax.core import DataError

Partition: TypeAlias = list[Int[np.ndarray, "_"]]
"""For each client the indices of its examples."""


def enough(owner: str, examples: int, needed: int, why: str = "") -> None:
    """Refuses at once what cannot be dealt without empty shares."""
    if needed > examples:
        asked = why or f"{needed} clients"
        raise DataError.of(f"{owner}(clients=...)", asked, f"at most as many as there are examples, {examples}")
