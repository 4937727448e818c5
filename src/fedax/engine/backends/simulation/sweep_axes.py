"""Runs a sweep as one program: several settings of an algorithm, each with the same seeds.

A *run* is one setting with one seed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

_MIN_USED = 0.75
"""Least fraction of the devices that must have runs for the sweep, not its clients, to be sharded
over them."""


class SweepAxes(NamedTuple):
    """Axes of a program's runs.

    Arrays that differ between runs have leading axes (seeds, settings), those of a single run none.

    On several devices the runs are sharded without any communication; the last run is repeated
    until all devices have equally many. If that leaves too many devices without work, they share
    each run's clients instead.

    The settings of one seed are one `vmap`, because they see the same examples. Seeds are vmapped
    only if `lanes`; otherwise they run one after the other, because a `vmap` over cohorts of
    different sizes takes as many steps as the largest.

    Args:
        settings: number of algorithms.
        seeds: number of seeds of each.
        devices: number of devices of the mesh.
        lanes: whether seeds are vmapped too.
        spread: the axis that is sharded over the devices.
    """

    settings: int
    seeds: int
    devices: int
    lanes: bool
    spread: Literal["settings", "seeds", "clients"]

    @classmethod
    def of(cls, settings: int, seeds: int, devices: int, lanes: bool) -> "SweepAxes":
        def used_fraction(count: int) -> float:
            return count / _round_up(count, devices)

        axis = "settings" if used_fraction(settings) >= used_fraction(seeds) else "seeds"
        is_worthwhile = (
            devices > 1 and max(used_fraction(settings), used_fraction(seeds)) >= _MIN_USED
        )
        return cls(settings, seeds, devices, lanes, axis if is_worthwhile else "clients")

    @property
    def is_single(self) -> bool:
        return self.settings == self.seeds == 1

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.array(jax.devices()[: self.devices]), (self.spread,))

    def stack(self, items: Sequence[Any], axis: Literal["settings", "seeds"]) -> Any:
        """Stacks one tree per setting, or per seed, along a new first axis."""
        if self.is_single:
            return items[0]
        # every device needs as many runs as the others, so the last one is repeated
        count = _round_up(len(items), self.devices) if self.spread == axis else len(items)
        return _stack([items[min(i, len(items) - 1)] for i in range(count)])

    def stack_runs(self, states: Sequence[Any]) -> Any:
        """Stacks the states of all runs, given in the order of settings, then seeds."""
        if self.is_single:
            return jax.tree.map(
                lambda leaf: jnp.array(leaf) if eqx.is_array_like(leaf) else leaf, states[0]
            )
        return self.stack(
            [self.stack(states[i :: self.seeds], "settings") for i in range(self.seeds)], "seeds"
        )

    def unstack_runs(self, stacked: Any) -> list[Any]:
        """Inverts `stack_runs`."""
        if jax.process_count() > 1:
            stacked = jax.tree.map(
                lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf,
                self.to_host(stacked),
            )
        if self.is_single:
            return [stacked]
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(stacked)):
            # one transfer, not one for each run
            stacked = jax.device_put(stacked, jax.local_devices()[0])
        indices = [(i, k) for k in range(self.settings) for i in range(self.seeds)]
        return [jax.tree.map(lambda leaf, index=index: leaf[index], stacked) for index in indices]

    def to_host(self, stacked: Any) -> Any:
        """Returns a program's results as NumPy arrays, also those on devices of other hosts."""
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, stacked)
        replicated = NamedSharding(self.mesh, P())
        return jax.tree.map(
            lambda leaf: (
                np.asarray(_to_all_processes(leaf, replicated)) if eqx.is_array(leaf) else leaf
            ),
            stacked,
        )

    def put(self, tree: Any, axis: Literal["settings", "seeds", "runs", "all"]) -> Any:
        """Puts a tree on the devices that need it.

        Arrays of all runs may alias host memory, because programs only read them.
        """
        arrays, static = eqx.partition(tree, eqx.is_array)
        sharding = NamedSharding(self.mesh, self._spec(axis))
        if jax.process_count() == 1:
            return eqx.combine(
                jax.device_put(arrays, sharding, may_alias=axis == "all" or None), static
            )
        return eqx.combine(
            jax.tree.map(lambda leaf: _to_all_processes(leaf, sharding), arrays), static
        )

    def _spec(self, axis: str) -> P:
        if self.is_single or self.spread == "clients":
            return P()
        if axis == "runs":
            return P("seeds") if self.spread == "seeds" else P(None, "settings")
        return P(axis) if axis == self.spread else P()

    @functools.cache  # noqa: B019 (a function compares by identity, and programs by their function)
    def vectorize(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Maps a function of one run, `(shared, setting, seed_inputs, *states)`, over all runs."""
        if self.is_single:
            return function
        runs_per_device = {"settings": self.settings, "seeds": self.seeds}
        if self.spread != "clients":
            runs_per_device[self.spread] = (
                _round_up(runs_per_device[self.spread], self.devices) // self.devices
            )

        def program(shared: Any, algorithms: Any, seeds: Any, *states: Any) -> Any:
            # seeds outside, settings inside: the settings of a seed see the same cohorts, so only
            # seeds may have loops of different lengths
            def run_seed(seed: Any, *states: Any) -> Any:
                mapped = _vmap_runs(
                    lambda algorithm, *states: function(shared, algorithm, seed, *states),
                    runs_per_device["settings"],
                )
                return mapped(algorithms, *states)

            return (_vmap_runs if self.lanes else _loop_runs)(run_seed, runs_per_device["seeds"])(
                seeds, *states
            )

        def sharded(*arguments: Any) -> Any:
            arrays, static = eqx.partition(arguments, eqx.is_array)
            mapped = jax.shard_map(
                lambda *arrays: program(*eqx.combine(arrays, static)),
                mesh=self.mesh,
                in_specs=tuple(
                    self._spec(axis)
                    for axis in ("all", "settings", "seeds", *["runs"] * (len(arguments) - 3))
                ),
                out_specs=self._spec("runs"),
                check_vma=False,
            )
            return mapped(*arrays)

        return program if self.spread == "clients" else sharded


def _to_all_processes(leaf: Any, sharding: NamedSharding) -> Array:
    """Puts an array that every process has on the devices of all processes."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda x: x, out_shardings=sharding)(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _to_all_processes(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf)
        )
    # each process fills the shards of its own devices
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _round_up(count: int, devices: int) -> int:
    return -(-count // devices) * devices


def _stack(items: Sequence[Any]) -> Any:
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *items
    )


def _vmap_runs(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Maps a function over the first axis of its arguments by `vmap`."""
    return eqx.filter_vmap(function, axis_size=count) if count > 1 else _loop_runs(function, count)


def _loop_runs(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Maps a function over the first axis of its arguments, one row after the other."""

    def over_rows(*arguments: Any) -> Any:
        arrays, static = eqx.partition(arguments, eqx.is_array)

        def call_row(row: Any) -> Any:
            return function(*eqx.combine(row, static))

        if count > 1:
            return jax.lax.map(call_row, arrays)
        return jax.tree.map(
            lambda leaf: leaf[None], call_row(jax.tree.map(lambda leaf: leaf[0], arrays))
        )

    return over_rows
