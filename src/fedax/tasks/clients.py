"""Clients' examples as users give them to makers of tasks."""

from collections.abc import Mapping
from typing import Any

from fedax.examples.federated import FederatedData


def read_clients(clients: Any, name: str | None = None, **parts: Any) -> tuple[FederatedData, bool]:
    """Returns the clients' examples, and whether each of them is one array without a name.

    Args:
        clients: see `FederatedData.from_arrays`.
        name: of the data.
        parts: test, validation and central examples.

    Raises:
        DataError: as `FederatedData.from_arrays`.
    """
    if isinstance(clients, FederatedData):
        return FederatedData.from_arrays(clients, **parts), False
    if not isinstance(clients, Mapping):
        clients = list(clients)
    values = clients.values() if isinstance(clients, Mapping) else clients
    is_plain = not isinstance(next(iter(values), {}), Mapping)
    return FederatedData.from_arrays(clients, name=name or "task", **parts), is_plain
