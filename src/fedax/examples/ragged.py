"""Examples of many clients in flat arrays: one client's rows after the other's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedax.errors import DataError
from fedax.examples.arrays import as_array, canonical
from fedax.examples.memmap import blocks
from fedax.utils.random import Index

Examples: TypeAlias = Mapping[str, Any]
"""Named arrays of equal length, one row per example."""
Offsets: TypeAlias = Int[Array | np.ndarray, "bounds"]


def count_rows(examples: Examples, where: str) -> int:
    """Returns the common number of rows of some arrays; raises `DataError` if there is none."""
    lengths = {name: len(values) for name, values in examples.items()}
    if len(set(lengths.values())) != 1:
        allowed = "arrays with one row per example, all of the same length"
        raise DataError.of(where, lengths, allowed)
    return next(iter(lengths.values()))


def rows_of(examples: Examples, where: str, offsets: Offsets | None = None) -> int:
    """Returns the common number of rows of some arrays, of which all numbers are finite.

    Args:
        examples: arrays in memory or in files.
        where: names them in messages.
        offsets: where each client's rows begin, to name the client in messages.

    Raises:
        DataError: unequal lengths, NaN or infinity.
    """
    count = count_rows(examples, where)
    for name, values in examples.items():
        begin = 0
        for block in blocks(values):
            if block.dtype.kind == "f" and not np.isfinite(block).all():
                row = begin + np.argwhere(~np.isfinite(block)).item(0)
                got = f"NaN or infinity in {describe_row(row, offsets)}"
                allowed = f"finite numbers of type {values.dtype}"
                raise DataError.found(f"{where}[{name!r}]", got, allowed)
            begin += len(block)
    return count


def describe_row(row: int, offsets: Offsets | None) -> str:
    """Returns words for a row of flat arrays: which one of which client, if there are several.

    >>> describe_row(4, np.array([0, 3, 6]))
    'row 1 of client 1'
    """
    if offsets is None or len(offsets) == 2:
        return f"row {row}"
    client = np.searchsorted(offsets, row, side="right") - 1
    return f"row {row - offsets[client]} of client {client}"


def as_rows(values: Any, where: str) -> np.ndarray:
    """Returns the values as an array of one row per example.

    Raises:
        DataError: as `as_array`; a single number; a data frame, whose columns count by name.
    """
    if hasattr(values, "columns") and hasattr(values, "to_numpy"):
        hint = "Read tables with fedax.data.from_table, or write .to_numpy()."
        raise DataError.found(where, "a data frame", "arrays", hint)
    array = as_array(values, where)
    if not array.ndim:
        raise DataError.of(where, values, "an array of one row per example")
    return array


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

    offsets: Offsets
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
    """Examples of many clients, flat and in client order: one part of federated data.

    Client k owns rows `offsets[k]` to `offsets[k + 1]`. The container is also a sequence: `part[k]`
    is a dict of views of client k's rows.

    No padding: a federation with power-law sizes costs the memory of its samples. Made by `of` or
    `flat`.

    Attributes:
        arrays: by name, with a first axis over all examples; read-only, in memory or in files.
        offsets: shape (clients + 1,).
        clients: their number.
        largest: examples of the largest client.
        gap: rows of a client less than this apart overlap, as windows of a text do; 1 if none do.

    >>> part = Ragged.of([{"x": [1.0, 2.0]}, {"x": [3.0]}])
    >>> len(part), part[1]["x"].tolist(), part.sizes.tolist()
    (2, [3.0], [2, 1])
    """

    arrays: Mapping[str, Array | np.ndarray]
    offsets: Offsets
    clients: int = eqx.field(static=True)
    largest: int = eqx.field(static=True)
    gap: int = eqx.field(static=True, default=1)

    @classmethod
    def of(
        cls,
        clients: Sequence[Any],
        *,
        where: str = "clients",
        allow_empty: bool = False,
    ) -> "Ragged":
        """Concatenates the clients' named arrays.

        Args:
            clients: the arrays of each, by name; one array alone is called x.
            where: names them in messages.
            allow_empty: whether a client may have no examples.

        Raises:
            DataError: no client, an empty client (unless allowed), different names, NaN, unequal
                lengths or shapes, or numbers beyond the types of programs.
        """
        if not len(clients):
            raise DataError.found(where, "no client", "at least one client")
        named = [client if isinstance(client, Mapping) else {"x": client} for client in clients]
        names = list(named[0])
        columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for k, client in enumerate(named):
            if not names or client.keys() != columns.keys():
                allowed = f"the arrays {names}, as the first client has"
                raise DataError.of(f"{where}[{k}]", list(client), allowed)
            for name in names:
                columns[name].append(as_rows(client[name], f"{where}[{k}][{name!r}]"))
            count = count_rows(
                {name: column[-1] for name, column in columns.items()}, f"{where}[{k}]"
            )
            if not (allow_empty or count):
                hint = "Drop the client, or give it data."
                raise DataError.found(f"{where}[{k}]", "0 examples", "at least 1 example", hint)
        arrays = {
            name: _concatenate(column, f"{where}[...][{name!r}]")
            for name, column in columns.items()
        }
        return cls.flat(arrays, [len(array) for array in columns[names[0]]], where)

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

        Raises:
            DataError: unequal lengths, NaN, or numbers beyond the types of programs.
        """
        offsets = offsets_of(sizes)
        ready = {
            name: canonical(values, f"{where}[...][{name!r}]") for name, values in arrays.items()
        }
        count = rows_of(ready, where, offsets)
        if count != offsets[-1]:
            got = f"{count} rows of clients with {offsets[-1]} examples"
            raise DataError.found(where, got, "a row for each example")
        return cls(ready, offsets, len(sizes), int(np.max(sizes)), gap)

    @property
    def sizes(self) -> Int[Array | np.ndarray, "clients"]:
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def owners(self) -> Int[np.ndarray, "examples"]:
        """Returns the client of each row."""
        return np.repeat(np.arange(self.clients), np.asarray(self.sizes))

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

    def select(self, rows: Sequence[Int[np.ndarray, "_"]]) -> "Ragged":
        """Returns a copy in which each client has the given rows of the flat arrays."""
        flat = np.concatenate(rows)
        arrays = {name: np.asarray(values)[flat] for name, values in self.arrays.items()}
        return Ragged.flat(arrays, [len(own_rows) for own_rows in rows], gap=self.gap)

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(self.clients)[index]]
        k = range(self.clients)[index]
        rows = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return {name: values[rows] for name, values in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[k] for k in range(self.clients))


