"""Convolutions with bias, ReLU and pooling in one operation, whose gradients read the winners of
the windows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedax.models import lenet
from fedax.ops import convolve_activate
from fedax.ops.extension import status
from layer_samples import agree, close, normal, plain_conv, plain_pool

native = pytest.mark.skipif(not status().used, reason=status().reason)

CASES = [  # batch, rows, columns, channels, kernel, outputs, window, stride, padding
    (17, 9, 12, 20, (3, 2), 7, (3, 1), 2, "SAME"),
    (130, 6, 7, 2, (3, 3), 3, (2, 3), 1, ((1, 0), (0, 2))),  # columns that fill no window
    (20, 8, 8, 32, (3, 3), 32, (2, 2), 1, "SAME"),  # with fewer multiplications
    # images' gradients by regions, of blocks of channels
    (16, 9, 9, 33, (4, 4), 20, (2, 2), 1, ((3, 0), (0, 2))),
    (17, 13, 9, 6, (5, 5), 20, (2, 2), 1, "VALID"),  # and of columns side by side
    (50, 40, 41, 3, (3, 3), 40, (2, 2), 1, "SAME"),  # outputs pooled some rows at a time
    (5, 3, 3, 2, (2, 2), 3, (4, 4), 1, "VALID"),  # no window fits
]


def written(x, kernel, bias, window, stride, padding):
    y = plain_conv(x, kernel, (stride, stride), padding) + bias[None, None, None, :]
    return jax.nn.relu(plain_pool(y, window))


def case(sizes, dtype, seed=0):
    batch, rows, columns, channels, (height, width), outputs, window, stride, padding = sizes
    rng = np.random.default_rng(seed)
    shapes = (batch, rows, columns, channels), (height, width, channels, outputs), (outputs,)
    how = {"window": window, "stride": stride, "padding": padding}
    return (
        tuple(normal(rng, shape, dtype) for shape in shapes),
        partial(convolve_activate, **how),
        partial(written, **how),
        rng,
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
# how many windows have a winner: lists and plain sums
@pytest.mark.parametrize("shift", [0.0, -8.0])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_values_and_derivatives(sizes, shift, dtype):
    (x, kernel, bias), ours, plain, rng = case(sizes, dtype)
    operands = x, kernel, bias + jnp.asarray(shift, dtype)
    agree(ours, plain, operands, rng)
    agree(
        lambda k, b: ours(operands[0], k, b),
        lambda k, b: plain(operands[0], k, b),
        operands[1:],
        rng,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [(0, None, None), (0, 0, 0), (None, 0, 0)])
def test_under_vmap(mapped):
    operands, ours, plain, rng = case((4, 6, 6, 3, (3, 3), 4, (2, 2), 1, "VALID"), "float64")
    batched = tuple(
        x if axis is None else normal(rng, (3, *x.shape), "float64")
        for x, axis in zip(operands, mapped)
    )
    agree(jax.vmap(ours, mapped), jax.vmap(plain, mapped), batched, rng)


def test_in_a_scan_on_several_devices():
    (x, kernel, bias), ours, plain, _ = case((8, 8, 8, 3, (3, 3), 4, (2, 2), 1, "SAME"), "float32")

    def steps(function, x, kernel, bias):
        def step(params, _):
            gradient = jax.grad(lambda p: (function(x, *p) ** 2).mean())(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), None

        return jax.lax.scan(step, (kernel, bias), length=3)[0]

    def part(x, kernel, bias):
        return jax.tree.map(lambda p: jax.lax.pmean(p, "clients"), steps(ours, x, kernel, bias))

    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    specs = {"in_specs": (P("clients"), P(), P()), "out_specs": P()}
    spread = jax.shard_map(part, mesh=mesh, check_vma=False, **specs)
    halves = [steps(plain, half, kernel, bias) for half in (x[:4], x[4:])]
    for own, *others in zip(jax.jit(spread)(x, kernel, bias), *halves, strict=True):
        close(own, sum(others) / 2)


@native
def test_no_gradient_of_all_outputs_is_written():
    model = lenet()
    x = jnp.ones((8, 3072))
    params = model.init(jax.random.key(0))[0]

    def loss(params):
        return model.apply(params, None, x, None)[0].sum()

    text = jax.jit(jax.grad(loss)).lower(params).compile().as_text()
    # two blocks, two gradients of kernels and one of images: none of the data
    assert text.count('custom_call_target="fedax_convolve"') == 5
    assert "scatter" not in text
