"""Fused loops: a loop of small steps compiled as one CPU kernel.

XLA's CPU compiler makes a kernel of each operation and schedules it again in every iteration of a
loop, which takes some 200 nanoseconds each: a step of a small model takes three times as long as
its arithmetic. A call with the compiler's mark for small loops (`xla_cpu_small_call`) is compiled
as a whole instead, which makes rounds of softmax regression 2.6 times as fast.

It is used with the versions of jaxlib that it was tested with. With others, and with the
environment variable `FEDAX_KERNELS=0`, steps run in a plain loop, and results differ by rounding
only. `fedax doctor` prints which case holds.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import jax.core
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Int

from fedax.engine.compilation.jaxpr import subjaxprs
from fedax.utils.random import Index

Carry = TypeVar("Carry")

VARIABLE = "FEDAX_KERNELS"
"""Environment variable: 0 turns fused loops off."""
SMALL_MODEL = 65_536
"""Parameters of a model up to which loops are fused and `compiler_options` apply."""
MAX_MULTIPLICATIONS = 1 << 14
MAX_DEPTH = 128
"""Multiplications, and length of the contracted axis, up to which a matrix product is faster in a
fused loop, which has plain loops in place of a library's product."""
MAX_RESULT = 1 << 13
"""Elements of a result up to which the time between kernels matters."""
_MARK = {"inlineable": "false", "xla_cpu_small_call": "true"}
TESTED = ("0.10.2",)
"""Versions of jaxlib whose compiler takes all primitives below in such a call. Another version may
abort the process."""
JAXLIB = version("jaxlib")
_OPTIONS: dict[str, str | bool] = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_cpu_multi_thread_eigen": False,
}

FUSABLE_PRIMITIVES = frozenset({
    "abs", "add", "add_any", "and", "bitcast_convert_type", "broadcast_in_dim", "ceil", "clamp",
    "concatenate",
    "convert_element_type", "copy", "copy_p", "cos", "div", "dot_general", "dynamic_slice",
    "dynamic_update_slice", "eq", "erf",
    "erf_inv", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "iota", "is_finite",
    "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pad", "pcast", "pow", "pvary",
    "random_bits",
    "random_fold_in", "random_split", "random_unwrap", "random_wrap", "reduce_and", "reduce_max",
    "reduce_min", "reduce_or",
    "reduce_prod", "reduce_sum", "rem", "reshape", "reshard", "round", "rsqrt", "select_n",
    "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "slice", "split", "sqrt",
    "square", "squeeze",
    "stop_gradient", "sub", "tanh", "threefry2x32", "transpose", "xor", "closed_call", "cond",
    "custom_jvp_call",
    "custom_vjp_call", "jit", "pjit", "remat", "remat2", "checkpoint", "scan", "while",
})  # fmt: skip
"""Primitives that a fused loop may contain: none that XLA hands to a library or divides among
threads, and no scatter."""


def fused_loop(count: Index, step: Callable[[Index, Carry], Carry], carry: Carry) -> Carry | None:
    """Runs `step(i, carry)` for i from 0 to `count` - 1 as one kernel.

    Requires `is_available()`, and the surrounding program to be compiled with
    `compiler_options()`.

    Returns:
        The last carry, or None if an operation cannot be fused or a product is too large; the
        caller then takes a plain loop.
    """
    # traced here and not within the call, whose mark all operations of a loop body would have too
    loop = functools.partial(jax.lax.fori_loop, jnp.int32(0), body_fun=step)
    program, form = jax.make_jaxpr(loop, return_shape=True)(count, init_val=carry)
    # one kernel is possible, and faster
    for equation in _walk_equations(program.jaxpr):
        if equation.primitive.name not in FUSABLE_PRIMITIVES or not _is_small(equation):
            return None

    def kernel(operands: Any) -> Any:
        consts, count, carry = operands
        leaves = jax.core.eval_jaxpr(program.jaxpr, consts, count, *jax.tree.leaves(carry))
        last_carry = jax.tree.unflatten(jax.tree.structure(form), leaves)
        return last_carry, jax.tree.map(_first_element, operands)

    def call(carry: Carry) -> Carry:
        # An operand that the call does not read aborts the compiler. So one element of each operand
        # is a result, and the
        # barriers keep XLA from folding operands to constants and from removing these results.
        operands = jax.lax.optimization_barrier((program.consts, count, carry))
        with set_xla_metadata(**_MARK):
            results = jax.jit(kernel)(operands)
        return jax.lax.optimization_barrier(results)[0]

    # Outside of a branch, XLA divides elementwise operations among threads, which fails within such
    # a call.
    return jax.lax.cond(count > 0, call, lambda carry: carry, carry)


def gather_singly(arrays: Mapping[str, Any], indices: Int[Array, "some"]) -> dict[str, Array]:
    """Copies rows of arrays one after the other, because a kernel cannot contain a gather."""

    def copy(i: Index, buffers: dict[str, Array]) -> dict[str, Array]:
        cut = jax.lax.dynamic_index_in_dim
        put = jax.lax.dynamic_update_index_in_dim
        return {name: put(buffers[name], cut(arrays[name], indices[i]), i, 0) for name in buffers}

    buffers = {
        name: jnp.zeros((len(indices), *values.shape[1:]), values.dtype)
        for name, values in arrays.items()
    }
    return jax.lax.fori_loop(0, len(indices), copy, buffers)


def _first_element(x: Any) -> Any:
    numbers = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    if not numbers.size:
        return jnp.zeros((), numbers.dtype)
    return jax.lax.index_in_dim(numbers.reshape(-1), 0, keepdims=False)


def _is_small(equation: Any) -> bool:
    sizes = [math.prod(out.aval.shape) for out in equation.outvars]
    if equation.primitive.name != "dot_general":
        return max(sizes, default=0) <= MAX_RESULT
    # a library's product pays off with long contractions and many multiplications
    (contracted, _), _ = equation.params["dimension_numbers"]
    depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return depth <= MAX_DEPTH and depth * sizes[0] <= MAX_MULTIPLICATIONS


def _walk_equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in subjaxprs(equation):
            yield from _walk_equations(inner)


def compiler_options() -> dict[str, str | bool]:
    """Returns the options for programs of small models, none where they do not apply.

    XLA's CPU compiler hands products to a library (YNNPACK) whose workspaces all devices of a
    process take from one list, so steps of a few microseconds wait for each other. The options keep
    small products out of it.
    """
    is_tested = jax.default_backend() == "cpu" and JAXLIB in TESTED
    return _OPTIONS if is_tested else {}


def unavailable_reason() -> str:
    """Returns why loops are not fused, for messages; an empty string where they are."""
    if os.environ.get(VARIABLE) == "0":
        return f"the environment variable {VARIABLE} is 0"
    if JAXLIB not in TESTED:
        return f"jaxlib {JAXLIB} has not been tried, {', '.join(TESTED)} has"
    return "" if jax.default_backend() == "cpu" else "the device is no CPU"


def is_available() -> bool:
    """Returns whether loops are fused."""
    return not unavailable_reason()
