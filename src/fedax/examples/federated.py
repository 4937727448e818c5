"""Examples of clients in all parts of a federated data set, checked once and then fixed."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Int

from fedax.errors import DataError, short
from fedax.examples.arrays import canonical
from fedax.examples.client_names import ClientNames, by_client_name, in_order
from fedax.examples.encoding import Encoding
from fedax.examples.overlap import (
    check_share,
    draw_rows,
    number_copies,
    split_rows,
)
from fedax.examples.ragged import (
    Examples,
    Ragged,
    as_rows,
    conformed,
    count_rows,
    describe_row,
    rows_of,
)
from fedax.utils.shares import whole_part

MOST_CLASSES = 2**31 - 1
"""Labels are kept as 32-bit numbers."""
MANY = 4096
"""Number of clients from which on one sort shuffles the examples of all, not a loop over them."""


def _client_names(names: Iterable[Any] | None) -> ClientNames | None:
    return names if names is None or isinstance(names, ClientNames) else ClientNames(names)


class FederatedData(eqx.Module):
    """The examples of all clients, made by `from_arrays` or `partitioned`. Arrays are read-only.

    Args:
        train: the clients' training examples, at least one each.
        validation: the clients' examples for choices made while training, in the same client order
            (a client may have none), or None; see `with_validation`.
        test: the same for testing, or None.
        central: a test set that belongs to no client, or None.
        unseen: the data of clients that never take part, or None; see `with_unseen`.
        classes: labels y are whole numbers from 0 to classes - 1; None for other data.
        name: for tables and messages.
        names: of the clients, in their order, or None. Results refer to them.
        encoding: of tables, None for arrays; test files and tables to predict for are read by it.
        labels: the texts of the labels in the order of their classes, or none.
        plain: whether an example is one array without a name, which functions of a task get alone.
        measured: whether means or deviations of all clients' examples are in it or in the model.

    Raises:
        DataError: parts that do not fit each other, labels that are no classes, or a part without
            any example.

    Example:
        >>> data = FederatedData.from_arrays(
        ...     [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[2.0]], "y": [1]}], classes=2
        ... )
        >>> data.sizes.tolist(), data.label_counts.tolist(), data.train[1]["x"].tolist()
        ([2, 1], [[1, 1], [0, 1]], [[2.0]])
    """

    train: Ragged
    validation: Ragged | None = None
    test: Ragged | None = None
    central: dict[str, Any] | None = None
    unseen: "FederatedData | None" = None
    classes: int | None = eqx.field(static=True, default=None)
    name: str = eqx.field(static=True, default="data")
    names: ClientNames | None = eqx.field(static=True, default=None, converter=_client_names)
    encoding: Encoding | None = eqx.field(static=True, default=None)
    labels: tuple[str, ...] = eqx.field(static=True, default=(), converter=tuple)
    plain: bool = eqx.field(static=True, default=False)
    measured: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        clients = self.train.clients
        if self.classes is not None and not 1 <= self.classes <= MOST_CLASSES:
            raise DataError.of("classes", self.classes, f"whole numbers from 1 to {MOST_CLASSES}")
        if self.names is not None and len(self.names) != clients:
            got = f"{len(self.names)} names"
            allowed = f"{clients}, one for each client"
            raise DataError.found("names", got, allowed)
        for name, part in (("validation", self.validation), ("test", self.test)):
            if part is not None and part.clients != clients:
                raise DataError.found(name, f"{part.clients} clients", f"{clients}, as in train")
            if part is not None and not part.total:
                allowed = "at least 1 example, or None"
                raise DataError.found(name, "0 examples in all", allowed)
        if self.central is not None and not rows_of(self.central, "central"):
            raise DataError.found("central", "0 examples", "at least 1 example, or None")
        others = {} if self.unseen is None else {"unseen": self.unseen.train.arrays}
        for name, arrays in (self.arrays_by_part | others).items():
            # says what differs
            conformed(arrays, self.train.arrays, name)

    @property
    def arrays_by_part(self) -> dict[str, Examples]:
        """Returns the flat arrays of the parts that there are, by their name."""
        arrays: dict[str, Examples] = {name: part.arrays for name, part in self.parts.items()}
        return arrays if self.central is None else arrays | {"central": self.central}

    @property
    def parts(self) -> dict[str, Ragged]:
        """Returns the clients' parts that there are, by their name."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def summary(self) -> dict[str, str]:
        """Returns what a short table says of the data: examples and arrays, not their values."""
        rows = {"clients": f"{self.clients:,}"}
        if self.classes is not None:
            rows["classes"] = f"{self.classes:,}"
        if self.labels:
            rows["labels"] = ", ".join(self.labels)
        for name, arrays in self.arrays_by_part.items():
            rows[f"{name} examples"] = f"{len(next(iter(arrays.values()))):,}"
        rows["arrays"] = ", ".join(
            f"{name}: {a.dtype.name}{[*a.shape[1:]] or ''}" for name, a in self.train.arrays.items()
        )
        return rows | (self.encoding.summary if self.encoding else {})

    def __repr__(self) -> str:
        rows = {"name": self.name} | self.summary
        width = max(map(len, rows))
        lines = [f"  {name:<{width}}  {short(text)}" for name, text in rows.items()]
        return "\n".join(["FederatedData", *lines])

    @classmethod
    def from_arrays(
        cls,
        clients: Any,
        *,
        test: Any = None,
        validation: Any = None,
        central: Any = None,
        classes: int | Sequence[str] | None = None,
        name: str = "data",
        names: Iterable[Any] | None = None,
    ) -> "FederatedData":
        """Makes federated data from the arrays of each client.

        Real numbers get JAX's default float type, and labels of classes 32 bits.

        Args:
            clients: for each client a dict of arrays, one row per example, at least one example
                each: a list, a generator, or a mapping by the names of the clients. Where examples
                are one array, it may stand alone, and is called x. Or `FederatedData`, of which
                the other parts are replaced by those that are given; `classes`, `name` and `names`
                are not used then.
            test: the same in the same client order (a client may have no examples), or by the
                names or numbers of the clients that have some.
            validation: as `test`.
            central: the arrays of a test set that belongs to no client.
            classes: how many, or their names in the order of the labels y; None for data without
                labels of classes.
            name: for tables and messages.
            names: of the clients, in their order.

        Raises:
            DataError: no client, a client without training examples, other arrays than the first
                client has, unequal lengths or shapes, NaN, labels out of range, numbers beyond the
                types of programs, or a part that is empty as a whole.

        >>> data = FederatedData.from_arrays({"anna": [1.0, 2.0], "berta": [5.0]})
        >>> list(data.names), data.train[0]["x"].tolist()
        (['anna', 'berta'], [1.0, 2.0])
        """
        if isinstance(clients, FederatedData):
            data = clients
        else:
            if isinstance(clients, Mapping):
                if "y" in clients and not isinstance(clients["y"], Mapping):
                    hint = "Put the arrays of each client into a list: [{'x': ..., 'y': ...}]."
                    got = f"the arrays {list(clients)} of one client"
                    raise DataError.found("clients", got, "the clients by name, or a list", hint)
                by_name = by_client_name(clients, "clients")
                clients = list(by_name.values())
                names = list(by_name)
            clients = clients if isinstance(clients, Ragged) else list(clients)
            plain = isinstance(clients, list) and not isinstance(next(iter(clients), {}), Mapping)
            labels: Sequence[str] = ()
            if isinstance(classes, Sequence):
                labels = classes
                classes = len(labels)
            train = make_part(clients, "train", classes)
            data = cls(train, classes=classes, name=name, names=names, labels=labels, plain=plain)
        given = {"validation": validation, "test": test}
        parts: dict[str, Any] = {
            part: data._read_part(values, part)
            for part, values in given.items()
            if values is not None
        }
        if central is not None:
            parts["central"] = dict(data._read_part([central], "central").arrays)
        return dataclasses.replace(data, **parts) if parts else data

    def _read_part(self, clients: Any, where: str) -> Ragged:
        """Returns another part of the data, in the order and the types of the training examples."""
        if isinstance(clients, Mapping):
            no_rows = {name: values[:0] for name, values in self.train.arrays.items()}
            clients = in_order(clients, self.names, self.clients, where, no_rows)
        return make_part(clients, where, self.classes, self.train, where != "central")

    @classmethod
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
        central: Examples | None = None,
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
                the last ones, of which copies may stay. `"shuffled_rows"` does not look for copies
                either, as many released codes do.
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
        field = "partitioned(test_fraction=...)"
        check_share(field, test_fraction, split)
        arrays = {
            key: as_rows(values, f"partitioned({key}=...)")
            for key, values in {"x": x, "y": y, **(more or {})}.items()
        }
        examples = count_rows(arrays, "partitioned")
        # each client's rows in the order in which they are drawn: the first ones are trained on
        rng = np.random.default_rng([seed, 1])  # the partition itself may have used the plain seed
        order, sizes = read_partition(partition, examples, "partitioned(partition=...)")
        starts = np.cumsum(sizes) - sizes
        owners = np.repeat(np.arange(len(sizes)), sizes)
        # by client, and at random within each
        if split.startswith("shuffled") and len(sizes) > MANY:
            order = order[np.lexsort((rng.random(len(order)), owners))]
        elif split.startswith("shuffled"):
            rows_by_client = np.split(order, starts[1:])
            order = np.concatenate([rng.permutation(rows) for rows in rows_by_client])
        cuts = np.maximum(1, whole_part(1 - test_fraction, sizes))  # `train_size` of all
        # the place of a row among its client's rows, against where the client's are cut
        is_trained = np.arange(len(order)) - np.repeat(starts, sizes) < np.repeat(cuts, sizes)
        # (rows, sizes) for training and test; one pass over all rows, for millions of clients
        splits = [(order[is_trained], cuts), (order[~is_trained], sizes - cuts)]
        if test_fraction and not split.endswith("_rows"):
            orders = np.split(order, starts[1:])
            divided = split_rows(
                arrays, orders, cuts.tolist(), split, together, test_fraction, field
            )
            splits = [
                (np.concatenate(rows), np.array([len(client_rows) for client_rows in rows]))
                for rows in zip(*divided, strict=True)
            ]
        train, test = (
            Ragged.flat({key: values[rows] for key, values in arrays.items()}, counts, part)
            for part, (rows, counts) in zip(("train", "test"), splits, strict=True)
        )
        return cls.from_arrays(
            train,
            test=test if test.total else None,
            central=central,
            classes=classes,
            name=name,
            names=names,
        )

    def with_validation(
        self,
        share: float | int,
        seed: int = 0,
        split: str = "shuffled",
        together: str | None = None,
    ) -> "FederatedData":
        """Returns the data with a share of each client's training examples kept for validation.

        A client of n examples keeps the whole part of (1 - share) n, but at least one, for
        training. The draw is each client's own. Copies stay on one side. Of windows that fedax cut
        from a text (`tinyshakespeare`, `shakespeare`) the last ones are put aside, without those
        that overlap with the others.

        >>> data = FederatedData.from_arrays([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0]])
        >>> parts = data.with_validation(0.25)
        >>> parts.sizes.tolist(), parts.validation.sizes.tolist()
        ([3, 1], [1, 1])

        Args:
            share: in [0, 1).
            seed: of the draw.
            split: as in `partitioned`.
            together: as in `partitioned`. Needed for changed copies (cropped, mirrored, with noise,
                with another label or id).

        Raises:
            DataError: no client has enough examples for one of validation, or there are some
                already.
        """
        check_share("with_validation(share=...)", share, split)
        if not share:
            return self
        if self.validation is not None:
            raise DataError.found(
                "with_validation", "data with validation examples", "data without"
            )
        train = self.train
        train_rows, validation_rows = draw_rows(
            train.arrays, np.asarray(train.offsets), share, seed, split, together, gap=train.gap
        )
        return dataclasses.replace(
            self,
            train=train.select(train_rows),
            validation=train.select(validation_rows),
        )

    def with_unseen(self, share: float | int, seed: int = 0) -> "FederatedData":
        """Returns the data without a share of the clients, which never take part.

        They become `unseen`; see `observe.Unseen`. The other clients keep their order, and get new
        numbers. Examples that those who take part train on are no longer examples of the others.

        Args:
            share: of the clients, in [0, 1); rounded to whole ones, at least one is unseen and at
                least one takes part.
            seed: of the draw.

        Raises:
            DataError: a share out of range, data of one client or with unseen clients, or clients
                who have their examples in common.

        >>> data = FederatedData.from_arrays([[float(k)] for k in range(10)]).with_unseen(0.2)
        >>> data.clients, data.unseen.clients
        (8, 2)
        """
        field = "with_unseen(share=...)"
        check_share(field, share)
        if not share:
            return self
        if self.unseen is not None or self.clients == 1:
            got = f"{self.clients} clients, or some unseen already"
            raise DataError.found("with_unseen", got, "several clients, of which none is unseen")
        count = min(max(round(share * self.clients), 1), self.clients - 1)
        order = np.random.default_rng([seed, 3]).permutation(self.clients)
        # examples of all parts together, so that copies across them are found; training comes first
        copies = number_copies(
            {
                name: np.concatenate([part.arrays[name] for part in self.parts.values()])
                for name in self.train.arrays
            }
        )
        train_copies = copies[: self.train.total]
        drawn = np.sort(order[:count])
        participants = np.setdiff1d(np.arange(self.clients), drawn)
        # by part, marks of the examples of which none that is trained on is a copy
        is_clear = ~np.isin(copies, train_copies[np.isin(self.train.owners, participants)])
        ends = np.cumsum([part.total for part in self.parts.values()])
        clear = dict(zip(self.parts, np.split(is_clear, ends[:-1]), strict=True))
        unseen = drawn[np.isin(drawn, self.train.owners[clear["train"]])]
        if not len(unseen):
            hint = "Give the clients different examples, or hold back a smaller share."
            allowed = "a share of clients who have examples that no other client trains on"
            raise DataError.of(field, share, allowed, hint)
        # a central test set stays with the clients that take part
        others = dataclasses.replace(self._select_clients(unseen, clear), central=None)
        return dataclasses.replace(self._select_clients(participants), unseen=others)

    def _select_clients(
        self, clients: Int[np.ndarray, "some"], clear: Mapping[str, np.ndarray] | None = None
    ) -> "FederatedData":
        """Returns the data of some clients; `clear` marks by part the examples that are taken."""
        parts: dict[str, Ragged | None] = {}
        for name, part in self.parts.items():
            offsets = part.offsets.tolist()
            rows = [np.arange(offsets[k], offsets[k + 1]) for k in clients]
            if clear is not None:
                rows = [client_rows[clear[name][client_rows]] for client_rows in rows]
            parts[name] = part.select(rows) if sum(map(len, rows)) else None
        return dataclasses.replace(self, names=self.names and self.names.taken(clients), **parts)

    @property
    def clients(self) -> int:
        return self.train.clients

    @property
    def sizes(self) -> Int[np.ndarray, "clients"]:
        """Returns the number of training examples of each client."""
        return np.asarray(self.train.sizes)

    @property
    def test_sizes(self) -> Int[np.ndarray, "clients"]:
        """Returns the number of test examples of each client."""
        return np.zeros(self.clients, int) if self.test is None else np.asarray(self.test.sizes)

    @property
    def label_counts(self) -> Int[np.ndarray, "clients classes"]:
        """Counts each label among each client's training examples."""
        assert self.classes is not None, "of data with labels"
        # one cell for each client and label, client after client
        cells = self.train.owners * self.classes + np.asarray(self.train.arrays["y"])
        counts = np.bincount(cells, minlength=self.clients * self.classes)
        return counts.reshape(self.clients, self.classes)


