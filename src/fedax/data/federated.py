"""Labelled examples of many clients, checked once and then fixed."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int, Integer

from fedax.core import DataError
from fedax.core.task import rows_of
from fedax.data.client_forms import (
    check_finite,
    check_labels,
    describe,
    is_frame,
    match_clients,
    named_clients,
)
from fedax.data.limits import SEED, SPLIT, TEST_FRACTION, checked
from fedax.data.overlap import draw_rows, split_rows
from fedax.data.partition.base import labels_of
from fedax.errors import short
from fedax.examples.arrays import Frames, as_array, as_ndarray
from fedax.examples.client_names import ClientNames
from fedax.examples.memmap import blocks
from fedax.examples.ragged import Stacked
from fedax.utils.shares import whole_part

Labelled = Mapping[str, Any]
"""`{"x": ..., "y": ...}`: inputs and labels, one row per example, and any further arrays."""
ByClient: TypeAlias = Sequence[Any] | Any
"""The arrays of each client: a list or a dict by name, which `FederatedData` make a sequence."""


MOST_CLASSES = 2**31 - 1
"""Labels are kept as 32-bit numbers."""
MANY = 4096
"""Number of clients from which on one sort shuffles the examples of all, not a loop over them."""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Classification data held by clients. Arrays are made read-only.

    Args:
        train: for each client `{"x": (n_k, ...), "y": (n_k,)}`, at least one example each. Further
            arrays of n_k rows, under the same names in all clients, reach the task's loss with
            them. Or a dict of these by the names of the clients.
        classes: labels are whole numbers from 0 to classes - 1; at least 1.
        test: the same in the same client order, or by name (a client may have none), or None.
        central: a test set that belongs to no client, or None.
        name: for tables and messages.
        validation: as `test`, for choices made while training; see `with_validation`.
        names: of the clients, in their order, or None. Traces of availability and results refer to
            them.
        columns: names of the columns of x, or None; by default those of the first data frame of x.
            Tables that predictions are made of are read by them.
        categories: by column, the texts that its cells are in tables, in the order of their
            numbers; `"y"` has those of the labels.

    Raises:
        DataError: no client, a client without training examples, x or y missing, other arrays than
            the first client has, unequal lengths, rows of another shape than the first client's,
            NaN, labels out of range, or a test set that is empty as a whole.

    Example:
        >>> data = FederatedData(
        ...     [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[2.0]], "y": [1]}], classes=2
        ... )
        >>> data.sizes.tolist(), data.label_counts.tolist()
        ([2, 1], [[1, 1], [0, 1]])
    """

    train: ByClient
    classes: int
    test: ByClient = None
    central: Labelled | None = None
    name: str = "data"
    validation: ByClient = None
    names: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.classes, int | np.integer) or not 1 <= self.classes <= MOST_CLASSES:
            raise DataError.of("classes", self.classes, f"whole numbers from 1 to {MOST_CLASSES}")
        self._resolve_names()
        for name, clients in (
            ("train", self.train),
            ("test", self.test),
            ("validation", self.validation),
        ):
            if not isinstance(clients, Sequence) and not (name != "train" and clients is None):
                allowed = "a list with the arrays of each client, or a dict of names to them"
                hint = _TABLE if is_frame(clients) else ""
                raise DataError.found(name, describe(clients), allowed, hint)
        if not len(self.train):
            raise DataError.of("train", "an empty list", "at least one client")
        put = object.__setattr__  # the dataclass is frozen
        # columns of data frames in one order, before anything is compared
        splits = (self.train, self.test or (), self.validation or (), [self.central])
        names = next(filter(None, map(columns_of, splits)), None)
        if self.columns is None and names is not None:
            put(self, "columns", names)
        # names that are given count, unless they rename those of the frames
        has_same_names = names is not None and set(names) == set(self.columns or ())
        frames = ColumnOrder(self.columns if names is None or has_same_names else None)
        for name, clients in (
            ("train", self.train),
            ("test", self.test),
            ("validation", self.validation),
        ):
            if clients is not None and not isinstance(clients, Stacked):
                put(
                    self,
                    name,
                    [
                        align_columns(frames, client, f"{name}[{k}]")
                        for k, client in enumerate(clients)
                    ],
                )
        put(self, "central", align_columns(frames, self.central, "central"))
        put(self, "train", self._concatenate("train"))
        # known only after the clients are stacked
        if not self.sizes.all():
            where = f"train[{np.argmin(self.sizes)}]"
            raise DataError.of(
                where, "0 examples", "at least 1 example", "Drop the client, or give it data."
            )
        for name, clients in (("test", self.test), ("validation", self.validation)):
            if clients is None:
                continue
            if len(clients) != len(self.train):
                raise DataError.of(
                    name, f"{len(clients)} clients", f"{len(self.train)} clients, as in train"
                )
            put(self, name, self._concatenate(name))
            if not any(getattr(self, name).sizes):
                raise DataError.of(
                    name,
                    "0 examples in all",
                    "at least 1 example",
                    f"Use None if there is no {name} part.",
                )
        if self.central is not None:
            put(self, "central", self._check_client(self.central, "central"))
        if self.columns is not None:
            width = np.shape(self.train[0]["x"])[1:]
            if width != (len(self.columns),):
                raise DataError.of(
                    "columns",
                    f"{len(self.columns)} names",
                    f"None, or a name for each column of x, {width}",
                )
            put(self, "columns", tuple(self.columns))
        if self.names is not None and len(self.names) != len(self.train):
            raise DataError.of(
                "names", f"{len(self.names)} names", f"{len(self.train)}, one for each client"
            )

    def _resolve_names(self) -> None:
        """Brings clients that are given by name into a list, and keeps their names."""
        put = object.__setattr__  # the dataclass is frozen
        # messages about the arrays have the clients' names too
        if self.names is not None:
            put(self, "names", ClientNames(self.names))
        by_name: dict[str, Any] | None = None
        if isinstance(self.train, Mapping):
            by_name = named_clients(self.train, "train")
            if self.names is not None and list(self.names) != list(by_name):
                allowed = "None for clients by name"
                raise DataError.of("names", list(self.names), allowed, "Their names are the keys.")
            put(self, "train", list(by_name.values()))
            put(self, "names", ClientNames(by_name))
        for name, clients in (("test", self.test), ("validation", self.validation)):
            if isinstance(clients, Mapping) and isinstance(self.train, Sequence):
                put(self, name, match_clients(clients, self.train, self.names, name))
            elif by_name is not None and clients is not None:
                allowed = "a dict of the clients' names, as in train"
                raise DataError.found(name, describe(clients), allowed)

    def __repr__(self) -> str:
        """Returns a short table: examples and arrays, not their values."""
        splits = {"training": self.train, "validation": self.validation, "test": self.test}
        rows = {
            "name": self.name,
            "clients": f"{len(self.train):,}",
            "classes": f"{self.classes:,}",
        }
        rows |= {
            f"{name} examples": f"{clients.sizes.sum():,}"
            for name, clients in splits.items()
            if isinstance(clients, Stacked)
        }
        if self.central is not None:
            rows["central test set"] = f"{len(self.central['y']):,} examples"
        descriptions = (
            f"{name}: {a.dtype.name}{[*a.shape[1:]] or ''}" for name, a in self.train[0].items()
        )
        rows["arrays"] = ", ".join(descriptions)
        width = max(map(len, rows))
        return "\n".join(
            ["FederatedData", *(f"  {name:<{width}}  {short(text)}" for name, text in rows.items())]
        )

    @classmethod
    @checked(test_fraction=TEST_FRACTION, split=SPLIT, seed=SEED)
    def partitioned(
        cls,
        x: Any,
        y: Any,
        partition: Any,
        *,
        classes: int,
        test_fraction: float | int = 0.0,
        split: str = "shuffled",
        seed: int = 0,
        central: Labelled | None = None,
        name: str = "data",
        more: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        together: str | None = None,
    ) -> "FederatedData":
        """Makes federated data from pooled examples and a partition; see `fedax.data.partition`.

        Args:
            x: inputs.
            y: labels, from 0 to classes - 1.
            partition: for each client the indices of its examples. Examples may be left out, none
                may appear twice.
            classes: how many.
            test_fraction: share of each client's examples that is kept for testing, in [0, 1); see
                `train_size`.
            split: `"shuffled"` draws the test examples, with all their copies; `"in_order"` takes
                the last ones. `"shuffled_rows"` and `"in_order_rows"` do not look for copies, as
                many released codes do.
            seed: of the draw.
            central: as in the class.
            name: as in the class.
            more: further arrays by name, one row per example.
            names: as in the class.
            together: a further array, such as the number of the picture that an example was made
                of: examples that have the same number there stay on one side.

        Raises:
            DataError: labels, indices or arrays of another form; an empty client.

        >>> x, y = np.arange(30.0).reshape(10, 3), np.arange(10) % 2
        >>> data = FederatedData.partitioned(
        ...     x, y, [np.arange(4), np.arange(4, 10)], classes=2, test_fraction=0.25
        ... )
        >>> data.sizes.tolist(), data.test_sizes.tolist()
        ([3, 4], [1, 2])
        """
        # arrays and indices, checked
        frames = Frames()
        inputs = frames.client({"x": x, "y": y, **(more or {})}, "partitioned")
        central = align_columns(frames, central, "central")
        arrays = {
            key: as_array(values, f"partitioned({key}=...)") for key, values in inputs.items()
        }
        labels_of("partitioned", arrays["y"])
        _check_partition_form(partition)
        partition = [_as_indices(indices, f"partition[{k}]") for k, indices in enumerate(partition)]
        _check_indices(partition, len(y))
        if any(len(values) != len(y) for values in arrays.values()):
            lengths = {key: len(values) for key, values in arrays.items()}
            raise DataError.of(
                "partitioned", lengths, "arrays with one row per example, all of the same length"
            )
        # each client's rows in the order in which they are drawn: the first ones are trained on
        rng = np.random.default_rng([seed, 1])  # the partition itself may have used the plain seed
        order, sizes = np.concatenate(partition), np.array([len(indices) for indices in partition])
        # the client of each row
        owners = np.repeat(np.arange(len(sizes)), sizes)
        # by client, and at random within each
        if split.startswith("shuffled") and len(sizes) > MANY:
            order = order[np.lexsort((rng.random(len(order)), owners))]
        elif split.startswith("shuffled"):
            order = np.concatenate([rng.permutation(indices) for indices in partition])
        cuts = np.maximum(1, whole_part(1 - test_fraction, sizes))  # `train_size` of all
        starts = np.cumsum(sizes) - sizes
        # the place of a row among its client's rows, against where the client's are cut
        is_trained = np.arange(len(order)) - np.repeat(starts, sizes) < np.repeat(cuts, sizes)
        # (rows, sizes) for training and test; one pass over all rows, for millions of clients
        rows_and_counts = (order[is_trained], cuts), (order[~is_trained], sizes - cuts)
        if test_fraction and not split.endswith("_rows"):
            orders, field = np.split(order, starts[1:]), "partitioned(test_fraction=...)"
            client_splits = split_rows(
                arrays, orders, cuts.tolist(), split, together, test_fraction, field
            )
            rows_and_counts = [
                _concatenate_rows(rows_by_client)
                for rows_by_client in zip(*client_splits, strict=True)
            ]
        train, test = (
            Stacked({key: v[rows] for key, v in arrays.items()}, counts)
            for rows, counts in rows_and_counts
        )
        test_part = test if test.sizes.any() else None
        return cls(train, classes, test_part, central, name, names=names, columns=columns_of([x]))

    @checked(share=TEST_FRACTION, seed=SEED, split=SPLIT)
    def with_validation(
        self,
        share: float | int,
        seed: int = 0,
        split: str = "shuffled",
        together: str | None = None,
    ) -> "FederatedData":
        """Returns the data with a share of each client's training examples kept for validation.

        A client of n examples keeps the whole part of (1 - share) n, but at least one, for
        training. Copies stay on one side, and windows of a text are split in order; see
        `fedax.tasks.with_validation`.

        >>> data = FederatedData(
        ...     [
        ...         {"x": np.arange(8.0).reshape(4, 2), "y": [0, 1, 0, 1]},
        ...         {"x": [[9.0, 9.0]], "y": [1]},
        ...     ],
        ...     classes=2,
        ... )
        >>> parts = data.with_validation(0.25)
        >>> parts.sizes.tolist(), [len(client["y"]) for client in parts.validation]
        ([3, 1], [1, 0])

        Args:
            share: in [0, 1).
            seed: of the draw, which is each client's own.
            split: as in `partitioned`.
            together: as in `partitioned`.

        Raises:
            DataError: no client has enough examples for one of validation, or there are some
                already.
        """
        if self.validation is not None:
            raise DataError.of("with_validation", "data with validation examples", "data without")
        stacked = _as_stacked(self.train)
        offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        train, validation = (
            Stacked(
                {key: v[np.concatenate(rows)] for key, v in stacked.arrays.items()},
                [len(client_rows) for client_rows in rows],
                gap=stacked.gap,
            )
            for rows in draw_rows(
                stacked.arrays, offsets, share, seed, split, together, gap=stacked.gap
            )
        )
        return dataclasses.replace(self, train=train, validation=validation if share else None)

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> Int[np.ndarray, "clients"]:
        """Returns the number of training examples of each client."""
        return _as_stacked(self.train).sizes

    @property
    def test_sizes(self) -> Int[np.ndarray, "clients"]:
        """Returns the number of test examples of each client."""
        return np.zeros(self.clients, int) if self.test is None else _as_stacked(self.test).sizes

    @property
    def label_counts(self) -> Int[np.ndarray, "clients classes"]:
        """Counts each label among each client's training examples."""
        train = _as_stacked(self.train)
        # one cell for each client and label, client after client
        cells = train.owners * self.classes + train.arrays["y"]
        return np.bincount(cells, minlength=self.clients * self.classes).reshape(
            self.clients, self.classes
        )

    def _concatenate(self, split: str) -> Stacked:
        """Concatenates the clients' arrays of a split; names the first client that does not fit."""
        clients = getattr(self, split)
        stacked = Stacked.of(clients)
        # all clients at once; only where they do not fit, each by itself, to name the first
        if stacked is None or not self._is_valid(stacked):
            stacked = Stacked.of(
                [
                    self._check_client(client, f"{split}[{k}]", self._owner(k))
                    for k, client in enumerate(clients)
                ]
            )
            assert stacked is not None, "every client fits"
        return stacked.replaced(y=stacked.arrays["y"].astype(np.int32, copy=False))

    def _is_valid(self, stacked: Stacked) -> bool:
        """Returns whether all clients' arrays are what `_check_client` asks for."""
        first, arrays = self.train[0], stacked.arrays
        if not {"x", "y"} <= set(arrays) or set(arrays) != set(first) or not stacked.finite:
            return False
        y, shapes = (
            arrays["y"],
            all(np.shape(first[name])[1:] == values.shape[1:] for name, values in arrays.items()),
        )
        if not shapes or y.ndim != 1 or y.dtype.kind not in "iu":
            return False
        return all(
            not len(block) or bool(block.min() >= 0 and block.max() < self.classes)
            for block in blocks(y)
        )

    def _owner(self, k: int) -> str:
        """Returns words on a client for messages, where it has a name."""
        if self.names is None or k >= len(self.names):
            return ""
        return f" of client {self.names[k]!r}"

    def _check_client(self, client: Any, where: str, owner: str = "") -> Labelled:
        if not isinstance(client, Mapping) or not {"x", "y"} <= set(client):
            if not isinstance(client, Mapping):
                hint = "Write {'x': inputs, 'y': labels}."
                hint += f" {_TABLE}" if is_frame(client) else ""
                raise DataError.found(where, describe(client), "a dictionary of arrays", hint)
            raise DataError.of(where, sorted(client), "the arrays 'x' and 'y', and any others")
        if set(client) != set(self.train[0]):
            raise DataError.of(
                where,
                sorted(client),
                f"the arrays {sorted(self.train[0])}, as the first client has",
            )
        arrays = {
            name: _check_array(values, f"{where}[{name!r}]") for name, values in client.items()
        }
        check_finite(arrays, where, self.columns, owner)
        rows_of(arrays, where)
        for name, values in arrays.items():
            first = np.shape(self.train[0][name])[1:]
            if values.shape[1:] != first:
                raise DataError.of(
                    f"{where}[{name!r}]",
                    f"rows of shape {values.shape[1:]}",
                    f"{first}, as the first client has",
                )
        y = arrays["y"]
        check_labels(y, f"{where}['y']")
        if y.ndim != 1:
            raise DataError.of(
                f"{where}['y']", f"shape {y.shape}", "one label per example, shape (examples,)"
            )
        outside = np.flatnonzero((y < 0) | (y >= self.classes))
        if len(outside):
            row = outside[0]
            raise DataError.of(
                f"{where}['y']", f"{y[row]} in row {row}", f"labels from 0 to {self.classes - 1}"
            )
        arrays["y"] = y.astype(np.int32)
        return Stacked(arrays, [len(y)])[0]


