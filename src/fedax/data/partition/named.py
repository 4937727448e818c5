"""Partitions by name."""

from collections.abc import Callable
from typing import Any

from fedax.core import UnknownName
from fedax.data.options import check, options_of
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


def partition_options(name: str) -> dict[str, Any]:
    """Returns the options of the partition `name`, but clients and seed, with their defaults.

    Raises:
        UnknownName: no such partition.

    >>> partition_options("dirichlet")
    {'alpha': 0.5, 'minimum': 10}
    """
    if name not in PARTITIONS:
        raise UnknownName.among("partition", str(name), PARTITIONS)
    common = ("n", "labels", "clients", "seed")
    options = options_of(PARTITIONS[name])
    return {key: option.default for key, option in options.items() if key not in common}


def check_partition(name: str, clients: int, seed: int, **options: Any) -> None:
    """Checks a named partition and its options before there are any data.

    Raises:
        UnknownName: no such partition, or not an option of it; with the nearest name.
        InvalidInput: an option out of range.
    """
    known = partition_options(name)
    for key in options:
        if key not in known:
            raise UnknownName.among(f"option of partition {name!r}", key, known)
    function = PARTITIONS[name]
    check(function.__name__, function, {"clients": clients, "seed": seed, **options})


def partition_by(name: str, labels: Any, clients: int, seed: int = 0, **options: Any) -> Partition:
    """Partitions by the function of a name in `PARTITIONS`, with its options.

    Args:
        name: of the partition.
        labels: of all examples, shape (examples,).
        clients: at least 1.
        seed: of what is drawn.
        options: of the partition, see `partition_options`.

    >>> import numpy as np
    >>> [
    ...     len(part)
    ...     for part in partition_by("shards", np.arange(20) % 10, clients=5, shards_per_client=1)
    ... ]
    [4, 4, 4, 4, 4]

    Raises:
        InvalidInput: as `check_partition`; or a `DataError` if the examples do not suffice.
    """
    check_partition(name, clients, seed, **options)
    function = PARTITIONS[name]
    parameters = options_of(function)
    # not every partition draws
    if "seed" in parameters:
        options["seed"] = seed
    examples = len(labels) if "n" in parameters else labels
    return function(examples, clients=clients, **options)
