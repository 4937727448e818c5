"""Examples of clients: arrays by name, one client's rows after the other's."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedax.errors import DataError, shown
from fedax.examples.arrays import as_array, canonical, check_range, concatenate
from fedax.examples.ragged import Stacked
from fedax.utils.random import Index

Examples: TypeAlias = Mapping[str, Any]
"""Named arrays of equal length, one row per example."""


def rows_of(examples: Examples, where: str) -> int:
    """Returns the common number of rows of some arrays.

    Raises `DataError` for unequal lengths or NaN; the message names `where` and the array.
    """
    if not examples:
        raise DataError.found(where, "no arrays", "at least one array, with one row per example")
    for name, values in examples.items():
        if not np.ndim(values):
            raise DataError.found(
                f"{where}[{name!r}]",
                f"the single number {shown(values)}",
                "an array of one row per example",
            )
    lengths = {name: len(values) for name, values in examples.items()}
    if len(set(lengths.values())) != 1:
        raise DataError.of(
            where, lengths, "arrays with one row per example, all of the same length"
        )
    for name, values in examples.items():
        values = as_array(values, f"{where}[{name!r}]")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DataError.found(
                f"{where}[{name!r}]", f"NaN or infinity in row {row}", "finite numbers"
            )
    return next(iter(lengths.values()))


MOST_EXAMPLES = 2**31 - 1
"""Of all clients together: they are counted in 32 bits."""


def offsets_of(sizes: Sequence[int] | np.ndarray) -> Int[np.ndarray, "bounds"]:
    """Returns where each client's examples begin, and the total count.

    Raises `DataError` for too many.
    """
    # in 64 bits first, so that a sum beyond 32 bits is seen
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    if len(ends) and ends[-1] > MOST_EXAMPLES:
        raise DataError.of("examples of all clients", int(ends[-1]), f"at most {MOST_EXAMPLES}")
    return np.concatenate([[0], ends]).astype(np.int32)


FEW = 64
"""Up to so many clients are looked up one after the other: XLA gives a gather from a large array to
all threads.
"""


class Population(eqx.Module):
    """Sizes of all clients' data, wherever the examples are."""

    offsets: Int[Array | np.ndarray, "bounds"]
    clients: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    @classmethod
    def of(cls, sizes: Sequence[int] | np.ndarray) -> "Population":
        """Makes the population of all clients' sizes."""
        offsets = offsets_of(sizes)
        return cls(offsets, len(sizes), int(offsets[-1]))

    @property
    def sizes(self) -> Int[Array | np.ndarray, "clients"]:
        return self.offsets[1:] - self.offsets[:-1]

    def sizes_of(self, clients: Int[Array, "some"]) -> Int[Array, "some"]:
        """Returns the sizes of some clients, at a cost that does not depend on the others."""
        offsets = jnp.asarray(self.offsets)
        if clients.shape[0] <= FEW:

            def size(k: Int[Array, ""]) -> Int[Array, ""]:
                return offsets[k + 1] - offsets[k]

            return jax.lax.map(size, clients)
        return offsets[clients + 1] - offsets[clients]


