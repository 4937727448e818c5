"""Partitions by name."""

from collections.abc import Callable
from typing import Any

from fedax.core import UnknownName
from fedax.data.options import options_of
from fedax.data.partition.base import Partition
from fedax.data.partition.dirichlet import dirichlet
from fedax.data.partition.labels import label_shards
from fedax.data.partition.power_law import power_law
from fedax.data.partition.sizes import by_index, iid, quantity_skew

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "index": by_index,
    "quantity_skew": quantity_skew,
    "shards": label_shards,
    "dirichlet": dirichlet,
    "power_law": power_law,
}
"""By the name that tasks and experiment files use."""


def find_partition(name: str) -> Callable[..., Partition]:
    """Returns the partition of a name.

    Raises:
        UnknownName: no such partition; names the nearest.
    """
    if name not in PARTITIONS:
        raise UnknownName.among("partition", str(name), PARTITIONS)
    return PARTITIONS[name]


def partition_by(name: str, labels: Any, clients: int, seed: int = 0, **options: Any) -> Partition:
    """Partitions by the function of a name in `PARTITIONS`, with its options.

    Args:
        name: of the partition.
        labels: of all examples, shape (examples,).
        clients: at least 1.
        seed: of what is drawn.
        options: of the partition.

    >>> import numpy as np
    >>> [
    ...     len(part)
    ...     for part in partition_by("shards", np.arange(20) % 10, clients=5, shards_per_client=1)
    ... ]
    [4, 4, 4, 4, 4]

    Raises:
        UnknownName: no such partition.
        InvalidInput: an option out of range; or a `DataError` if the examples do not suffice.
    """
    function = find_partition(name)
    parameters = options_of(function)
    # not every partition draws
    if "seed" in parameters:
        options["seed"] = seed
    examples = len(labels) if "n" in parameters else labels
    return function(examples, clients=clients, **options)
