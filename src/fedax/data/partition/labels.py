"""Partitions in which clients differ in labels."""

from typing import Any

import numpy as np

from fedax.data.options import Clients, Count, Seed, validated
from fedax.data.partition.base import Partition, check_enough, labels_of


@validated
def label_shards(
    labels: Any, clients: Clients, shards_per_client: Count = 2, seed: Seed = 0
) -> Partition:
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
    check_enough("label_shards", len(labels), count)
    shards = np.array_split(np.argsort(labels, kind="stable"), count)
    deal = np.random.default_rng(seed).permutation(count).reshape(clients, shards_per_client)
    return [np.concatenate([shards[shard] for shard in shard_ids]) for shard_ids in deal]
