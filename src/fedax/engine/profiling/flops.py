"""Products of a round: the multiplications and additions of the clients' matrix products and convolutions, counted not measured."""

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
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from fedax.core.algorithm import Algorithm
from fedax.core.client import Carry
from fedax.core.federation import Cohort, Memory
from fedax.core.hyper import MOST_COUNT
from fedax.core.task import Ragged
from fedax.engine.backends.simulation.backend import SimulatedTransport, client_mesh
from fedax.engine.backends.simulation.engine import SimulationProgram
from fedax.engine.compilation.jaxpr import subjaxprs, trip_count
from fedax.engine.round.backend import Answer, Job
from fedax.engine.round.client import CompiledClient, Part, Setup, Slice
from fedax.engine.round.context import Round
from fedax.engine.round.engine import Carried
from fedax.ops import affine, lstm, pooled
from fedax.ops.bilinear import PRODUCTS, multiplications, pairs
from fedax.utils.random import stream

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
HIDDEN = ("custom_linear_solve", "triangular_solve", "tridiagonal", "tridiagonal_solve", "schur", "fft", *FACTORIZATIONS)
HIDDEN += ("pallas_call", "ragged_dot_general", "scaled_matmul")
"""Operations whose products nobody sees in a traced program, beside calls out of it."""
REPEATED = 15
"""Products that are timed for the peak."""


class Uncountable(Exception):
    """Products that cannot be counted before they are done, such as those of a loop of unknown length."""


def count_flops(program: Any) -> int:
    """The floating-point operations of the matrix products and convolutions of a traced program, two for each multiplication.

    Raises:
        Uncountable: products in a loop of unknown length, different ones in branches, operations that hide theirs.
    """
    total = 0
    for equation in program.eqns:
        name, within = equation.primitive.name, [count_flops(program) for program in subjaxprs(equation)]
        if name in HIDDEN or (name.endswith(("_call", "callback")) and name != "debug_callback" and not within):
            raise Uncountable(name)
        if name == "cond":
            if len(set(within)) > 1:
                raise Uncountable("branches")
            total += within[0]
        elif any(within):
            if (count := trip_count(equation)) is None:
                raise Uncountable("a loop of unknown length")
            total += count * sum(within)
        else:
            total += 2 * _multiplications(equation)
    return total


