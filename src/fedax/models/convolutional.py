"""Convolutional networks for images."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fedax.core import InvalidInput
from fedax.models.base import Logits, Sized
from fedax.models.dense import Affine, narrow_normal
from fedax.ops import Convolution, convolve_activate
from fedax.ops.conv import Images, fan_out_normal, lay_images


def as_images(x: Any, shape: tuple[int, int, int], dtype: Any) -> Images:
    """Returns a batch of images of shape (rows, columns, channels), also from flat ones.

    One channel may be left out. Other shapes are refused, since the same number of pixels may lie
    in another order.

    Raises:
        InvalidInput: rows of another shape.

    >>> as_images(jnp.zeros((2, 12)), (2, 2, 3), float).shape
    (2, 2, 2, 3)
    """
    given = tuple(x.shape[1:])
    # as they are, flat, or without the axis of a single channel
    if given not in (shape, (math.prod(shape),), shape[:2] if shape[2] == 1 else shape):
        is_channels_first = given == (shape[2], *shape[:2])
        hint = "Channels come last: write x.transpose(0, 2, 3, 1)." if is_channels_first else ""
        allowed = (
            f"{shape}, rows, columns and channels, or {math.prod(shape)} numbers in that order"
        )
        raise InvalidInput.of("images", f"rows of shape {given}", allowed, hint)
    return jnp.asarray(x, dtype).reshape(-1, *shape)


class Stage(NamedTuple):
    """One convolution of a CNN.

    Attributes:
        outputs: channels that it makes, at least 1.
        size: of the square kernel, in pixels.
        pool: whether the largest of every 2 x 2 pixels is taken afterwards.
    """

    outputs: int
    size: int
    pool: bool = True


class CNNParams(NamedTuple):
    """The convolutions from the image on, then the fully connected layers."""

    convolutions: tuple[Convolution, ...]
    dense: tuple[Affine, ...]


@dataclass(frozen=True)
class CNN(Sized):
    """Convolutions with bias, ReLU and maximum pooling, then fully connected layers.

    ReLU is between the fully connected layers.

    Inputs are images (rows, columns, channels), or the same numbers flat; what is flattened before
    the first fully connected layer is in the order rows, columns, channels.

    Args:
        shape: rows, columns and channels of an image, at least 1 each.
        stages: of the convolutions.
        widths: hidden widths of the fully connected layers, at least 1 each.
        classes: at least 1.
        padding: "SAME" or "VALID".
        start: "glorot" (uniform up to sqrt(6 / (fan in + fan out)) for all kernels) or "he"
            (convolutions normal with variance 2 / fan out, fully connected kernels normal with
            standard deviation 0.01); biases are 0.

    Raises:
        InvalidInput: an argument out of range, or images that the stages shrink to nothing.

    >>> from fedax.models import parameter_count
    >>> stages = (Stage(32, 5), Stage(64, 5))
    >>> parameter_count(CNN((28, 28, 1), stages, (512,), 10, padding="SAME"))
    1663370
    """

    shape: tuple[int, int, int]
    stages: tuple[Stage, ...]
    widths: tuple[int, ...]
    classes: int
    padding: Literal["SAME", "VALID"] = "VALID"
    start: Literal["glorot", "he"] = "glorot"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._flat_size < 1:
            allowed = f"images that leave something after the stages {self.stages}"
            raise InvalidInput.of("CNN(shape=...)", self.shape, allowed)

    @property
    def _flat_size(self) -> int:
        rows, columns, channels = self.shape
        for outputs, size, pool in self.stages:
            # a kernel inside the image loses size - 1 pixels along each axis
            lost = 0 if self.padding == "SAME" else size - 1
            rows = max(rows - lost, 0)
            columns = max(columns - lost, 0)
            channels = outputs
            if pool:
                rows //= 2
                columns //= 2
        return rows * columns * channels

    def init(self, key: Key[Array, ""]) -> tuple[CNNParams, None]:
        """Draws kernels as `start` says; biases are 0."""
        convolution = dense = jax.nn.initializers.glorot_uniform()
        if self.start == "he":
            convolution = fan_out_normal
            dense = narrow_normal
        channels = [self.shape[2], *(stage.outputs for stage in self.stages)]
        # the first one is what the stages leave, flat
        widths = [self._flat_size, *self.widths, self.classes]
        keys = jax.random.split(key, len(self.stages) + len(widths) - 1)
        convolutions = [
            Convolution.init(k, stage.size, inputs, stage.outputs, convolution)
            for k, stage, inputs in zip(keys, self.stages, channels)
        ]
        affine = [
            Affine.init(k, *sizes, dense)
            for k, sizes in zip(keys[len(self.stages) :], pairwise(widths))
        ]
        return CNNParams(tuple(convolutions), tuple(affine)), None

    def apply(self, params: CNNParams, state: None, x: Any, key: Any) -> Logits:
        """Returns the logits of a batch, and no state."""
        # once, into the order in which the extension reads images
        h = lay_images(as_images(x, self.shape, params.dense[0].kernel.dtype))
        for layer, stage in zip(params.convolutions, self.stages):
            h = convolve_activate(h, *layer, window=2 if stage.pool else 1, padding=self.padding)
        h = h.reshape(h.shape[0], -1)
        *hidden, last = params.dense
        for layer in hidden:
            h = jax.nn.relu(layer(h))
        return last(h), None


def mnist_cnn(classes: int = 10) -> CNN:
    """Returns the CNN of McMahan et al. (arXiv:1602.05629) for 28 x 28 pixels.

    1,663,370 parameters with 10 classes.
    """
    return CNN((28, 28, 1), (Stage(32, 5), Stage(64, 5)), (512,), classes, padding="SAME")


def lenet(classes: int = 10, shape: tuple[int, int, int] = (32, 32, 3)) -> CNN:
    """Returns LeNet with ReLU: two convolutions of 5 x 5, three fully connected layers.

    As FedBC trains it on CIFAR-10 (LeCun et al., 1998).

    62,006 parameters with 10 classes.

    Args:
        classes: at least 2.
        shape: height, width and channels of an image.
    """
    return CNN(shape, (Stage(6, 5), Stage(16, 5)), (120, 84), classes)


def cifar_cnn(classes: int = 10) -> CNN:
    """Returns the CNN of FedAWARE for 32 x 32 pixels in 3 colours.

    122,570 parameters with 10 classes.
    """
    return CNN(
        (32, 32, 3),
        (Stage(32, 3), Stage(64, 3), Stage(64, 3, pool=False)),
        (64,),
        classes,
        start="he",
    )
