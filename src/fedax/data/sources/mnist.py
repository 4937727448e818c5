"""MNIST from a local file."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from fedax.core import DataError
from fedax.data.federated import FederatedData
from fedax.data.folder import data_file
from fedax.data.limits import SPLIT, TEST_FRACTION, checked, choice
from fedax.data.partition import check_partition, partition_by

FEATURES = 784
CLASSES = 10
FILE = "mnist.npz"
_HOW = f"Put {FILE} there: the arrays x_train, y_train, x_test, y_test as uint8, images of 28 x 28, as Keras distributes it."


@checked(test_fraction=TEST_FRACTION, split=SPLIT, merged=choice(False, True))
def mnist(
    partition: str = "shards",
    clients: int = 100,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    merged: bool = False,
    folder: str | Path | None = None,
    **options: Any,
) -> FederatedData:
    """60,000 + 10,000 images of handwritten digits, 28 x 28 pixels, as rows of 784 numbers in [0, 1], with 10 classes.

    Args:
        partition: a name of `fedax.data.partition`: iid, quantity_skew, shards, dirichlet or power_law.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for its own testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        merged: deals out the official test images too, after the training images; otherwise they are the holdout.
        folder: where `mnist.npz` lies; see `fedax.data.data_folder`.
        options: of the partition, such as `alpha` for dirichlet.

    Raises:
        UnknownName: no such partition or option.
        InvalidInput: an argument out of range, before the file is read.
        DataError: a missing or broken file, with its path; or examples that do not suffice.

    Source: LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    check_partition(partition, clients, seed, **options)
    images, labels, test_images, test_labels = _read(data_file(FILE, folder, _HOW))
    if merged:
        images, labels = np.concatenate([images, test_images]), np.concatenate([labels, test_labels])
    parts = partition_by(partition, labels, clients, seed, **options)
    return FederatedData.partitioned(
        _pixels(images),
        labels,
        parts,
        classes=CLASSES,
        test_fraction=test_fraction,
        split=split,
        seed=seed,
        holdout=None if merged else {"x": _pixels(test_images), "y": test_labels},
        name=f"MNIST, {partition}",
    )


def _read(path: Path) -> list[np.ndarray]:
    keys = ("x_train", "y_train", "x_test", "y_test")
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            images, labels, test_images, test_labels = arrays = [file[key] for key in keys]
    except Exception as error:  # a damaged archive can fail in any layer below: zip, zlib, npy header, missing name
        raise DataError.of(FILE, f"a file at {path} that cannot be read ({error})", "a whole archive", _HOW) from error
    for x, y, rows in ((images, labels, 60_000), (test_images, test_labels, 10_000)):
        if x.shape != (rows, 28, 28) or y.shape != (rows,) or x.dtype != np.uint8:
            got = f"a file at {path} with images {x.dtype}{x.shape} and labels {y.shape}"
            raise DataError.of(FILE, got, f"uint8 images of shape ({rows}, 28, 28) and as many labels", _HOW)
    return arrays


def _pixels(images: UInt8[np.ndarray, "examples 28 28"]) -> Float[np.ndarray, "examples 784"]:
    # Single precision: at 60,000 images the default of NumPy would cost twice 188 MB for values of 8 bits.
    return images.reshape(len(images), FEATURES).astype(np.float32) / np.float32(255)
