"""Softmax regression and multilayer perceptrons: counts, starting points, forward passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.models import MLP, Softmax


def test_kernels_come_before_biases():
    shapes = [leaf.shape for leaf in jax.tree.leaves(MLP((5, 4, 3)).init(jax.random.key(0))[0])]
    assert shapes == [(5, 4), (4,), (4, 3), (3,)]
    assert [leaf.shape for leaf in jax.tree.leaves(Softmax(5, 3).init(jax.random.key(0))[0])] == [
        (5, 3),
        (3,),
    ]


def test_kernels_start_glorot_uniform_and_biases_at_zero():
    first, second = MLP((300, 200, 100)).init(jax.random.key(3))[0]
    for layer, bound in ((first, np.sqrt(6 / 500)), (second, np.sqrt(6 / 300))):
        kernel = np.asarray(layer.kernel)
        # Uniform on [-bound, bound]: mean 0, variance bound^2 / 3, that of the squares 4 bound^4 /
        # 45; 5 standard errors.
        assert np.abs(kernel).max() <= bound
        assert abs(kernel.mean()) < 5 * bound / np.sqrt(3 * kernel.size)
        assert abs((kernel**2).mean() - bound**2 / 3) < 5 * bound**2 * np.sqrt(4 / 45 / kernel.size)
        assert not layer.bias.any()
    again, other = (Softmax(4, 3).init(jax.random.key(seed))[0].kernel for seed in (3, 4))
    assert np.array_equal(again, Softmax(4, 3).init(jax.random.key(3))[0].kernel)
    assert not np.array_equal(again, other)


@pytest.mark.parametrize("wide", [False, True])
def test_parameters_have_the_default_float_type(wide):
    with jax.enable_x64(wide):
        for model in (Softmax(3, 2), MLP((3, 4, 2))):
            params = model.init(jax.random.key(0))[0]
            expected = jnp.float64 if wide else jnp.float32
            assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(expected)}
            assert model.apply(params, None, jnp.ones((5, 3)), None)[0].dtype == expected


def test_mlp_forward_has_no_activation_on_top():
    model = MLP((4, 6, 5, 3))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), model.init(jax.random.key(0))[0]
    )
    x = rng.normal(size=(50, 4))
    hidden = x
    for W, b in params[:-1]:
        hidden = np.maximum(hidden @ np.asarray(W) + np.asarray(b), 0)
    expected = hidden @ np.asarray(params[-1].kernel) + np.asarray(params[-1].bias)
    assert (expected < 0).any()
    np.testing.assert_allclose(
        model.apply(params, None, jnp.asarray(x), None)[0], expected, rtol=1e-9
    )
