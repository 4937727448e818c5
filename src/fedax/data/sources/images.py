"""MNIST, Fashion-MNIST and CIFAR-10 from local files."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from pydantic import Field

from fedax.data.folder import data_file, data_folder, read_npz, read_whole, reading, verify
from fedax.data.formats.idx import read_idx
from fedax.data.options import Clients, Count, Folder, Seed, Share, Split, Switch, validated
from fedax.data.partition import Partition, partition_by
from fedax.data.partition.sizes import named_users
from fedax.examples.federated import FederatedData

Examples = Annotated[int, Field(strict=True, ge=0)]

CHECKSUMS = {
    "mnist": "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    "fashion_mnist": "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    "cifar10": "09f71d6ae6134fd8971e3ee039673eba0e5f34c7a70404b5441142a87cb71394",
}
"""SHA-256 of all training images, training labels, test images and test labels as bytes, whatever
the file they come in.
"""
_TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_KERAS = ("x_train", "y_train", "x_test", "y_test")
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw"),
}
_PARTS = [f"cifar10_train_{part}of4.npz" for part in (1, 2, 3, 4)]
_BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""SHA-256 of the official binary batches, which hold the images of CIFAR-10 in another order."""
_WRITERS = "891ddbf1399620a1c9f647132fcea5efa0545b0b59ec28eaef232d9b3db48a1c"
"""SHA-256 of the writers of MNIST's training and test images, as 16-bit numbers."""


class Images(NamedTuple):
    """Images of bytes, one in a row, and labels, in an official training and test part."""

    x: UInt8[np.ndarray, "examples pixels"]
    y: UInt8[np.ndarray, "examples"]
    test_x: UInt8[np.ndarray, "tests pixels"]
    test_y: UInt8[np.ndarray, "tests"]

    def merge(self) -> "Images":
        """Returns all images in one training part, the official test images last."""
        x = np.concatenate([self.x, self.test_x])
        y = np.concatenate([self.y, self.test_y])
        return Images(x, y, self.test_x[:0], self.test_y[:0])

    def select(self, examples: int, merged: bool) -> "Images":
        """Returns the first `examples` images of each part, all if 0, in one part if `merged`."""
        selected = Images(*(array[: examples or None] for array in self))
        return selected.merge() if merged else selected

    def deal(
        self,
        partition: Partition,
        name: str,
        test_fraction: float,
        split: str,
        seed: int,
        names: Sequence[str] | None = None,
    ) -> FederatedData:
        """Makes federated data of a partition; the official test part, if any, is central."""
        return FederatedData.partitioned(
            pixels(self.x),
            self.y,
            partition,
            classes=10,
            test_fraction=test_fraction,
            split=split,
            seed=seed,
            central={"x": pixels(self.test_x), "y": self.test_y} if len(self.test_y) else None,
            name=name,
            names=names,
        )


@validated
def image_set(
    name: Literal["mnist", "fashion_mnist", "cifar10"],
    partition: str = "shards",
    clients: Clients = 100,
    seed: Seed = 0,
    test_fraction: Share = 0.0,
    split: Split = "shuffled",
    merged: Switch = False,
    folder: Folder = None,
    examples: Examples = 0,
    **options: Any,
) -> FederatedData:
    """Reads images of 10 classes with an official training and test part.

    `mnist`, `fashion_mnist` and `cifar10` are this function with their name. Rows of numbers in
    [0, 1].

    | name | images | of | a row |
    |---|---|---|---|
    | `mnist` | 60,000 + 10,000 | handwritten digits | 28 x 28 |
    | `fashion_mnist` | 60,000 + 10,000 | clothes | 28 x 28 |
    | `cifar10` | 50,000 + 10,000 | animals and vehicles | 32 x 32 x 3, red, green, blue |

    The files of MNIST are `mnist.npz` as Keras distributes it, or the four IDX files, plain or
    gzipped, in `mnist` or `MNIST/raw`; those of Fashion-MNIST are `fashion_mnist.npz`, or the four
    IDX files in `fashion_mnist` or `FashionMNIST/raw`. Those of CIFAR-10 are the official binary
    batches in the folder `cifar-10-batches-bin`, or four training parts and a test part as `.npz`.
    The two hold its images in different orders, so a partition repeats only on the same kind of
    files. Content is verified.

    Args:
        name: of the data set.
        partition: a name of `fedax.data.partition`: iid, index, quantity_skew, shards, dirichlet
            or power_law. dirichlet is the default of CIFAR-10.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for its own testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        merged: deals out the official test images too, after the training images; otherwise they
            are the central test set.
        folder: where the files lie; see `fedax.data.data_folder`.
        examples: how many of the first training images, and at most of the test images, are taken,
            for a quick try; 0 is all.
        options: of the partition, such as `alpha` for dirichlet.

    Raises:
        UnknownName: no such partition.
        InvalidInput: an argument out of range.
        DataError: a missing, broken or different file, with its path; or examples that do not
            suffice.

    Source: LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document
    Recognition, 1998; Xiao, Rasul and Vollgraf, Fashion-MNIST (arXiv:1708.07747); Krizhevsky,
    Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    images = read_images(name, folder).select(examples, merged)
    parts = partition_by(partition, images.y, clients, seed, **options)
    return images.deal(parts, f"{_TITLES[name]}, {partition}", test_fraction, split, seed)


mnist = functools.partial(image_set, "mnist")
fashion_mnist = functools.partial(image_set, "fashion_mnist")
cifar10 = functools.partial(image_set, "cifar10", partition="dirichlet")


@validated
def mnist_writers(
    minimum: Count = 1,
    seed: Seed = 0,
    test_fraction: Share = 0.0,
    split: Split = "shuffled",
    merged: Switch = False,
    folder: Folder = None,
) -> FederatedData:
    """Reads MNIST with a client for each of the 539 people who wrote the training digits.

    They wrote 19 to 131 each.

    The 297 writers of the official test images are other people; these images are the central test
    set, or further clients.

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
    how = "Put it there: writer_train and writer_test, the ids of QMNIST's labels, as .npz."
    path = data_file(folder, how, "mnist_writers.npz")
    train_writers, test_writers = _read_arrays(path, ("writer_train", "writer_test"))
    plain = [writers.astype("<i2") for writers in (train_writers, test_writers)]
    verify("mnist_writers", _WRITERS, plain, path)
    images = read_images("mnist", folder)
    writers = train_writers
    if merged:
        images = images.merge()
        writers = np.concatenate([train_writers, test_writers])
    rows = named_users(writers, minimum)
    return images.deal(
        list(rows.values()), "MNIST by writer", test_fraction, split, seed, names=list(rows)
    )


