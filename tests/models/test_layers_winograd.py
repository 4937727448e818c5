"""Convolutions with fewer multiplications: the forms that many channels get, against XLA's."""

from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fedax.ops import convolve
from fedax.ops.extension import status
from layer_samples import agree, normal, placed, plain_conv

pytestmark = pytest.mark.skipif(not status().used, reason=status().reason)

CASES = [  # batch, rows, columns, channels, window, stride, outputs, padding
    (64, 13, 12, 33, (3, 3), 1, 30, "VALID"),
    (17, 11, 9, 40, (4, 4), 1, 37, ((2, 0), (1, 3))),
    (130, 6, 7, 32, (3, 3), 1, 32, "VALID"),  # in parts of the batch
    (10, 16, 16, 48, (3, 3), 1, 64, "SAME"),  # fewer examples than lanes
    (50, 1, 1, 40, (5, 5), 1, 40, ((4, 4), (4, 4))),  # one pixel: everything around is zeros
    # rows of outputs
    (17, 12, 9, 16, (2, 4), 1, 13, ((3, 0), (0, 2))),
    (130, 11, 21, 5, (3, 3), (2, 1), 16, "VALID"),
    (9, 7, 40, 3, (7, 5), (3, 1), 11, "SAME"),
    (50, 5, 90, 30, (4, 3), 1, 9, ((0, 7), (5, 1))),  # wide enough for several parts
]


def pair(stride, padding):
    down, right = stride if isinstance(stride, tuple) else (stride, stride)
    return partial(convolve, stride=stride, padding=padding), partial(
        plain_conv, stride=(down, right), padding=padding
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_values_and_derivatives(sizes, dtype):
    batch, rows, columns, channels, window, stride, outputs, padding = sizes
    rng = np.random.default_rng(0)
    x = normal(rng, (batch, rows, columns, channels), dtype)
    kernel = normal(rng, (*window, channels, outputs), dtype)
    agree(*pair(stride, padding), (x, kernel), rng)


def test_clients_side_by_side():
    rng = np.random.default_rng(1)
    x = normal(rng, (2, 32, 8, 8, 32), "float32")
    kernel = normal(rng, (2, 3, 3, 32, 48), "float32")
    agree(*(jax.vmap(function) for function in pair(1, "SAME")), (x, kernel), rng)


@st.composite
def shapes(draw):
    whole = st.integers
    _, _, padding, rows, columns = placed(draw, 1, 12)
    width = draw(whole(3, 5))
    height, (least, most) = draw(st.sampled_from([(width, (20, 50)), (draw(whole(1, 6)), (3, 20))]))
    rows = max(rows, height)
    columns = max(columns, width)
    batch = draw(st.sampled_from([16, 31, 50, 64, 129]))
    return (
        batch,
        rows,
        columns,
        draw(whole(least, most)),
        (height, width),
        1,
        draw(whole(least, most)),
        padding,
    )


@pytest.mark.slow
@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(shapes())
def test_any_shape(sizes):
    test_values_and_derivatives(sizes, "float32")


def test_many_channels_take_tiles():
    # what is not a number is seen by its whole tile of 4 x 4 outputs, where plain sums show it to
    # the taps that meet it
    x = jnp.ones((50, 10, 10, 32), "float32").at[:, 2, 2].set(jnp.nan)
    kernel = jnp.ones((3, 3, 32, 32), "float32")
    y = jnp.isnan(jax.jit(convolve)(x, kernel))
    assert y[:, :4, :4].all()
    assert not y[:, 4:].any()
    assert not y[:, :, 4:].any()
    few = jnp.isnan(jax.jit(convolve)(x[..., :1], kernel[:, :, :1, :2]))
    assert few[:, :3, :3].all()
    assert few.sum() == few[:, :3, :3].size


def test_few_channels_take_rows():
    # rows of four outputs see it, in the rows of outputs that meet its own
    x = jnp.ones((50, 10, 10, 8), "float32").at[:, 2, 2].set(jnp.nan)
    kernel = jnp.ones((3, 3, 8, 8), "float32")
    y = jnp.isnan(jax.jit(convolve)(x, kernel))
    assert y[:, :3, :4].all()
    assert y.sum() == y[:, :3, :4].size
