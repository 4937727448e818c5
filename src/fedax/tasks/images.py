"""Preprocessing of images: crops and flips, once or at every step, and normalisation."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field

from fedax.core import InvalidInput, Ragged, Task
from fedax.data import FederatedData
from fedax.data.options import NonNegative, Switch
from fedax.models import Augmentation
from fedax.tasks.from_model import classification

Rows = Float[np.ndarray, "examples features"]


@dataclass(frozen=True)
class ImageTask:
    """Makes classification tasks of a data set of images.

    Args:
        shape: rows, columns and channels of an image.
        mean, deviation: published constants to normalise the images, by channel.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def __call__(
        self,
        load: Callable[..., FederatedData],
        options: dict[str, Any],
        *,
        model: Any = "softmax",
        l2: NonNegative = 0.0,
        crop: Annotated[int, Field(strict=True, ge=0, le=32)] = 0,
        flip: Switch = False,
        frozen: Switch = False,
        normalize: Literal["none", "published", "dataset"] = "none",
    ) -> Task:
        """Reads the data and makes the task; see `fedax.task`.

        Raises:
            InvalidInput: a window beyond the image, or constants that were not published.
        """
        if crop > self.shape[0]:
            raise InvalidInput.of("crop", crop, f"at most {self.shape[0]}")
        if normalize == "published" and self.mean is None:
            raise InvalidInput.of("normalize", normalize, "'none' or 'dataset'")
        data = load(**options)
        mean = None
        deviation = None
        if normalize == "published":
            mean = self.mean
            deviation = self.deviation
        if normalize == "dataset":
            # of the training images before any change
            mean, deviation = _statistics(data, self.shape[2])
            data = dataclasses.replace(data, measured=True)
        if frozen:
            # by the seed of the partition; other streams draw the partition and the split
            rng = np.random.default_rng([options.get("seed", 0), 2])
            train = [
                {**client, "x": _crop_and_flip(client["x"], self.shape, crop, flip, rng)}
                for client in data.train
            ]
            data = dataclasses.replace(data, train=Ragged.of(train, where="train"))
            # nothing is left to be drawn in every step
            crop = 0
            flip = False
        augment = None
        if crop or flip or normalize != "none":
            augment = Augmentation(self.shape, crop, flip, mean, deviation)
        return classification(data, model, augment=augment, l2=l2)


# The constants of the code released with FedBC and FedAWARE. The deviations of CIFAR-10 are means
# of the single images' deviations, so that its pixels come out with 1.2, not with 1.
DIGITS = ImageTask((8, 8, 1))
GREY = ImageTask((28, 28, 1))
MNIST = ImageTask((28, 28, 1), (0.1307,), (0.3081,))
CIFAR10 = ImageTask((32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def _statistics(data: FederatedData, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    pixels = np.asarray(data.train.arrays["x"]).reshape(-1, channels)
    # in 64 bits, because sums over all pixels are long
    mean = pixels.mean(0, dtype=np.float64)
    variance = (pixels**2).mean(0, dtype=np.float64) - mean**2
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def _crop_and_flip(
    x: Rows, shape: tuple[int, int, int], crop: int, flip: bool, rng: np.random.Generator
) -> Rows:
    """Crops each image at random from itself with zeros around it, and mirrors half of them."""
    # (examples, 1, 1), to index each image by itself
    images = x.reshape(-1, *shape)
    example = np.arange(len(x))[:, None, None]
    if crop:
        padded = np.pad(images, ((0, 0), (crop, crop), (crop, crop), (0, 0)))
        # row and column of the corner of each window, from 0 to 2 crop
        corners = rng.integers(0, 2 * crop + 1, (2, len(x), 1))
        rows = corners[0] + np.arange(shape[0])
        columns = corners[1] + np.arange(shape[1])
        images = padded[example, rows[:, :, None], columns[:, None, :]]
    if flip:
        images = np.where(rng.random((len(x), 1, 1, 1)) < 0.5, images[:, :, ::-1], images)
    return images.reshape(x.shape)