def columns_of(clients: Sequence[Any]) -> tuple[str, ...] | None:
    """Returns the names of the columns of the first data frame among the clients' inputs x.

    None for arrays, and for names that are no text.

    Args:
        clients: for each the inputs, or a mapping with the inputs x.
    """
    # arrays of all clients, which are no frames
    if isinstance(clients, Stacked):
        return None
    for client in clients:
        x: Any = client.get("x") if isinstance(client, Mapping) else client
        # frames of pandas, which `Frames` brings into one order too
        if type(x) is not np.ndarray and all(map(partial(hasattr, x), _OF_FRAMES)):
            return _as_names(x.columns)
    return None


_TABLE = "Of a table of all clients: fedax.data.client_files(frame, client='column', label='y')."
_OF_FRAMES = ("index", "to_numpy", "columns")
"""Attributes that tell a data frame of pandas, which is not imported."""


class ColumnOrder(Frames):
    """Order of the columns of data frames, which is that of given names if there are any.

    Args:
        columns: names of the columns of x, None if the first frame decides.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        super().__init__()
        if columns is not None:
            self._columns["x"] = list(columns)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns of x, None if no frame has come or if they are no text."""
        return _as_names(self._columns.get("x"))


def _as_names(columns: Iterable[Any] | None) -> tuple[str, ...] | None:
    names = None if columns is None else tuple(columns)
    is_text = names is not None and all(isinstance(name, str) for name in names)
    return names if is_text else None


