"""Names of clients: their order, their checks, and what a name in a file stands for."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any

import numpy as np

from fedax.errors import DataError, InvalidInput, printable
from fedax.examples.arrays import as_ndarray
from fedax.examples.encoding import cell_text, normalize


class ClientNames(Sequence[str]):
    """The names of all clients, in client order.

    All instances compare equal and hash alike: names change no number, so tasks that differ in them
    share compiled programs.

    Args:
        names: one for each client, all different.

    Raises:
        DataError: a missing, empty or repeated name.

    >>> ClientNames(["anna", "berta"]).index("berta")
    1
    """

    def __init__(self, names: Iterable[Any], where: str = "names") -> None:
        if isinstance(names, str | bytes | Set) or not isinstance(names, Iterable):
            raise DataError.of(where, names, "a list with the name of each client, in their order")
        self._names = tuple(client_name(name, f"{where}[{k}]") for k, name in enumerate(names))
        for name, count in Counter(self._names).items():
            if count > 1:
                raise DataError.found(where, f"{name!a} twice", "a different name for each client")

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        return self._names[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientNames)

    def __hash__(self) -> int:
        return hash(ClientNames)

    def __repr__(self) -> str:
        return f"ClientNames({list(self._names[:3])}{' and more' if len(self) > 3 else ''})"

    def taken(self, clients: Iterable[Any]) -> "ClientNames":
        """Returns the names of some clients, given by number."""
        return ClientNames(self._names[int(k)] for k in clients)


def client_name(value: Any, where: str) -> str:
    """Returns the name of a client as text, as `cell_text` does.

    Control characters are written out.

    Raises:
        DataError: None, NaN, an empty text, or a value that is neither text nor a number.

    >>> client_name(3.0, "user"), client_name(np.str_("anna"), "user")
    ('3', 'anna')
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    # a text may be the name of a person called None
    name = normalize(value) if isinstance(value, str) else cell_text(value)
    if not name:
        hint = "Drop these rows, or give each of them a client."
        raise DataError.of(where, value, "a name or number for each client", hint)
    return printable(name)


def natural(name: str) -> tuple[Any, ...]:
    """Returns a sort key by which numbers within names count as numbers.

    >>> sorted(["client10", "client2", "client1"], key=natural)
    ['client1', 'client2', 'client10']
    """
    segments = re.split(r"([0-9]+)", name)
    # texts and digits take turns, numbers sort before texts, and the name decides between a1 and
    # a01
    return tuple(
        (0, int(segment), "") if i % 2 else (1, 0, segment)
        for i, segment in enumerate(segments)
        if segment
    ), name


def grouped_by_name(values: Any, where: str) -> tuple[list[str], np.ndarray]:
    """Returns a column's different names in natural order, and the number of each row's.

    Args:
        values: one name or number per row, numbers of an array in ascending order.
        where: names the column in messages.

    Raises:
        DataError: a missing name, with its row; another shape.

    >>> names, owner = grouped_by_name(["b10", "b9", "b10"], "user")
    >>> names, owner.tolist()
    (['b9', 'b10'], [1, 0, 1])
    """
    column = as_ndarray(values if hasattr(values, "dtype") else _to_column(values), where)
    if column.ndim != 1:
        got = f"shape {column.shape}"
        raise DataError.found(where, got, "one client per example, shape (examples,)")
    # in the order of their values
    if column.dtype.kind in "iufb":
        unique, owner = np.unique(column, return_inverse=True)
        return [client_name(value, where) for value in unique], owner
    cells = column.tolist()
    # by different value, a row for messages: its label in a frame of pandas
    rows = dict(zip(cells, values.index if hasattr(values, "iloc") else range(len(cells))))
    names = {cell: client_name(cell, f"{where}, row {row}") for cell, row in rows.items()}
    ordered = sorted(ClientNames(names.values(), where), key=natural)
    number = {name: k for k, name in enumerate(ordered)}
    return ordered, np.array([number[names[cell]] for cell in cells], dtype=np.int64)


def _to_column(values: Any) -> Any:
    """Returns mixed values as objects: NumPy would write numbers and missing ones as texts."""
    listed = list(values)
    return listed if len(set(map(type, listed))) == 1 else np.array(listed, object)