class Ragged(eqx.Module):
    """Examples of many clients, flat and in client order.

    Client k owns rows `offsets[k]` to `offsets[k + 1]`.

    No padding: a federation with power-law sizes costs the memory of its samples. Made by `of` or
    `flat`.

    Attributes:
        arrays: by name, with a first axis over all examples.
        offsets: shape (clients + 1,).
        clients: their number.
        largest: examples of the largest client.
        gap: rows of a client less than this apart overlap, as windows of a text do; 1 if none do.
    """

    arrays: Mapping[str, Array | np.ndarray]
    offsets: Int[Array | np.ndarray, "bounds"]
    clients: int = eqx.field(static=True)
    largest: int = eqx.field(static=True)
    gap: int = eqx.field(static=True, default=1)

    @classmethod
    def of(
        cls,
        clients: Sequence[Examples],
        *,
        where: str = "clients",
        allow_empty: bool = False,
        like: "Ragged | None" = None,
    ) -> "Ragged":
        """Concatenates the clients' named arrays.

        Args:
            clients: the arrays of each.
            where: names them in messages.
            allow_empty: whether a client may have no examples.
            like: the training examples, for another part: it has the same arrays, in the same
                shapes and types.

        Raises:
            DataError: no client, an empty client (unless allowed), different names, NaN, unequal
                lengths or shapes.
        """
        if not len(clients):
            raise DataError.found(where, "an empty list", "at least one client")
        # as it comes, and then in the types of the training examples
        if like is not None:
            ragged = cls.of(clients, where=where, allow_empty=allow_empty)
            return dataclasses.replace(ragged, arrays=conformed(ragged.arrays, like.arrays, where))
        stacked = Stacked.of(clients)
        # all clients at once; only where they do not fit, each is looked at below
        if stacked is not None and stacked.finite and (allow_empty or stacked.sizes.min() > 0):
            return cls.flat(stacked.arrays, stacked.sizes, where, stacked.gap)
        names = set(clients[0])  # the first client that does not fit is looked for
        sizes = []
        for k, client in enumerate(clients):
            if set(client) != names:
                raise DataError.of(
                    f"{where}[{k}]", sorted(client), f"the arrays {sorted(names)}, as client 0 has"
                )
            sizes.append(rows_of(client, f"{where}[{k}]"))
            if sizes[-1] == 0 and not allow_empty:
                raise DataError.found(
                    f"{where}[{k}]",
                    "0 examples",
                    "at least 1 example",
                    "Drop the client, or give it data.",
                )
        arrays = {}
        for name in clients[0]:
            client_arrays = [
                as_array(client[name], f"{where}[{k}][{name!r}]")
                for k, client in enumerate(clients)
            ]
            shapes = {array.shape[1:] for array in client_arrays}
            if len(shapes) > 1:
                raise DataError.of(
                    f"{where}[...][{name!r}]",
                    sorted(shapes),
                    "the same shape of one example in all clients",
                )
            arrays[name] = concatenate(client_arrays, f"{where}[...][{name!r}]")
        return cls.flat(arrays, sizes, where)

    @classmethod
    def flat(
        cls,
        arrays: Examples,
        sizes: Sequence[int] | np.ndarray,
        where: str = "data",
        gap: int = 1,
    ) -> "Ragged":
        """Makes a container from flat arrays in client order and the clients' sizes.

        Real numbers get the default float type.
        """
        offsets = offsets_of(sizes)
        ready = {
            name: canonical(values, f"{where}[...][{name!r}]") for name, values in arrays.items()
        }
        return cls(ready, offsets, len(sizes), int(np.max(sizes)), gap)

    @property
    def sizes(self) -> Int[Array | np.ndarray, "clients"]:
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def population(self) -> Population:
        """Returns the sizes alone."""
        return Population(self.offsets, self.clients, self.total)

    @property
    def total(self) -> int:
        return next(iter(self.arrays.values())).shape[0]

    def located(self, k: Index) -> tuple[Mapping[str, Array], Int[Array, ""], Int[Array, ""]]:
        """Returns arrays with one client's examples, their first row and their count; traced."""
        offsets = jnp.asarray(self.offsets)
        return (
            {name: jnp.asarray(values) for name, values in self.arrays.items()},
            offsets[k],
            offsets[k + 1] - offsets[k],
        )

    def piece(self, begin: Index, width: int) -> dict[str, Array]:
        """Returns consecutive examples, across clients; traced."""
        return piece(self.arrays, begin, width)

    def client(self, k: int) -> dict[str, Array | np.ndarray]:
        """Returns the examples of one client."""
        rows = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return {name: values[rows] for name, values in self.arrays.items()}


def has_examples(data: Ragged | None) -> bool:
    """Returns whether any client has an example."""
    return data is not None and data.total > 0


def piece(examples: Examples, begin: Index, width: int) -> dict[str, Array]:
    """Returns consecutive rows of all arrays; traced."""
    return {
        name: jax.lax.dynamic_slice_in_dim(jnp.asarray(v), begin, width)
        for name, v in examples.items()
    }


def conformed(arrays: Examples, like: Examples, where: str) -> dict[str, Any]:
    """Returns the arrays of another part of the data in the types of the training examples.

    Args:
        arrays: of the part.
        like: the training examples.
        where: names the part in messages.

    Raises:
        DataError: other names than those of the training examples, rows of another shape, real
            numbers for whole ones, or bytes for real ones.
    """
    if set(arrays) != set(like):
        raise DataError.of(
            where, sorted(arrays), f"the arrays {sorted(like)}, as the training examples have"
        )
    return {
        name: _conform_array(arrays[name], values, f"{where}[{name!r}]")
        for name, values in like.items()
    }


def _conform_array(values: Any, like: Any, where: str) -> Any:
    if values.shape[1:] != like.shape[1:]:
        got, allowed = (
            f"rows of shape {values.shape[1:]}",
            (f"{like.shape[1:]}, as the training examples have"),
        )
        raise DataError.found(where, got, allowed)
    if values.dtype == like.dtype:
        return values
    # "f" real, "i" and "u" whole, "b" true or false
    kinds = values.dtype.kind, like.dtype.kind
    if values.dtype == np.uint8 and kinds[1] == "f":
        hint = "Bring pixels to the range of the training examples, or write .astype(float)."
        raise DataError.found(where, "bytes (uint8)", f"real numbers ({like.dtype})", hint)
    # real numbers that are whole pass for whole ones, and 0 and 1 for truth values
    if kinds[1] != "f" and (kinds[0] == "f" or kinds[1] == "b"):
        numbers = np.asarray(values)
        if kinds[1] == "b" and not np.isin(numbers, (0, 1)).all():
            raise DataError.found(
                where,
                f"values of type {values.dtype}",
                "true or false, as the training examples have",
            )
        if not np.array_equal(numbers, np.floor(numbers)):
            raise DataError.found(
                where,
                f"real numbers ({values.dtype})",
                f"whole numbers ({like.dtype}), as in training",
            )
        values = numbers if kinds[1] == "b" else numbers.astype(np.int64)
    check_range(np.asarray(values), like.dtype, where)
    return canonical(np.asarray(values).astype(like.dtype), where)
