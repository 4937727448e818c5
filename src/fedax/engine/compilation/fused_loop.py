"""Fused loops: a loop of small steps compiled as one CPU kernel.

XLA's CPU compiler makes a kernel of each operation and schedules it again in every iteration of a
loop, which takes some 200 nanoseconds each: a step of a small model takes three times as long as
its arithmetic. A call with the compiler's mark for small loops (`xla_cpu_small_call`) is compiled
as a whole instead. See `rewrites` for the switch and the gain.
"""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from fedax.engine.compilation.cache import small_matmul_options
from fedax.engine.compilation.jaxpr import stage, subjaxprs
from fedax.engine.compilation.rewrites import VARIABLE, allows_untested, disabled_reason
from fedax.utils.random import Index

Carry = TypeVar("Carry")

MAX_MULTIPLICATIONS, MAX_DEPTH = 1 << 14, 128
"""Multiplications, and length of the contracted axis, up to which a matrix product is faster in a
fused loop, which has plain loops in place of a library's product."""
MAX_RESULT = 1 << 13
"""Elements of a result up to which the time between kernels matters."""
_MARK = {"inlineable": "false", "xla_cpu_small_call": "true"}
TESTED = ("0.10.2",)
"""Versions of jaxlib whose compiler takes all primitives below in such a call. Another version may
abort the process."""
JAXLIB = version("jaxlib")
_PROBE = (
    "from fedax.engine.compilation import fused_loop; raise SystemExit(not "
    "fused_loop._fuses_small_loop())"
)
"""Program of the child process that tries an untested version."""
_PROBE_SECONDS = 120.0

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
    `small_matmul_options()`.

    Returns:
        The last carry, or None if an operation cannot be fused or a product is too large; the
        caller then takes a plain loop.
    """
    loop = stage(
        lambda count, carry: jax.lax.fori_loop(jnp.int32(0), count, step, carry), count, carry
    )
    if not is_fusable(loop.jaxpr):
        return None

    def kernel(operands: Any) -> Any:
        consts, count, carry = operands
        return loop._replace(consts=consts)(count, carry), jax.tree.map(_first_element, operands)

    def call(carry: Carry) -> Carry:
        # An operand that the call does not read aborts the compiler. So one element of each operand
        # is a result, and the
        # barriers keep XLA from folding operands to constants and from removing these results.
        operands = jax.lax.optimization_barrier((loop.consts, count, carry))
        with set_xla_metadata(**_MARK):
            results = jax.jit(kernel)(operands)
        return jax.lax.optimization_barrier(results)[0]

    # Outside of a branch, XLA divides elementwise operations among threads, which fails within such
    # a call.
    return jax.lax.cond(count > 0, call, lambda carry: carry, carry)


def _first_element(x: Any) -> Any:
    numbers = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    if not numbers.size:
        return jnp.zeros((), numbers.dtype)
    return jax.lax.index_in_dim(numbers.reshape(-1), 0, keepdims=False)


def is_fusable(jaxpr: Any) -> bool:
    """Returns whether a jaxpr can be one kernel and is faster as one."""
    return all(
        equation.primitive.name in FUSABLE_PRIMITIVES and _is_small(equation)
        for equation in _walk_equations(jaxpr)
    )


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


def unavailable_reason() -> str:
    """Returns why loops are not fused, for messages; an empty string where they are."""
    if reason := disabled_reason():
        return reason
    if not allows_untested() and JAXLIB not in TESTED:
        return (
            f"jaxlib {JAXLIB} has not been tried, {', '.join(TESTED)} has ({VARIABLE}=1 tries it)"
        )
    return "" if _compiler_fuses() else "the compiler does not make them"


def is_available() -> bool:
    """Returns whether this compiler is known to fuse loops, and a small loop shows it."""
    return not unavailable_reason()


@functools.cache
def _compiler_fuses() -> bool:
    if not small_matmul_options():  # another device than a CPU, or an XLA without the option
        return False
    # an untested compiler may abort the process, so a child process tries first
    return (JAXLIB in TESTED or _child_fuses()) and _fuses_small_loop()


def _child_fuses() -> bool:
    """Returns whether a child process compiles a fused loop and ends in an orderly way."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _PROBE]
    try:
        return (
            subprocess.run(
                command, env=environment, capture_output=True, timeout=_PROBE_SECONDS, check=False
            ).returncode
            == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False


def _fuses_small_loop() -> bool:
    """Returns whether a small fused loop compiles and has the results of a plain one."""

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ x) + i, x)

    def call_marked(x: Any) -> Any:
        with set_xla_metadata(**_MARK):
            return jax.jit(loop)(x)

    # small enough to compile in milliseconds, with a product and an elementwise operation
    x = jnp.arange(9.0).reshape(3, 3) / 9
    try:
        fused = jax.jit(call_marked, compiler_options=small_matmul_options()).lower(x).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return bool(jnp.allclose(fused(x), loop(x), atol=1e-6))