def _concatenate(arrays: list[np.ndarray], where: str) -> np.ndarray:
    # empty lists have neither the type nor the shape of the others' rows
    filled = [array for array in arrays if len(array)] or arrays[:1]
    try:
        return np.concatenate(filled)
    except ValueError as error:
        raise DataError.because(where, str(error)) from error


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
            numbers for whole ones, whole numbers that a real type rounds, or bytes for real ones.
    """
    if set(arrays) != set(like):
        allowed = f"the arrays {sorted(like)}, as the training examples have"
        raise DataError.of(where, sorted(arrays), allowed)
    return {
        name: _conform_array(arrays[name], expected, f"{where}[{name!r}]")
        for name, expected in like.items()
    }


def _conform_array(values: Any, like: Any, where: str) -> Any:
    if not len(values):
        return like[:0]
    if values.shape[1:] != like.shape[1:]:
        allowed = f"{like.shape[1:]}, as the training examples have"
        raise DataError.found(where, f"rows of shape {values.shape[1:]}", allowed)
    if values.dtype == like.dtype:
        return values
    numbers = np.asarray(values)
    with np.errstate(all="ignore"):
        converted = numbers.astype(like.dtype)
        is_exact = np.array_equal(converted.astype(numbers.dtype), numbers)
    # real numbers may be rounded, whole ones and truth values have to stay what they are
    are_real = numbers.dtype.kind == like.dtype.kind == "f"
    is_pixels = numbers.dtype == np.uint8 and like.dtype.kind == "f"
    if is_pixels or not (are_real or is_exact):
        allowed = f"numbers of type {like.dtype} as the training examples have"
        hint = "Bring them to the type and the range of the training examples."
        raise DataError.found(where, f"numbers of type {values.dtype}", allowed, hint)
    return canonical(converted, where)
