"""FLOP counting: matrix products and convolutions of the clients' work, from their jaxprs."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from fedax.core.algorithm import Algorithm
from fedax.core.client import Carry
from fedax.core.federation import Cohort, Memory
from fedax.core.hyper import MOST_COUNT
from fedax.core.task import Ragged
from fedax.core.validation.own_methods import call_round
from fedax.engine.backends.simulation.backend import SimulationBackend, client_mesh
from fedax.engine.backends.simulation.engine import SimulationProgram
from fedax.engine.compilation.jaxpr import subjaxprs, trip_count
from fedax.engine.round.backend import PhaseResult, PhaseWork
from fedax.engine.round.client import CompiledClient, Part, Setup, Slice, local_work
from fedax.engine.round.context import RoundContext
from fedax.engine.round.engine import RunCarry
from fedax.ops import affine, lstm, pooled
from fedax.ops.bilinear import PRODUCTS, multiplications, pairs
from fedax.utils.jax_internals import dce_jaxpr

CONVOLUTIONS = (*PRODUCTS, *pooled.PRODUCTS)
FACTORIZATIONS = (
    "cholesky",
    "cholesky_update",
    "eig",
    "eigh",
    "geqrf",
    "hessenberg",
    "householder_product",
    "lu",
    "qr",
    "svd",
)
OPAQUE = (
    "custom_linear_solve",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
    "schur",
    "fft",
    *FACTORIZATIONS,
)
OPAQUE += ("pallas_call", "ragged_dot_general", "scaled_matmul")
"""Primitives whose products a jaxpr does not show; calls out of the program do not show them
either."""
REPEATS = 15
"""Matrix products that are timed for the peak, of which the fastest counts."""


class Uncountable(Exception):
    """Raised for products that a jaxpr does not determine, as in a loop of unknown length."""


def count_flops(program: Any) -> int:
    """Counts the floating-point operations of a jaxpr's products, two for each multiplication.

    Raises:
        Uncountable: products in a loop of unknown length, branches with different counts, opaque
            primitives.
    """
    total = 0
    for equation in program.eqns:
        name, inner_flops = (
            equation.primitive.name,
            [count_flops(program) for program in subjaxprs(equation)],
        )
        if name in OPAQUE or (
            name.endswith(("_call", "callback")) and name != "debug_callback" and not inner_flops
        ):
            raise Uncountable(name)
        # which branch runs is known at run time only
        if name == "cond":
            if len(set(inner_flops)) > 1:
                raise Uncountable("branches")
            total += inner_flops[0]
        elif any(inner_flops):
            if (count := trip_count(equation)) is None:
                raise Uncountable("a loop of unknown length")
            total += count * sum(inner_flops)
        else:
            total += 2 * _count_multiplications(equation)
    return total


def _count_multiplications(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name in lstm.RECURRENCES:
        gates, kernel = (equation.invars[index].aval.shape for index in lstm.RECURRENCES[name])
        return lstm.multiplications(gates, kernel)
    if name not in ("dot_general", "conv_general_dilated", *CONVOLUTIONS, *affine.PRODUCTS):
        return 0
    a, b, *_ = (operand.aval.shape for operand in equation.invars)
    if name in CONVOLUTIONS:
        return multiplications(a, b, params["plan"], name)
    if name in affine.PRODUCTS:
        return affine.multiplications(a, b, name)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return math.prod(equation.outvars[0].aval.shape) * math.prod(a[axis] for axis in contracted)
    (_, _, *image), (_, _, *window), (lead, _, *output_image) = (
        [shape[axis] for axis in axes]
        for shape, axes in zip(
            (a, b, equation.outvars[0].aval.shape), params["dimension_numbers"], strict=True
        )
    )
    outputs, inputs = (b[axis] for axis in params["dimension_numbers"].rhs_spec[:2])
    steps = zip(
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        strict=True,
    )
    along = [
        pairs(n, k, m, stride=stride, low=low, spread=spread, apart=apart)
        for n, k, m, (stride, (low, _), spread, apart) in zip(
            image, window, output_image, steps, strict=True
        )
    ]
    return lead * outputs * inputs * math.prod(along)


def count_function_flops(function: Callable[[], Any]) -> int:
    """Counts the operations of a function without arguments that affect its results."""
    program = jax.make_jaxpr(function)().jaxpr
    return count_flops(dce_jaxpr(program, [True] * len(program.outvars))[0])


class Cost(NamedTuple):
    """Operations of a client's work: once, by example, by step, and by example in a step."""

    once: int
    example: int
    step: int
    step_example: int

    @classmethod
    def of(cls, count_work: Callable[[int, int, int], int]) -> "Cost":
        """Solves for the four costs.

        `work(steps, examples in a step, examples)` counts operations and is linear in each.
        """
        # at least one step, because dead code elimination would remove what only steps use
        base, more_examples, more_steps, wider_steps = (
            count_work(1, 2, 2),
            count_work(1, 2, 3),
            count_work(2, 2, 2),
            count_work(2, 3, 2),
        )
        example, step, step_example = (
            more_examples - base,
            more_steps - base,
            (wider_steps - more_steps) // 2,
        )
        return cls(base - step - 2 * example, example, step - 2 * step_example, step_example)