def by_client_name(clients: Any, where: str) -> dict[str, Any]:
    """Returns the values of a mapping, or a series of pandas, by the names of clients as text.

    Raises:
        DataError: a key that names no client, or two of one name, such as 1 and "1".
    """
    # a series of pandas iterates over its values
    keys = list(clients.keys())
    return {name: clients[key] for name, key in zip(ClientNames(keys, where), keys, strict=True)}


def in_order(
    values: Any,
    names: Sequence[str] | None,
    clients: int,
    where: str,
    default: Any = None,
) -> list[Any]:
    """Returns the values of a mapping, or a series of pandas, in the order of the clients.

    Args:
        values: by the names of the clients, or their numbers if they have no names.
        names: of the clients, None if they have none.
        clients: how many there are.
        where: names the mapping in messages.
        default: for clients without a value; None if each must have one.

    Raises:
        DataError: a name that no client has, or the same client twice.
        InvalidInput: clients without a value.

    >>> in_order({"b": 2, "a": 1}, ["a", "b"], 2, "mu"), in_order({1: 2, 0: 1}, None, 2, "mu")
    ([1, 2], [1, 2])
    """
    by_name = by_client_name(values, where)
    # insertion keeps the order of the clients
    known = dict.fromkeys(names or map(str, range(clients)))
    for name in by_name:
        if name not in known:
            allowed = f"names of the {clients} clients, such as {list(known)[:3]}"
            raise DataError.of(where, name, allowed)
    missing = [name for name in known if name not in by_name]
    if missing and default is None:
        allowed = "one for each client"
        raise InvalidInput.found(where, f"no value for {missing[:3]}", allowed)
    return [by_name.get(name, default) for name in known]


def ordered_nodes(network: Any, order: Iterable[Any] | None) -> list[Any]:
    """Returns the nodes of a NetworkX graph in the order of the clients.

    Args:
        network: the graph.
        order: all nodes in the order of the clients; None for numbers, and for other nodes that are
            not text.

    Raises:
        InvalidInput: another order than that of all nodes; none for nodes that are text.
    """
    if order is not None:
        nodes = list(order)
        if len(nodes) != len(network) or set(nodes) != set(network):
            allowed = f"all {len(network)} nodes, each once"
            raise InvalidInput.of("Graph.of(order=...)", nodes, allowed)
        return nodes
    if any(isinstance(node, str) for node in network):
        hint = "Say which client each node is: order=task.names, or order=list(network)."
        raise InvalidInput.of(
            "Graph.of(network=...)",
            list(network)[:3],
            "numbers as nodes, or an order of the names",
            hint,
        )
    numbers = list(range(len(network)))
    return numbers if set(network) == set(numbers) else list(network)


def names_of_nodes(nodes: Sequence[Any]) -> ClientNames | None:
    """Returns the names of nodes, None if none of them is text."""
    has_names = any(isinstance(node, str) for node in nodes)
    return ClientNames(nodes, "Graph.of(network=...), a node") if has_names else None


def names_of_frame(matrix: Any, where: str) -> ClientNames | None:
    """Returns the names in the index of a square data frame; None for numbers.

    None also for objects without an index.

    Raises:
        InvalidInput: an index that differs from the columns, or numbers that are not those from 0
            on in order.
    """
    if not (hasattr(matrix, "columns") and hasattr(matrix, "index")):
        return None
    index = list(matrix.index)
    columns = list(matrix.columns)
    if index != columns:
        allowed = "the same names in the same order in both"
        raise InvalidInput.found(where, "a frame whose index and columns differ", allowed)
    if any(isinstance(name, str) for name in index):
        return ClientNames(index, f"{where}, index")
    if index != list(range(len(index))):
        raise InvalidInput.of(
            where,
            index[:3],
            "a frame with the names of clients, or with the numbers from 0 in order",
        )
    return None


def node_indices(names: Sequence[str], nodes: Sequence[str], where: str) -> list[int]:
    """Returns the index of each client among nodes of the same names.

    Raises:
        InvalidInput: a client without a node; or a `DataError` for a node that is no client.
    """
    numbers = {node: i for i, node in enumerate(nodes)}
    return in_order(numbers, names, len(names), where)
