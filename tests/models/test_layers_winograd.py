"""Convolutions with fewer multiplications: the forms that many channels get, against XLA's."""

import os
import subprocess
import sys
from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fedax.models.layers import convolve
from fedax.models.layers.extension import status
from layer_samples import agree, normal, placed, plain_conv

pytestmark = pytest.mark.skipif(not status().used, reason=status().reason)

CASES = [  # batch, rows, columns, channels, taps, outputs, padding
    (50, 8, 8, 64, 3, 64, "SAME"),
    (64, 13, 12, 33, 3, 30, "VALID"),
    (50, 9, 10, 32, 5, 41, "SAME"),
    (17, 11, 9, 40, 4, 37, ((2, 0), (1, 3))),
    (130, 6, 7, 32, 3, 32, "VALID"),  # in parts of the batch
    (10, 16, 16, 48, 3, 64, "SAME"),  # fewer examples than lanes
    (50, 1, 1, 40, 5, 40, ((4, 4), (4, 4))),  # one pixel: everything around is zeros
]


def pair(stride, padding):
    return partial(convolve, stride=stride, padding=padding), partial(plain_conv, stride=(stride, stride), padding=padding)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_values_and_derivatives(sizes, dtype):
    batch, rows, columns, channels, taps, outputs, padding = sizes
    rng = np.random.default_rng(0)
    x, kernel = normal(rng, (batch, rows, columns, channels), dtype), normal(rng, (taps, taps, channels, outputs), dtype)
    agree(*pair(1, padding), (x, kernel), rng)


def test_clients_side_by_side():
    rng = np.random.default_rng(1)
    x, kernel = normal(rng, (2, 32, 8, 8, 32), "float32"), normal(rng, (2, 3, 3, 32, 48), "float32")
    agree(*(jax.vmap(function) for function in pair(1, "SAME")), (x, kernel), rng)


@st.composite
def shapes(draw):
    whole = st.integers
    taps, _, padding, rows, columns = placed(draw, 1, 12)
    taps = draw(whole(3, 5))
    rows, columns = max(rows, taps), max(columns, taps)
    batch = draw(st.sampled_from([16, 31, 50, 64, 129]))
    return batch, rows, columns, draw(whole(20, 50)), taps, draw(whole(20, 50)), padding


@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(shapes())
def test_any_shape(sizes):
    test_values_and_derivatives(sizes, "float32")


def test_many_channels_take_tiles():
    # what is not a number is seen by its whole tile of 4 x 4 outputs, where plain sums show it to the taps that meet it
    x, kernel = jnp.ones((50, 10, 10, 32), "float32").at[:, 2, 2].set(jnp.nan), jnp.ones((3, 3, 32, 32), "float32")
    y = jnp.isnan(jax.jit(convolve)(x, kernel))
    assert y[:, :4, :4].all()
    assert not y[:, 4:].any()
    assert not y[:, :, 4:].any()
    few = jnp.isnan(jax.jit(convolve)(x[..., :2], kernel[:, :, :2]))
    assert few[:, :3, :3].all()
    assert few.sum() == few[:, :3, :3].size


@pytest.mark.parametrize("level", ["plain", "avx2"])
def test_smaller_instruction_sets(level):
    if level == "avx2" and status().level == "plain":
        pytest.skip("a processor without AVX2")
    script = """
import jax, numpy as np
from fedax.models.layers import convolve
from fedax.models.layers.extension import status
assert status().level == {0!r}, status()
for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(0)
        x, kernel, y = (rng.normal(size=s).astype(dtype) for s in ((18, 9, 10, 33), (3, 3, 33, 30), (18, 9, 10, 30)))
        sides = []
        for form in ("native", "xla"):
            out, pull = jax.vjp(lambda x, k: convolve(x, k, padding="SAME", formulation=form), x, kernel)
            sides.append((out, *pull(jax.numpy.asarray(y))))
        for own, other in zip(*sides):
            assert own.dtype == dtype
            assert np.abs(own - other).max() < tolerance * np.abs(other).max()
"""
    subprocess.run([sys.executable, "-c", script.format(level)], env=os.environ | {"FEDAX_NATIVE": level}, check=True)
