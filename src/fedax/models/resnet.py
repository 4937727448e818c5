"""Residual networks for small images."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Key

from fedax.models.base import Logits, Sized
from fedax.models.convolutional import as_images
from fedax.models.dense import Affine, narrow_normal
from fedax.ops import GroupNorm, convolve, join
from fedax.ops.conv import Images, Kernel, fan_out_normal, lay_images


class Normed(NamedTuple):
    """A convolution without bias and the normalisation behind it."""

    kernel: Kernel
    norm: GroupNorm

    @classmethod
    def init(cls, key: Key[Array, ""], channels: int, outputs: int) -> "Normed":
        return cls(fan_out_normal(key, (3, 3, channels, outputs)), GroupNorm.init(outputs))

    def __call__(
        self,
        x: Images,
        groups: int,
        shortcut: Images | None = None,
        *,
        stride: int = 1,
        every: int = 1,
    ) -> Images:
        """Applies convolution, norm, shortcut (every `every`-th pixel) and ReLU."""
        normed = self.norm(convolve(x, self.kernel, stride=stride, padding="SAME"), groups)
        return jax.nn.relu(normed) if shortcut is None else join(normed, shortcut, every)


class ResNetParams(NamedTuple):
    """The first convolution, two for each block, and the classifier."""

    first: Normed
    blocks: tuple[tuple[Normed, Normed], ...]
    last: Affine


@dataclass(frozen=True)
class ResNet(Sized):
    r"""Residual network of He et al. for small images; `ResNet()` is ResNet-20.

    As in arXiv:1512.03385, section 4.2.

    Three groups of `blocks` blocks with 1, 2 and 4 times `width` channels; between groups, pixels
    are halved and the shortcut takes every second pixel and fills the new channels with zeros
    (option A). The depth is 6 `blocks` + 2.

    Group normalisation replaces batch normalisation, with as many parameters. Batch
    normalisation makes the loss of an example depend on its minibatch, and keeps running statistics
    that are no part of the flat model and that clients with different data cannot share; it fails
    on data that are not IID (Hsieh et al., arXiv:1910.00189, who propose this cure). Group
    normalisation depends on the example alone, in training as in evaluation.

    Args:
        blocks: in each of the three groups, at least 1.
        width: channels of the first group, at least 1.
        groups: of channels in the normalisation; a divisor of `width`. 1 normalises over all
            channels.
        classes: at least 1.
        shape: rows, columns and channels of an image.

    Raises:
        InvalidInput: an argument out of range.

    >>> from fedax.models import parameter_count
    >>> parameter_count(ResNet())
    269722
    """

    blocks: int = 3
    width: int = 16
    groups: int = 2
    classes: int = 10
    shape: tuple[int, int, int] = (32, 32, 3)

    def init(self, key: Key[Array, ""]) -> tuple[ResNetParams, None]:
        """Draws convolutions normal with variance 2 / fan out, as He et al. do.

        Scales are 1, offsets 0, and the classifier is narrow.
        """
        # channels after each block: 1, 2 and 4 times the width
        outputs = [self.width * 2 ** (k // self.blocks) for k in range(3 * self.blocks)]
        inputs = [self.width, *outputs]
        # two convolutions for each block
        first, last, *keys = jax.random.split(key, 2 + 2 * len(outputs))
        blocks = [
            (Normed.init(a, before, after), Normed.init(b, after, after))
            for a, b, before, after in zip(keys[::2], keys[1::2], inputs, outputs)
        ]
        # narrow, because the sum over blocks is large: classes are about equally likely at first
        classifier = Affine.init(last, outputs[-1], self.classes, narrow_normal)
        head = Normed.init(first, self.shape[2], self.width)
        return ResNetParams(head, tuple(blocks), classifier), None

    def apply(self, params: ResNetParams, state: None, x: Any, key: Any) -> Logits:
        """Returns the logits of a batch, and no state."""
        h = lay_images(as_images(x, self.shape, params.last.kernel.dtype))
        h = params.first(h, self.groups)
        for first, second in params.blocks:
            stride = second.kernel.shape[2] // h.shape[3]  # 2 where the channels double
            inner = first(h, self.groups, stride=stride)
            h = second(inner, self.groups, shortcut=h, every=stride)
        return params.last(h.mean((1, 2))), None
