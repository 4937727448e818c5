"""Loops of small steps as one kernel of a CPU.

XLA's CPU compiler makes a kernel of each operation and hands it on anew at every turn of a loop, some two hundred nanoseconds
each: a step of a small model takes three times as long as its arithmetic. A call that carries the compiler's mark for small loops
is compiled as a whole.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from fedax.engine.compilation.cache import small_products
from fedax.engine.compilation.jaxpr import inner, traced
from fedax.utils.random import Index

Carry = TypeVar("Carry")

MOST_PRODUCTS, DEEPEST = 1 << 14, 128
"""Multiplications, and terms of a sum, up to which a matrix product is faster in the kernel: it has plain loops there."""
WIDEST = 1 << 13
"""Numbers of a result up to which the time between kernels counts."""
_MARK = {"inlineable": "false", "xla_cpu_small_call": "true"}
KNOWN = ("0.10.2",)
"""Versions of jaxlib whose compiler is known to take all of the operations below in such a call; another may abort the process."""
OWN = version("jaxlib")
VARIABLE = "FEDAX_KERNELS"
"""Environment variable: 0 leaves such kernels out, 1 makes them with other versions too."""

ALLOWED = frozenset({
    "abs", "add", "add_any", "and", "bitcast_convert_type", "broadcast_in_dim", "ceil", "clamp", "concatenate",
    "convert_element_type", "copy", "copy_p", "cos", "div", "dot_general", "dynamic_slice", "dynamic_update_slice", "eq", "erf",
    "erf_inv", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pad", "pcast", "pow", "pvary", "random_bits",
    "random_fold_in", "random_split", "random_unwrap", "random_wrap", "reduce_and", "reduce_max", "reduce_min", "reduce_or",
    "reduce_prod", "reduce_sum", "rem", "reshape", "reshard", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "slice", "split", "sqrt", "square", "squeeze",
    "stop_gradient", "sub", "tanh", "threefry2x32", "transpose", "xor", "closed_call", "cond", "custom_jvp_call",
    "custom_vjp_call", "jit", "pjit", "remat", "remat2", "checkpoint", "scan", "while",
})  # fmt: skip
"""Operations that such a call may have: not those of libraries or other threads, and no scatter."""


def in_one_kernel(count: Index, step: Callable[[Index, Carry], Carry], carry: Carry) -> Carry | None:
    """`step(i, carry)` for i from 0 to `count` - 1 as one kernel; None where an operation cannot be in one or a product is large.

    Where kernels are `available`; the program around it has to be compiled with `small_products()`.
    """
    whole = traced(lambda count, carry: jax.lax.fori_loop(jnp.int32(0), count, step, carry), count, carry)
    if not suits(whole.program):
        return None

    def kernel(operands: Any) -> Any:
        captured, count, carry = operands
        return whole._replace(captured=captured)(count, carry), jax.tree.map(_first, operands)

    def call(carry: Carry) -> Carry:
        # an operand of a kernel that nothing reads aborts the compiler: one element of each is a result, and none is a constant
        operands = jax.lax.optimization_barrier((whole.captured, count, carry))
        with set_xla_metadata(**_MARK):
            results = jax.jit(kernel)(operands)
        return jax.lax.optimization_barrier(results)[0]

    # in a branch, because the compiler divides elementwise operations among threads elsewhere, which a kernel cannot have
    return jax.lax.cond(count > 0, call, lambda carry: carry, carry)


def _first(x: Any) -> Any:
    numbers = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    if not numbers.size:
        return jnp.zeros((), numbers.dtype)
    return jax.lax.index_in_dim(numbers.reshape(-1), 0, keepdims=False)


def suits(program: Any) -> bool:
    """Whether a traced program can be a kernel and is faster as one."""
    return all(equation.primitive.name in ALLOWED and _small(equation) for equation in _equations(program))


def _small(equation: Any) -> bool:
    sizes = [math.prod(out.aval.shape) for out in equation.outvars]
    if equation.primitive.name != "dot_general":
        return max(sizes, default=0) <= WIDEST
    (contracted, _), _ = equation.params["dimension_numbers"]
    depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return depth <= DEEPEST and depth * sizes[0] <= MOST_PRODUCTS


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for part in inner(equation):
            yield from _equations(part)


def unavailable() -> str:
    """The reason why there are no such kernels, for people; empty where there are."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0":
        return f"the environment variable {VARIABLE} is 0"
    if wanted != "1" and OWN not in KNOWN:
        return f"jaxlib {OWN} has not been tried, {', '.join(KNOWN)} has ({VARIABLE}=1 tries it)"
    return "" if _works() else "the compiler does not make them"


def available() -> bool:
    """Whether this compiler is known to make such kernels, and a small loop shows it."""
    return not unavailable()


@functools.cache
def _works() -> bool:
    if not small_products():
        return False

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ x) + i, x)

    def marked(x: Any) -> Any:
        with set_xla_metadata(**_MARK):
            return jax.jit(loop)(x)

    x = jnp.arange(9.0).reshape(3, 3) / 9
    try:
        found = jax.jit(marked, compiler_options=small_products()).lower(x).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return bool(jnp.allclose(found(x), loop(x), atol=1e-6))
