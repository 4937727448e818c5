"""Clients' data in the form that a user has them, as a list with the arrays of each client."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedax.core import DataError, Ragged
from fedax.data import FederatedData, client_files
from fedax.data.client_forms import check_finite, is_frame, make_empty
from fedax.data.federated import ColumnOrder, columns_of
from fedax.examples.arrays import Frames, as_array, as_ndarray
from fedax.examples.client_names import ClientNames, by_client_name, grouped_by_name, number_of
from fedax.examples.ragged import Stacked


class Clients(NamedTuple):
    """The data of all clients, as `Task` takes them.

    Attributes:
        train: for each client an array, or a mapping of arrays.
        test: the same for test examples, or None.
        central: a central test set, or None.
        name: for tables and messages, None if the data have none.
        validation: as `test`.
        names: of the clients, or None.
        columns: names of the columns of x, or None.
        categories: see `FederatedData`.
    """

    train: Sequence[Any]
    test: Sequence[Any] | None = None
    central: Any = None
    name: str | None = None
    validation: Sequence[Any] | None = None
    names: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None


def read_clients(
    clients: Any, test: Any = None, column: str | None = None, validation: Any = None
) -> Clients:
    """Reads the clients from whatever form a user has them in.

    Args:
        clients: `FederatedData`; a list, a generator or a mapping of names to clients; a folder
            with a file for each client; or a table: a pandas frame, a data set of the `datasets`
            library, or a dict of arrays of all clients. Pandas frames of named clients become dicts
            of their columns.
        test: test examples in the same form; of named clients some may lack them.
        validation: the same as `test`.
        column: of a table, the column with the client of each row. Clients are in the order of
            their sorted values.

    Raises:
        DataError: another form, no client, test examples of a client that has no others.
    """
    if isinstance(clients, Clients):
        return clients
    if isinstance(clients, str | Path):
        clients = client_files(clients)
    if isinstance(clients, FederatedData):
        test_clients = clients.test if test is None else test
        # examples in flat arrays stay there, as they may lie in files
        train = (
            clients.train
            if isinstance(clients.train, Stacked)
            else [dict(client) for client in clients.train]
        )
        matched = [
            None
            if split_clients is None
            else _match_listed(train, split_clients, clients.names, where)
            for split_clients, where in ((test_clients, "test"), (validation, "validation"))
        ]
        validation_clients = clients.validation if matched[1] is None else matched[1]
        details = clients.names, clients.columns, clients.categories
        return Clients(
            train, matched[0], clients.central, clients.name, validation_clients, *details
        )
    # the splits of a data set
    if _has_splits(clients, column):
        splits = dict(clients)
        if "train" not in splits:
            hint = "Give the split that is to be used."
            if column is not None and all(map(is_frame, splits.values())):
                hint += " Leave client=... out where the clients are apart already."
            allowed = "a data set with the split 'train'"
            raise DataError.of("clients", [*splits], allowed, hint)
        clients, test = splits["train"], splits.get("test") if test is None else test
        validation = splits.get("validation") if validation is None else validation
    train, names = _group_by_client(clients, column, "clients"), None
    # clients without names keep their places, named ones may come in another order elsewhere
    if not isinstance(train, dict):
        train = _as_list(train, "clients")
        matched = [
            None if split_clients is None else _match_listed(train, split_clients, None, where)
            for split_clients, where in ((test, "test"), (validation, "validation"))
        ]
    else:
        if not train:
            raise DataError.found("clients", "no client", "at least one client")
        matched = [
            _match_named(train, split_clients, column, where)
            for split_clients, where in ((test, "test"), (validation, "validation"))
        ]
        train, names = list(train.values()), list(train)
    return Clients(train, matched[0], validation=matched[1], names=names)


def _has_splits(clients: Any, column: str | None) -> bool:
    """Returns whether the tables of a mapping are splits of a data set, and not of one client each.

    Pandas frames without a column of clients are those of named clients, unless a key is the name
    of a split.
    """
    if not isinstance(clients, Mapping) or not clients:
        return False
    if not all(map(is_table, clients.values())):
        return False
    are_clients = column is None and all(map(is_frame, clients.values()))
    return not are_clients or not _SPLITS.isdisjoint(clients)


_SPLITS = {"train", "test", "validation"}


def _match_named(
    train: dict[str, Any], clients: Any, column: str | None, where: str
) -> list[Any] | None:
    """Brings another part of named clients' data into their order; a client may have none."""
    if clients is None:
        return None
    by_name = _group_by_client(clients, column, where)
    if not isinstance(by_name, dict):
        raise DataError.found(
            where,
            f"a {type(clients).__name__}",
            "examples in the form of the clients, by their names",
        )
    for name in by_name:
        if name not in train:
            raise DataError.of(where, name, "names of clients with training examples")
    return [by_name.get(name, make_empty(train_client)) for name, train_client in train.items()]


