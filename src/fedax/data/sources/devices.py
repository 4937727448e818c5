"""Devices that FedProx makes of MNIST: two digits each, heavy-tailed sizes."""

import random
from typing import Any

import numpy as np

from fedax.core import DataError
from fedax.data.options import Clients, Folder, NonNegative, Seed, Share, validated
from fedax.data.partition import Partition
from fedax.data.partition.base import labels_of
from fedax.data.sources.images import read_images
from fedax.examples.federated import FederatedData

CLASSES = 10
FIRST = 5  # examples of each of its two classes that a device has for certain


@validated
def digit_pairs(
    labels: Any, clients: Clients = 1000, sigma: NonNegative = 2.0, seed: Seed = 0
) -> Partition:
    r"""Gives device u the classes u mod 10 and (u + 1) mod 10, in log-normal shares.

    5 examples of each for certain, then a share of what is left.

    A class of m examples that has given 5 to each of its N/5 devices divides the other m - N among
    them in proportion to $e^{\sigma z}$, rounded down; what rounding leaves is not used. Examples
    are taken in order.

    Args:
        labels: 0 to 9, one for each pooled example.
        clients: N, a multiple of 10.
        sigma: standard deviation of the logarithm of the shares, at least 0.
        seed: of the shares, and of the order within a device.

    Raises:
        DataError: N is no multiple of 10, or a class has fewer than N examples.

    >>> parts = digit_pairs(np.arange(900) % 10, clients=20)
    >>> min(len(part) for part in parts) >= 10, sum(len(part) for part in parts) <= 900
    (True, True)

    Source: Li et al., Federated Optimization in Heterogeneous Networks (arXiv:1812.06127), released
    generator for MNIST.
    """
    labels = labels_of("digit_pairs", labels)
    members = [np.flatnonzero(labels == label) for label in range(CLASSES)]
    smallest = min(len(rows) for rows in members)
    if clients % CLASSES or smallest < clients:
        allowed = f"multiples of 10, at most the {smallest} examples of the smallest class"
        raise DataError.of("digit_pairs(clients=...)", clients, allowed)
    # (classes, groups of ten devices, first or second class of the device)
    shares = np.random.RandomState(seed).lognormal(0, sigma, (CLASSES, clients // CLASSES, 2))
    # N/5 devices take 5 examples of a class, N in all
    spare = np.array([len(rows) - clients for rows in members])
    extra_counts = shares / shares.sum(axis=(1, 2), keepdims=True) * spare[:, None, None]
    used = np.zeros(CLASSES, dtype=int)
    device_pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]

    def take(device: int, label: int, count: int) -> None:
        device_pieces[device].append(members[label][used[label] : used[label] + count])
        used[label] += count

    # all devices take their first examples before any takes more
    pairs = [
        (device, turn, (device + turn) % CLASSES) for device in range(clients) for turn in (0, 1)
    ]
    for device, _, label in pairs:
        take(device, label, FIRST)
    for device, turn, label in pairs:
        take(device, label, int(extra_counts[label, device // CLASSES, turn]))
    shuffler = random.Random(seed)
    parts = [np.concatenate(pieces).tolist() for pieces in device_pieces]
    for rows in parts:
        shuffler.shuffle(rows)
    return [np.array(rows) for rows in parts]


@validated
def mnist_devices(
    clients: Clients = 1000,
    sigma: NonNegative = 2.0,
    seed: Seed = 0,
    test_fraction: Share = 0.1,
    folder: Folder = None,
) -> FederatedData:
    """Reads MNIST as FedProx has it: 1,000 devices with two digits each.

    About 69,000 of the 70,000 images; see `digit_pairs`.

    Each pixel is standardised over all images, (x - mean) / (deviation + 0.001) on the scale 0 to
    255.

    Args:
        clients: a multiple of 10, at most 6,313.
        sigma: spread of the sizes, at least 0.
        seed: of the partition.
        test_fraction: share of each client's examples kept for testing, in [0, 1).
        folder: where `mnist.npz` lies.

    Raises:
        DataError: a missing, broken or different file; or a number of clients that does not fit.

    Source: as `digit_pairs`.
    """
    images = read_images("mnist", folder).merge()
    mean = images.x.mean(axis=0)
    # squares of bytes fit into 16 bits
    deviation = np.sqrt((images.x.astype(np.uint16) ** 2).mean(axis=0) - mean**2)
    return FederatedData.partitioned(
        (images.x - mean.astype(np.float32)) / (deviation + 1e-3).astype(np.float32),
        images.y,
        digit_pairs(images.y, clients, sigma, seed),
        classes=CLASSES,
        test_fraction=test_fraction,
        split="in_order",
        name="MNIST devices",
    )
