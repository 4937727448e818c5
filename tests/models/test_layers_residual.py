"""The end of a residual block in one pass: group normalisation, a shortcut and ReLU, against their
plain forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedax.core import InvalidInput
from fedax.ops import residual
from fedax.ops.norm import gradient_p
from layer_samples import agree, close, normal, plain_norm

SHAPES = [  # images, shortcut, stride, groups
    ((1, 3, 2, 2), None, 1, 1),
    ((17, 5, 4, 6), None, 1, 3),
    ((50, 6, 7, 4), (50, 6, 7, 4), 1, 2),
    ((3, 4, 4, 6), (3, 4, 4, 2), 1, 2),
    ((17, 3, 2, 4), (17, 6, 3, 2), 2, 2),
    ((130, 2, 3, 4), (130, 5, 7, 4), 3, 4),
]


def plain(x, scale, offset, *shortcut, groups, stride):
    y = plain_norm(x, scale, offset, groups)
    if shortcut:
        missing = x.shape[3] - shortcut[0].shape[3]
        y = y + jnp.pad(shortcut[0][:, ::stride, ::stride], ((0, 0),) * 3 + ((0, missing),))
    return jax.nn.relu(y)


def twofold(function):
    """Depends on both uses, so that both have a gradient and they differ."""

    def total(*operands):
        out, again = function(*operands)
        return out + jnp.sin(again) * 0.3

    return total


def ours(groups, stride):
    return lambda *operands: residual(*operands[:3], groups, *operands[3:], stride=stride)


def case(shape, shortcut, dtype, seed):
    rng = np.random.default_rng(seed)
    sizes = [shape, shape[3:], shape[3:], *([shortcut] if shortcut else [])]
    return tuple(normal(rng, size, dtype) for size in sizes), rng


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "shortcut", "stride", "groups"), SHAPES)
def test_values_and_derivatives(shape, shortcut, stride, groups, dtype):
    operands, rng = case(shape, shortcut, dtype, 0)
    written = partial(plain, groups=groups, stride=stride)
    agree(twofold(ours(groups, stride)), twofold(lambda *a: (written(*a),) * 2), operands, rng)
    agree(lambda *a: ours(groups, stride)(*a)[0], written, operands, rng)
    agree(lambda *a: ours(groups, stride)(*a)[1], written, operands, rng)


@pytest.mark.parametrize(
    "mapped", [(0, None, None, 0), (None, 0, None, None), (0, 0, 0, 0), (None, None, None, 0)]
)
def test_under_vmap(mapped):
    rng = np.random.default_rng(1)
    sizes = [(3, 2, 3, 4, 6), (3, 6), (3, 6), (3, 2, 6, 8, 4)]
    operands = tuple(
        normal(rng, size[axis is None :], "float64") for size, axis in zip(sizes, mapped)
    )
    written = partial(plain, groups=2, stride=2)
    mine, other = twofold(ours(2, 2)), twofold(lambda *a: (written(*a),) * 2)
    agree(jax.vmap(mine, mapped), jax.vmap(other, mapped), operands, rng)


@pytest.mark.parametrize("stride", [1, 2])
def test_in_a_scan_on_several_devices(stride):
    operands, rng = case((4, 6, 5, 4), (4, 6 * stride, 5 * stride, 4), "float32", 2)
    weights = normal(rng, operands[0].shape, "float32")

    def steps(function, *operands):
        def loss(x):
            out, again = function(x, *operands[1:])
            return (weights[: x.shape[0]] * (out + again * again)).sum()

        return jax.lax.scan(
            lambda x, _: (x - 0.1 * jax.grad(loss)(x), None), operands[0], length=3
        )[0]

    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    spread = jax.shard_map(
        partial(steps, ours(2, stride)),
        mesh=mesh,
        in_specs=(P("clients"), P(), P(), P("clients")),
        out_specs=P("clients"),
    )
    weights = jnp.concatenate([weights[:2]] * 2)
    close(
        jax.jit(spread)(*operands),
        steps(lambda *a: (plain(*a, groups=2, stride=stride),) * 2, *operands),
    )


def test_gradients_of_two_uses_are_added_where_they_are_read():
    operands, _ = case((4, 6, 5, 4), (4, 6, 5, 4), "float32", 3)
    program = jax.make_jaxpr(jax.grad(lambda *a: twofold(ours(2, 1))(*a).sum()))(*operands)
    (gradient,) = [eqn for eqn in program.eqns if eqn.primitive is gradient_p]
    assert len(gradient.invars) == 7  # image, mean, rate, scale, two gradients, outputs


def test_what_is_not_a_number_is_kept():
    x = jnp.ones((2, 3, 3, 2)).at[0, 0, 0, 0].set(jnp.nan)
    out = residual(x, jnp.ones(2), jnp.ones(2), 2, jnp.ones((2, 3, 3, 2)))[0]
    assert jnp.isnan(out[0, :, :, 0]).all()
    assert jnp.isfinite(out[1]).all()
    assert jnp.isfinite(out[0, :, :, 1]).all()


def test_sizes_that_do_not_fit_are_refused():
    x = jnp.ones((1, 3, 3, 2))
    with pytest.raises(InvalidInput, match=r"residual\(x, shortcut, stride\): got"):
        residual(x, jnp.ones(2), jnp.ones(2), 1, jnp.ones((1, 4, 4, 2)), 2)
    with pytest.raises(InvalidInput, match=r"residual\(x, shortcut, stride\): got"):
        residual(x, jnp.ones(2), jnp.ones(2), 1, x, 0)
    with pytest.raises(InvalidInput, match=r"residual\(groups=\.\.\.\): got 3"):
        residual(x, jnp.ones(2), jnp.ones(2), 3)
