"""The fast layers against the plain ones: values, gradients, and under vmap and inside loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import layer_samples
from fedax.ops import LSTM, conv, convolve, max_pool
from fedax.ops.lstm import recur
from layer_samples import agree, plain_conv, plain_pool

RNG = np.random.default_rng(0)


def normal(*shape):
    return layer_samples.normal(RNG, shape, "float64")


def plain(x, kernel, stride, padding):
    return plain_conv(x, kernel, (stride, stride), padding)


def same(ours, reference, arguments):
    """Equal values, and equal gradients of a sum with random weights, by every argument."""
    leaves, structure = jax.tree.flatten(arguments)
    forms = (
        lambda *leaves, form=form: form(*jax.tree.unflatten(structure, leaves))
        for form in (ours, reference)
    )
    agree(*forms, leaves, RNG, order=1)


# rows, columns, channels, height, width, outputs, stride, padding: every form, odd sizes, oblong
# images
CONVOLUTIONS = [
    (6, 5, 2, 3, 4, 5, 1, "SAME"),
    (6, 7, 16, 3, 5, 3, 1, "VALID"),
    (8, 7, 3, 2, 3, 2, 3, "VALID"),
]


def without_extension(monkeypatch):
    monkeypatch.setattr(conv, "serves", lambda *operands: False)


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution_is_the_plain_one(case, is_native, monkeypatch):
    rows, columns, channels, height, width, outputs, stride, padding = case
    x = normal(2, rows, columns, channels)
    kernel = normal(height, width, channels, outputs)
    if not is_native:
        without_extension(monkeypatch)
    same(
        lambda x, k: convolve(x, k, stride=stride, padding=padding),
        lambda x, k: plain(x, k, stride, padding),
        (x, kernel),
    )


def test_convolution_by_hand():
    # columns 1, 2, 3 with kernel (1, 10): 1 + 20, 2 + 30; with zeros around it also 3
    x = jnp.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
    kernel = jnp.array([1.0, 10]).reshape(1, 2, 1, 1)
    assert convolve(x, kernel).ravel().tolist() == [21, 32]
    assert convolve(x, kernel, padding="SAME").ravel().tolist() == [21, 32, 3]


@pytest.mark.parametrize("mapped", [(0, None), (0, 0)])
def test_kernels_of_several_clients_are_a_matrix_product_on_gpus(mapped, monkeypatch):
    without_extension(monkeypatch)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x = normal(2, 6, 7, 3)
    kernel = normal(3, 2, 3, 4)
    operands = [
        value if axis is None else jnp.stack([value, 2 * value, value**2])
        for value, axis in zip((x, kernel), mapped)
    ]
    ours = jax.vmap(lambda x, k: convolve(x, k, stride=2, padding="SAME"), mapped)
    same(ours, jax.vmap(lambda x, k: plain(x, k, 2, "SAME"), mapped), operands)
    text = str(jax.make_jaxpr(ours)(*operands))
    assert ("dot_general" in text) == (mapped[1] is not None)
    assert ("conv_general_dilated" in text) == (mapped[1] is None)


def test_max_pool_is_the_windowed_maximum():
    same(max_pool, lambda x: plain_pool(x, (2, 2)), (normal(2, 5, 7, 2),))


def test_of_equal_pixels_the_first_gets_the_gradient():
    gradient = jax.grad(lambda x: max_pool(x).sum())(
        jnp.array([[0.0, 1], [1, 1]]).reshape(1, 2, 2, 1)
    )
    assert gradient.ravel().tolist() == [0, 1, 0, 0]


def naive(layer, x, forget_bias):
    """The cell's equations in a Python loop."""
    sigmoid = jax.nn.sigmoid
    hidden = layer.recurrent.shape[0]
    h = c = jnp.zeros((x.shape[1], hidden))
    p = jnp.zeros((3, 1, hidden)) if layer.peepholes is None else layer.peepholes[:, None, :]
    states = []
    for now in x:
        a = now @ layer.inputs + h @ layer.recurrent + layer.bias[None, :]
        a = a if layer.second_bias is None else a + layer.second_bias[None, :]
        i, f, g, o = (a[:, k * hidden : (k + 1) * hidden] for k in range(4))
        i = sigmoid(i + p[0] * c)
        f = sigmoid(f + p[1] * c + forget_bias)
        c = f * c + i * jnp.tanh(g)
        h = sigmoid(o + p[2] * c) * jnp.tanh(c)
        states.append(h)
    return jnp.stack(states)


@pytest.mark.slow
@pytest.mark.parametrize(  # without and with the extension
    ("biases", "peepholes", "forget", "hidden"),
    [(1, False, 1.0, 4), (2, False, 0.0, 21), (1, True, 0.5, 21)],
)
def test_lstm_is_its_equations(biases, peepholes, forget, hidden):
    layer = LSTM.init(
        jax.random.key(0), 3, hidden, biases=biases, peepholes=peepholes, uniform=True
    )
    same(
        lambda layer, x: layer(x, forget),
        lambda layer, x: naive(layer, x, forget),
        (layer, normal(4, 2, 3)),
    )


@pytest.mark.slow
def test_hessian_products_of_an_lstm():
    """As Per-FedAvg and the theory's estimates take them."""
    hidden = 21
    layer = LSTM.init(jax.random.key(0), 3, hidden, peepholes=True, uniform=True)
    x = normal(4, 2, 3)
    direction = jax.tree.map(lambda leaf: normal(*leaf.shape), layer)

    @partial(jax.jit, static_argnums=0)
    def products(function):
        gradient = jax.grad(lambda layer: (function(layer, x) ** 2).sum())
        return jax.vjp(gradient, layer)[1](direction)[0]

    ours, reference = (
        products(function)
        for function in (lambda own, x: own(x, 0.5), lambda own, x: naive(own, x, 0.5))
    )
    for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


def test_lstm_under_vmap_and_inside_a_loop():
    xs = normal(3, 4, 2, 8)
    kernel = normal(2, 8)
    peepholes = jnp.zeros((3, 2))
    layers = LSTM(jnp.eye(8), kernel, jnp.zeros(8))

    def gradient(function):
        return lax.map(jax.vmap(jax.grad(lambda x: (function(x) ** 2).sum())), xs[None])[0]

    ours = gradient(lambda x: recur(x, kernel, peepholes, False))
    np.testing.assert_allclose(
        ours, gradient(lambda x: naive(layers, x, 0.0)), rtol=1e-8, atol=1e-12
    )


def test_lstm_sizes_and_start():
    layer = LSTM.init(jax.random.key(0), 8, 256, biases=2, peepholes=True)
    assert [leaf.shape for leaf in jax.tree.leaves(layer)] == [
        (8, 1024),
        (256, 1024),
        (1024,),
        (1024,),
        (3, 256),
    ]
    bound = np.sqrt(6 / (264 + 1024))
    assert 0.99 * bound < np.abs(np.asarray(layer.recurrent)).max() <= bound
    assert not np.any(layer.bias)
    uniform = LSTM.init(jax.random.key(0), 8, 256, uniform=True)
    assert all(
        0.95 / 16 < np.abs(np.asarray(leaf)).max() <= 1 / 16 for leaf in jax.tree.leaves(uniform)
    )
