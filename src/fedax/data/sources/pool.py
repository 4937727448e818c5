"""The common part of image sources with an official training and test part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from fedax.core import DataError
from fedax.data.federated import FederatedData
from fedax.data.folder import read_npz, verify
from fedax.data.partition import Partition, partition_by


class Images(NamedTuple):
    """Images of bytes and labels, in an official training and test part.

    Images have shape (examples, height, width, ...).
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    def check(
        self, name: str, path: Path, shape: tuple[int, ...], rows: tuple[int, int], how: str
    ) -> None:
        """Raises `DataError` unless the parts have `rows` images of `shape` and as many labels."""
        for x, y, count in ((self.x, self.y, rows[0]), (self.test_x, self.test_y, rows[1])):
            if x.shape != (count, *shape) or y.shape != (count,) or x.dtype != np.uint8:
                got = f"a file at {path} with images {x.dtype}{x.shape} and labels {y.shape}"
                raise DataError.of(
                    name, got, f"uint8 images of shape {(count, *shape)} and as many labels", how
                )

    def verify(self, name: str, path: Path, sha256: str, how: str) -> None:
        """Raises `DataError` unless the arrays, in the order of the fields, have the SHA-256."""
        arrays = [array.astype(np.uint8, copy=False) for array in self]
        verify(name, sha256, arrays, path, how)

    def merge(self) -> "Images":
        """Returns all images in one training part, the official test images last."""
        x, y = np.concatenate([self.x, self.test_x]), np.concatenate([self.y, self.test_y])
        return Images(x, y, self.test_x[:0], self.test_y[:0])

    def select(self, examples: int, merged: bool) -> "Images":
        """Returns the first `examples` images of each part, all if 0, in one part if `merged`."""
        # 0 is all
        selected = Images(*(array[: examples or None] for array in self))
        return selected.merge() if merged else selected

    def deal(
        self,
        name: str,
        partition: str,
        clients: int,
        seed: int,
        test_fraction: float | int,
        split: str,
        options: dict[str, Any],
    ) -> FederatedData:
        """Partitions the images by name; the official test part, if any, is the central."""
        client_rows = partition_by(partition, self.y, clients, seed, **options)
        return self.to_federated(client_rows, f"{name}, {partition}", test_fraction, split, seed)

    def to_federated(
        self,
        partition: Partition,
        name: str,
        test_fraction: float | int = 0.0,
        split: str = "shuffled",
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> FederatedData:
        """Makes federated data of a partition given as indices."""
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


def pixels(images: UInt8[np.ndarray, "examples ..."]) -> Float[np.ndarray, "examples features"]:
    """Converts bytes to rows of single precision in [0, 1]."""
    # Single precision: for 60,000 images NumPy's default would cost twice 188 MB.
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def read_arrays(path: Path, keys: Sequence[str], how: str) -> list[np.ndarray]:
    """Reads arrays of an `.npz` file.

    Raises:
        DataError: a damaged file, or one without one of the arrays; the message names the path.
    """
    arrays = read_npz(path, how)
    if not set(keys) <= set(arrays):
        allowed = "a whole archive with the arrays " + ", ".join(keys)
        raise DataError.of(
            path.name, f"a file at {path} with the arrays {sorted(arrays)}", allowed, how
        )
    return [arrays[key] for key in keys]
