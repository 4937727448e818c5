"""Operators of PyTorch's exported graphs as JAX functions: numbers, shapes and reductions.

Each function takes the arguments of the operator's schema, with arrays for tensors and NumPy's
types for types. Layers are in `layers` and `recurrent`.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

Dims = int | Sequence[int] | None

_SAME_NAMES = {
    jnp: (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
        "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "diagonal", "exp",
        "exp2", "expm1", "floor", "fmod", "isinf", "isnan", "log", "log10", "log1p", "log2",
        "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum",
        "reciprocal", "remainder", "round", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    ),
    jax.nn: ("log_sigmoid", "mish", "relu", "sigmoid", "silu"),
    lax: ("erf", "erfc", "rsqrt"),
    operator: ("eq", "ge", "gt", "le", "lt", "mul", "ne", "neg"),
}  # fmt: skip
"""Functions that have PyTorch's names."""


# One array


def _elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    # where the other branch counts, its derivative must stay finite
    negative = jnp.where(x > 0, 0, x) * input_scale
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(negative))


def _softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    # beyond the threshold the identity; there the other branch's derivative must stay finite
    is_beyond = x * beta > threshold
    scaled = jnp.where(is_beyond, threshold, x * beta)
    return jnp.where(is_beyond, x, jax.nn.softplus(scaled) / beta)


def _clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    # on a bound x has the whole gradient, as in PyTorch, where JAX halves it between the two
    if min is not None:
        x = jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


def _hardtanh(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    # on a bound the gradient is 0
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


# Two arrays, or an array and a number


def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    quotient = jnp.true_divide(x, y)
    if rounding_mode is None:
        return quotient
    return jnp.trunc(quotient).astype(jnp.result_type(x, y))


# Reductions


def _axes(dims: Dims) -> Any:
    """Returns axes as NumPy has them; PyTorch's empty list means all."""
    return dims if dims is None or isinstance(dims, int) else tuple(dims) or None


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
        return function(x if dtype is None else x.astype(dtype), axis=_axes(dim), keepdims=keepdim)

    return reduce


def _extremum(function: Callable[..., Array], find: Callable[..., Array]) -> Callable[..., Any]:
    def extremum(x: Array, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return function(x)
        # the gradient goes to one of equal numbers, as in PyTorch
        index = find(x, axis=dim, keepdims=True)
        value = jnp.take_along_axis(x, index, dim)
        return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))

    return extremum


