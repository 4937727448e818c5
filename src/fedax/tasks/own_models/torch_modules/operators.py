"""Operators of PyTorch's exported graphs as JAX functions: numbers, shapes and reductions.

Each function takes the arguments of the operator's schema, with arrays for tensors and JAX types
for types. Layers are in `layers` and `recurrent`.
"""

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

OPERATORS: dict[str, Callable[..., Any]] = {}
"""Functions by the operators' names, without "aten."."""
Function = TypeVar("Function", bound=Callable[..., Any])
Dims = int | Sequence[int] | None


def operator(*names: str) -> Callable[[Function], Function]:
    """Registers a function for operators."""

    def register(function: Function) -> Function:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


def axes(dims: Dims) -> tuple[int, ...] | int | None:
    """Returns axes as NumPy has them; PyTorch's empty list means all."""
    if dims is None or isinstance(dims, int):
        return dims
    return tuple(dims) or None


def _register_overloads(name: str, function: Callable[..., Any], *overloads: str) -> None:
    OPERATORS.update({f"{name}.{overload}": function for overload in overloads})


# One array

_ONE = {
    "abs": jnp.abs, "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan, "atanh": jnp.arctanh, "bitwise_not": jnp.invert, "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh, "erf": lax.erf, "erfc": lax.erfc, "exp": jnp.exp, "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor, "isinf": jnp.isinf, "isnan": jnp.isnan, "log": jnp.log, "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2, "logical_not": jnp.logical_not, "mish": jax.nn.mish, "neg": jnp.negative,
    "reciprocal": lambda x: 1 / x, "relu": jax.nn.relu, "relu6": jax.nn.relu6,
    "round": jnp.round,
    "rsqrt": lax.rsqrt, "sgn": jnp.sign, "sigmoid": jax.nn.sigmoid, "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin, "sinh": jnp.sinh, "sqrt": jnp.sqrt, "square": jnp.square, "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc, "log_sigmoid": jax.nn.log_sigmoid, "hardswish": jax.nn.hard_swish,
    "hardsigmoid": jax.nn.hard_sigmoid,
}  # fmt: skip
for _name, _function in _ONE.items():
    _register_overloads(_name, _function, "default")