def make_part(
    clients: Any,
    where: str,
    classes: int | None = None,
    like: Ragged | None = None,
    allow_empty: bool = False,
) -> Ragged:
    """Returns the examples of clients as a part of federated data, checked.

    Args:
        clients: the arrays of each, or a part in flat arrays.
        where: names the part in messages.
        classes: of the labels, which get 32 bits; None for other data.
        like: the training examples, for another part.
        allow_empty: whether a client may have no examples.

    Raises:
        DataError: as `Ragged.of`; labels other than whole numbers from 0 to `classes` - 1.
    """
    part = clients
    if not isinstance(clients, Ragged):
        part = Ragged.of(list(clients), where=where, allow_empty=allow_empty)
    if like is not None:
        part = dataclasses.replace(part, arrays=conformed(part.arrays, like.arrays, where))
    if classes is None:
        return part
    if not {"x", "y"} <= set(part.arrays):
        raise DataError.of(where, sorted(part.arrays), "the arrays 'x' and 'y', and any others")
    y = np.asarray(part.arrays["y"])
    allowed = f"labels from 0 to {classes - 1}, whole numbers, one for each example"
    if y.ndim != 1 or y.dtype.kind not in "iu":
        hint = "Other data than those of classes have classes=None."
        raise DataError.found(f"{where}['y']", f"{y.dtype} of shape {y.shape}", allowed, hint)
    is_class = (y >= 0) & (y < classes)
    if not is_class.all():
        row = int(np.argmin(is_class))
        got = f"the label {y[row]} in {describe_row(row, part.offsets)}"
        raise DataError.found(f"{where}['y']", got, allowed)
    if y.dtype == np.int32:
        return part
    labels = canonical(y.astype(np.int32))
    return dataclasses.replace(part, arrays={**part.arrays, "y": labels})


def read_partition(
    partition: Iterable[Any], examples: int, field: str
) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "clients"]]:
    """Returns the rows of all clients one after the other, and how many each has.

    `field` names the partition in messages.

    Raises:
        DataError: an empty client, something else than indices, or one out of range or twice.
    """
    rows_by_client = [np.asarray(indices) for indices in partition]
    sizes = np.array([rows.size for rows in rows_by_client])
    if not len(sizes) or not sizes.all():
        raise DataError.found(field, "a client without examples", "at least 1 example for each")
    if any(rows.ndim != 1 or rows.dtype.kind not in "iu" for rows in rows_by_client):
        allowed = "the indices of each client's examples; of a mask: np.flatnonzero(mask)"
        raise DataError.found(field, "other arrays than lists of whole numbers", allowed)
    order = np.concatenate(rows_by_client).astype(np.int64)
    if order.min() < 0 or order.max() >= examples:
        got = f"indices from {order.min()} to {order.max()}"
        raise DataError.found(field, got, f"0 to {examples - 1}")
    if len(np.unique(order)) < len(order):
        raise DataError.found(field, "an index twice", "each example at most once")
    return order, sizes
