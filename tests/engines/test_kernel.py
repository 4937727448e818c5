"""Steps of small models as one kernel: the same numbers as without, and only where all operations
can be in one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedax
from fedax.engine.compilation import fused_loop as kernel
from fedax.engine.compilation.jaxpr import subjaxprs
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from fedax.models import Softmax
from fedax.tasks import classification
from problems import compiled_rounds

pytestmark = pytest.mark.skipif(
    not kernel.is_available(), reason="this compiler makes no such kernels"
)
KEY = jax.random.key(3)
BITS = jnp.uint32(7)


def whole(function):
    """A function of a vector of numbers in (-1, 1), by way of whole numbers."""
    return lambda x: function((x * 100).astype(jnp.int32)).astype(x.dtype)


def words(function):
    return lambda x: function((x * 1000 + 2000).astype(jnp.uint32)).astype(x.dtype) / 2**20


OPERATIONS = {
    "abs": jnp.abs,
    "bitcast_convert_type":
    lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}") & ~7, x.dtype),
     "add": lambda x: x + 1, "add_any": jax.grad(lambda x: (x * jnp.sin(x)).sum()),
    "and": words(lambda n: n & BITS), "broadcast_in_dim": lambda x: jnp.broadcast_to(x, (3, x.size)).sum(0),
    "ceil": lambda x: jnp.ceil(3 * x), "clamp": lambda x: lax.clamp(x[:1][0] * 0 - 0.5, x, x[0] * 0 + 0.5),
    "concatenate": lambda x: jnp.concatenate([x[3:], x[:3]]), "convert_element_type": whole(lambda n: n),
    "copy": lambda x: jnp.array(x, copy=True), "cos": jnp.cos, "div": lambda x: 1 / (x + 2),
    "dot_general": lambda x: jnp.outer(x, x) @ x,
    "dynamic_slice": lambda x: x + lax.dynamic_slice(x, [(3 * x[0]).astype(jnp.int32)], [1]),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:2], [(3 * x[0] + 3).astype(jnp.int32)]),
    "eq": lambda x: (x == x[1]).astype(x.dtype), "erf": jax.lax.erf, "erf_inv": jax.lax.erf_inv, "exp": jnp.exp, "exp2": jnp.exp2,
    "expm1": jnp.expm1, "floor": lambda x: jnp.floor(3 * x),
    "ge": lambda x: (x >= x[1]).astype(x.dtype), "gt": lambda x: (x > x[1]).astype(x.dtype), "integer_pow": lambda x: x**3,
    "iota": lambda x: x + jnp.arange(x.size, dtype=x.dtype), "is_finite": lambda x: jnp.isfinite(1 / x).astype(x.dtype),
    "le": lambda x: (x <= x[1]).astype(x.dtype), "log": lambda x: jnp.log(x + 2), "log1p": jnp.log1p, "logistic": jax.nn.sigmoid,
    "lt": lambda x: (x < x[1]).astype(x.dtype), "max": lambda x: jnp.maximum(x, 0), "min": lambda x: jnp.minimum(x, 0),
    "mul": lambda x: x * x, "ne": lambda x: (x != x[1]).astype(x.dtype), "neg": lambda x: -x,
    "not": lambda x: (~(x > 0)).astype(x.dtype), "or": words(lambda n: n | BITS), "pad": lambda x: jnp.pad(x, (2, 1))[:-3],
    "pow": lambda x: (x + 2) ** x, "random_bits": lambda x: x + jax.random.uniform(KEY, x.shape, x.dtype),
    "random_fold_in": lambda x: x + jax.random.uniform(jax.random.fold_in(KEY, (9 * x[0]).astype(jnp.int32)), x.shape, x.dtype),
    "random_split": lambda x: x + jax.random.uniform(jax.random.split(KEY)[1], x.shape, x.dtype),
    "random_unwrap": lambda x: x + (jax.random.key_data(jax.random.split(KEY))[0, 0] % 7).astype(x.dtype),
    "random_wrap":
    lambda x: x + jax.random.uniform(jax.random.wrap_key_data(jnp.uint32([1, 2]) + (x[0] > 0).astype(jnp.uint32)), (), x.dtype),
    "reduce_and": lambda x: x + (x > 0).all().astype(x.dtype), "reduce_max": lambda x: x + x.max(),
    "reduce_min": lambda x: x + x.min(),
    "reduce_or": lambda x: x + (x > 0).any().astype(x.dtype), "reduce_prod": lambda x: x + x.prod(),
    "reduce_sum": lambda x: x + x.sum(),
    "rem": whole(lambda n: n % 7), "reshape": lambda x: x.reshape(-1, 1)[:, 0], "round": lambda x: jnp.round(3 * x),
    "rsqrt": lambda x: lax.rsqrt(x + 2), "select_n": lambda x: jnp.where(x > 0, x, 3 * x), "shift_left": words(lambda n: n << 3),
    "shift_right_arithmetic": whole(lambda n: n >> 2), "shift_right_logical": words(lambda n: n >> 2), "sign": jnp.sign,
    "sin": jnp.sin, "slice": lambda x: jnp.concatenate([lax.slice(x, [2], [5]), x[3:]]),
    "split": lambda x: jnp.concatenate(lax.split(x, (2, x.size - 2))[::-1]), "sqrt": lambda x: jnp.sqrt(x + 2),
    "square": lax.square, "squeeze": lambda x: jnp.squeeze(x[None]), "stop_gradient": lax.stop_gradient, "sub": lambda x: x - 1,
    "tanh": jnp.tanh, "transpose": lambda x: jnp.outer(x, x + 1).T.sum(0), "xor": words(lambda n: n ^ BITS),
    "cond": lambda x: lax.cond(x[0] > 0, lambda x: x + 1, lambda x: 2 * x, x),
    "custom_jvp_call": jax.nn.relu, "custom_vjp_call": jax.custom_vjp(lambda x: x + 1), "jit": jax.jit(lambda x: x + 1),
    "remat2": jax.checkpoint(lambda x: jnp.sin(x)), "scan": lambda x: lax.scan(lambda s, y: (s + y, s), 0.0 * x[0], x)[1],
    "while": lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x),
}  # fmt: skip
OPERATIONS["custom_vjp_call"].defvjp(lambda x: (x + 1, None), lambda _, g: (g,))


def names(program):
    return {e.primitive.name for e in program.eqns}.union(
        *(names(p) for e in program.eqns for p in subjaxprs(e))
    )


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile(compiler_options=kernel.compiler_options())


def repeated(step):
    """Functions of a number of turns and a carry: the loop as it is, and as a kernel."""
    return lambda n, x: lax.fori_loop(0, n, step, x), lambda n, x: kernel.fused_loop(n, step, x)


def alike(step, x, **tolerance):
    plain, single = repeated(step)
    program = compiled(single, jnp.int32(3), x)
    assert "xla_cpu_small_call" in program.as_text()
    for turns in (jnp.int32(3), jnp.int32(0)):
        found = program(turns, x)
        expected = jax.jit(plain)(turns, x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operations(dtype):
    x = jnp.asarray(np.random.default_rng(0).uniform(-0.9, 0.9, 11), dtype)
    for name, operation in OPERATIONS.items():
        assert name in names(jax.make_jaxpr(operation)(x).jaxpr)

    def step(i, values):
        return {name: OPERATIONS[name](x).astype(dtype) * 0.5 for name, x in values.items()}

    alike(step, dict.fromkeys(OPERATIONS, x), rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-6)


def test_every_operation_has_its_test():
    others = {
        "closed_call",
        "copy_p",
        "pcast",
        "pjit",
        "pvary",
        "checkpoint",
        "remat",
        "reshard",
        "threefry2x32",
    }
    assert set(OPERATIONS) | others == kernel.FUSABLE_PRIMITIVES


@pytest.mark.parametrize(
    "function",
    [
        jnp.sort, lambda x: x[jnp.argsort(x)], lambda x: x.at[jnp.int32(x)].add(1.0), jnp.cumsum,
        lambda x: jnp.linalg.solve(jnp.outer(x, x) + jnp.eye(x.size), x), lambda x: jnp.fft.fft(x).real,
        lambda x: jax.pure_callback(lambda x: x, x, x),
        lambda x: x + (jnp.ones((x.size, 129)) @ jnp.ones((129, 1)))[:, 0],
        lambda x: x + (jnp.outer(x, jnp.ones(100)) @ jnp.ones((100, 15))).sum(1),
        lambda x: x + jnp.ones(8193).sum(),
    ],
)  # fmt: skip
def test_operations_that_are_in_no_kernel(function):
    assert jax.eval_shape(repeated(lambda i, x: function(x))[1], jnp.int32(3), jnp.ones(11)) is None


def test_operands_that_nothing_reads():
    """The compiler aborts the process where a call's computation does not read an operand, and it
    removes what has no effect."""
    large = jnp.asarray(np.random.default_rng(0).normal(size=3000))
    key = jax.random.key(0)

    def single(n, unread, x):
        return kernel.fused_loop(
            n, lambda i, c: (c[0] + 1 + large[:2] * 0 + (unread * 0).astype(float), c[1]), (x, key)
        )

    program = compiled(single, jnp.int32(2), jnp.int32(4), jnp.zeros(2))
    assert program(jnp.int32(2), jnp.int32(4), jnp.zeros(2))[0].tolist() == [2, 2]


def test_steps_that_the_compiler_would_divide_among_threads():
    rng = np.random.default_rng(0)
    rows = [jnp.asarray(row) for row in rng.uniform(-0.5, 0.5, (8, kernel.MAX_RESULT))]
    alike(
        lambda i, x: sum((x * row + row) * (x - row) for row in rows),
        rows[0],
        rtol=1e-9,
        atol=1e-12,
    )


def histories(monkeypatch, algorithm, task, **setting):
    found = []
    for on in (True, False):
        with monkeypatch.context() as patch:
            if not on:
                patch.setattr("fedax.engine.backends.simulation.engine.is_available", lambda: False)
            jax.clear_caches()
            found.append(fedax.run(algorithm, task, rounds=3, **setting))
            assert (
                any(
                    "xla_cpu_small_call" in text and "jit(kernel)" in text
                    for text in compiled_rounds()
                )
                == on
            )
    return found


def small_data():
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(n, 8)).astype("f"), "y": rng.integers(0, 3, n).astype("i")}
        for n in (7, 12, 9)
    ]
    return fedax.FederatedData.from_arrays(clients, classes=3)


SCHEDULES = {
    "epochs": fedax.Schedule(cohort=2, epochs=2, batch_size=3),
    "steps": fedax.Schedule(steps=5, batch_size=4),
    "full": fedax.Schedule(steps=4, batch_size="full"),
    "given": fedax.Schedule(epochs=2, batch_size=3, order="given"),
    "drawn": fedax.Schedule(epochs=(1, 3), batch_size=(2, 5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(monkeypatch, schedule):
    task = classification(small_data(), Softmax(8, 3))
    with_, without = histories(monkeypatch, fedax.FedAvg(), task, schedule=SCHEDULES[schedule])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        with_.params,
        without.params,
    )


@pytest.mark.slow
def test_large_products_stay_with_the_library():
    clients = [{"x": np.ones((4, 600), np.float32), "y": np.zeros(4, np.int32)}]
    task = classification(fedax.FederatedData.from_arrays(clients, classes=10), Softmax(600, 10))
    grid = Grid(
        [fedax.FedAvg()],
        task,
        [0],
        RunOptions.of({"rounds": 1, "schedule": fedax.Schedule(steps=1), "observe": ()}),
    )
    jax.clear_caches()
    grid.program.advance(grid.init(), 0, 1)
    (text,) = compiled_rounds()
    assert "jit(kernel)" not in text
