"""Power-law sizes with few classes for each client."""

import math
import random
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedax.core import DataError
from fedax.data.options import Clients, Count, Seed, validated
from fedax.data.partition.base import Partition, labels_of


@validated
def power_law(
    labels: Any,
    clients: Clients,
    classes_per_client: Count = 2,
    ratio: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] = 1.2,
    seed: Seed = 0,
) -> Partition:
    r"""Partitions into sizes that grow by a constant ratio, with few classes for most clients.

    With ratio a and N clients, client k = 1, ..., N gets $\lfloor a^k b \rfloor$ examples,
    $b = \lfloor n / \sum_{k=1}^N a^k \rfloor$; what the rounding leaves goes to the clients from
    the largest down, to each $\lceil r / a \rceil$ of the r still left. From the smallest client
    up, each goes through the classes in random order and takes at most
    $\lceil \text{size} / C \rceil$ examples of each, the first still free, until it is full. Should
    that leave examples over, they fill the room of the clients from the largest down,
    $\lceil r / a \rceil$ of the r left in a class.

    A client's examples stay in blocks of one class, in the order they were taken. The released code
    of FedBC tests on the last fifth of them, which is `split="in_order"`: the tested classes are
    then not those trained on.

    Args:
        labels: one for each pooled example.
        clients: N; at least 1. The last one is the largest.
        classes_per_client: C, from 1 to the number of classes; clients hold more where classes run
            out.
        ratio: a, at least 1; limited by $\sum_k a^k \le n$.
        seed: of the order of the classes.

    Raises:
        InvalidInput: an argument out of range, or a `DataError` if the examples do not suffice.

    >>> [len(part) for part in power_law(np.arange(70) % 10, clients=3, ratio=2.0)]
    [10, 20, 40]

    Source: Stripelis and Ambite, Accelerating Federated Learning in Heterogeneous Data and
    Computational Environments (arXiv:2008.11281), as in the released code of Bedi et al., FedBC
    (arXiv:2206.10815), Tables 4 and 5.
    """
    labels = labels_of("power_law", labels)
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        allowed = f"at most {len(classes)}, the classes there are"
        raise DataError.of("power_law(classes_per_client=...)", classes_per_client, allowed)
    capacity = _power_law_sizes(len(labels), clients, ratio)
    free = [np.flatnonzero(labels == label) for label in classes]
    pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]

    def take(client: int, class_index: int, limit: int) -> None:
        count = min(limit, capacity[client], len(free[class_index]))
        pieces[client].append(free[class_index][:count])
        free[class_index] = free[class_index][count:]
        capacity[client] -= count

    shuffler = random.Random(seed)
    order = list(range(len(classes)))
    for client in range(clients):
        # the running list is shuffled, not a fresh one: as the released code draws
        shuffler.shuffle(order)
        per_class_limit = math.ceil(capacity[client] / classes_per_client)
        for class_index in order:
            take(client, class_index, per_class_limit)
    # the rest of all classes, to the largest clients first
    while any(capacity):
        for client in reversed(range(clients)):
            for class_index in range(len(classes)):
                take(client, class_index, math.ceil(len(free[class_index]) / ratio))
    return [np.concatenate(client_pieces) for client_pieces in pieces]


def _power_law_sizes(n: int, clients: int, ratio: float) -> list[int]:
    with np.errstate(over="ignore"):
        powers = np.power(ratio, np.arange(1, clients + 1))
        base = math.floor(n / powers.sum())
    if base < 1:
        allowed = f"ratios whose powers up to {clients} sum to at most {n} examples"
        raise DataError.of("power_law(ratio=...)", ratio, allowed)
    sizes = [math.floor(power * base) for power in powers.tolist()]
    remaining = n - sum(sizes)
    # rounded up, so that it comes to an end
    while remaining:
        for client in reversed(range(clients)):
            share = math.ceil(remaining / ratio)
            sizes[client] += share
            remaining -= share
    return sizes
