"""Devices that FedProx and FedDANE make of handwriting: few classes, heavy-tailed sizes."""

import random
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Real

from fedax.core import DataError
from fedax.data.federated import FederatedData, Labelled
from fedax.data.limits import CLIENTS, SEED, TEST_FRACTION, checked, choice, real, whole
from fedax.data.partition import Partition
from fedax.data.partition.base import labels_of
from fedax.data.sources.mnist import read_images
from fedax.examples.overlap import train_size

CLASSES = 10
FIRST = 5  # examples of each of its two classes that a device has for certain


@checked(clients=CLIENTS, sigma=real(low=0), seed=SEED)
def digit_pairs(
    labels: Any, clients: int = 1000, sigma: float | int = 2.0, seed: int = 0
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
    if clients % CLASSES:
        raise DataError.of("digit_pairs(clients=...)", clients, "multiples of 10")
    members = [np.flatnonzero(labels == label) for label in range(CLASSES)]
    smallest = min(len(rows) for rows in members)
    if smallest < clients:
        raise DataError.of(
            "digit_pairs(clients=...)",
            clients,
            f"at most {smallest}, the examples of the smallest class",
        )
    # (classes, groups of ten devices, first or second class of the device)
    shares = np.random.RandomState(seed).lognormal(
        0, float(sigma), (CLASSES, clients // CLASSES, 2)
    )
    # N/5 devices take 5 examples of a class, N in all
    spare = np.array([len(rows) - clients for rows in members])
    extra_counts = (shares / shares.sum(axis=(1, 2), keepdims=True) * spare[:, None, None]).astype(
        int
    )
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
    return [_shuffle(np.concatenate(pieces), shuffler) for pieces in device_pieces]


@checked(clients=CLIENTS, sigma=real(low=0), seed=SEED, test_fraction=TEST_FRACTION)
def mnist_devices(
    clients: int = 1000,
    sigma: float | int = 2.0,
    seed: int = 0,
    test_fraction: float | int = 0.1,
    folder: str | Path | None = None,
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
    partition = digit_pairs(images.y, clients, sigma, seed)
    raw = images.x.reshape(len(images.x), -1)
    mean = raw.mean(axis=0)
    # squares of bytes fit into 16 bits
    deviation = np.sqrt((raw.astype(np.uint16) ** 2).mean(axis=0) - mean**2)
    x = (raw - mean.astype(np.float32)) / (deviation + 1e-3).astype(np.float32)
    name = "MNIST devices"
    arguments = {
        "classes": CLASSES,
        "test_fraction": test_fraction,
        "split": "in_order",
        "name": name,
    }
    return FederatedData.partitioned(x, images.y, partition, **arguments)


@checked(
    clients=CLIENTS, classes_per_client=whole(low=1, high=CLASSES), prefix=choice(False, True),
    seed=SEED,
    test_fraction=TEST_FRACTION,
)  # fmt: skip
def letter_devices(
    x: Real[np.ndarray, "examples ..."],
    labels: Any,
    clients: int = 200,
    classes_per_client: int = 3,
    prefix: bool = False,
    seed: int = 0,
    test_fraction: float | int = 0.1,
) -> FederatedData:
    r"""Makes the 200 devices of FedProx and FedDANE from the lower-case letters a to j of FEMNIST.

    Device u is to hold $n_u = 5 + e^{4 + z_u}$ examples: of each of the classes u, u+1, u+2 mod 10
    a third (at least 2). A class is handed out in consecutive slices and begins again when it ends,
    so devices share examples only if more are asked for than there are. In the released generator a
    condition is inverted and every device takes the *first* examples of a class, which
    `prefix=True` repeats; there, devices share most examples, also between training and test.

    Args:
        x: inputs; 28 x 28 in [0, 1], not inverted, at most 4,000 of a class there.
        labels: 0 to 9 for a to j.
        clients: at least 1.
        classes_per_client: 3 in the generator, 5 in the paper's text; 1 to 10.
        prefix: as the released generator.
        seed: of sizes and of the order within a device.
        test_fraction: share of each device's shuffled examples kept for testing, in [0, 1). The
            code has 0.1, the papers 0.2.

    Raises:
        DataError: labels outside 0 to 9, or a class with fewer examples than a device needs.

    >>> letter_devices(np.zeros((4000, 2)), np.arange(4000) % 10, clients=4).clients
    4

    Source: Li et al., Federated Optimization in Heterogeneous Networks (arXiv:1812.06127), released
    generator for FEMNIST.
    """
    labels = labels_of("letter_devices", labels)
    if len(x) != len(labels):
        raise DataError.of(
            "letter_devices(x=...)", f"{len(x)} inputs", f"{len(labels)}, one for each label"
        )
    members = [np.flatnonzero(labels == label) for label in range(CLASSES)]
    if sum(map(len, members)) < len(labels):
        outside = labels[(labels < 0) | (labels >= CLASSES)][0]
        raise DataError.of(
            "letter_devices(labels=...)", int(outside), f"labels from 0 to {CLASSES - 1}"
        )
    sizes = np.random.RandomState(seed).lognormal(4, 1, clients) + 5
    counts = np.maximum((sizes / classes_per_client).astype(int), 2)
    shuffler, next_positions = random.Random(seed), np.zeros(CLASSES, dtype=int)
    train: list[Labelled] = []
    test: list[Labelled] = []
    for device, count in enumerate(counts.tolist()):
        pieces = []
        for label in ((device + turn) % CLASSES for turn in range(classes_per_client)):
            if count > len(members[label]):
                got = f"{len(members[label])} examples of class {label}"
                raise DataError.of(
                    "letter_devices(labels=...)",
                    got,
                    f"at least {count}, which device {device} holds",
                )
            pieces.append(
                members[label][(next_positions[label] + np.arange(count)) % len(members[label])]
            )
            next_positions[label] += 0 if prefix else count
        order = _shuffle(np.concatenate(pieces), shuffler)
        cut = train_size(len(order), test_fraction)
        train.append({"x": x[order[:cut]], "y": labels[order[:cut]]})
        test.append({"x": x[order[cut:]], "y": labels[order[cut:]]})
    return FederatedData.from_arrays(
        train, classes=CLASSES, test=test if test_fraction else None, name="FEMNIST a-j"
    )


def _shuffle(indices: np.ndarray, shuffler: random.Random) -> np.ndarray:
    order = list(range(len(indices)))
    shuffler.shuffle(order)
    return indices[order]
