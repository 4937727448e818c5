"""The extension's layers against XLA's own: derivatives of first and second order, under vmap, scan
and shard_map."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

from fedax.ops import activate, convolve, group_norm, join, lstm, max_pool
from fedax.ops.extension import status
from fedax.ops.lstm import SMALLEST, recur
from layer_samples import agree, close, normal, placed, plain_conv, plain_norm, plain_pool

native = pytest.mark.skipif(not status().used, reason=status().reason)
BATCHES = [1, 2, 3, 7, 16, 17, 50, 64, 129, 200]


def case(rng, batch, rows, columns, channels, height, width, outputs, dtype):
    return normal(rng, (batch, rows, columns, channels), dtype), normal(
        rng, (height, width, channels, outputs), dtype
    )


def both(strides, padding):
    return (
        partial(convolve, stride=strides, padding=padding),
        partial(plain_conv, stride=strides, padding=padding),
    )


@st.composite
def shapes(draw):
    whole = st.integers
    height, width, padding, rows, columns = placed(draw, 5, 13)
    sizes = (
        draw(st.sampled_from(BATCHES)),
        rows,
        columns,
        draw(whole(1, 20)),
        height,
        width,
        draw(whole(1, 20)),
    )
    return *sizes, (draw(whole(1, 4)), draw(whole(1, 4))), draw(st.sampled_from([padding, "SAME"]))


@native
@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(shapes(), st.sampled_from(["float32", "float64"]))
def test_convolution_of_any_shape(sizes, dtype):
    rng = np.random.default_rng(0)
    # bilinear: the second is made of the first
    agree(*both(*sizes[7:]), case(rng, *sizes[:7], dtype), rng, order=1)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (2, 3)])
def test_convolution_under_vmap(mapped):
    rng = np.random.default_rng(1)
    x, kernel = case(rng, 5, 6, 5, 3, 3, 2, 4, "float64")
    x, kernel = (
        value
        if axis is None
        else jnp.moveaxis(jnp.stack([value, 2 * value + 1, value**2]), 0, axis)
        for value, axis in zip((x, kernel), mapped)
    )
    ours, plain = (jax.vmap(f, mapped) for f in both((2, 1), "SAME"))
    agree(ours, plain, (x, kernel), rng)


@pytest.mark.slow
def test_third_derivatives():
    rng = np.random.default_rng(2)
    x, kernel = case(rng, 2, 4, 4, 2, 3, 3, 2, "float64")

    def third(f):
        def along(order, x):
            if order == 0:
                return (f(f(x, kernel), kernel) ** 3).sum()
            return jnp.vdot(jax.grad(partial(along, order - 1))(x), x)

        return jax.grad(partial(along, 2))(x)

    close(*(third(f) for f in both((1, 1), "SAME")))


def test_operations_one_by_one():
    rng = np.random.default_rng(3)
    ours, plain = both((1, 1), "SAME")
    operands = case(rng, 2, 4, 4, 2, 3, 3, 2, "float64")
    with jax.disable_jit():
        found = ours(*operands)
    close(found, plain(*operands))


def network(conv, pool, norm):
    """A small network with all layers, and its loss."""

    def loss(params, x):
        kernel, bias, scale, second = params
        h = pool(conv(x, kernel), bias)
        return (conv(jnp.tanh(norm(h, scale, bias)), second) ** 2).mean()

    return loss


OURS = network(
    partial(convolve, padding="SAME"),
    partial(activate, window=2),
    lambda x, a, b: group_norm(x, a, b, 2),
)
PLAIN = network(
    lambda x, k: plain_conv(x, k, (1, 1), "SAME"),
    lambda x, b: jax.nn.relu(plain_pool(x + b[None, None, None, :], (2, 2))),
    lambda x, a, b: plain_norm(x, a, b, 2),
)


def parameters(rng, dtype):
    return tuple(normal(rng, shape, dtype) for shape in [(3, 3, 2, 4), (4,), (4,), (2, 2, 4, 3)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_descent_with_curvature_inside_scan_and_vmap(dtype):
    rng = np.random.default_rng(3)
    params = tuple(jnp.stack([p, p[..., ::-1]]) for p in parameters(rng, dtype))
    xs = normal(rng, (2, 3, 5, 7, 6, 2), dtype)  # clients, steps, batch, rows, columns, channels

    def descent(loss):
        def step(params, x):
            gradient = jax.grad(loss)(params, x)
            curvature = jax.vjp(lambda p: jax.grad(loss)(p, x), params)[1](gradient)[0]
            return tuple(
                p - 0.01 * g + 0.001 * c for p, g, c in zip(params, gradient, curvature)
            ), None

        return jax.jit(jax.vmap(lambda params, xs: lax.scan(step, params, xs)[0]))(params, xs)

    for own, other in zip(descent(OURS), descent(PLAIN)):
        close(own, other)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pooling_with_bias_and_relu(dtype):
    shape = (17, 7, 8, 3)
    window = (3, 2)
    rng = np.random.default_rng(5)
    x = normal(rng, shape, dtype)
    bias = normal(rng, shape[3:], dtype)

    def plain(x, bias):
        return jax.nn.relu(plain_pool(x, window) + bias[None, None, None, :])

    agree(partial(activate, window=window), plain, (x, bias), rng)
    agree(partial(max_pool, window=window), lambda x: plain_pool(x, window), (x,), rng)


@st.composite
def recurrences(draw):
    whole = st.integers
    return (
        draw(whole(1, 3)),
        draw(whole(1, 6)),
        draw(whole(1, 40)),
        draw(whole(SMALLEST, 70)),
        draw(st.booleans()),
    )


def check_recurrence(sizes, dtype, spread=1.0):
    groups, steps, batch, hidden, peep = sizes
    rng = np.random.default_rng(0)
    projected = spread * normal(rng, (groups, steps, batch, 4 * hidden), dtype)
    kernel = normal(rng, (groups, hidden, 4 * hidden), dtype) / np.sqrt(hidden).astype(dtype)
    peepholes = normal(rng, (groups, 3, hidden), dtype)
    gradient = normal(rng, (groups, steps, batch, hidden), dtype)

    def results(smallest):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lstm, "SMALLEST", smallest)
            run = partial(recur, peep=peep)
            states, pullback = jax.vjp(jax.vmap(run), projected, kernel, peepholes)
            return states, *pullback(gradient)

    for mine, plain in zip(results(SMALLEST), results(1000), strict=True):
        close(mine, plain)


@native
@pytest.mark.slow
@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(recurrences(), st.sampled_from(["float32", "float64"]))
def test_recurrence_of_any_shape(sizes, dtype):
    check_recurrence(sizes, dtype)


@pytest.mark.slow
@native
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saturated_gates_are_one_and_zero(dtype):
    """The flat ends of the hyperbolic tangent, and arguments near zero, where it must not
    cancel."""
    at = jnp.asarray(
        [-1e4, -40, -9.2, -9, -1, -1e-3, -1e-20, 0, 1e-20, 1e-5, 0.3, 5, 9, 9.2, 40, np.inf], dtype
    )
    projected = jnp.zeros((1, 1, 64), dtype).at[..., 32:48].set(at)
    zeros = jnp.zeros((16, 64), dtype), jnp.zeros((3, 16), dtype)
    gates = lstm._states((projected, *zeros), False)[2][0, 0]
    np.testing.assert_allclose(
        gates[32:48], np.tanh(np.asarray(at, "float64")), rtol=4 * np.finfo(dtype).eps
    )
    np.testing.assert_array_equal(gates[:32], 0.5)
    assert jnp.isnan(recur(projected * jnp.nan, *zeros, False)).all()


@pytest.mark.slow
@native
@pytest.mark.parametrize("mapped", [(0, None), (2, 1)])
def test_recurrence_under_vmap(mapped):
    rng = np.random.default_rng(11)
    projected = normal(rng, (3, 4, 80), "float64")
    kernel = normal(rng, (20, 80), "float64") / 4
    operands = [
        value if axis is None else jnp.moveaxis(jnp.stack([value, 2 * value]), 0, axis)
        for value, axis in zip((projected, kernel), mapped)
    ]
    results = []
    for smallest in (SMALLEST, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lstm, "SMALLEST", smallest)

            def loss(projected, kernel):
                return (recur(projected, kernel, jnp.zeros((3, 20)), False) ** 2).sum()

            results.append(jax.jit(jax.vmap(jax.value_and_grad(loss, (0, 1)), mapped))(*operands))
    for own, other in zip(*map(jax.tree.leaves, results), strict=True):
        close(own, other)


def plain_join(x, shortcut, stride):
    missing = x.shape[3] - shortcut.shape[3]
    return jax.nn.relu(
        x + jnp.pad(shortcut[:, ::stride, ::stride], ((0, 0),) * 3 + ((0, missing),))
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_join_with_a_shortcut(dtype):
    shape = (17, 3, 2, 4)
    shortcut = (17, 6, 3, 2)
    stride = 2
    rng = np.random.default_rng(10)
    arguments = normal(rng, shape, dtype), normal(rng, shortcut, dtype)
    agree(partial(join, stride=stride), partial(plain_join, stride=stride), arguments, rng)
    together = tuple(jnp.stack([x, x[::-1]]) for x in arguments)
    close(
        jax.vmap(partial(join, stride=stride))(*together),
        jax.vmap(partial(plain_join, stride=stride))(*together),
    )


def test_what_is_not_a_number_is_kept():
    x = jnp.array([[jnp.nan, 1.0], [2.0, 3.0]]).reshape(1, 2, 2, 1)
    assert jnp.isnan(max_pool(x)).all()
    assert jnp.isnan(max_pool(x[:, ::-1])).all()
    assert jnp.isnan(activate(x, jnp.zeros(1), 2)).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_group_norm(dtype):
    shape = (130, 2, 3, 6)
    groups = 3
    rng = np.random.default_rng(7)
    arguments = (
        normal(rng, shape, dtype) + 2,
        normal(rng, shape[3:], dtype),
        normal(rng, shape[3:], dtype),
    )
    agree(lambda *a: group_norm(*a, groups), lambda *a: plain_norm(*a, groups), arguments, rng)


def test_a_large_mean_does_not_spoil_the_variance():
    x = jnp.asarray(np.random.default_rng(9).normal(size=(3, 16, 16, 4)) + 1000, "float32")
    ours = group_norm(x, jnp.ones(4, "float32"), jnp.zeros(4, "float32"), 2)
    exact = plain_norm(x.astype("float64"), jnp.ones(4), jnp.zeros(4), 2)
    np.testing.assert_allclose(ours, exact, atol=1e-3)


@pytest.mark.slow
@native
@pytest.mark.parametrize("level", ["0", "plain", "avx2"])
def test_other_instruction_sets(level):
    """The fast tests of layers in a process with fewer instructions, or without the extension."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-k",
        "layers",
        Path(__file__).parent,
    ]
    subprocess.run(command, env=os.environ | {"FEDAX_NATIVE": level}, check=True)