def _match_listed(
    train: Sequence[Any], clients: Any, names: Sequence[str] | None, where: str
) -> Sequence[Any]:
    """Brings another part of listed clients' data into their order.

    Of a mapping by name, or number, a client may have none.
    """
    if not isinstance(clients, Mapping):
        return _as_list(clients, where)
    by_name = by_client_name(clients, where)
    by_index = {
        number_of(name, names, len(train), where): client for name, client in by_name.items()
    }
    return [by_index[k] if k in by_index else make_empty(client) for k, client in enumerate(train)]


def is_table(value: Any) -> bool:
    """Returns whether a value is a pandas frame or a data set of the `datasets` library.

    Seen by its attributes: neither is imported.
    """
    return (hasattr(value, "groupby") and hasattr(value, "columns")) or hasattr(
        value, "column_names"
    )


def _group_by_client(clients: Any, column: str | None, where: str) -> Any:
    """Returns named clients as a dict, and anything without names unchanged."""
    if not is_table(clients) and column is None:
        if isinstance(clients, Mapping):
            if {"x", "y"} <= set(clients) and not any(
                isinstance(owned, Mapping) for owned in clients.values()
            ):
                hint = "Put the clients into a list, or name the column of clients by client=..."
                raise DataError.of(
                    where,
                    list(clients),
                    "a mapping of names to clients, not of the arrays of one",
                    hint,
                )
            return {
                name: _split_frame(owned, f"{where}[{name!r}]")
                for name, owned in by_client_name(clients, where).items()
            }
        return clients
    arrays = _read_columns(clients, column, where)
    owners = arrays.pop(str(column))
    names, owner = grouped_by_name(owners, f"{where}[{column!r}]")
    # rows by client, in the table's order within each
    order, sizes = np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(names))
    # split at all ends, because a table without rows has no client
    rows = np.split(order, np.cumsum(sizes))[:-1]
    return {
        name: {key: values[owned] for key, values in arrays.items()}
        for name, owned in zip(names, rows, strict=True)
    }


def _split_frame(client: Any, where: str) -> Any:
    """Returns the columns of a client's pandas frame by name, and other forms unchanged."""
    if not is_frame(client):
        return client
    names = [str(name) for name in client.columns]
    _check_column_names(names, where)
    return {
        name: _to_array(client[key].to_numpy(), f"{where}[{name!r}]")
        for name, key in zip(names, client.columns, strict=True)
    }


def _check_column_names(names: Sequence[str], where: str) -> None:
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError.found(where, f"the column {repeated!r} twice", "columns of different names")


def _read_columns(table: Any, column: str | None, where: str) -> dict[str, Any]:
    """Returns the columns of a table as arrays; the one with the clients is not converted."""
    names = [str(name) for name in getattr(table, "columns", ())]
    _check_column_names(names, where)
    if isinstance(table, Mapping):
        columns = {str(name): values for name, values in table.items()}
    elif hasattr(table, "column_names"):
        columns = {name: table[name] for name in table.column_names}
    elif hasattr(table, "columns"):
        columns = {str(name): table[name].to_numpy() for name in table.columns}
    else:
        hint = "Leave client=... out where the clients are apart already."
        raise DataError.found(
            where, f"a {type(table).__name__}", "a table, with the column of clients", hint
        )
    if column not in columns:
        allowed = "one of the columns " + ", ".join(map(repr, columns))
        raise DataError.of(
            "from_loss(client=...)", column, allowed, "It says which client a row belongs to."
        )
    arrays = {
        name: values if name == column else _to_array(values, f"{where}[{name!r}]")
        for name, values in columns.items()
    }
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError.of(where, lengths, "columns of the same length")
    return arrays


