"""Convolutional, residual and recurrent models: published counts, starting points, forward passes,
dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedax
from fedax.models import (
    CNN,
    MLP,
    CharLSTM,
    ResNet,
    SentimentLSTM,
    Stage,
    cifar_cnn,
    lenet,
    mnist_cnn,
    parameter_count,
)
from fedax.tasks.from_model import OfOutputs, cross_entropy
from fedax.utils.leaf_names import chosen
from marks import slow

RNG = np.random.default_rng(0)
BATCH = 16


def outputs(model, params, x, key=None):
    return model.apply(params, None, x, key)[0]


def images(*shape):
    return RNG.random((BATCH, *shape))


def words(vocabulary):
    return RNG.integers(0, vocabulary, (BATCH, 12)).astype(np.int32)


PUBLISHED = {  # model: parameters of the paper, and for some inputs and classes
    "mlp": (MLP((784, 128, 10), dropout=0.5), 101_770, images(784), 10),
    "softmax": (fedax.models.Softmax(60, 10), 610),
    "2nn": (MLP((784, 200, 200, 10)), 199_210),
    "mnist cnn": (mnist_cnn(), 1_663_370, images(784), 10),
    "lenet": (lenet(), 62_006),
    "cifar cnn": (cifar_cnn(), 122_570),
    "resnet": (ResNet(), 269_722, images(32, 32, 3), 10),
    "lstm": (CharLSTM(80), 817_872, words(80), 80),
    "pytorch lstm": (CharLSTM(80, biases=2, start="uniform"), 819_920),
    "peephole lstm": (CharLSTM(258, peepholes=True), 866_578),
    "sentiment": (SentimentLSTM(), 243_861, RNG.normal(size=(BATCH, 25, 300)) / 3, 2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    """And of all layers one, with two arrays, is the last; of a single layer it is the bias."""
    model, count, *_ = PUBLISHED[name]
    assert parameter_count(model) == count
    params = jax.eval_shape(model.init, jax.random.key(0))[0]
    assert sum(chosen(params, "last", "head")) == 1 + (name != "softmax")
    assert hash(model) == hash(type(model)(**vars(model)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "mnist cnn", "resnet", "lstm", "sentiment"])
def test_at_the_start_all_classes_are_about_equally_likely(name):
    model, _, x, classes = PUBLISHED[name]
    examples = {"x": jnp.asarray(x), "y": jnp.asarray(np.arange(BATCH) % classes, jnp.int32)}
    loss = OfOutputs(model, cross_entropy)
    losses = jax.jit(lambda key: loss(model.init(key)[0], examples, None))(jax.random.key(1))
    assert abs(losses.mean() - np.log(classes)) < 0.25


def plain_convolution(x, layer, padding):
    y = lax.conv_general_dilated(
        x, layer.kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + layer.bias.reshape(1, 1, 1, -1)


@pytest.mark.parametrize("padding", ["SAME", slow("VALID")])
def test_cnn_forward(padding):
    model = CNN((9, 10, 2), (Stage(3, 3), Stage(4, 2, pool=False)), (5,), 3, padding=padding)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), model.init(jax.random.key(0))[0]
    )
    x = jnp.asarray(RNG.normal(size=(2, 9, 10, 2)))

    @jax.jit
    def plain(params, x):
        h = jax.nn.relu(plain_convolution(x, params.convolutions[0], padding))
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jax.nn.relu(plain_convolution(h, params.convolutions[1], padding)).reshape(2, -1)
        return params.dense[1](jax.nn.relu(params.dense[0](h)))

    expected = plain(params, x)
    forward = jax.jit(lambda p, x: outputs(model, p, x))
    np.testing.assert_allclose(forward(params, x), expected, rtol=1e-9)
    np.testing.assert_allclose(forward(params, x.reshape(2, -1)), expected, rtol=1e-9)


def test_he_start_of_the_cifar_cnn():
    params = jax.jit(cifar_cnn().init)(jax.random.key(0))[0]
    kernel, dense = (
        np.asarray(layer.kernel) for layer in (params.convolutions[1], params.dense[0])
    )
    for values, variance in ((kernel, 2 / (9 * 64)), (dense, 1e-4)):  # 5 standard errors
        assert abs(values.mean()) < 5 * np.sqrt(variance / values.size)
        assert abs(values.var() - variance) < 5 * variance * np.sqrt(2 / values.size)
    assert not any(np.any(layer.bias) for layer in (*params.convolutions, *params.dense))


@pytest.mark.slow
def test_resnet_forward():
    model = ResNet(blocks=1, width=2, groups=1, classes=3, shape=(8, 8, 1))
    params = jax.tree.map(
        lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), model.init(jax.random.key(0))[0]
    )
    x = jnp.asarray(RNG.normal(size=(2, 8, 8, 1)))

    def normed(x, layer, stride):
        pads = [(1, 1)] * 2 if stride == 1 else [(0, 1)] * 2
        y = lax.conv_general_dilated(
            x, layer.kernel, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        z = (y - y.mean((1, 2, 3), keepdims=True)) / jnp.sqrt(
            y.var((1, 2, 3), keepdims=True) + 1e-5
        )
        return z * layer.norm.scale.reshape(1, 1, 1, -1) + layer.norm.offset.reshape(1, 1, 1, -1)

    @jax.jit
    def plain(params, x):
        h = jax.nn.relu(normed(x, params.first, 1))
        for (one, two), stride in zip(params.blocks, (1, 2, 2), strict=True):
            shortcut = h
            if stride == 2:  # option A
                shortcut = jnp.concatenate([h[:, ::2, ::2], jnp.zeros_like(h[:, ::2, ::2])], 3)
            h = jax.nn.relu(normed(jax.nn.relu(normed(h, one, stride)), two, 1) + shortcut)
        return params.last(h.mean((1, 2)))

    np.testing.assert_allclose(
        jax.jit(lambda p, x: outputs(model, p, x))(params, x), plain(params, x), rtol=1e-8
    )


@pytest.mark.slow
def test_char_lstm_reads_its_vectors_in_order():
    model = CharLSTM(5, vectors=3, hidden=4)
    params = model.init(jax.random.key(0))[0]
    x = jnp.array([[0, 4, -1], [2, 2, 1]], jnp.int32)
    h = jnp.where((x >= 0)[:, :, None], params.embedding[x], 0)
    for layer in params.layers:
        h = layer(h.transpose(1, 0, 2), 1.0).transpose(1, 0, 2)
    np.testing.assert_allclose(outputs(model, params, x), params.last(h[:, -1]), rtol=1e-9)


def test_dropout_acts_with_a_key_only():
    model = MLP((50, 4000, 2), dropout=0.25)
    params = model.init(jax.random.key(0))[0]
    x = jnp.asarray(RNG.random((1, 50)))
    plain = MLP((50, 4000, 2))
    assert np.array_equal(outputs(model, params, x), outputs(plain, params, x))
    assert np.array_equal(outputs(plain, params, x, jax.random.key(1)), outputs(plain, params, x))
    dropped = [outputs(model, params, x, jax.random.key(seed)) for seed in (1, 2, 1)]
    assert np.array_equal(dropped[0], dropped[2])
    assert not np.array_equal(dropped[0], dropped[1])
    # one hidden unit of value 1 and output 1: each is 0 or 4/3, so that the sum over 4000 has mean
    # 4000, variance 4000/3
    ones = jax.tree.map(jnp.ones_like, params)
    ones = (ones[0]._replace(bias=0 * ones[0].bias), ones[1]._replace(bias=0 * ones[1].bias))
    total = float(outputs(model, ones, jnp.full((1, 50), 0.02), jax.random.key(3))[0, 0])
    assert total * 3 / 4 == pytest.approx(round(total * 3 / 4))
    assert 0 < abs(total - 4000) < 5 * np.sqrt(4000 / 3)
