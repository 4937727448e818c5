"""Several runs as one program: the settings of a method, each with the same seeds."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

_WORTH = 0.75
"""The least part of the devices that must have work for members, not clients, to be spread over them."""


class RunAxes(NamedTuple):
    """The layout of a program's runs: everything that differs has axes (seeds, settings), a single run has none.

    Several devices share the members, without a word between them; the last member is repeated until
    all devices have as many. If that leaves too many of them without work, they share each member's clients instead.

    The settings of one seed are one `vmap`: they see the same examples. So are the seeds if `lanes`; otherwise they follow each
    other, because a `vmap` over cohorts of different sizes takes as many steps as the largest.

    Args:
        settings: how many algorithms.
        seeds: how many seeds each has.
        devices: of the mesh.
        lanes: whether seeds are lanes too.
        spread: what is spread over the devices.
    """

    settings: int
    seeds: int
    devices: int
    lanes: bool
    spread: Literal["settings", "seeds", "clients"]

    @classmethod
    def of(cls, settings: int, seeds: int, devices: int, lanes: bool) -> "RunAxes":
        def used(count: int) -> float:
            return count / _up(count, devices)

        spread = "settings" if used(settings) >= used(seeds) else "seeds"
        worth = devices > 1 and max(used(settings), used(seeds)) >= _WORTH
        return cls(settings, seeds, devices, lanes, spread if worth else "clients")

    @property
    def alone(self) -> bool:
        return self.settings == self.seeds == 1

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.array(jax.devices()[: self.devices]), (self.spread,))

    def rows(self, items: Sequence[Any], of: Literal["settings", "seeds"]) -> Any:
        """One tree with a first axis from one tree for each setting, or for each seed."""
        if self.alone:
            return items[0]
        count = _up(len(items), self.devices) if self.spread == of else len(items)
        return _stacked([items[min(i, len(items) - 1)] for i in range(count)])

    def join(self, states: Sequence[Any]) -> Any:
        """All members' states in one tree, from a list in the order of settings, then seeds."""
        if self.alone:
            return jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array_like(leaf) else leaf, states[0])
        return self.rows([self.rows(states[i :: self.seeds], "settings") for i in range(self.seeds)], "seeds")

    def split(self, joined: Any) -> list[Any]:
        """The inverse of `join`."""
        if jax.process_count() > 1:
            joined = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf, self.on_host(joined))
        if self.alone:
            return [joined]
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(joined)):
            joined = jax.device_put(joined, jax.local_devices()[0])  # once, not for every member
        places = [(i, k) for k in range(self.settings) for i in range(self.seeds)]
        return [jax.tree.map(lambda leaf, at=at: leaf[at], joined) for at in places]

    def on_host(self, joined: Any) -> Any:
        """A program's results as NumPy arrays, those from the devices of other hosts included."""
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, joined)
        everywhere = NamedSharding(self.mesh, P())
        return jax.tree.map(lambda leaf: np.asarray(_everywhere(leaf, everywhere)) if eqx.is_array(leaf) else leaf, joined)

    def put(self, tree: Any, of: Literal["settings", "seeds", "members", "all"]) -> Any:
        """A tree on the devices that need it. What is of all is shared with the host where it can be: it is only read."""
        arrays, rest = eqx.partition(tree, eqx.is_array)
        place = NamedSharding(self.mesh, self._spec(of))
        if jax.process_count() == 1:
            return eqx.combine(jax.device_put(arrays, place, may_alias=of == "all" or None), rest)
        return eqx.combine(jax.tree.map(lambda leaf: _everywhere(leaf, place), arrays), rest)

    def _spec(self, of: str) -> P:
        if self.alone or self.spread == "clients":
            return P()
        if of == "members":
            return P("seeds") if self.spread == "seeds" else P(None, "settings")
        return P(of) if of == self.spread else P()

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function(shared, algorithm, seed's own, *states)` for one member, as the same over all of them."""
        if self.alone:
            return function
        here = {"settings": self.settings, "seeds": self.seeds}
        if self.spread != "clients":
            here[self.spread] = _up(here[self.spread], self.devices) // self.devices

        def program(shared: Any, algorithms: Any, seeds: Any, *states: Any) -> Any:
            def of_seed(seed: Any, *states: Any) -> Any:
                work = _together(lambda algorithm, *states: function(shared, algorithm, seed, *states), here["settings"])
                return work(algorithms, *states)

            return (_together if self.lanes else _in_turn)(of_seed, here["seeds"])(seeds, *states)

        def spread(*arguments: Any) -> Any:
            arrays, code = eqx.partition(arguments, eqx.is_array)
            work = jax.shard_map(
                lambda *arrays: program(*eqx.combine(arrays, code)),
                mesh=self.mesh,
                in_specs=tuple(self._spec(of) for of in ("all", "settings", "seeds", *["members"] * (len(arguments) - 3))),
                out_specs=self._spec("members"),
                check_vma=False,
            )
            return work(*arrays)

        return program if self.spread == "clients" else spread


def _everywhere(leaf: Any, place: NamedSharding) -> Array:
    """An array that every process has, on the devices of all."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda x: x, out_shardings=place)(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_everywhere(jax.random.key_data(leaf), place), impl=jax.random.key_impl(leaf))
    plain = np.asarray(leaf)
    return jax.make_array_from_callback(plain.shape, place, lambda part: plain[part])


def _up(count: int, devices: int) -> int:
    return -(-count // devices) * devices


def _stacked(items: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *items)


def _together(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """`function` over the first axis of its arguments, by `vmap`."""
    return eqx.filter_vmap(function, axis_size=count) if count > 1 else _in_turn(function, count)


def _in_turn(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """`function` over the first axis of its arguments, one row after the other."""

    def over_rows(*arguments: Any) -> Any:
        arrays, rest = eqx.partition(arguments, eqx.is_array)

        def one(row: Any) -> Any:
            return function(*eqx.combine(row, rest))

        if count > 1:
            return jax.lax.map(one, arrays)
        return jax.tree.map(lambda leaf: leaf[None], one(jax.tree.map(lambda leaf: leaf[0], arrays)))

    return over_rows