def _to_array(values: Any, where: str) -> np.ndarray:
    """Converts a column to an array; rows may be numbers, lists, arrays or pictures."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return as_array(values, where)
    rows = [as_ndarray(value, f"{where}, row {row}") for row, value in enumerate(values)]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise DataError.of(
            where,
            f"rows of shapes {sorted(shapes)[:3]}",
            "rows of one shape",
            "Pad them, with a mask beside.",
        )
    if any(row.dtype.kind == "O" for row in rows):
        row = next(i for i, row in enumerate(rows) if row.dtype.kind == "O")
        raise DataError.of(
            f"{where}, row {row}",
            rows[row].tolist(),
            "a number in every row",
            "Drop the row, or fill it in.",
        )
    return as_array(np.asarray(rows), where)


def _as_list(clients: Any, where: str) -> Sequence[Any]:
    if isinstance(clients, Stacked):
        return clients
    if isinstance(clients, Mapping):
        return list(clients.values())
    if (
        not isinstance(clients, Iterable)
        or isinstance(clients, str | bytes)
        or getattr(clients, "ndim", 1) == 0
    ):
        allowed = (
            "FederatedData, a list or a mapping of clients, a table with client=..., or a folder"
        )
        raise DataError.of(where, clients, allowed)
    return list(clients)


def named_arrays(
    clients: Sequence[Any], plain: bool, where: str, frames: Frames
) -> Sequence[Mapping[str, Any]]:
    """Returns each client's arrays by name; one array alone is x.

    Columns of data frames are in one order.

    Raises:
        DataError: a client in another form than the others.
    """
    if isinstance(clients, Stacked):
        return clients
    arrays_by_client = []
    for k, client in enumerate(clients):
        if not plain:
            client = _split_frame(client, f"{where}[{k}]")
        # a mapping where an array is expected, or the other way round
        if isinstance(client, Mapping) is plain:
            allowed = "an array" if plain else "a mapping of arrays"
            raise DataError.found(
                f"{where}[{k}]", f"a {type(client).__name__}", f"{allowed}, as the first client has"
            )
        if plain:
            arrays_by_client.append(
                {"x": as_array(frames.array(client, f"{where}[{k}]"), f"{where}[{k}]")}
            )
        else:
            arrays = frames.client(client, f"{where}[{k}]")
            arrays_by_client.append(
                {
                    str(name): as_array(values, f"{where}[{k}][{name!r}]")
                    for name, values in arrays.items()
                }
            )
    return arrays_by_client


def parts_of_task(data: Clients | FederatedData, plain: bool = False) -> dict[str, Any]:
    """Returns training and other examples as arguments of `Task`, all in one form.

    Args:
        data: of all clients.
        plain: whether a client is one array.

    Raises:
        DataError: as `Ragged.of`; a part of another form than the training examples.
    """
    parts = (data.train, data.test or (), data.validation or (), [data.central])
    columns = next(filter(None, (data.columns, *map(columns_of, parts))), None)
    # data that were read before have their names, tables of other parts follow them
    frames = ColumnOrder(data.columns)
    train = _to_ragged(data.train, plain, "clients", frames, data.names)
    arguments: dict[str, Any] = {"train": train, "names": data.names and ClientNames(data.names)}
    arguments["columns"] = columns and tuple(columns)
    arguments["categories"] = {
        column: tuple(texts) for column, texts in (data.categories or {}).items()
    }
    for where, clients in (("test", data.test), ("validation", data.validation)):
        if clients is not None:
            arguments[where] = _to_ragged(clients, plain, where, frames, data.names, train)
    if data.central is not None:
        central = _to_ragged([data.central], plain, "central", frames, None, train)
        arguments["central"] = dict(central.arrays)
    return arguments


def _to_ragged(
    clients: Sequence[Any],
    plain: bool,
    where: str,
    frames: ColumnOrder,
    names: Sequence[str] | None,
    like: Ragged | None = None,
) -> Ragged:
    """Concatenates the clients' arrays.

    Args:
        clients, plain, where, frames: see `named_arrays`.
        names: of the clients, for messages.
        like: the training examples, for another part.

    Raises:
        DataError: as `named_arrays` and `Ragged.of`.
    """
    arrays = named_arrays(clients, plain, where, frames)
    may_be_empty = like is not None and where != "central"
    try:
        return Ragged.of(arrays, where=where, allow_empty=may_be_empty, like=like)
    except DataError:
        # a missing value, which is looked for only now, is named with its column and client
        for k, client in enumerate(arrays):
            owner = f" of client {names[k]!r}" if names is not None and k < len(names) else ""
            check_finite(client, f"{where}[{k}]", frames.names, owner)
        raise