@operator("gelu.default")
def _gelu(x: Array, *, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operator("elu.default")
def _elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    # where the other branch counts, its derivative must stay finite
    negative = jnp.where(x > 0, 0, x) * input_scale
    return jnp.where(x > 0, scale * x, scale * alpha * jnp.expm1(negative))


@operator("leaky_relu.default")
def _leaky_relu(x: Array, slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, slope * x)


@operator("prelu.default", "_prelu_kernel.default")
def _prelu(x: Array, slope: Array) -> Array:
    slope = (
        slope
        if slope.ndim == x.ndim
        else slope.reshape((1, -1) + (1,) * (x.ndim - 2) if x.ndim > 1 else (-1,))
    )
    return jnp.where(x > 0, x, slope * x)


@operator("softplus.default")
def _softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    # beyond the threshold the identity; there the other branch's derivative must stay finite
    is_beyond = x * beta > threshold
    scaled = jnp.where(is_beyond, threshold, x * beta)
    return jnp.where(is_beyond, x, jax.nn.softplus(scaled) / beta)


@operator("clamp.default", "clamp.Tensor")
def _clamp(
    x: Array, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> Array:
    low, high = min if low is None else low, max if high is None else high
    clipped = jnp.clip(x, low, high)
    # on a bound x has the whole gradient, as in PyTorch, where JAX halves it between the two
    is_within = True if low is None else x >= low
    is_within &= True if high is None else x <= high
    return jnp.where(is_within, x.astype(clipped.dtype), clipped)


@operator("hardtanh.default")
def _hardtanh(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    # on a bound the gradient is 0
    clipped = lax.stop_gradient(jnp.clip(x, low, high))
    return jnp.where((x > low) & (x < high), x.astype(clipped.dtype), clipped)


@operator("_softmax.default", "softmax.int")
def _softmax(x: Array, dim: int, half: Any = False, *, dtype: Any = None) -> Array:
    return jax.nn.softmax(x, axis=dim)


@operator("_log_softmax.default", "log_softmax.int")
def _log_softmax(x: Array, dim: int, half: Any = False, *, dtype: Any = None) -> Array:
    return jax.nn.log_softmax(x, axis=dim)


# Two arrays, or an array and a number

_TWO = {
    "atan2": jnp.arctan2, "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
    "eq": jnp.equal, "floor_divide": jnp.floor_divide, "fmod": jnp.fmod, "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": jnp.less, "maximum": jnp.maximum, "minimum": jnp.minimum, "mul": jnp.multiply,
    "ne": jnp.not_equal,
    "remainder": jnp.remainder,
}  # fmt: skip
for _name, _function in _TWO.items():
    _register_overloads(_name, _function, "default", "Tensor", "Scalar")


def _pow(x: Any, power: Any) -> Array:
    return lax.integer_pow(x, power) if isinstance(power, int) else jnp.power(x, power)


_register_overloads("pow", _pow, "Tensor_Scalar", "Tensor_Tensor", "Scalar")


@operator("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, alpha: Any = 1) -> Array:
    return x + (y if alpha == 1 else alpha * y)


@operator("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, alpha: Any = 1) -> Array:
    return x - (y if alpha == 1 else alpha * y)


@operator("rsub.Tensor", "rsub.Scalar")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Array:
    return _sub(y, x, alpha)


@operator("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    return (
        jnp.true_divide(x, y)
        if rounding_mode is None
        else jnp.trunc(jnp.true_divide(x, y)).astype(jnp.result_type(x, y))
    )


@operator("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: Array, x: Any, y: Any) -> Array:
    return jnp.where(condition, x, y)


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


@operator("addcmul.default")
def _addcmul(x: Array, a: Array, b: Array, *, value: float = 1) -> Array:
    return x + value * a * b


@operator("lerp.Tensor", "lerp.Scalar")
def _lerp(x: Array, y: Array, weight: Any) -> Array:
    return x + weight * (y - x)


# Products

_register_overloads("mm", jnp.matmul, "default")
_register_overloads("bmm", jnp.matmul, "default")
_register_overloads("matmul", jnp.matmul, "default")
_register_overloads("mv", jnp.matmul, "default")
_register_overloads("dot", jnp.dot, "default")


@operator("addmm.default", "baddbmm.default")
def _addmm(x: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    product = a @ b
    return (x if beta == 1 else beta * x) + (product if alpha == 1 else alpha * product)


@operator("einsum.default")
def _einsum(equation: str, arrays: Sequence[Array], *, path: Any = None) -> Array:
    return jnp.einsum(equation, *arrays)


# Reductions


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
        return function(x if dtype is None else x.astype(dtype), axis=axes(dim), keepdims=keepdim)

    return reduce


for _name, _function in {
    "sum": jnp.sum, "mean": jnp.mean, "amax": jnp.max, "amin": jnp.min, "any": jnp.any,
    "all": jnp.all, "prod": jnp.prod,
    "logsumexp": jax.nn.logsumexp, "argmax": jnp.argmax, "argmin": jnp.argmin,
}.items():  # fmt: skip
    _register_overloads(
        _name, _reduce(_function), "default", "dim", "dim_IntList", "dims", "dim_int"
    )


@operator("max.default")
def _max(x: Array) -> Array:
    return x.max()


@operator("min.default")
def _min(x: Array) -> Array:
    return x.min()


def _make_extremum(find_index: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    def find_extremum(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        # the gradient goes to one of equal numbers, as in PyTorch
        index = find_index(x, axis=dim, keepdims=True)
        value = jnp.take_along_axis(x, index, dim)
        return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))

    return find_extremum


_register_overloads("max", _make_extremum(jnp.argmax), "dim")
_register_overloads("min", _make_extremum(jnp.argmin), "dim")


@operator("var.correction")
def _var(x: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    # PyTorch's default is the variance of a sample
    return jnp.var(
        x, axis=axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim
    )


@operator("std.correction")
def _std(x: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    return _root(_var(x, dim, correction=correction, keepdim=keepdim), jnp.sqrt)


def _root(x: Array, function: Callable[[Array], Array]) -> Array:
    """Computes a root with the gradient 0 at 0, as PyTorch's norms and standard deviations have."""
    is_zero = x == 0
    # also the branch that does not count must have a finite derivative
    return jnp.where(is_zero, 0, function(jnp.where(is_zero, 1, x)))


@operator("var_mean.correction")
def _var_mean(
    x: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return _var(x, dim, correction=correction, keepdim=keepdim), jnp.mean(
        x, axis=axes(dim), keepdims=keepdim
    )


@operator("linalg_vector_norm.default")
def _vector_norm(
    x: Array, order: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    axis = axes(dim)
    if order == 2:
        return _root(jnp.sum(x * x, axis=axis, keepdims=keepdim), jnp.sqrt)
    if order == 0:
        return jnp.sum((x != 0).astype(x.dtype), axis=axis, keepdims=keepdim)
    if math.isinf(order):
        return (jnp.max if order > 0 else jnp.min)(jnp.abs(x), axis=axis, keepdims=keepdim)
    if order < 0:
        return jnp.sum(jnp.abs(x) ** order, axis=axis, keepdims=keepdim) ** (1 / order)
    powers = _root(jnp.abs(x), lambda size: size**order)
    return _root(jnp.sum(powers, axis=axis, keepdims=keepdim), lambda total: total ** (1 / order))


@operator("cumsum.default")
def _cumsum(x: Array, dim: int, *, dtype: Any = None) -> Array:
    return jnp.cumsum(x, axis=dim, dtype=dtype)


@operator("sort.default")
def _sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    index = jnp.argsort(x, axis=dim, descending=descending)
    return jnp.take_along_axis(x, index, dim), index


@operator("topk.default")
def _topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    values, index = _sort(x, dim, descending=largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(index, 0, k, axis=dim)


# Shapes


@operator("view.default", "reshape.default", "_unsafe_view.default")
def _view(x: Array, shape: Sequence[int]) -> Array:
    return x.reshape(tuple(shape))


@operator("flatten.using_ints")
def _flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


@operator("permute.default")
def _permute(x: Array, dims: Sequence[int]) -> Array:
    return x.transpose(tuple(dims))


@operator("transpose.int")
def _transpose(x: Array, first: int, second: int) -> Array:
    return x.swapaxes(first, second)


@operator("t.default")
def _t(x: Array) -> Array:
    return x.T


@operator("expand.default")
def _expand(x: Array, shape: Sequence[int], *, implicit: bool = False) -> Array:
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    # -1 keeps the length of an axis
    return jnp.broadcast_to(
        x, tuple(n if size == -1 else size for n, size in zip(padded, shape, strict=True))
    )


@operator("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Array, dims: Dims = None) -> Array:
    candidates = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return x.squeeze(tuple(d % x.ndim for d in candidates if x.shape[d] == 1))


@operator("unsqueeze.default")
def _unsqueeze(x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, dim)


@operator("slice.Tensor")
def _slice(
    x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x[(builtins.slice(None),) * (dim % x.ndim) + (builtins.slice(start, end, step),)]


@operator("select.int")
def _select(x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index, dim, keepdims=False)


@operator("cat.default")
def _cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    nonempty = [x for x in arrays if x.shape != (0,)]  # which PyTorch takes beside any shape
    return jnp.concatenate(nonempty, axis=dim)


@operator("stack.default")
def _stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    return jnp.stack(arrays, axis=dim)


@operator("split.Tensor", "split_with_sizes.default", "split.sizes")
def _split(x: Array, sizes: int | Sequence[int], dim: int = 0) -> list[Array]:
    length = x.shape[dim]
    lengths = (
        [min(sizes, length - begin) for begin in range(0, length, sizes)]
        if isinstance(sizes, int)
        else list(sizes)
    )
    return jnp.split(x, np.cumsum(lengths)[:-1].tolist(), axis=dim)


@operator("chunk.default")
def _chunk(x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


@operator("unbind.int")
def _unbind(x: Array, dim: int = 0) -> list[Array]:
    return [lax.index_in_dim(x, k, dim, keepdims=False) for k in range(x.shape[dim])]


@operator("flip.default")
def _flip(x: Array, dims: Sequence[int]) -> Array:
    return jnp.flip(x, tuple(dims))


@operator("roll.default")
def _roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    return jnp.roll(x, tuple(shifts), tuple(dims)) if len(dims) else jnp.roll(x, shifts[0])


@operator("repeat.default")
def _repeat(x: Array, counts: Sequence[int]) -> Array:
    return jnp.tile(x, tuple(counts))


@operator("constant_pad_nd.default")
def _pad(x: Array, widths: Sequence[int], value: float = 0.0) -> Array:
    # from the last axis on
    pairs = [(low, high, 0) for low, high in zip(widths[::2], widths[1::2], strict=True)]
    all_widths = [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return lax.pad(x, jnp.asarray(value, x.dtype), all_widths)


@operator("tril.default")
def _tril(x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@operator("triu.default")
def _triu(x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


@operator("diagonal.default")
def _diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(x, offset, dim1, dim2)


# Rows by number


@operator("index.Tensor")
def _index(x: Array, indices: Sequence[Any]) -> Array:
    return x[tuple(builtins.slice(None) if index is None else index for index in indices)]


@operator("index_select.default")
def _index_select(x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, axis=dim)


@operator("gather.default")
def _gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    # the index may be shorter than x along the other axes
    region = tuple(
        builtins.slice(0, n) if d != dim % x.ndim else builtins.slice(None)
        for d, n in enumerate(index.shape)
    )
    return jnp.take_along_axis(x[region], index, dim)


@operator("select_scatter.default")
def _select_scatter(x: Array, rows: Array, dim: int, index: int) -> Array:
    return x.at[(builtins.slice(None),) * (dim % x.ndim) + (index,)].set(rows)


@operator("slice_scatter.default")
def _slice_scatter(
    x: Array, rows: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    return x.at[(builtins.slice(None),) * (dim % x.ndim) + (builtins.slice(start, end, step),)].set(
        rows
    )


# Types and new arrays


@operator("clone.default", "alias.default", "lift_fresh_copy.default", "contiguous.default")
def _same(x: Array) -> Array:
    return x


@operator("detach.default")
def _detach(x: Array) -> Array:
    return lax.stop_gradient(x)


@operator("_to_copy.default", "to.dtype", "to.dtype_layout")
def _to_copy(x: Array, dtype: Any = None, *settings: Any, copy: bool = False) -> Array:
    return x if dtype is None else x.astype(dtype)


@operator("copy.default")
def _copy(x: Array, source: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(source.astype(x.dtype), x.shape)


@operator("empty.memory_format", "empty_permuted.default")
def _empty(shape: Sequence[int], *order: Any, dtype: Any = None) -> Array:
    return jnp.zeros(tuple(shape), dtype)


@operator("full.default")
def _full(shape: Sequence[int], value: Any, *, dtype: Any = None) -> Array:
    return jnp.full(tuple(shape), value, dtype)


@operator("full_like.default")
def _full_like(x: Array, value: Any, *, dtype: Any = None) -> Array:
    return jnp.full(x.shape, value, x.dtype if dtype is None else dtype)


@operator("scalar_tensor.default")
def _scalar(value: Any, *, dtype: Any = None) -> Array:
    return jnp.asarray(value, dtype)


@operator("arange.default", "arange.start", "arange.start_step")
def _arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Array:
    # a single argument is the end
    return jnp.arange(0 if end is None else start, start if end is None else end, step, dtype)
