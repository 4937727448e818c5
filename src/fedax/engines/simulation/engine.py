"""Rounds between two observations as one compiled program."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key

from fedax.core.algorithm import Algorithm
from fedax.core.channel import unpack
from fedax.core.errors import InvalidInput
from fedax.core.federation import Memory
from fedax.core.hyper import as_arrays
from fedax.core.keys import Index
from fedax.core.layout import Layout
from fedax.core.schedule import Schedule
from fedax.core.solver import Solver
from fedax.core.task import Task
from fedax.core.view import Observer
from fedax.engines.base import Engine, Log, Session
from fedax.engines.client import Setup
from fedax.engines.simulation.federation import SimulatedFederation, mesh_of
from fedax.engines.view import all_personal, view_of


class Simulation(Engine):
    """The compiled engine for one machine.

    Args:
        placement: `"sequential"`, one client after the other with a dynamic number of steps, so that power-law sizes waste
            nothing (best on CPU); `"chunked"`, `chunk` clients of similar length at a time by `vmap` (best on GPU); `"auto"`.
        chunk: clients at a time if chunked, at least 1; None means 8 on CPU, 32 elsewhere.
        devices: devices of the mesh that clients are spread over, longest first; None means all.
        microbatch: the most examples that pass through the model at once, at least 1; larger batches are accumulated.

    The placement, the number of devices and the microbatch do not change a trajectory beyond rounding.
    """

    def __init__(
        self,
        placement: Literal["auto", "sequential", "chunked"] = "auto",
        chunk: int | None = None,
        devices: int | None = None,
        microbatch: int = 256,
    ) -> None:
        if placement not in ("auto", "sequential", "chunked"):
            raise InvalidInput.of("Simulation(placement=...)", placement, "one of 'auto', 'sequential', 'chunked'")
        available = len(jax.devices())
        for name, value, top in (("chunk", chunk, None), ("devices", devices, available), ("microbatch", microbatch, None)):
            if value is not None and (value < 1 or (top is not None and value > top)):
                raise InvalidInput.of(
                    f"Simulation({name}=...)", value, "whole numbers >= 1" if top is None else f"1 to {top}"
                )
        cpu = jax.default_backend() == "cpu"
        if placement == "auto":
            placement = "sequential" if cpu else "chunked"
        self.placement: Literal["sequential", "chunked"] = placement
        self.chunk = 1 if self.placement == "sequential" else chunk or (8 if cpu else 32)
        self.devices = devices or available
        self.microbatch = microbatch

    def session(
        self,
        algorithms: Sequence[Algorithm[Any]],
        task: Task,
        solver: Solver,
        schedule: Schedule,
        layout: Layout,
        root: Key[Array, ""],
        longest: int,
    ) -> "SimulationSession":
        devices = self.devices if solver.on_mesh else 1
        setup = Setup(task, solver, schedule, layout, self.microbatch, self.placement, self.chunk, devices)
        return SimulationSession(setup, algorithms, root, longest)


class SimulationSession(Session):
    """Holds the program's inputs on the devices. Several algorithms are one `vmap` over their hyperparameters."""

    def __init__(self, setup: Setup, algorithms: Sequence[Algorithm[Any]], root: Key[Array, ""], longest: int) -> None:
        dtype = setup.layout.dtype
        self._everywhere = NamedSharding(mesh_of(setup.devices), P())
        self._count = len(algorithms)
        self.longest = 1 << max(3, (longest - 1).bit_length())  # rounded up, so that more cadences are one program
        algorithm = self.join([as_arrays(member, dtype) for member in algorithms])
        solver, task = as_arrays(setup.solver, dtype), setup.task
        setup = Setup(
            task, solver, setup.schedule, setup.layout, setup.microbatch, setup.placement, setup.chunk, setup.devices
        )
        self.setup, self.algorithm, self.root = (self._put(part) for part in (setup, algorithm, root))

    def _put(self, tree: Any) -> Any:
        arrays, rest = eqx.partition(tree, eqx.is_array)
        return eqx.combine(jax.device_put(arrays, self._everywhere), rest)

    def join(self, states: list[Any]) -> Any:
        if self._count == 1:
            joined = jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array_like(leaf) else leaf, states[0])
        else:
            joined = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *states)
        return self._put(joined)  # where a fresh start puts them, for the same program

    def split(self, states: Any) -> list[Any]:
        if self._count == 1:
            return [states]
        return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(self._count)]

    def start(self, w: Float[Array, "dim"]) -> Any:
        return _start(self.setup, self.algorithm, self.root, self._put(w), self._count)

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        fixed = (self.setup, self.algorithm, self.root, jnp.int32(first), jnp.int32(count), self.longest, self._count)
        states, report = advance(fixed, states)
        return states, [self._log(single, count) for single in self.split(jax.tree.map(np.asarray, report))]

    def _log(self, report: Any, count: int) -> Log:
        notes, traffic, bad = jax.tree.map(lambda x: x[:count], report)
        down, up = (
            sum((unpack(*phase[way]) * phase["messages"] for phase in traffic), np.zeros(count, np.int64))
            for way in ("down", "up")
        )
        return Log(notes, down, up, bad)

    def observe(self, states: Any, observers: Sequence[Observer]) -> list[dict[str, np.ndarray]]:
        metrics = observe(self.setup, self.algorithm, states, tuple(observers), self._count)
        singles = self.split(jax.tree.map(np.asarray, metrics))
        return [{name: np.asarray(value) for name, value in single.items()} for single in singles]

    def personal(self, states: Any) -> list[Float[Array, "clients dim"]]:
        models = personal(self.setup, self.algorithm, states, self._count)
        return [models] if self._count == 1 else list(models)


