"""PyTorch's operators where their formulas have no derivative; without PyTorch, whose gradients
are written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.models.torch_modules.operators import OPERATORS


@pytest.fixture(autouse=True)
def _as_exported_programs_run():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


ROOTS = {
    "norm": lambda x: OPERATORS["linalg_vector_norm"](x, 2, [1]),
    "norm of order 3": lambda x: OPERATORS["linalg_vector_norm"](x, 3, [1]),
    "norm of order 1/2": lambda x: OPERATORS["linalg_vector_norm"](x, 0.5, [1]),
    "std": lambda x: OPERATORS["std"](x, [1], correction=1),
}


@pytest.mark.parametrize("name", ROOTS)
def test_roots_of_zero_have_the_gradient_zero(name):
    x = jnp.array([[0.0, 0.0, 0.0], [3.0, -4.0, 1.0]], jnp.float32)
    values, pull = jax.vjp(ROOTS[name], x)
    (gradient,) = pull(jnp.ones_like(values))
    assert values[0] == 0
    np.testing.assert_array_equal(gradient[0], 0)
    # elsewhere nothing changes
    size = np.abs(x[1])
    sign = np.sign(x[1])
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
        norm = OPERATORS["linalg_vector_norm"](x, 2, [1], True)
        return x / OPERATORS["clamp"](norm, 1e-12)

    x = jnp.zeros((1, 3), jnp.float32)
    gradient = jax.grad(lambda x: (normalize(x) * jnp.arange(3.0, dtype=x.dtype)).sum())(x)
    np.testing.assert_allclose(gradient, [[0.0, 1e12, 2e12]], rtol=1e-6)


BORDERS = {
    "clamp(min=0)": (lambda x: OPERATORS["clamp"](x, 0), [0.0], [1.0]),
    "clamp(max=2)": (lambda x: OPERATORS["clamp"](x, max=2), [2.0], [1.0]),
    "clamp": (lambda x: OPERATORS["clamp"](x, -1, 1), [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0]),
    "hardtanh": (OPERATORS["hardtanh"], [-2, -1, 0, 1, 2], [0, 0, 1, 0, 0]),
    "relu6": (lambda x: OPERATORS["hardtanh"](x, 0, 6), [-1, 0, 3, 6, 7], [0, 0, 1, 0, 0]),
    "hardsigmoid": (OPERATORS["hardsigmoid"], [-3, 0, 3], [0, 1 / 6, 0]),
    "hardswish": (OPERATORS["hardswish"], [-3, 0, 3], [0, 0.5, 1]),
    "elu": (lambda x: OPERATORS["elu"](x, 2.0), [0.0, 1.0], [2.0, 1.0]),
    "softplus": (lambda x: OPERATORS["softplus"](x, 1.0, 2.0), [2.0], [0.880797]),
}


@pytest.mark.parametrize("name", BORDERS)
def test_borders_have_the_gradient_of_pytorch(name):
    function, points, expected = BORDERS[name]
    x = jnp.array(points, jnp.float32)
    np.testing.assert_allclose(jax.grad(lambda x: function(x).sum())(x), expected, rtol=1e-6)