def _multiplications(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name in lstm.RECURRENCES:
        gates, kernel = (equation.invars[place].aval.shape for place in lstm.RECURRENCES[name])
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
    (_, _, *image), (_, _, *window), (lead, _, *after) = (
        [shape[axis] for axis in axes]
        for shape, axes in zip((a, b, equation.outvars[0].aval.shape), params["dimension_numbers"], strict=True)
    )
    outputs, inputs = (b[axis] for axis in params["dimension_numbers"].rhs_spec[:2])
    steps = zip(params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"], strict=True)
    along = [
        pairs(n, k, m, stride=stride, low=low, spread=spread, apart=apart)
        for n, k, m, (stride, (low, _), spread, apart) in zip(image, window, after, steps, strict=True)
    ]
    return lead * outputs * inputs * math.prod(along)


def count_function_flops(function: Callable[[], Any]) -> int:
    """Of a function without arguments, as far as its results need them."""
    program = jax.make_jaxpr(function)().jaxpr
    return count_flops(dce_jaxpr(program, [True] * len(program.outvars))[0])


class Cost(NamedTuple):
    """The operations of a phase's work at a client: once, for each example it has, for each step, for each example in a step."""

    once: int
    example: int
    step: int
    step_example: int

    @classmethod
    def of(cls, work: Callable[[int, int, int], int]) -> "Cost":
        """From the operations with so many steps, examples in a step and examples in all, which are linear in each."""
        # one step at least: what only steps use would seem to be unused
        one, more, two, wider = work(1, 2, 2), work(1, 2, 3), work(2, 2, 2), work(2, 3, 2)
        example, step, step_example = more - one, two - one, (wider - two) // 2
        return cls(one - step - 2 * example, example, step - 2 * step_example, step_example)


class _Counted(CompiledClient):
    """A client that takes so many steps, on so many examples, and has so many in all; it is only traced, and needs none of them."""

    def __init__(self, setup: Setup, job: Job, numbers: tuple[int, int, int]) -> None:
        self.number, self.width, self.all = numbers
        setup = dataclasses.replace(setup, microbatch=MOST_COUNT)  # traced whole, and not as a loop over pieces
        super().__init__(setup, jnp.int32(0), job.round, job.root, job.occurrence)

    @property
    def widest(self) -> int:
        return self.width

    def part(self, data: Ragged) -> Part:
        arrays = {name: jnp.zeros((1, *values.shape[1:]), values.dtype) for name, values in data.arrays.items()}
        return Part(arrays, jnp.int32(0), jnp.int32(self.all))

    def _all(self) -> Slice:
        return Slice(self, None, jnp.int32(0), self.all, None, most=self.all)

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        slices = [Slice(self, None, jnp.int32(0), self.width, self.key("noise"), most=self.width) for _ in range(batches)]
        for _ in range(self.number):
            carry = step(carry, *slices)
        return carry


class _Counting(SimulatedTransport):
    """Rounds whose phases are counted: `costs` when they are traced, and `worked` what each place of the cohort did."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.costs: list[Cost] = []
        self.worked: list[Int[Array, "numbers capacity"]] = []

    def work(self, job: Job, cohort: Cohort, held: dict[str, Memory], gather: bool) -> Answer:
        rows = {name: memory.of(cohort.ids[0]) for name, memory in held.items()}
        self.costs.append(
            Cost.of(lambda *numbers: count_function_flops(lambda: job(_Counted(self.setup, job, numbers), rows)))
        )
        there = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        sizes = self.setup.population.sizes_of(cohort.ids)
        steps, examples = jax.vmap(functools.partial(self._steps, job))(cohort.ids, sizes)
        self.worked.append(jnp.where(there, jnp.stack([jnp.ones_like(sizes), sizes, steps, examples]), 0))
        return super().work(job, cohort, held, gather)

    def _steps(self, job: Job, k: Int[Array, ""], size: Int[Array, ""]) -> tuple[Array, Array]:
        """The steps of a client, and the examples in all of them."""
        steps, batch = self.setup.schedule.work(stream(job.root, "work", job.round, k), size, job.round)
        epoch = (size + batch - 1) // batch
        return jnp.int32(steps), jnp.int32(steps // epoch * size + jnp.minimum(steps % epoch * batch, size))


def round_flops_counter(program: SimulationProgram) -> Callable[[Any, int], int]:
    """The operations of one round of a simulation of one run, of the carry before it and its number.

    What is counted are the products of the clients' work with the examples that they have: no padding, nothing elementwise, not
    the server's work. The cohorts and the lengths of work are those that the round draws.
    """
    costs: list[Cost] = []

    @eqx.filter_jit
    def worked(setup: Setup, algorithm: Algorithm[Any], root: Any, carried: Carried, round: Int[Array, ""]) -> list[Array]:
        transport = _Counting(setup)
        algorithm.round(Round(transport, round, root, *carried[1:]), carried.state)
        costs[:] = transport.costs
        return transport.worked

    def count(carried: Carried, round: int) -> int:
        setup = dataclasses.replace(program.setup, devices=1)
        found = worked(setup, program.algorithm, program.roots, carried, jnp.int32(round))
        numbers = [np.asarray(rows, np.int64).sum(1).tolist() for rows in found]
        return sum(sum(a * b for a, b in zip(cost, own, strict=True)) for cost, own in zip(costs, numbers, strict=True))

    return count


@functools.cache
def measure_peak(devices: int, dtype: str) -> float:
    """GFLOP/s of large products of two matrices, one on each of so many devices at once: the best of several, once in a process."""
    size = 1024 if jax.default_backend() == "cpu" else 8192
    mesh, split = client_mesh(devices), P("clients")
    matrices = jax.device_put(np.full((devices, size, size), 1 / size, dtype), NamedSharding(mesh, split))
    product = jax.jit(jax.shard_map(lambda x: x @ x, mesh=mesh, in_specs=split, out_specs=split))
    jax.block_until_ready(product(matrices))
    times: list[float] = []
    for _ in range(REPEATED):
        begin = time.perf_counter()
        jax.block_until_ready(product(matrices))
        times.append(time.perf_counter() - begin)
    return 2e-9 * devices * size**3 / min(times)
