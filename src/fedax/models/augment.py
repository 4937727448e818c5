"""Random changes of training images, inside the compiled round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from fedax.models.convolutional import as_images
from fedax.ops.conv import Images
from fedax.utils.numbers import convert_fields

Augment: TypeAlias = Callable[[Any, Any], Any]
"""From a batch of inputs and a key to the inputs of the model; the key is None in evaluation. Equal
ones compare equal.
"""


@dataclass(frozen=True)
class Augmented:
    """A model whose inputs are changed on their way, at random in training.

    Args:
        model: that gets the changed inputs.
        augment: such as an `Augmentation`: of the inputs and a key, which is None in evaluation.
    """

    model: Any
    augment: Augment

    @property
    def frozen(self) -> Any:
        """The leaves that the model does not train."""
        return getattr(self.model, "frozen", None)

    def init(self, key: Any) -> tuple[PyTree, PyTree]:
        """Draws the model's parameters."""
        return self.model.init(key)

    def apply(self, params: PyTree, state: PyTree, x: Any, key: Any) -> tuple[Any, PyTree]:
        """Applies the model to changed inputs."""
        augment_key, model_key = (None, None) if key is None else jax.random.split(key)
        return self.model.apply(params, state, self.augment(x, augment_key), model_key)


@dataclass(frozen=True)
class Augmentation:
    """Random crops and flips, drawn for every example of every step, then normalisation.

    Without a key, that is in evaluation, images are normalised only. They keep the form in which
    they come, flat or not.

    Args:
        shape: rows, columns and channels of an image; inputs may be flat.
        crop: zeros added on every side, from which a window of the old size is cut at random; at
            least 0.
        flip: mirrors left and right with probability 1/2.
        mean: for each channel; subtracted. None subtracts nothing.
        deviation: for each channel, above 0; divided by. None divides by nothing.

    >>> augmentation = Augmentation((1, 2, 1), mean=(1.0,), deviation=(2.0,))
    >>> augmentation(jnp.array([[1.0, 5.0]]), None).tolist()
    [[0.0, 2.0]]
    """

    shape: tuple[int, int, int]
    crop: int = 0
    flip: bool = False
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        convert_fields(self)

    def __call__(self, x: Any, key: Any) -> Float[Array, "batch ..."]:
        # whole numbers, such as bytes, become JAX's default float type
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(()).dtype
        images = as_images(x, self.shape, dtype)
        if key is not None:
            # split whatever is drawn: a flip is the same with and without crops
            crop_key, flip_key = jax.random.split(key)
            images = random_crop(images, self.crop, crop_key) if self.crop else images
            images = random_flip(images, flip_key) if self.flip else images
        if self.mean is not None:
            images = images - jnp.asarray(self.mean, dtype)[None, None, None, :]
        if self.deviation is not None:
            images = images / jnp.asarray(self.deviation, dtype)[None, None, None, :]
        return images.reshape(x.shape)


def random_crop(images: Images, pad: int, key: Any) -> Images:
    """Pads images with zeros and cuts a window of the old size at random from each.

    `pad` zeros are added on every side.
    """
    batch, *size = images.shape
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    # from 0 to 2 pad, both included
    corners = jax.random.randint(key, (batch, 2), 0, 2 * pad + 1)

    def window(image: Float[Array, "tall wide channels"], corner: Any) -> Array:
        return lax.dynamic_slice(image, (corner[0], corner[1], jnp.zeros_like(corner[0])), size)

    return jax.vmap(window)(padded, corners)


def random_flip(images: Images, key: Any) -> Images:
    """Mirrors each image left and right with probability 1/2."""
    is_mirrored = jax.random.bernoulli(key, 0.5, images.shape[:1])
    return jnp.where(is_mirrored[:, None, None, None], images[:, :, ::-1], images)