def _var(x: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    # PyTorch's default is the variance of a sample
    return jnp.var(x, _axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def _var_mean(
    x: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    var = _var(x, dim, correction=correction, keepdim=keepdim)
    return var, x.mean(_axes(dim), keepdims=keepdim)


def _root(x: Array, function: Callable[[Array], Array]) -> Array:
    """Applies a function with the gradient 0 at 0, as PyTorch's norms and deviations have."""
    # also the branch that does not count must have a finite derivative
    is_zero = x == 0
    at_zero = lax.stop_gradient(function(jnp.zeros_like(x)))
    return jnp.where(is_zero, at_zero, function(jnp.where(is_zero, 1, x)))


def _vector_norm(
    x: Array, order: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    sizes = jnp.abs(x)
    axis = _axes(dim)
    if order == 0:
        return (x != 0).astype(x.dtype).sum(axis, keepdims=keepdim)
    if math.isinf(order):
        return (jnp.max if order > 0 else jnp.min)(sizes, axis, keepdims=keepdim)
    total = _root(sizes, lambda size: size**order).sum(axis, keepdims=keepdim)
    return _root(total, lambda total: total ** (1 / order))


def _sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    index = jnp.argsort(x, axis=dim, descending=descending)
    return jnp.take_along_axis(x, index, dim), index


def _topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Array]:
    return [lax.slice_in_dim(array, 0, k, axis=dim) for array in _sort(x, dim, largest)]


# Shapes and rows by number


def _expand(x: Array, shape: Sequence[int]) -> Array:
    # -1 keeps the length of an axis
    lengths = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [n if size == -1 else size for n, size in zip(lengths, shape)])


def _at(x: Array, dim: int, start: int | None, end: int | None, step: int = 1) -> Any:
    """Returns the index of a slice along one axis."""
    return (slice(None),) * (dim % x.ndim) + (slice(start, end, step),)


def _slice(
    x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x[_at(x, dim, start, end, step)]


def _slice_scatter(
    x: Array, rows: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    return x.at[_at(x, dim, start, end, step)].set(rows)


def _cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    # PyTorch takes empty arrays of one axis beside any shape
    return jnp.concatenate([x for x in arrays if x.shape != (0,)], axis=dim)


def _pad(x: Array, widths: Sequence[int], value: float = 0.0) -> Array:
    # from the last axis on
    pairs = [(low, high, 0) for low, high in zip(widths[::2], widths[1::2], strict=True)]
    all_widths = [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return lax.pad(x, jnp.asarray(value, x.dtype), all_widths)


def _gather(x: Array, dim: int, index: Array) -> Array:
    # the index may be shorter than x along the other axes
    lengths = [None if d == dim % x.ndim else n for d, n in enumerate(index.shape)]
    return jnp.take_along_axis(x[tuple(map(slice, lengths))], index, dim)


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Passes over an operator that only checks what the export has checked."""


OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(owner, name) for owner, names in _SAME_NAMES.items() for name in names},
    # one array
    "clamp": _clamp,
    "elu": _elu,
    "gelu": lambda x, *, approximate="none": jax.nn.gelu(x, approximate == "tanh"),
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "hardtanh": _hardtanh,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "softplus": _softplus,
    "_softmax": lambda x, dim, half: jax.nn.softmax(x, dim),
    "_log_softmax": lambda x, dim, half: jax.nn.log_softmax(x, dim),
    # two arrays
    "add": lambda x, y, alpha=1: x + (y if alpha == 1 else alpha * y),
    "sub": lambda x, y, alpha=1: x - (y if alpha == 1 else alpha * y),
    "div": _div,
    "pow": jnp.power,
    "where": jnp.where,
    # products
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "addmm": lambda x, a, b, *, beta=1, alpha=1: beta * x + alpha * (a @ b),
    "einsum": lambda equation, arrays: jnp.einsum(equation, *arrays),
    # reductions
    "amax": _reduce(jnp.max),
    "amin": _reduce(jnp.min),
    "any": _reduce(jnp.any),
    "argmax": _reduce(jnp.argmax),
    "argmin": _reduce(jnp.argmin),
    "mean": _reduce(jnp.mean),
    "prod": _reduce(jnp.prod),
    "sum": _reduce(jnp.sum),
    "max": _extremum(jnp.max, jnp.argmax),
    "min": _extremum(jnp.min, jnp.argmin),
    "var": _var,
    "std": lambda x, dim=None, **options: _root(_var(x, dim, **options), jnp.sqrt),
    "var_mean": _var_mean,
    "linalg_vector_norm": _vector_norm,
    "cumsum": lambda x, dim, *, dtype=None: jnp.cumsum(x, dim, dtype),
    "sort": _sort,
    "topk": _topk,
    # shapes
    "view": jnp.reshape,
    "permute": jnp.transpose,
    "expand": _expand,
    "squeeze": lambda x, dims: x.squeeze(tuple(d for d in dims if x.shape[d] == 1)),
    "unsqueeze": jnp.expand_dims,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "select": lambda x, dim, index: lax.index_in_dim(x, index, dim, keepdims=False),
    "cat": _cat,
    "split_with_sizes": lambda x, sizes, dim=0: jnp.split(x, np.cumsum(sizes)[:-1], dim),
    "flip": jnp.flip,
    "repeat": jnp.tile,
    "constant_pad_nd": _pad,
    "sym_numel": jnp.size,
    "sym_size": lambda x, dim: x.shape[dim],
    # rows by number
    "index": lambda x, rows: x[tuple(slice(None) if row is None else row for row in rows)],
    "index_select": lambda x, dim, index: jnp.take(x, index, axis=dim),
    "gather": _gather,
    # types and new arrays
    "alias": lambda x: x,
    "clone": lambda x: x,
    "lift_fresh_copy": lambda x: x,
    "_to_copy": lambda x, *, dtype=None: x if dtype is None else x.astype(dtype),
    "copy": lambda x, source, non_blocking=False: jnp.broadcast_to(source.astype(x.dtype), x.shape),
    "empty": lambda shape, *, dtype=None: jnp.zeros(shape, dtype),
    "empty_permuted": lambda shape, order, *, dtype=None: jnp.zeros(shape, dtype),
    "full": lambda shape, value, *, dtype=None: jnp.full(shape, value, dtype),
    "full_like": lambda x, value, *, dtype=None: jnp.full_like(x, value, dtype),
    "scalar_tensor": lambda value, *, dtype=None: jnp.asarray(value, dtype),
    "arange": lambda start, end, step=1, *, dtype=None: jnp.arange(start, end, step, dtype),
    # checks
    "_assert_scalar": _ignore,
    "_assert_tensor_metadata": _ignore,
    "sym_constrain_range": _ignore,
    "sym_constrain_range_for_size": _ignore,
}
"""Functions by the operators' names, without overloads."""
