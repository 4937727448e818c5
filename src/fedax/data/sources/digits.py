"""The digits of scikit-learn: small real images that need no download."""

from importlib.metadata import distribution
from typing import Any

import numpy as np

from fedax.data.options import Clients, Seed, Share, Split, validated
from fedax.data.partition import partition_by
from fedax.examples.federated import FederatedData


@validated
def digits(
    partition: str = "shards",
    clients: Clients = 20,
    seed: Seed = 0,
    test_fraction: Share = 0.2,
    split: Split = "shuffled",
    **options: Any,
) -> FederatedData:
    """Reads 1,797 images of handwritten digits, 8 x 8 pixels, from scikit-learn.

    Rows of 64 numbers in [0, 1], 10 classes.

    Args:
        partition: a name of `fedax.data.partition`: iid, index, quantity_skew, shards, dirichlet
            or power_law.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        options: of the partition, such as `alpha` for dirichlet.

    Raises:
        UnknownName: no such partition.
        InvalidInput: an argument out of range; or a `DataError` if the examples do not suffice.

    >>> data = digits("dirichlet", clients=10, alpha=0.5)
    >>> data.clients, int(data.sizes.sum() + data.test_sizes.sum())
    (10, 1797)

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998
    (test part).
    """
    images, labels = _read()
    client_rows = partition_by(partition, labels, clients, seed, **options)
    return FederatedData.partitioned(
        images / 16,
        labels,
        client_rows,
        classes=10,
        test_fraction=test_fraction,
        split=split,
        seed=seed,
        name=f"digits, {partition}",
    )


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Reads images and labels from scikit-learn's file.

    To import scikit-learn takes as long as a small run.
    """
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(path), delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
