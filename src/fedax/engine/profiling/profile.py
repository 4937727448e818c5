"""Profiles simulated rounds: the time of each part, from a trace of the compiled program."""

import dataclasses
import gc
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex, Unpack

import jax
from jax.profiler import ProfileData, ProfileOptions

from fedax.core.algorithm import Algorithm
from fedax.core.task import Task
from fedax.engine.backends.simulation.engine import SimulationProgram, advance
from fedax.engine.compilation.cache import compile_clock
from fedax.engine.compilation.scopes import innermost_scope
from fedax.engine.driver.options import RunOptions, Setting, check_count
from fedax.engine.driver.session import Grid
from fedax.engine.profiling.flops import Uncountable, measure_peak, round_flops_counter
from fedax.engine.round.engine import compute_metrics
from fedax.errors import FedaxError, InvalidInput

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = ")
_ORIGIN = re.compile(r'op_name="([^"]*)"')
_CONTROL_FLOW = re.compile(r"[])}] (while|conditional|call|tuple)\(")
"""Control flow, whose time is that of inner operations with their own events; a fused loop is a
call without inner events."""
_FUSED_CALL = 'xla_cpu_small_call="true"'
_COLLECTIVE = ("all-", "collective-", "reduce-scatter")
ROUNDS = f"jit_{advance.__name__}"
"""The name of compiled rounds."""
TIMED_CALLS = 5
"""Timed calls, of which the median counts."""
TRACED_MS = 300.0
"""Milliseconds of rounds in a trace, at least one round: a trace takes a kilobyte for every
operation that runs."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """The time of a round by its parts.

    Attributes:
        algorithm: the name of its class.
        parts: milliseconds of a round by part, in order of their share; they add up to `round_ms`.
            `PHASE: gradients`, `examples` (shuffling and fetching) and `steps` (the rest) are the
            clients' work; `cohort` draws and orders them, `memory` reads and writes what they keep,
            `aggregation` adds up and checks uploads, `between devices` they add up theirs and wait
            for each other, `server` is the rest.
        round_ms: milliseconds of a round, the median of several calls without a trace.
        observe_ms: of one observation by all observers, likewise.
        compile_s: seconds of compiling both programs.
        devices: the devices of the simulation, over which parts are added up before they are
            shares.
        operations: floating-point operations of a round, the mean over these rounds: two for each
            multiplication of matrix products and convolutions in the clients' work, with the
            examples that they have. Not counted are elementwise work, zeros of paddings, and the
            server's products. None where they cannot be counted: products in a loop of unknown
            length, calls out of the program, matrix factorizations.
        peak: GFLOP/s of large matrix products in the model's type on the same devices, measured
            beside the rounds.
    """

    algorithm: str
    parts: Mapping[str, float]
    round_ms: float
    observe_ms: float
    compile_s: float
    devices: int
    operations: float | None
    peak: float

    @property
    def rate(self) -> float | None:
        """GFLOP/s of these operations over the whole round."""
        return self._rate_over(self.round_ms)

    @property
    def gradients_rate(self) -> float | None:
        """GFLOP/s over the time of the parts `gradients`.

        Returns None also where those have been fused into other parts.
        """
        return self._rate_over(
            sum(ms for part, ms in self.parts.items() if part.endswith(": gradients"))
        )

    @property
    def fraction(self) -> float | None:
        """`rate` as a part of the peak."""
        return None if self.rate is None else self.rate / self.peak

    @property
    def gradients_fraction(self) -> float | None:
        """`gradients_rate` as a part of the peak."""
        return None if self.gradients_rate is None else self.gradients_rate / self.peak

    def _rate_over(self, milliseconds: float) -> float | None:
        return (
            None
            if self.operations is None or not milliseconds
            else self.operations / milliseconds / 1e6
        )


def profile(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    seed: SupportsIndex = 0,
    rounds: int = 10,
    **setting: Unpack[Setting],
) -> Profile:
    """Measures where the time of rounds goes, and how near products come to the machine's peak.

    Takes the simulation engine.

    Shares are those of the compiled operations in a trace of one round or some; the time of a round
    is measured without it. The compiler fuses operations, and a fused one counts where its result
    does: steps of a small model may contain their gradients.

    Args:
        algorithm, task, seed: as `run`.
        rounds: of each timed call, at least 1.
        setting: as `run`, such as `solver`, `schedule`, `observe` and `engine`.

    Raises:
        InvalidInput: as `run`; another engine.
        FedaxError: a trace without operations of the rounds.

    Example:
        >>> import fedax
        >>> found = fedax.profile(fedax.FedAvg(), fedax.tasks.synthetic(clients=3), rounds=2)
        >>> (
        ...     "train: gradients" in found.parts,
        ...     0.99 < sum(found.parts.values()) / found.round_ms < 1.01,
        ... )
        (True, True)
    """
    check_count("rounds", rounds, 1)
    options = RunOptions.of(setting | {"rounds": rounds, "observe_every": rounds})
    grid = Grid([algorithm], task, [seed], options)
    program, observers = grid.program, tuple(grid.options.observe or ())
    if not isinstance(program, SimulationProgram):
        name = type(options.engine).__name__
        raise InvalidInput.found(
            "profile(engine=...)", name, "Simulation, which has programs that are traced"
        )
    # the trace knows programs by name only, so older ones of this name would be mistaken for this
    # one
    jax.clear_caches()
    gc.collect()
    older, seconds_before = _round_programs(), compile_clock().seconds
    state: Any = grid.init()

    def restart() -> None:
        nonlocal state
        state = grid.init()

    def run_rounds(count: int = rounds) -> None:
        nonlocal state
        state, _ = program.advance(state, 0, count)

    def observe() -> None:
        compute_metrics(program, state, observers, rounds, grid.task)

    # compiles both programs
    run_rounds()
    observe()
    compiled = compile_clock().seconds - seconds_before
    round_ms, observe_ms = _time_call(run_rounds, restart) / rounds, _time_call(observe)
    texts = _round_programs()
    restart()
    # rounds that fit into a trace of readable size
    traced_rounds = max(1, min(rounds, int(TRACED_MS / round_ms)))
    shares = _measure_shares(
        lambda: run_rounds(traced_rounds), [text for text in texts if text not in older] or texts
    )
    parts = {
        name: share * round_ms for name, share in sorted(shares.items(), key=lambda pair: -pair[1])
    }
    restart()
    measurements = compiled, program.setup.devices, _mean_flops(program, state, rounds)
    return Profile(
        type(algorithm).__name__,
        parts,
        round_ms,
        observe_ms,
        *measurements,
        measure_peak(program.setup.devices, str(grid.layout.dtype)),
    )


def _mean_flops(program: SimulationProgram, state: Any, rounds: int) -> float | None:
    """Returns the mean operations of rounds from a state, which is consumed; None if
    uncountable.
    """
    count, total = round_flops_counter(program), 0
    try:
        for number in range(rounds):
            total += count(state[0], number)
            state, _ = program.advance(state, number, 1)
    except Uncountable:
        return None
    return total / rounds


def _time_call(call: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> float:
    times: list[float] = []
    for _ in range(TIMED_CALLS):
        prepare()
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def _measure_shares(call: Callable[[], None], programs: Iterable[str]) -> dict[str, float]:
    """Traces a call and returns each part's share of the time of the rounds' operations."""
    options = ProfileOptions()
    # Python's calls would fill the trace and slow the rounds down
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            call()
        (path,) = Path(folder).rglob("*.xplane.pb")
        traced = ProfileData.from_file(str(path))
    origins = {name: part for text in programs for name, part in scopes_by_operation(text).items()}
    control_flow = set[str]().union(*map(control_operations, programs))
    times = defaultdict[str, float](float)
    for event in (
        event for plane in traced.planes for line in plane.lines for event in line.events
    ):
        facts: dict[str, Any] = {
            key: value for key, value in event.stats if key in ("hlo_module", "hlo_op")
        }
        operation = str(facts.get("hlo_op", event.name))
        if str(facts.get("hlo_module", "")).startswith(ROUNDS) and operation not in control_flow:
            part = (
                "between devices"
                if operation.startswith(_COLLECTIVE)
                else origins.get(operation, "server")
            )
            times[part] += event.duration_ns
    total = sum(times.values())
    if not total:
        raise FedaxError(
            f"profile: the trace has no operations of the rounds, on {jax.default_backend()!r}."
        )
    return {part: duration / total for part, duration in times.items()}


def _round_programs() -> list[str]:
    """Returns the HLO texts of the compiled rounds in this process."""
    executables = jax.local_devices()[0].client.live_executables()
    return [
        m.to_string()
        for executable in executables
        for m in executable.hlo_modules()
        if m.name.startswith(ROUNDS)
    ]


def control_operations(text: str) -> set[str]:
    """Returns the control-flow operations of an HLO text, whose time is that of other operations.

    >>> text = '''
    ...   %call.1 = f32[2]{0} call(%x), to_apply=%loop, attributes={xla_cpu_small_call="true"}
    ...   %cond.2 = f32[2]{0} conditional(%p, %a, %b), branch_computations={%one, %two}
    ...   %call.3 = f32[2]{0} call(%x), to_apply=%some'''
    >>> sorted(control_operations(text))
    ['call.3', 'cond.2']
    """
    lines_by_name = (
        (match[1], line) for line in text.splitlines() if (match := _INSTRUCTION.match(line))
    )
    return {
        name
        for name, line in lines_by_name
        if (kind := _CONTROL_FLOW.search(line)) and not (kind[1] == "call" and _FUSED_CALL in line)
    }


def scopes_by_operation(text: str) -> dict[str, str]:
    """Returns the profiler scope of each operation of an HLO text.

    Operations without a name, which the compiler added, count to the most frequent scope of their
    computation.

    >>> text = '''body (x: f32[]) -> f32[] {
    ...   %add.1 = f32[] add(x, x), metadata={op_name="jit(f)/fedax.work.train/fedax.gradients/add"}
    ...   ROOT copy.2 = f32[] copy(add.1)
    ... }'''
    >>> scopes_by_operation(text)
    {'add.1': 'train: gradients', 'copy.2': 'train: gradients'}
    """
    scopes: dict[str, str] = {}
    for block in text.split("\n\n"):
        lines = {
            match[1]: line for line in block.splitlines() if (match := _INSTRUCTION.match(line))
        }
        scope_by_name = {
            name: innermost_scope(origin[1]) if (origin := _ORIGIN.search(line)) else None
            for name, line in lines.items()
        }
        known_scopes = [scope for scope in scope_by_name.values() if scope is not None]
        default = max(set(known_scopes), key=known_scopes.count) if known_scopes else "server"
        has_origin = {name for name, line in lines.items() if _ORIGIN.search(line)}
        scopes |= {
            name: scope or ("server" if name in has_origin else default)
            for name, scope in scope_by_name.items()
        }
    return scopes
