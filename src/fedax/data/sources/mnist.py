"""MNIST and Fashion-MNIST from local files."""

from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.federated import FederatedData
from fedax.data.folder import data_file, verify
from fedax.data.formats.idx import read_idx
from fedax.data.limits import DEALT, POOLED, checked, choice, whole
from fedax.data.partition import check_partition
from fedax.data.partition.sizes import named_users
from fedax.data.sources.pool import Images, read_arrays

CHECKSUMS = {
    "mnist": "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    "fashion_mnist": "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    "mnist_writers": "891ddbf1399620a1c9f647132fcea5efa0545b0b59ec28eaef232d9b3db48a1c",
}
"""SHA-256 of the bytes of all arrays, whatever the file they came in."""
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_FOLDERS = {"mnist": ("mnist", "MNIST/raw"), "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw")}
_WRITERS_HOW = (
    "Put mnist_writers.npz there: writer_train and writer_test, the ids of QMNIST's "
    "labels, one for each image."
)


@checked(**POOLED)
def mnist(
    partition: str = "shards",
    clients: int = 100,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    merged: bool = False,
    folder: str | Path | None = None,
    examples: int = 0,
    **options: Any,
) -> FederatedData:
    """Reads MNIST: 60,000 + 10,000 images of handwritten digits, 28 x 28 pixels.

    Rows of 784 numbers in [0, 1], 10 classes.

    The file is `mnist.npz` as Keras distributes it, or the four IDX files, plain or gzipped, in
    `mnist` or `MNIST/raw`. Its content is verified.

    Args:
        partition: a name of `fedax.data.partition`: iid, index, quantity_skew, shards, dirichlet,
            power_law or histogram.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for its own testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        merged: deals out the official test images too, after the training images; otherwise they
            are the central.
        folder: where the file lies; see `fedax.data.data_folder`.
        examples: how many of the first training images, and at most of the test images, are taken,
            for a quick try; 0 is all.
        options: of the partition, such as `alpha` for dirichlet.

    Raises:
        UnknownName: no such partition or option.
        InvalidInput: an argument out of range, before the file is read.
        DataError: a missing, broken or different file, with its path; or examples that do not
            suffice.

    Source: LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document
    Recognition, 1998.
    """
    check_partition(partition, clients, seed, **options)
    images = read_images("mnist", folder).select(examples, merged)
    return images.deal("MNIST", partition, clients, seed, test_fraction, split, options)


@checked(**POOLED)
def fashion_mnist(
    partition: str = "shards",
    clients: int = 100,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    merged: bool = False,
    folder: str | Path | None = None,
    examples: int = 0,
    **options: Any,
) -> FederatedData:
    """Reads Fashion-MNIST: 60,000 + 10,000 images of clothes in the form of MNIST.

    Rows of 784 numbers in [0, 1], 10 classes.

    The file is `fashion_mnist.npz`, or the four IDX files in `fashion_mnist` or `FashionMNIST/raw`;
    for everything else, and for what is refused, see `mnist`.

    Args:
        partition: as in `mnist`, also for the arguments that follow.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: in [0, 1).
        split: `"shuffled"` or `"in_order"`.
        merged: deals out the official test images too.
        folder: where the file lies.
        examples: as in `mnist`.
        options: of the partition.

    Raises:
        InvalidInput, DataError: as `mnist`.

    Source: Xiao, Rasul and Vollgraf, Fashion-MNIST (arXiv:1708.07747).
    """
    check_partition(partition, clients, seed, **options)
    images = read_images("fashion_mnist", folder).select(examples, merged)
    return images.deal("Fashion-MNIST", partition, clients, seed, test_fraction, split, options)


@checked(**DEALT, minimum=whole(low=1), merged=choice(False, True))
def mnist_writers(
    minimum: int = 1,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    merged: bool = False,
    folder: str | Path | None = None,
) -> FederatedData:
    """Reads MNIST with a client for each of the 539 people who wrote the training digits.

    They wrote 19 to 131 each.

    The 297 writers of the official test images are other people; these images are the central, or
    further clients.

    Args:
        minimum: writers with fewer examples are left out; at least 1.
        seed: of the split.
        test_fraction: share of each writer's examples kept for testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        merged: takes the writers of the official test images as clients too: 836 in all.
        folder: where `mnist.npz` and `mnist_writers.npz` lie.

    Raises:
        DataError: a missing, broken or different file; or no writer with `minimum` examples.

    Source: writers from Yadav and Bottou, Cold Case: the Lost MNIST Digits (arXiv:1905.10498).
    """
    path = data_file("mnist_writers.npz", folder, _WRITERS_HOW)
    ids = read_arrays(path, ("writer_train", "writer_test"), _WRITERS_HOW)
    plain = [writer_ids.astype("<i2") for writer_ids in ids]
    verify("mnist_writers", CHECKSUMS["mnist_writers"], plain, path, _WRITERS_HOW)
    images = read_images("mnist", folder)
    images, writers = (images.merge(), np.concatenate(ids)) if merged else (images, ids[0])
    rows_by_writer = named_users(writers, minimum)
    return images.to_federated(
        list(rows_by_writer.values()),
        "MNIST by writer",
        test_fraction,
        split,
        seed,
        list(rows_by_writer),
    )


def read_images(name: str, folder: str | Path | None) -> Images:
    """Reads the official arrays of `mnist` or `fashion_mnist`, verified."""
    file = f"{name}.npz"
    contents = (
        "the arrays x_train, y_train, x_test, y_test as uint8, images of 28 x 28, as Keras "
        "distributes MNIST"
    )
    how = f"Put {file} there: {contents}; or the four IDX files in the folder {_FOLDERS[name][0]}."
    # the first of the four files stands for all
    idx_candidates = [
        f"{subfolder}/{_IDX[0]}{end}" for subfolder in _FOLDERS[name] for end in ("", ".gz")
    ]
    path = data_file(file, folder, how, idx_candidates)
    if path.suffix == ".npz":
        images = Images(*read_arrays(path, _KEYS, how))
    else:
        idx_paths = (
            # the others are packed as the first one is
            data_file(f"{idx_name}{path.suffix * (path.suffix == '.gz')}", path.parent, how)
            for idx_name in _IDX
        )
        images = Images(*map(read_idx, idx_paths))
    images.check(file, path, (28, 28), (60_000, 10_000), how)
    images.verify(file, path, CHECKSUMS[name], how)
    return images
