"""Names of clients: their order, their checks, and what a name in a file stands for."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from fedax.errors import DataError, InvalidInput, printable


class ClientNames(Sequence[str]):
    """The names of all clients, in client order.

    All instances compare equal and hash alike: names change no number, so tasks that differ in them share compiled programs.

    Args:
        names: one for each client, all different.

    Raises:
        DataError: a missing, empty or repeated name.

    >>> ClientNames(["anna", "berta"]).index("berta")
    1
    """

    def __init__(self, names: Iterable[Any], where: str = "names") -> None:
        self._names = tuple(client_name(name, f"{where}[{k}]") for k, name in enumerate(names))
        if len(set(self._names)) < len(self._names):
            seen = set[str]()
            twice = next(name for name in self._names if name in seen or seen.add(name))
            raise DataError.found(where, f"{twice!r} twice", "a different name for each client")

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
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
    """Returns the name of a client as text: whole numbers without decimals, control characters written out.

    Raises:
        DataError: None, NaN, an empty text, or a value that is neither text nor a number.

    >>> client_name(3.0, "user"), client_name(np.str_("anna"), "user")
    ('3', 'anna')
    """
    hint = "Drop these rows, or give each of them a client."
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        raise DataError.of(where, value, "a name or number for each client", hint)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, int) or hasattr(value, "isoformat"):
        return str(value)
    if not isinstance(value, str):
        raise DataError.of(where, value, "a name or number for each client", hint)
    if not value.strip():
        raise DataError.of(where, value, "a name or number for each client", hint)
    return printable(value)


def natural(name: str) -> tuple[Any, ...]:
    """Returns a sort key by which numbers within names count as numbers.

    >>> sorted(["client10", "client2", "client1"], key=natural)
    ['client1', 'client2', 'client10']
    """
    parts = re.split(r"([0-9]+)", name)
    return tuple((0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part), name


def grouped_by_name(values: Any, where: str) -> tuple[list[str], np.ndarray]:
    """Returns the different names of a column in natural order, and for each row the number of its name.

    Args:
        values: one name or number per row, numbers in ascending order first.
        where: names the column in messages.

    Raises:
        DataError: a missing name, with its row; two different values of the same name; another shape.

    >>> names, owner = grouped_by_name(["b10", "b9", "b10"], "user")
    >>> names, owner.tolist()
    (['b9', 'b10'], [1, 0, 1])
    """
    column = values if isinstance(values, np.ndarray) else _column(values)
    if isinstance(column, np.ma.MaskedArray):
        if np.ma.is_masked(column):
            row = int(np.flatnonzero(np.ma.getmaskarray(column))[0])
            raise DataError.found(f"{where}, row {row}", "a masked entry", "a name or number for each client")
        column = column.data
    if column.ndim != 1:
        raise DataError.found(where, f"shape {column.shape}", "one client per example, shape (examples,)")
    if column.dtype.kind == "f" and np.isnan(column).any():
        client_name(np.nan, f"{where}, row {int(np.argmax(np.isnan(column)))}")
    if column.dtype.kind in "iufb":
        found, owner = np.unique(column, return_inverse=True)
        return [client_name(value, where) for value in found], owner
    raw = column.tolist()
    names = [client_name(value, f"{where}, row {row}") for row, value in enumerate(raw)]
    first = dict[str, Any]()
    for name, value in zip(names, raw, strict=True):
        if first.setdefault(name, value) != value:
            got = f"{first[name]!r} and {value!r}, which have the same name"
            raise DataError.found(where, got, "values of one type, such as all text or all numbers")
    ordered = sorted(first, key=natural)
    number = {name: k for k, name in enumerate(ordered)}
    return ordered, np.array([number[name] for name in names], dtype=np.int64)


def _column(values: Any) -> np.ndarray:
    """A column of mixed values as objects, which NumPy would turn into text."""
    listed = list(values)
    plain = np.asarray(listed) if len({type(value) for value in listed}) <= 1 else np.empty(0)
    if plain.shape == (len(listed),) and len(listed):
        return plain
    column = np.empty(len(listed), dtype=object)
    column[:] = listed
    return column


def number_of(name: str, names: Sequence[str] | None, clients: int, where: str) -> int:
    """Returns the number of the client that a file calls by a name, or by a number if clients have no names.

    A number stands for a named client only where it cannot be taken for another one: where the names of all clients end in their
    own numbers, as in `client0`, `client1` and so on.

    Raises:
        DataError: no such client, or a number where clients have names.

    >>> number_of("2", None, 3, "device"), number_of("b", ["a", "b"], 2, "device")
    (2, 1)
    """
    if names is not None and name in names:
        return names.index(name)
    number = int(name) if re.fullmatch(r"[0-9]{1,10}", name) else None
    if names is None:
        if number is None or number >= clients:
            raise DataError.of(where, number if number is not None else name, f"numbers of clients, 0 to {clients - 1}")
        return number
    if number is not None and number < clients and _ends_in(names[number], number):
        ending = [k for k, other in enumerate(names) if _ends_in(other, number)]
        if ending == [number]:
            return number
    some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    raise DataError.of(where, name, f"names of clients: {some}", "Clients have names here: write them in place of numbers.")


def _ends_in(name: str, number: int) -> bool:
    found = re.search(r"([0-9]+)$", name)
    return found is not None and int(found[1]) == number


def ordered_nodes(network: Any, order: Iterable[Any] | None) -> list[Any]:
    """Returns the nodes of a NetworkX graph in the order of the clients.

    Args:
        network: the graph.
        order: all nodes in the order of the clients; None for numbers, and for other nodes that are not text.

    Raises:
        InvalidInput: another order than that of all nodes; none for nodes that are text.
    """
    if order is not None:
        nodes = list(order)
        if len(set(nodes)) != len(nodes) or set(nodes) != set(network):
            strange = [node for node in nodes if node not in network] or [node for node in network if node not in nodes]
            allowed = f"all {len(network)} nodes, each once"
            raise InvalidInput.of("Graph.of(order=...)", (strange or nodes)[:3], allowed)
        return nodes
    if any(isinstance(node, str) for node in network):
        hint = "Say which client each node is: order=task.names, or order=list(network)."
        raise InvalidInput.of("Graph.of(network=...)", list(network)[:3], "numbers as nodes, or an order of the names", hint)
    numbers = list(range(len(network)))
    return numbers if set(network) == set(numbers) else list(network)
