"""Clients' data as PyTorch's tensors and data sets, read into arrays."""

from collections.abc import Mapping
from typing import Any

from fedax.core import DataError


def with_arrays(clients: Any, where: str) -> Any:
    """Returns clients with tensors and the items of data sets as arrays; anything else stays.

    Args:
        clients: a list or a mapping of clients, or another form.
        where: names them in messages.

    Raises:
        DataError: a data set without a length, or with items that are no pairs and no dicts.
    """
    import torch

    _refuse_loader(clients, where, torch)
    if isinstance(clients, torch.utils.data.Dataset):
        raise DataError.found(
            where,
            "one data set",
            "a list with the data set of each client",
            "Split it, as by Subset.",
        )
    if isinstance(clients, Mapping):
        return {
            name: _read_client(client, f"{where}[{name!r}]") for name, client in clients.items()
        }
    if isinstance(clients, list | tuple):
        return [_read_client(client, f"{where}[{k}]") for k, client in enumerate(clients)]
    return clients


def _read_client(client: Any, where: str) -> Any:
    import torch

    _refuse_loader(client, where, torch)
    if isinstance(client, tuple):
        hint = 'Write {"x": x, "y": y}, or TensorDataset(x, y).'
        raise DataError.found(where, "a tuple", "a dict of arrays, or a data set", hint)
    if _has_items(client, torch):
        return _read_items(client, where)
    if isinstance(client, torch.Tensor):
        return _to_array(client)
    if isinstance(client, Mapping) and any(
        isinstance(values, torch.Tensor) for values in client.values()
    ):
        return {name: _to_array(values) for name, values in client.items()}
    return client


def _refuse_loader(client: Any, where: str, torch: Any) -> None:
    if isinstance(client, torch.utils.data.DataLoader):
        hint = "Give loader.dataset; Schedule(batch_size=...) makes the minibatches."
        raise DataError.found(where, "a DataLoader", "a data set", hint)


def _has_items(client: Any, torch: Any) -> bool:
    """Returns whether a client's examples are read one by one, as those of PyTorch's data sets.

    Data sets of Hugging Face are read so if they have a transform or give tensors; their plain
    columns are read whole.
    """
    if isinstance(client, torch.utils.data.Dataset):
        return True
    data_format = getattr(client, "format", None)
    if isinstance(data_format, Mapping):
        return data_format.get("type") in ("custom", "torch")
    if isinstance(client, str | list | tuple | Mapping) or hasattr(client, "shape"):
        return False
    return hasattr(client, "__len__") and hasattr(client, "__getitem__")


def _to_array(values: Any) -> Any:
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    # NumPy does not know the type
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def _read_items(dataset: Any, where: str) -> Any:
    if not hasattr(dataset, "__len__"):
        raise DataError.found(
            where, f"a {type(dataset).__name__} without a length", "a data set with items by number"
        )
    import torch

    items = [dataset[k] for k in range(len(dataset))]
    if not items:
        raise DataError.found(where, "an empty data set", "at least one example")
    try:
        arrays = torch.utils.data.default_collate(items)
    except (KeyError, RuntimeError, TypeError) as error:
        got = f"items that torch.utils.data.default_collate refuses ({error})"
        raise DataError.found(where, got, "items of one form, pairs (x, y) or dicts") from error
    if isinstance(arrays, Mapping):
        return {str(name): _to_array(values) for name, values in arrays.items()}
    if not isinstance(arrays, tuple | list):
        return _to_array(arrays)
    if len(arrays) != 2:
        raise DataError.found(where, f"items of {len(arrays)} parts", "pairs (x, y), or dicts")
    return {name: _to_array(values) for name, values in zip("xy", arrays, strict=True)}
