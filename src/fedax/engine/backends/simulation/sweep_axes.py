"""Runs a sweep as one program: several settings of an algorithm, each with the same seeds.

A *run* is one setting with one seed.
"""

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
        def used(count: int) -> float:
            return count / _round_up(count, devices)

        spread = "settings" if used(settings) >= used(seeds) else "seeds"
        worth = devices > 1 and max(used(settings), used(seeds)) >= _MIN_USED
        return cls(settings, seeds, devices, lanes, spread if worth else "clients")

    @property
    def is_single(self) -> bool:
        return self.settings == self.seeds == 1

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.array(jax.devices()[: self.devices]), (self.spread,))

    def stack(self, items: Sequence[Any], of: Literal["settings", "seeds"]) -> Any:
        """Stacks one tree per setting, or per seed, along a new first axis."""
        if self.is_single:
            return items[0]
        # every device needs as many runs as the others, so the last one is repeated
        count = _round_up(len(items), self.devices) if self.spread == of else len(items)
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

    def unstack_runs(self, joined: Any) -> list[Any]:
        """Inverts `stack_runs`."""
        if jax.process_count() > 1:
            joined = jax.tree.map(
                lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf,
                self.to_host(joined),
            )
        if self.is_single:
            return [joined]
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(joined)):
            # one transfer, not one for each run
            joined = jax.device_put(joined, jax.local_devices()[0])
        places = [(i, k) for k in range(self.settings) for i in range(self.seeds)]
        return [jax.tree.map(lambda leaf, at=at: leaf[at], joined) for at in places]

    def to_host(self, joined: Any) -> Any:
        """Returns a program's results as NumPy arrays, also those on devices of other hosts."""
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, joined)
        everywhere = NamedSharding(self.mesh, P())
        return jax.tree.map(
            lambda leaf: (
                np.asarray(_to_all_processes(leaf, everywhere)) if eqx.is_array(leaf) else leaf
            ),
            joined,
        )

    def put(self, tree: Any, of: Literal["settings", "seeds", "runs", "all"]) -> Any:
        """Puts a tree on the devices that need it.

        Arrays of all runs may alias host memory, because programs only read them.
        """
        arrays, rest = eqx.partition(tree, eqx.is_array)
        place = NamedSharding(self.mesh, self._spec(of))
        if jax.process_count() == 1:
            return eqx.combine(jax.device_put(arrays, place, may_alias=of == "all" or None), rest)
        return eqx.combine(jax.tree.map(lambda leaf: _to_all_processes(leaf, place), arrays), rest)

    def _spec(self, of: str) -> P:
        if self.is_single or self.spread == "clients":
            return P()
        if of == "runs":
            return P("seeds") if self.spread == "seeds" else P(None, "settings")
        return P(of) if of == self.spread else P()

    def vectorize(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Maps a function of one run, `(shared, algorithm, seed_inputs, *states)`, over all
        runs.
        """
        if self.is_single:
            return function
        here = {"settings": self.settings, "seeds": self.seeds}
        if self.spread != "clients":
            here[self.spread] = _round_up(here[self.spread], self.devices) // self.devices

        def program(shared: Any, algorithms: Any, seeds: Any, *states: Any) -> Any:
            # seeds outside, settings inside: the settings of a seed see the same cohorts, so only
            # seeds may have loops of different lengths
            def run_seed(seed: Any, *states: Any) -> Any:
                work = _vmap_runs(
                    lambda algorithm, *states: function(shared, algorithm, seed, *states),
                    here["settings"],
                )
                return work(algorithms, *states)

            return (_vmap_runs if self.lanes else _loop_runs)(run_seed, here["seeds"])(
                seeds, *states
            )

        def spread(*arguments: Any) -> Any:
            arrays, code = eqx.partition(arguments, eqx.is_array)
            work = jax.shard_map(
                lambda *arrays: program(*eqx.combine(arrays, code)),
                mesh=self.mesh,
                in_specs=tuple(
                    self._spec(of)
                    for of in ("all", "settings", "seeds", *["runs"] * (len(arguments) - 3))
                ),
                out_specs=self._spec("runs"),
                check_vma=False,
            )
            return work(*arrays)

        return program if self.spread == "clients" else spread


def _to_all_processes(leaf: Any, place: NamedSharding) -> Array:
    """Puts an array that every process has on the devices of all processes."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda x: x, out_shardings=place)(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _to_all_processes(jax.random.key_data(leaf), place), impl=jax.random.key_impl(leaf)
        )
    # each process fills the shards of its own devices
    plain = np.asarray(leaf)
    return jax.make_array_from_callback(plain.shape, place, lambda part: plain[part])


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
        arrays, rest = eqx.partition(arguments, eqx.is_array)

        def one(row: Any) -> Any:
            return function(*eqx.combine(row, rest))

        if count > 1:
            return jax.lax.map(one, arrays)
        return jax.tree.map(
            lambda leaf: leaf[None], one(jax.tree.map(lambda leaf: leaf[0], arrays))
        )

    return over_rows
