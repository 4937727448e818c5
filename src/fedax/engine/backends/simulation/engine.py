"""The simulation engine: compiles all rounds between two observations into one program."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core.federation import ClientStates, Cohort
from fedax.core.hyper import check_declared, hyper
from fedax.core.scheduling.timeline import Row, row_at
from fedax.core.validation.misuse import explained
from fedax.engine.backends.simulation.backend import SimulationBackend
from fedax.engine.backends.simulation.host import (
    HostExamples,
    OffloadedStates,
    StatePlacement,
    allocate_stores,
    attach_stores,
    detach_stores,
    is_in_files,
    keep_on_host,
    offload_state,
    to_device,
)
from fedax.engine.backends.simulation.sweep_axes import SweepAxes
from fedax.engine.compilation.cache import bypass_persistent_cache
from fedax.engine.compilation.fused_loop import SMALL_MODEL, compiler_options, is_available
from fedax.engine.distributed.multihost import multihost_group
from fedax.engine.round.client import Placement, Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.engine import (
    Engine,
    Log,
    Program,
    ProgramInputs,
    RunCarry,
)
from fedax.engine.round.evaluation import empty_cohort, view_of
from fedax.engine.round.phase import zeros
from fedax.engine.round.timeline import timeline_of
from fedax.engine.round.timing import with_slots
from fedax.engine.round.trace import initial_carry
from fedax.errors import InvalidInput
from fedax.observe.base import Observer, compute_all
from fedax.utils.random import Index

SMALL = 4_000_000
"""Parameters times examples of a round, up to which a run takes one device: one CPU core runs such
a round in a few milliseconds, and compiling for two cores takes longer than they save in hundreds
of rounds."""


@dataclasses.dataclass(eq=False)
class Simulation(Engine):
    """The compiled engine, on one machine or, after `connect_hosts`, on several.

    Args:
        chunk: clients that work at a time, at least 1: 1 for one after the other with a dynamic
            number of steps, so that power-law sizes waste nothing (best on CPU); more for clients
            of similar length together by `vmap` (best on GPU). None means 1 on CPU, 32 elsewhere.
        devices: devices of the mesh that clients are spread over, longest first; None means all, or
            one CPU device if a round takes a few milliseconds only: its program is compiled sooner,
            and can be kept (`fedax.keep_programs`).
        microbatch: the most examples that pass through the model at once, at least 1; larger
            batches are accumulated.
        data: `"device"`: all examples lie on every device; `"host"`: they stay where they are, in
            memory or in files, and a client's come when it works. `"auto"`: on the host if any lie
            in files (`fedax.data.open_clients`). On several hosts they lie on the devices.
        memory: where the clients' states (control variates, multipliers, models, ...) lie between
            their rounds: `"device"`, for every client; `"host"`, in the process's memory; `"disk"`,
            in a file in the system's temporary folder (`TMPDIR`), which goes with the run and its
            history. Of the latter two, a round moves the rows of the clients that work, and only
            clients that ever worked have rows. Not on several hosts, and not for methods of several
            phases where a phase may have no clients (dropouts, `on_bad_client="drop"`).

    The chunks, the number of devices, the microbatch and the place of the data do not change a
    trajectory beyond rounding; the place of the memories does not change a bit of it. With several
    runs in one program (`fedax.run_grid`) all devices share the clients of each.

    Raises:
        InvalidInput: an option out of range, or one that several hosts cannot have.
    """

    chunk: int | None = hyper(None, kind=int, low=1, optional=True)
    devices: int | None = hyper(None, kind=int, low=1, optional=True)
    microbatch: int = hyper(256, low=1)
    data: Literal["auto", "device", "host"] = hyper("auto", choices=("auto", "device", "host"))
    memory: Literal["device", "host", "disk"] = hyper("device", choices=("device", "host", "disk"))

    in_process = True

    def __post_init__(self) -> None:
        self.process_group = multihost_group()
        check_declared(self)
        available = len(jax.devices())
        if self.devices is not None and self.devices > available:
            allowed = f"whole numbers in [1, {available}], or None"
            raise InvalidInput.of("Simulation(devices=...)", self.devices, allowed)
        if self.process_group.size == 1:
            return
        # several hosts must make the same choices, and share all devices
        choices = {"devices": (None, available), "data": ("auto", "device"), "memory": ("device",)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                field = f"Simulation({name}=...)"
                several = f"one of {allowed} on several hosts"
                raise InvalidInput.of(field, getattr(self, name), several)

    def program(self, inputs: ProgramInputs) -> "SimulationProgram":
        return SimulationProgram(self, inputs)

    def count_devices(self, setup: Setup, runs: int) -> int:
        """Returns how many devices all runs share."""
        several = self.devices or len(jax.devices())
        is_given = self.devices is not None or self.process_group.size > 1
        if is_given or jax.default_backend() != "cpu":
            return several
        # a round of all runs may be too little work for several devices
        population = setup.population
        schedule = setup.schedule
        size = max(1, population.total // population.clients)
        examples = schedule.mean_steps(size) * min(schedule.widest(size), size)
        clients = population.clients if schedule.cohort is None else schedule.cohort
        return 1 if runs * clients * examples * setup.layout.dim <= SMALL else several


class SimulationProgram(Program):
    """Compiled program of one run or of a sweep, see `SweepAxes`. Holds its inputs on the devices.

    A state is a tuple of the carry, the cohorts that worked last (see `View.cohort`; None before
    the first round), which the next observation needs, and the stores of client states outside the
    devices.
    """

    def __init__(self, engine: Simulation, inputs: ProgramInputs) -> None:
        settings, setup, roots, longest = inputs
        self.memory: StatePlacement = engine.memory
        self.programs = setup.task.programs
        self.devices = engine.count_devices(setup, len(settings) * len(roots))
        devices = self.devices if setup.solver.on_mesh else 1
        chunk = engine.chunk or (1 if jax.default_backend() == "cpu" else 32)
        self.axes = axes = SweepAxes(len(settings), len(roots), devices, chunk > 1)
        setup = dataclasses.replace(
            setup,
            placement=Placement(engine.microbatch, chunk, devices, engine.memory != "device"),
        )
        self.timelines = [timeline_of(setup, root) for root in roots]
        # keeps what programs read by its handle
        self.host_examples: Sequence[HostExamples] = ()
        in_files = engine.process_group.size == 1 and is_in_files(setup.task)
        if engine.data == "host" or (engine.data == "auto" and in_files):
            task, self.host_examples = keep_on_host(setup.task)
            setup = dataclasses.replace(setup, task=task)
        # rounded up, so that different cadences share a program
        self.longest = 1 << max(3, (longest - 1).bit_length())
        self.setup = axes.put(setup, may_alias=True)
        self.settings = axes.put(axes.stack(settings))
        self.roots = axes.put(axes.stack(roots))
        self.small = setup.layout.dim <= SMALL_MODEL

    @functools.cached_property
    def round_setup(self) -> Setup:
        """The setup of rounds, with fused loops where possible.

        A `vmap` over settings makes products too large for them.
        """
        placement = self.setup.placement
        can_fuse = self.small and placement.chunk == 1 and self.axes.settings == 1
        placement = placement._replace(kernels=can_fuse and is_available())
        return dataclasses.replace(self.setup, placement=placement)

    def join(self, carry: Sequence[RunCarry]) -> Any:
        # on the devices where `start` puts them, so that the same program is used; a resumed run
        # works before it is observed
        move = to_device if self.memory == "device" else offload_state
        # members that have ended have the slots of fewer rounds
        moved = [with_slots(self.setup.timing, move(each), self.timelines) for each in carry]
        stacked = self.axes.stack_runs([detach_stores(run_carry) for run_carry in moved])
        stacked, stores = allocate_stores(self.axes.put(stacked), self.memory)
        return stacked, None, tuple(stores)

    def split(self, states: Any) -> list[RunCarry]:
        return [attach_stores(run_carry) for run_carry in self.axes.unstack_runs(states[0])]

    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        w = self.axes.put(self.axes.stack(models))
        call = self._call_of(_start, self.setup, None, (self.roots, w))
        with bypass_persistent_cache(self.devices):
            carry, last_cohort = self.programs.call(*call)
        carry, stores = allocate_stores(carry, self.memory)
        return carry, last_cohort, tuple(stores)

    def _call_of(
        self, function: Callable[..., Any], setup: Setup, shared: Any, *seeds: Any
    ) -> tuple[Any, ...]:
        """Returns a function of one run for all of them, and its arguments."""
        if self.axes.is_single:
            return function, setup, shared, *seeds
        return self.axes.vectorize(function), setup, shared, self.settings, *seeds

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        # the cohorts of the last call are not needed: the program returns those of its last round
        carry, _, stores = states
        axis = 0 if self.axes.is_single else 2  # after those of seeds and settings
        carry = with_slots(self.setup.timing, carry, self.timelines, first + count, axis)
        rows = [timeline.rows(first, count, self.longest) for timeline in self.timelines]
        rows = self.axes.put(self.axes.stack(jax.tree.map(jnp.asarray, rows)))
        shared = np.asarray(first, np.int32), np.asarray(count, np.int32), self.longest
        call = self._call_of(_run_rounds, self.round_setup, shared, (self.roots, rows))
        options = compiler_options() if self.small else {}
        with bypass_persistent_cache(self.devices):
            # donated: the states before a call are overwritten, so that a large state is not held
            # twice
            carry, report, last_cohort = self.programs.call(*call, donated=(carry,), **options)
        # runs follow each other by setting, then by seed
        logs = []
        for i, single in enumerate(self.axes.unstack_runs(self.axes.to_host(report))):
            rounds = jax.tree.map(lambda x: x[:count], single)
            logs.append(Log.of(rounds, self.timelines[i % self.axes.seeds], first))
        return (carry, last_cohort, stores), logs

    def observe(self, states: Any, observers: Sequence[Observer]) -> list[dict[str, Any]]:
        if not observers:
            return [{} for _ in range(self.axes.settings * self.axes.seeds)]
        call = self._call_of(_observe, self.setup, tuple(observers), self.roots, states[:2])
        with bypass_persistent_cache(self.devices):
            metrics = self.programs.call(*call)
        return self.axes.unstack_runs(self.axes.to_host(metrics))


def _start(setup: Setup, _: None, seed: tuple[Key[Array, ""], Array]) -> tuple[RunCarry, Cohort]:
    """Returns the carry before round 0, and a cohort without clients."""
    capacity = setup.schedule.capacity(setup.population.clients)
    initial_cohort = empty_cohort(capacity, setup.layout.dtype)
    return initial_carry(SimulationBackend(setup), *seed), initial_cohort


def one_round(
    setup: Setup,
    root: Key[Array, ""],
    round: Index,
    carry: RunCarry,
    row: Row | None = None,
) -> tuple[RunCarry, Any, Cohort]:
    """Returns the carry after a round, the round's report, and the cohort that worked last."""
    # `fed` collects traffic, values and failures as tracers while the algorithm's Python code runs
    fed = RoundContext(SimulationBackend(setup), round, root, carry, row)
    with explained(setup.algorithm.round):
        new_carry = fed.end(setup.algorithm.round(fed, carry.state))
    last_cohort = fed.last or empty_cohort(0, setup.layout.dtype)
    # an empty phase leaves the state as it was
    count = jnp.where(fed.is_abandoned, 0, jnp.asarray(last_cohort.count, jnp.int32))
    last_cohort = eqx.tree_at(lambda cohort: cohort.count, last_cohort, count)
    report = fed.report(new_carry.state)
    # the selection below would copy the whole state
    if not (setup.schedule.may_be_empty or setup.drop):
        return new_carry, report, last_cohort

    # without participants, means are 0/0; such a round leaves the state unchanged
    def keep_if_abandoned(old: Any, new: Any) -> Any:
        if isinstance(new, ClientStates) and len(fed.traffic) == 1:
            return new  # with a single phase, no client has written it
        if isinstance(new, OffloadedStates):
            if new.version is old.version:
                return new
            # rows that another phase has written are not brought back
            reason = "has several phases, one of which may have no clients while another stores"
            raise InvalidInput.because(
                f"{type(setup.algorithm).__name__}.round",
                reason,
                'Choose Simulation(memory="device").',
            )
        return jax.tree.map(lambda before, now: jnp.where(fed.is_abandoned, before, now), old, new)

    selected = jax.tree.map(
        keep_if_abandoned, carry, new_carry, is_leaf=lambda node: isinstance(node, ClientStates)
    )
    # what an abandoned server step sent down is on its way: its receivers arrive later
    return selected._replace(downlinks=fed.carry.downlinks), report, last_cohort