def align_columns(frames: Frames, client: Any, where: str) -> Any:
    """Returns a client's arrays with the columns of data frames in order; other forms stay."""
    return frames.client(client, where) if isinstance(client, Mapping) else client


def _concatenate_rows(rows: Sequence[Int[np.ndarray, "_"]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates the rows of all clients; returns them with the count of each."""
    return np.concatenate(rows), np.array([len(client_rows) for client_rows in rows])


def _check_partition_form(partition: Any) -> None:
    """Refuses a number of clients, and mappings, where the indices of each client are needed."""
    if isinstance(partition, Iterable) and not isinstance(partition, Mapping | str | bytes):
        return
    hint = f"fedax.data.dirichlet(y, clients={partition}, alpha=0.5) makes one."
    if not isinstance(partition, int | np.integer):
        hint = "fedax.data.dirichlet(y, clients=10, alpha=0.5) makes one."
    if isinstance(partition, Mapping):
        hint = "Write list(partition.values()), names=list(partition)."
    allowed = "a list with the indices of each client's examples"
    raise DataError.found("partitioned(partition=...)", describe(partition), allowed, hint)


def _as_indices(indices: Any, where: str) -> np.ndarray:
    """Converts the indices of a client's examples to an array of whole numbers."""
    array = as_ndarray(indices, where)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        hint = "Write np.flatnonzero(mask)." if array.dtype.kind == "b" else ""
        # the client of each row, which are the other way round
        if not array.ndim:
            hint = "Write [np.flatnonzero(owner == k) for k in np.unique(owner)]."
        raise DataError.of(
            where,
            f"{array.dtype} of shape {array.shape}",
            "the indices of its examples, whole numbers",
            hint,
        )
    return array.astype(np.int64)


def _check_indices(partition: Sequence[Integer[np.ndarray, "_"]], examples: int) -> None:
    sizes, all_indices = (
        [len(indices) for indices in partition],
        np.concatenate([np.zeros(0, int), *partition]),
    )
    # all clients at once, as long as they fit
    in_range = (
        len(all_indices) and min(sizes) and all_indices.min() >= 0 and all_indices.max() < examples
    )
    if in_range and np.bincount(all_indices, minlength=examples).max() <= 1:
        return
    counts = np.zeros(examples, dtype=int)  # the first client that does not fit is looked for
    for k, indices in enumerate(partition):
        if not len(indices):
            raise DataError.of(
                f"partition[{k}]",
                "0 examples",
                "at least 1 example",
                "Drop the client, or give it data.",
            )
        if indices.min() < 0 or indices.max() >= examples:
            invalid = indices[(indices < 0) | (indices >= examples)][0]
            raise DataError.of(
                f"partition[{k}]", f"index {invalid}", f"indices from 0 to {examples - 1}"
            )
        # counts an index that is twice in one client too
        np.add.at(counts, indices, 1)
        if counts[indices].max() > 1:
            repeated = indices[counts[indices] > 1][0]
            raise DataError.of(
                f"partition[{k}]", f"index {repeated} again", "each example at most once"
            )


def _as_stacked(clients: Any) -> Stacked:
    """Returns a part of the data as `__post_init__` has made it."""
    assert isinstance(clients, Stacked)
    return clients


def _check_array(values: Any, where: str) -> np.ndarray:
    array = as_array(values, where)
    if not array.ndim:
        raise DataError.of(where, values, "an array of one row per example")
    return array
