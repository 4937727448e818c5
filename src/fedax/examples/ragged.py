"""Examples of many clients in flat arrays, to be read client by client."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from jaxtyping import Int

from fedax.examples.arrays import as_array, concatenate
from fedax.examples.memmap import blocks


class Stacked(Sequence[Mapping[str, np.ndarray]]):
    """Sequence of the clients' named arrays: read-only views of flat arrays.

    A client costs nothing until it is read.

    >>> clients = Stacked({"x": np.arange(5.0)}, [3, 2])
    >>> len(clients), clients[1]["x"].tolist(), clients.sizes.tolist()
    (2, [3.0, 4.0], [3, 2])

    Args:
        arrays: in client order, one row per example.
        sizes: examples of each client.
        finite: whether all arrays are known to hold finite numbers, so that they need not be looked
            at.
        gap: rows of a client less than this apart overlap, as windows of a text do.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        sizes: Sequence[int] | Int[np.ndarray, "clients"],
        finite: bool = False,
        gap: int = 1,
    ) -> None:
        self._finite = finite
        self.gap = gap
        self.sizes = np.asarray(sizes, np.int64)
        self.arrays = MappingProxyType(
            {name: _make_read_only(values) for name, values in arrays.items()}
        )
        self._ends = np.cumsum(self.sizes)

    @classmethod
    def of(cls, clients: Sequence[Any]) -> "Stacked | None":
        """Concatenates the clients' arrays.

        None if they do not have the same names, lengths and shapes of an example.

        >>> Stacked.of([{"x": [1.0]}, {"x": [[2.0]]}]) is None
        True
        """
        if isinstance(clients, cls):
            return clients
        try:
            names = list(clients[0])
            if any(len(client) != len(names) for client in clients):
                return None
            columns = {name: [as_array(client[name], name) for client in clients] for name in names}
            sizes = {name: [len(array) for array in arrays] for name, arrays in columns.items()}
            if any(column_sizes != sizes[names[0]] for column_sizes in sizes.values()):
                return None
            return cls(
                {name: concatenate(arrays, name) for name, arrays in columns.items()},
                sizes[names[0]],
            )
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            return None

    @property
    def finite(self) -> bool:
        """Whether all arrays hold numbers, and all real ones are finite."""
        if self._finite:
            return True
        kinds = {values.dtype.kind for values in self.arrays.values()}
        real = [values for values in self.arrays.values() if values.dtype.kind == "f"]
        return kinds <= set("fiub") and all(
            np.isfinite(block).all() for values in real for block in blocks(values)
        )

    @property
    def owners(self) -> Int[np.ndarray, "examples"]:
        """Returns the client of each row."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def replaced(self, **arrays: np.ndarray) -> "Stacked":
        """Returns a copy with other arrays under some names."""
        return Stacked(
            {**self.arrays, **arrays},
            self.sizes,
            # other real numbers would have to be looked at again
            self._finite and all(v.dtype.kind != "f" for v in arrays.values()),
            self.gap,
        )

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, np.ndarray]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        # also of an index from the end
        end = int(self._ends[index])
        rows = slice(end - int(self.sizes[index]), end)
        return MappingProxyType({name: values[rows] for name, values in self.arrays.items()})

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        return (self[k] for k in range(len(self)))


def _make_read_only(values: np.ndarray) -> np.ndarray:
    view = values.view()
    view.flags.writeable = False
    return view
