"""Preprocessing of images: crops and flips, once or at every step, and normalisation."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fedax.core import InvalidInput, Ragged
from fedax.core.hyper import Hyper
from fedax.data import FederatedData
from fedax.data.limits import check, choice, whole
from fedax.models import Augmentation

Rows = Float[np.ndarray, "examples features"]


@dataclass(frozen=True)
class ImageFormat:
    """Shape of a data set's images, and published constants to normalise them.

    The shape is rows, columns and channels.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None


_MNIST = ImageFormat((28, 28, 1), (0.1307,), (0.3081,))
IMAGE_FORMATS = {
    "cifar10": ImageFormat((32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "digits": ImageFormat((8, 8, 1)),
    "fashion_mnist": ImageFormat((28, 28, 1)),
    "femnist": ImageFormat((28, 28, 1)),
    "mnist": _MNIST,
    "mnist_devices": ImageFormat((28, 28, 1)),  # standardised pixel by pixel already
    "mnist_writers": _MNIST,
}
"""By the name of the task.

The constants are those in the code released with FedBC and FedAWARE. The deviations of CIFAR-10 are
means of the single images' deviations, so that its pixels come out with 1.2, not with 1.
"""

DEFAULTS: dict[str, Any] = {"crop": 0, "flip": False, "frozen": False, "normalize": "none"}
"""The options that every task on images has."""
CHANGES = (
    "crop: zeros on every side of a training image, from which a window of the old size is cut "
    "at random; at least 0.",
    "flip: mirrors training images left and right with probability 1/2, after the crop.",
    """frozen: draws crops and flips once, before training, by `seed`; otherwise for every example
        of every step, and losses over whole training sets are without them. Not without `crop` or
        `flip`.""",
    """normalize: "none"; "dataset", by mean and deviation of each channel of the training images;
        or, of MNIST and CIFAR-10, "published", by the constants in the papers' released code. Comes
        last, for test images too.""",
)
"""What they do, for docstrings."""


def preprocessing_limits(name: str) -> dict[str, Hyper]:
    """Returns the ranges of the options; only some data sets have published constants."""
    normalizations = (
        ("none", "dataset")
        if IMAGE_FORMATS[name].mean is None
        else ("none", "published", "dataset")
    )
    boolean = choice(False, True)
    return {
        "crop": whole(low=0, high=max(IMAGE_FORMATS[name].shape[:2])),
        "flip": boolean,
        "frozen": boolean,
        "normalize": choice(*normalizations),
    }


def check_preprocessing(name: str, options: dict[str, Any]) -> None:
    """Refuses options out of range, and frozen images that nothing changes.

    Before any data are read.
    """
    check(name, preprocessing_limits(name), options)
    if options["frozen"] and not (options["crop"] or options["flip"]):
        raise InvalidInput.of(f"{name}(frozen=...)", True, "False without crop or flip")


def preprocess(
    name: str, data: FederatedData, seed: int, crop: int, flip: bool, frozen: bool, normalize: str
) -> tuple[FederatedData, Augmentation | None]:
    """Applies frozen changes to the data; returns them and the augmentation that remains.

    Test images are normalised only. The statistics of the data set are those of the training images
    before any change.
    """
    image_format, statistics = IMAGE_FORMATS[name], (None, None)
    if normalize != "none":
        statistics = image_format.mean, image_format.deviation
    if normalize == "dataset":
        statistics = _statistics(data, image_format.shape[2])
    if frozen:
        rng = np.random.default_rng([seed, 2])  # others draw the partition and the split
        train = [
            {**client, "x": _crop_and_flip(client["x"], image_format.shape, crop, flip, rng)}
            for client in data.train
        ]
        data = dataclasses.replace(data, train=Ragged.of(train, where="train"))
    # what is left to be drawn in every step
    per_step = (0, False) if frozen else (crop, flip)
    if per_step == (0, False) and normalize == "none":
        return data, None
    return data, Augmentation(image_format.shape, *per_step, *statistics)


def _statistics(data: FederatedData, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    pixels = [np.asarray(client["x"]).reshape(-1, channels) for client in data.train]
    count = sum(map(len, pixels))
    # in 64 bits, because sums over all pixels are long
    mean = sum(client_pixels.sum(0, dtype=np.float64) for client_pixels in pixels) / count
    mean_square = (
        sum((client_pixels**2).sum(0, dtype=np.float64) for client_pixels in pixels) / count
    )
    return tuple(np.asarray(mean).tolist()), tuple(
        np.sqrt(mean_square - np.asarray(mean) ** 2).tolist()
    )


def _crop_and_flip(
    x: Rows, shape: tuple[int, int, int], crop: int, flip: bool, rng: np.random.Generator
) -> Rows:
    """Crops each image at random from itself with zeros around it, and mirrors half of them."""
    # (examples, 1, 1), to index each image by itself
    images, example = x.reshape(-1, *shape), np.arange(len(x))[:, None, None]
    if crop:
        padded = np.pad(images, ((0, 0), (crop, crop), (crop, crop), (0, 0)))
        # row and column of the corner of each window, from 0 to 2 crop
        corners = rng.integers(0, 2 * crop + 1, (2, len(x), 1))
        rows, columns = corners[0] + np.arange(shape[0]), corners[1] + np.arange(shape[1])
        images = padded[example, rows[:, :, None], columns[:, None, :]]
    if flip:
        images = np.where(rng.random((len(x), 1, 1, 1)) < 0.5, images[:, :, ::-1], images)
    return images.reshape(x.shape)
