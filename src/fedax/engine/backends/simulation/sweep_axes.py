"""Runs a sweep as one program: several settings of an algorithm, each with the same seeds.

A *run* is one setting with one seed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from fedax.engine.backends.simulation.backend import client_mesh
from fedax.engine.round.client import Setup


class SweepAxes(NamedTuple):
    """Axes of a program's runs.

    Arrays that differ between runs have leading axes (seeds, settings), those of a single run none.
    Several devices share the clients of every run.

    The settings of one seed are one `vmap`, because they see the same examples. Seeds are vmapped
    only if `lanes`; otherwise they run one after the other, because a `vmap` over cohorts of
    different sizes takes as many steps as the largest.

    Args:
        settings: number of algorithms.
        seeds: number of seeds of each.
        devices: number of devices of the mesh.
        lanes: whether seeds are vmapped too.
    """

    settings: int
    seeds: int
    devices: int
    lanes: bool

    @property
    def is_single(self) -> bool:
        return self.settings == self.seeds == 1

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of arrays that every device has."""
        return NamedSharding(client_mesh(self.devices), P())

    def stack(self, items: Sequence[Any]) -> Any:
        """Stacks one tree per setting, or per seed, along a new first axis."""
        if self.is_single:
            return items[0]
        return jax.tree.map(
            lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *items
        )

    def stack_runs(self, states: Sequence[Any]) -> Any:
        """Stacks the states of all runs, given in the order of settings, then seeds."""
        if self.is_single:
            return jax.tree.map(
                lambda leaf: jnp.array(leaf) if eqx.is_array_like(leaf) else leaf, states[0]
            )
        return self.stack([self.stack(states[i :: self.seeds]) for i in range(self.seeds)])

    def unstack_runs(self, stacked: Any) -> list[Any]:
        """Inverts `stack_runs`."""
        if jax.process_count() > 1:
            stacked = jax.tree.map(
                lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf,
                self.to_host(stacked),
            )
        if self.devices > 1:
            # one transfer, not one for each run; of a single run a copy, as later rounds take its
            # buffers over
            stacked = jax.device_put(stacked, jax.local_devices()[0], may_alias=False)
        if self.is_single:
            return [stacked]
        indices = [(i, k) for k in range(self.settings) for i in range(self.seeds)]
        return [jax.tree.map(lambda leaf, index=index: leaf[index], stacked) for index in indices]

    def to_host(self, stacked: Any) -> Any:
        """Returns a program's results as NumPy arrays, also those on devices of other hosts."""
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, stacked)
        return jax.tree.map(
            lambda leaf: (
                np.asarray(_to_all_processes(leaf, self.sharding)) if eqx.is_array(leaf) else leaf
            ),
            stacked,
        )

    def put(self, tree: Any, may_alias: bool | None = None) -> Any:
        """Puts a tree on all devices. Where `may_alias`, arrays may alias host memory."""
        arrays, static = eqx.partition(tree, eqx.is_array)
        if jax.process_count() == 1:
            return eqx.combine(jax.device_put(arrays, self.sharding, may_alias=may_alias), static)
        return eqx.combine(
            jax.tree.map(lambda leaf: _to_all_processes(leaf, self.sharding), arrays), static
        )

    @functools.cache  # noqa: B019 (a function compares by identity, and programs by their function)
    def vectorize(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Maps a function of one run, `(setup, shared, seed_inputs, *states)`, over all runs."""

        def program(setup: Setup, shared: Any, settings: Any, seeds: Any, *states: Any) -> Any:
            # seeds outside, settings inside: the settings of a seed see the same cohorts, so only
            # seeds may have loops of different lengths
            def run_seed(seed: Any, *states: Any) -> Any:
                mapped = _vmap_runs(
                    lambda setting, *states: function(setting.of(setup), shared, seed, *states),
                    self.settings,
                )
                return mapped(settings, *states)

            return (_vmap_runs if self.lanes else _loop_runs)(run_seed, self.seeds)(seeds, *states)

        return program


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


def _vmap_runs(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Maps a function over the first axis of its arguments by `vmap`."""
    return eqx.filter_vmap(function, axis_size=count) if count > 1 else _loop_runs(function, count)


def _loop_runs(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Maps a function over the first axis of its arguments, one row after the other."""

    def over_rows(*arguments: Any) -> Any:
        arrays, static = eqx.partition(arguments, eqx.is_array)

        def call_row(row: Any) -> Any:
            return function(*eqx.combine(row, static))

        return jax.lax.map(call_row, arrays)

    return over_rows
