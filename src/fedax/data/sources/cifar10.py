"""CIFAR-10 from local files."""

from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import DataError
from fedax.data.federated import FederatedData
from fedax.data.folder import data_file, data_folder, read_whole, verify
from fedax.data.limits import POOLED, checked
from fedax.data.partition import check_partition
from fedax.data.sources.pool import Images, read_arrays

CHECKSUM = "09f71d6ae6134fd8971e3ee039673eba0e5f34c7a70404b5441142a87cb71394"
"""SHA-256 of the bytes of all training images, training labels, test images and test labels, in the
order of the `.npz` files.
"""
BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""SHA-256 of the official binary batches."""
ROWS = (50_000, 10_000)
_PARTS = [f"cifar10_train_{part}of4.npz" for part in (1, 2, 3, 4)]
_TEST = "cifar10_test.npz"
_HOW = (
    f"Put {_PARTS[0]} to 4of4 and {_TEST} there, with x (uint8, images of 32 x 32 x 3) and y; "
    "or the folder "
    "cifar-10-batches-bin of the official binary version."
)


@checked(**POOLED)
def cifar10(
    partition: str = "dirichlet",
    clients: int = 100,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    merged: bool = False,
    folder: str | Path | None = None,
    examples: int = 0,
    **options: Any,
) -> FederatedData:
    """Reads CIFAR-10: 50,000 + 10,000 colour images of 10 classes.

    Rows of 3,072 numbers in [0, 1]: 32 rows of 32 pixels of red, green, blue.

    A row reshaped to (32, 32, 3) is the image. The files are the official binary batches in the
    folder `cifar-10-batches-bin`, or four training parts and a test part as `.npz`; their content
    is verified. The two hold the images in different orders, so a partition repeats only on the
    same kind of files.

    Args:
        partition: a name of `fedax.data.partition`, as in `mnist`.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for its own testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        merged: deals out the official test images too, after the training images; otherwise they
            are the central.
        folder: where the files lie; see `fedax.data.data_folder`.
        examples: as in `mnist`.
        options: of the partition, such as `alpha` for dirichlet.

    Raises:
        UnknownName: no such partition or option.
        InvalidInput: an argument out of range, before the files are read.
        DataError: a missing, broken or different file, with its path; or examples that do not
            suffice.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    check_partition(partition, clients, seed, **options)
    images = read_cifar10(folder).select(examples, merged)
    return images.deal("CIFAR-10", partition, clients, seed, test_fraction, split, options)


def read_cifar10(folder: str | Path | None = None) -> Images:
    """Reads the images and labels of both parts, checked."""
    batches = data_folder(folder) / "cifar-10-batches-bin"
    if batches.is_dir():
        return _read_official(batches)
    paths = [data_file(name, folder, _HOW) for name in (*_PARTS, _TEST)]
    arrays = [read_arrays(path, ("x", "y"), _HOW) for path in paths]
    train = [np.concatenate([file_arrays[index] for file_arrays in arrays[:4]]) for index in (0, 1)]
    images = Images(*train, *arrays[4])
    images.check("cifar10", paths[0].parent, (32, 32, 3), ROWS, _HOW)
    images.verify("cifar10", paths[0].parent, CHECKSUM, _HOW)
    return images


def _read_official(batches: Path) -> Images:
    """Reads the official batches: a record is the label and 1,024 bytes of each colour."""
    records = [
        _read_records(data_file(name, batches, _HOW), sha256) for name, sha256 in BATCHES.items()
    ]
    train, test = np.concatenate(records[:5]), records[5]
    images = Images(_to_images(train), train[:, 0], _to_images(test), test[:, 0])
    images.check("cifar10", batches, (32, 32, 3), ROWS, _HOW)
    return images


def _read_records(path: Path, sha256: str) -> np.ndarray:
    content = read_whole(path, _HOW)
    if len(content) % 3073:
        raise DataError.of(
            path.name,
            f"a file at {path} of {len(content)} bytes",
            "whole records of 3073 bytes",
            _HOW,
        )
    verify(path.name, sha256, [content], path, _HOW)
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)


def _to_images(records: np.ndarray) -> np.ndarray:
    # colour after colour becomes channels last
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
