"""PyTorch's operators where their formulas have no derivative, and its norms of padded batches;
without PyTorch, whose gradients are written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.core import InvalidInput
from fedax.tasks.own_models.outputs import Network
from fedax.tasks.own_models.padding import leaves_padding_out
from fedax.tasks.own_models.torch_modules.layers import CONTEXTUAL, Context
from fedax.tasks.own_models.torch_modules.operators import OPERATORS


@pytest.fixture(autouse=True)
def _as_exported_programs_run():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


ROOTS = {
    "norm": lambda x: OPERATORS["linalg_vector_norm.default"](x, 2, [1]),
    "norm of order 3": lambda x: OPERATORS["linalg_vector_norm.default"](x, 3, [1]),
    "norm of order 1/2": lambda x: OPERATORS["linalg_vector_norm.default"](x, 0.5, [1]),
    "std": lambda x: OPERATORS["std.correction"](x, [1], correction=1),
}


@pytest.mark.parametrize("name", ROOTS)
def test_roots_of_zero_have_the_gradient_zero(name):
    x = jnp.array([[0.0, 0.0, 0.0], [3.0, -4.0, 1.0]], jnp.float32)
    values, pull = jax.vjp(ROOTS[name], x)
    (gradient,) = pull(jnp.ones_like(values))
    assert values[0] == 0
    np.testing.assert_array_equal(gradient[0], 0)
    # elsewhere nothing changes
    size, sign = np.abs(x[1]), np.sign(x[1])
    expected = {
        "norm": x[1] / np.sqrt(26),
        "norm of order 3": sign * size**2 / np.sum(size**3) ** (2 / 3),
        "norm of order 1/2": sign * size**-0.5 * np.sum(size**0.5),
        "std": (x[1] - x[1].mean()) / (2 * np.std(x[1], ddof=1)),
    }[name]
    np.testing.assert_allclose(gradient[1], expected, rtol=1e-5)


def test_a_normalized_row_of_zeros_has_a_finite_gradient():
    def normalize(x):
        """As PyTorch exports `functional.normalize(x)`."""
        norm = OPERATORS["linalg_vector_norm.default"](x, 2, [1], True)
        return x / OPERATORS["clamp.default"](norm, 1e-12)

    x = jnp.zeros((1, 3), jnp.float32)
    gradient = jax.grad(lambda x: (normalize(x) * jnp.arange(3.0, dtype=x.dtype)).sum())(x)
    np.testing.assert_allclose(gradient, [[0.0, 1e12, 2e12]], rtol=1e-6)


BORDERS = {
    "clamp(min=0)": (lambda x: OPERATORS["clamp.default"](x, 0), [0.0], [1.0]),
    "clamp(max=2)": (lambda x: OPERATORS["clamp.default"](x, max=2), [2.0], [1.0]),
    "clamp": (lambda x: OPERATORS["clamp.default"](x, -1, 1), [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0]),
    "hardtanh": (OPERATORS["hardtanh.default"], [-2, -1, 0, 1, 2], [0, 0, 1, 0, 0]),
    "relu6": (OPERATORS["relu6.default"], [-1, 0, 3, 6, 7], [0, 0, 1, 0, 0]),
    "hardsigmoid": (OPERATORS["hardsigmoid.default"], [-3, 0, 3], [0, 1 / 6, 0]),
    "hardswish": (OPERATORS["hardswish.default"], [-3, 0, 3], [0, 0.5, 1]),
    "elu": (lambda x: OPERATORS["elu.default"](x, 2.0), [0.0, 1.0], [2.0, 1.0]),
    "softplus": (lambda x: OPERATORS["softplus.default"](x, 1.0, 2.0), [2.0], [0.880797]),
}


@pytest.mark.parametrize("name", BORDERS)
def test_borders_have_the_gradient_of_pytorch(name):
    function, points, expected = BORDERS[name]
    x = jnp.array(points, jnp.float32)
    np.testing.assert_allclose(jax.grad(lambda x: function(x).sum())(x), expected, rtol=1e-6)


def test_values_between_bounds_are_kept_and_others_lie_on_them():
    x = jnp.array([-7.0, -0.3, 0.4, 8.0, jnp.nan], jnp.float32)
    clamp, hardtanh = OPERATORS["clamp.default"], OPERATORS["hardtanh.default"]
    np.testing.assert_array_equal(clamp(x, -1.0, 2.0), np.clip(x, -1, 2))
    np.testing.assert_array_equal(hardtanh(x), np.clip(x, -1, 1))
    np.testing.assert_array_equal(OPERATORS["relu6.default"](x), np.clip(x, 0, 6))
    bounds = jnp.array([1.0, 1.0, 0.0, 9.0, 0.0], jnp.float32)
    below = OPERATORS["clamp.Tensor"](x, bounds)
    np.testing.assert_array_equal(below, np.maximum(x, bounds))


NORM = CONTEXTUAL["_native_batch_norm_legit_functional.default"]


def normed(x, mask, mean):
    one = jnp.ones(x.shape[1], x.dtype)
    out = NORM(Context(None, mask), x, None, None, mean, one, True, 0.1, 1e-5)
    return out[0], out[3]


def test_a_batch_norm_of_several_rows_an_example_leaves_padding_out():
    x = jnp.array([4.0, 2.0, 9.0, 9.0], jnp.float32)[:, None]
    _, mean = normed(x, jnp.array([True, False]), jnp.zeros(1, jnp.float32))
    np.testing.assert_allclose(mean, [0.3], rtol=1e-6)
    message = r"from_torch\(module=...\): got a batch norm of an array of shape \(4, 1\)"
    with pytest.raises(InvalidInput, match=message):
        normed(x, jnp.array([True, False, True]), jnp.zeros(1, jnp.float32))


def test_instance_norm_has_no_padding_to_leave_out():
    """It comes as a batch norm of one row, with the channels of all examples."""
    x = jnp.arange(12.0, dtype=jnp.float32).reshape(1, 4, 3)
    function = CONTEXTUAL["_native_batch_norm_legit.no_stats"]
    masked, plain = (
        function(Context(None, mask), x, None, None, True, 0.1, 1e-5)[0]
        for mask in (jnp.array([True, False]), None)
    )
    np.testing.assert_array_equal(masked, plain)


def rows(x, mask, mean):
    z, mean = normed(x.reshape(-1, 3), mask, mean)
    return z.reshape(x.shape), mean


def time_first(x, mask, mean):
    z, mean = normed(x.swapaxes(0, 1).reshape(-1, 3), mask, mean)
    return z.reshape(4, -1, 3).swapaxes(0, 1), mean


def own(x, mask, mean):
    mean = 0.9 * mean + 0.1 * x.mean((0, 1))
    return x - mean, mean


@pytest.mark.parametrize(
    ("function", "expected"), [(rows, True), (time_first, False), (own, False)]
)
def test_buffers_that_padding_enters_are_told(function, expected):
    def apply(params, state, inputs, key, mask):
        z, mean = function(inputs[0], mask, state["mean"])
        return z * params["scale"], {"mean": mean}

    start = {"scale": np.ones(3, np.float32)}
    network = Network(apply, start, {"mean": np.zeros(3, np.float32)}, True)
    assert leaves_padding_out(network, network.start, (np.ones((2, 4, 3), np.float32),)) == expected