class _FlopClient(CompiledClient):
    """Client with given numbers of steps, examples in a step and examples.

    It is only traced, on zeros.
    """

    def __init__(self, setup: Setup, phase_work: PhaseWork, numbers: tuple[int, int, int]) -> None:
        self.number, self.width, self.all = numbers
        # one batch, not a loop over microbatches
        setup = dataclasses.replace(setup, microbatch=MOST_COUNT)
        super().__init__(
            setup, jnp.int32(0), phase_work.round, phase_work.root, phase_work.occurrence
        )

    @property
    def widest(self) -> int:
        return self.width

    def locate(self, data: Ragged) -> Part:
        arrays = {
            name: jnp.zeros((1, *values.shape[1:]), values.dtype)
            for name, values in data.arrays.items()
        }
        return Part(arrays, jnp.int32(0), jnp.int32(self.all))

    def _all_examples(self) -> Slice:
        return Slice(self, self.fetch, jnp.int32(0), self.all, None, self.all)

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        minibatch = Slice(self, self.fetch, jnp.int32(0), self.width, self.key("noise"), self.width)
        for _ in range(self.number):
            carry = step(carry, *[minibatch] * batches)
        return carry


class _FlopBackend(SimulationBackend):
    """Backend that counts the costs of phases while tracing.

    `costs` has them by phase, `worked` how often each slot of the cohort incurs each of them.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.costs: list[Cost] = []
        self.worked: list[Int[Array, "numbers capacity"]] = []

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        rows = {name: memory.of(cohort.ids[0]) for name, memory in client_states.items()}
        self.costs.append(
            Cost.of(
                lambda *numbers: count_function_flops(
                    lambda: phase_work(_FlopClient(self.setup, phase_work, numbers), rows)
                )
            )
        )
        sizes = self.setup.population.sizes_of(cohort.ids)
        steps, examples = jax.vmap(functools.partial(self._count_steps, phase_work))(
            cohort.ids, sizes
        )
        self.worked.append(
            jnp.where(cohort.works, jnp.stack([jnp.ones_like(sizes), sizes, steps, examples]), 0)
        )
        return super().work(phase_work, cohort, client_states, gather)

    def _count_steps(
        self, phase_work: PhaseWork, k: Int[Array, ""], size: Int[Array, ""]
    ) -> tuple[Array, Array]:
        """Returns a client's steps, and the examples in all of them."""
        steps, batch = local_work(self.setup, phase_work.root, phase_work.round, k, size)
        epoch = (size + batch - 1) // batch
        return jnp.int32(steps), jnp.int32(
            steps // epoch * size + jnp.minimum(steps % epoch * batch, size)
        )


def round_flops_counter(program: SimulationProgram) -> Callable[[Any, int], int]:
    """Returns a function that counts the operations of a round, from its carry and number.

    It counts the products of the clients' work with the examples that they have: no padding,
    nothing elementwise, not the server's work. The cohorts and the numbers of steps are those that
    the round samples. For simulations of a single run.
    """
    costs: list[Cost] = []

    @eqx.filter_jit
    def trace_work(
        setup: Setup, algorithm: Algorithm[Any], root: Any, carry: RunCarry, round: Int[Array, ""]
    ) -> list[Array]:
        backend = _FlopBackend(setup)
        fed = RoundContext(backend, round, root, *carry[1:4], **carry.by_name)
        call_round(algorithm, fed, carry.state)
        costs[:] = backend.costs
        return backend.worked

    def count(carry: RunCarry, round: int) -> int:
        setup = dataclasses.replace(program.setup, devices=1)
        work_counts = trace_work(setup, program.algorithm, program.roots, carry, jnp.int32(round))
        numbers = [np.asarray(rows, np.int64).sum(1).tolist() for rows in work_counts]
        return sum(
            sum(a * b for a, b in zip(cost, amounts, strict=True))
            for cost, amounts in zip(costs, numbers, strict=True)
        )

    return count


@functools.cache
def measure_peak(devices: int, dtype: str) -> float:
    """Measures the GFLOP/s of large matrix products, one on each device at once.

    Returns the best of several, cached by process.
    """
    size = 1024 if jax.default_backend() == "cpu" else 8192
    mesh, sharding = client_mesh(devices), P("clients")
    # scaled, so that products neither overflow nor become denormal
    matrices = jax.device_put(
        np.full((devices, size, size), 1 / size, dtype), NamedSharding(mesh, sharding)
    )
    product = jax.jit(
        jax.shard_map(lambda x: x @ x, mesh=mesh, in_specs=sharding, out_specs=sharding)
    )
    jax.block_until_ready(product(matrices))
    times: list[float] = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(product(matrices))
        times.append(time.perf_counter() - begin)
    return 2e-9 * devices * size**3 / min(times)