def read_images(name: str, folder: Folder = None) -> Images:
    """Reads the official arrays of a data set of `CHECKSUMS`, verified."""
    if name == "cifar10":
        batches = data_folder(folder) / "cifar-10-batches-bin"
        if batches.is_dir():
            return _read_batches(batches)
        how = f"Put {_PARTS[0]} to 4of4 and cifar10_test.npz there, or cifar-10-batches-bin."
        paths = [data_file(folder, how, file) for file in (*_PARTS, "cifar10_test.npz")]
        *parts, test = (_read_arrays(path, ("x", "y")) for path in paths)
        arrays = [*map(np.concatenate, zip(*parts)), *test]
        return _verify(name, paths[0].parent, arrays)
    how = f"Put {name}.npz there with the arrays {_KERAS}, or the IDX files in the folder {name}."
    # the first of the four files stands for all
    first = [f"{place}/{_IDX[0]}{end}" for place in _IDX_FOLDERS[name] for end in ("", ".gz")]
    path = data_file(folder, how, f"{name}.npz", *first)
    if path.suffix == ".npz":
        return _verify(name, path, _read_arrays(path, _KERAS))
    # the others are packed as the first one is
    ending = ".gz" if path.suffix == ".gz" else ""
    files = [data_file(path.parent, how, file + ending) for file in _IDX]
    return _verify(name, path, [read_idx(file) for file in files])


def _read_arrays(path: Path, keys: Sequence[str]) -> list[np.ndarray]:
    arrays = read_npz(path)
    with reading(path, f"an archive with the arrays {', '.join(keys)}"):
        return [arrays[key] for key in keys]


def _verify(name: str, path: Path, arrays: Sequence[np.ndarray]) -> Images:
    x, y, test_x, test_y = (array.astype(np.uint8, copy=False) for array in arrays)
    verify(name, CHECKSUMS[name], [x, y, test_x, test_y], path)
    return Images(x.reshape(len(y), -1), y, test_x.reshape(len(test_y), -1), test_y)


def _read_batches(folder: Path) -> Images:
    """Reads the official batches: a record is the label and 1,024 bytes of each colour."""
    records = []
    for name, sha256 in _BATCHES.items():
        path = data_file(folder, "It is one of six.", name)
        content = read_whole(path)
        verify(name, sha256, [content], path)
        records.append(np.frombuffer(content, np.uint8).reshape(-1, 3073))
    train = np.concatenate(records[:5])
    test = records[5]
    return Images(_to_rows(train), train[:, 0], _to_rows(test), test[:, 0])


def _to_rows(records: UInt8[np.ndarray, "examples bytes"]) -> UInt8[np.ndarray, "examples pixels"]:
    # colour after colour becomes channels last
    colours = records[:, 1:].reshape(-1, 3, 1024)
    return colours.transpose(0, 2, 1).reshape(len(records), 3072)


def pixels(images: UInt8[np.ndarray, "examples pixels"]) -> Float[np.ndarray, "examples pixels"]:
    """Converts bytes to single precision in [0, 1]."""
    # Single precision: for 60,000 images NumPy's default would cost twice 188 MB.
    return images.astype(np.float32) / np.float32(255)