def _run_rounds(
    setup: Setup,
    bounds: tuple[Index, Index, int],
    seed: tuple[Key[Array, ""], Row | None],
    state: RunCarry,
) -> tuple[RunCarry, Any, Cohort]:
    first, count, longest = bounds
    root, rows = seed
    # traced once, for the shapes of the report and as the body of the loop
    round_: Any = eqx.filter_closure_convert(
        functools.partial(one_round, setup, root), first, state, row_at(rows, 0)
    )
    _, shape, cohort_shape = round_.out_struct
    log = zeros(shape, longest)
    initial_cohort = zeros(cohort_shape)

    def body(i: Index, carry: tuple[Any, Any, Cohort]) -> tuple[Any, Any, Cohort]:
        state, log, _ = carry
        # reports have rows (longest, ...), of which the caller reads the first `count`
        state, report, last_cohort = round_(first + i, state, row_at(rows, i))
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), log, report), last_cohort

    state, log, last_cohort = jax.lax.fori_loop(0, count, body, (state, log, initial_cohort))
    # as many slots as before the first round, so that one program observes both; the population's
    # size would take too long
    return (
        state,
        log,
        last_cohort.padded(
            max(setup.schedule.capacity(setup.population.clients), last_cohort.ids.shape[0])
        ),
    )


def _observe(
    setup: Setup, observers: tuple[Observer, ...], root: Key[Array, ""], state: Any
) -> dict[str, Any]:
    """Computes the metrics of all observers, which share their passes over the data."""
    carry, last_cohort = state
    # a resumed run that is observed before it works does not know its last cohort
    worked = last_cohort or empty_cohort(0, setup.layout.dtype)
    view = view_of(setup, carry, worked.padded(setup.population.clients))
    return compute_all(observers, view)


def first_round(
    setup: Setup,
    seed: tuple[Key[Array, ""], Array],
    round: Index,
    observers: tuple[Observer, ...],
) -> tuple[Any, Any]:
    """Returns the report of a run's first round, and the metrics after it.

    The program of it stands for the code of a run in its identity.
    """
    carry, _ = _start(setup, None, seed)
    carry, report, last_cohort = one_round(setup, seed[0], round, carry)
    metrics = _observe(setup, observers, seed[0], (carry, last_cohort))
    return (carry, report), metrics