def over(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, over the first axis of its arguments if there are several algorithms."""
    return eqx.filter_vmap(function, axis_size=count) if count > 1 else function


@eqx.filter_jit
def _start(setup: Setup, algorithm: Algorithm[Any], root: Key[Array, ""], w: Float[Array, "dim"], count: int) -> Any:
    return over(count, lambda member: member.init(SimulatedFederation(setup, jnp.int32(0), root), w))(algorithm)


def one_round(setup: Setup, algorithm: Algorithm[Any], root: Key[Array, ""], round: Index, state: Any) -> tuple[Any, Any]:
    """The state after a round, and what it reported: notes, traffic of each phase, the first non-finite client."""
    fed = SimulatedFederation(setup, round, root)
    after = algorithm.round(fed, state)
    report = fed.notes, fed.traffic, jnp.where(fed.nobody, -1, fed.bad_client)
    if not setup.schedule.may_be_empty:  # the choice below would copy the whole state
        return after, report
    # in a round without participants, means are 0/0; the state stays. Memories were written by nobody.
    kept = jax.tree.map(
        lambda old, new: new if isinstance(new, Memory) else jnp.where(fed.nobody, old, new),
        state,
        after,
        is_leaf=lambda node: isinstance(node, Memory),
    )
    return kept, report


@eqx.filter_jit(donate="all-except-first")
def advance(fixed: tuple[Setup, Algorithm[Any], Key[Array, ""], Index, Index, int, int], states: Any) -> tuple[Any, Any]:
    """`count` rounds from round `first` on, of at most `longest`: one program however many are asked for."""
    setup, algorithm, root, first, count, longest, members = fixed

    def rounds(algorithm: Algorithm[Any], state: Any) -> tuple[Any, Any]:
        shape = jax.eval_shape(lambda: one_round(setup, algorithm, root, first, state)[1])
        log = jax.tree.map(lambda leaf: jnp.zeros((longest, *leaf.shape), leaf.dtype), shape)

        def body(i: Index, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, log = carry
            state, report = one_round(setup, algorithm, root, first + i, state)
            return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), log, report)

        return jax.lax.fori_loop(0, count, body, (state, log))

    return over(members, rounds)(algorithm, states)


@eqx.filter_jit
def observe(
    setup: Setup, algorithm: Algorithm[Any], states: Any, observers: tuple[Observer, ...], members: int
) -> dict[str, Any]:
    """The metrics of all observers, which share their passes over the data."""

    def metrics(algorithm: Algorithm[Any], state: Any) -> dict[str, Any]:
        view = view_of(setup, algorithm, state)
        return {name: value for observer in observers for name, value in observer(view).items()}

    return over(members, metrics)(algorithm, states)


@eqx.filter_jit
def personal(setup: Setup, algorithm: Algorithm[Any], states: Any, members: int) -> Array:
    """The models that the clients use themselves, first axis (clients,)."""
    return over(members, lambda algorithm, state: all_personal(setup, algorithm, state))(algorithm, states)
