"""Partitions in which clients differ in labels."""

from typing import Any

import numpy as np
from jaxtyping import Int

from fedax.core import DataError
from fedax.data.limits import CLIENTS, SEED, checked, whole
from fedax.data.partition.base import Partition, check_enough, labels_of


@checked(clients=CLIENTS, shards_per_client=whole(low=1), seed=SEED)
def label_shards(labels: Any, clients: int, shards_per_client: int = 2, seed: int = 0) -> Partition:
    """Sorts examples by label, cuts them into equal shards, and deals the shards at random.

    Sizes of shards differ by at most one.

    Args:
        labels: one for each pooled example.
        clients: at least 1.
        shards_per_client: about the number of classes a client sees; clients times shards are at
            most the examples.
        seed: of the deal.

    >>> labels = np.repeat(np.arange(4), 5)
    >>> [
    ...     sorted(set(labels[part].tolist()))
    ...     for part in label_shards(labels, clients=4, shards_per_client=1)
    ... ]
    [[2], [0], [1], [3]]

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, Sec. 3 (arXiv:1602.05629).
    """
    labels = labels_of("label_shards", labels)
    count = clients * shards_per_client
    check_enough(
        "label_shards", len(labels), count, f"{clients} clients x {shards_per_client} shards"
    )
    shards = np.array_split(np.argsort(labels, kind="stable"), count)
    deal = np.random.default_rng(seed).permutation(count).reshape(clients, shards_per_client)
    return [np.concatenate([shards[shard] for shard in shard_ids]) for shard_ids in deal]


@checked(clients=CLIENTS, seed=SEED)
def label_histogram(labels: Any, clients: int, counts: Any = (), seed: int = 0) -> Partition:
    """Gives client k exactly `counts[k][c]` examples of class c, drawn at random.

    What no client asks for is left out.

    Args:
        labels: one for each pooled example, from 0 on.
        clients: rows of `counts`.
        counts: whole numbers, one row for each client, one column for each class.
        seed: of the draw, and of the order within a client.

    Raises:
        DataError: a table of another shape, a negative number, a client without an example, or more
            of a class than there is.

    >>> labels = np.array([0, 0, 1, 1, 1])
    >>> [labels[part].tolist() for part in label_histogram(labels, 2, [[2, 0], [0, 3]])]
    [[0, 0], [1, 1, 1]]
    """
    labels = labels_of("label_histogram", labels)
    if labels.dtype.kind not in "iub" or (len(labels) and labels.min() < 0):
        raise DataError.of(
            "label_histogram(labels=...)",
            f"labels of type {labels.dtype}",
            "whole numbers from 0 on",
        )
    class_sizes = np.bincount(labels)
    table = _check_table(counts, clients, len(class_sizes))
    for label, (requested, available) in enumerate(
        zip(table.sum(axis=0).tolist(), class_sizes.tolist())
    ):
        if requested > available:
            raise DataError.of(
                "label_histogram(counts=...)",
                f"{requested} of class {label}",
                f"at most {available}, as there are",
            )
    rng = np.random.default_rng(seed)
    pieces = [
        # what follows the last cut is asked for by no client
        np.split(rng.permutation(np.flatnonzero(labels == label)), np.cumsum(column))[:-1]
        for label, column in enumerate(table.T)
    ]
    return [rng.permutation(np.concatenate(client_pieces)) for client_pieces in zip(*pieces)]


def _check_table(counts: Any, clients: int, classes: int) -> Int[np.ndarray, "clients classes"]:
    field, allowed = (
        "label_histogram(counts=...)",
        (f"{clients} rows of {classes} whole numbers >= 0, clients by classes"),
    )
    try:
        table = np.asarray(counts)
    except ValueError as error:
        raise DataError.found(field, "rows of unequal lengths", allowed) from error
    if table.shape != (clients, classes) or table.dtype.kind not in "iu":
        raise DataError.found(field, f"an array of {table.dtype} of shape {table.shape}", allowed)
    if table.min() < 0:
        raise DataError.of(field, int(table.min()), allowed)
    for client in np.flatnonzero(table.sum(axis=1) == 0):
        raise DataError.of(
            field, f"no example for client {client}", "at least 1 example for each client"
        )
    return table.astype(int)
