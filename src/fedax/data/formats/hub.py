"""Data sets of the Hugging Face hub."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import DataError, InvalidInput
from fedax.data.client_forms import count_classes
from fedax.data.federated import FederatedData
from fedax.data.folder import import_extra
from fedax.data.limits import DEALT, checked
from fedax.data.partition import check_partition, partition_by
from fedax.data.partition.base import Partition, labels_of
from fedax.data.partition.sizes import named_users
from fedax.examples.arrays import as_array


@checked(**DEALT)
def hub(
    dataset: str,
    partition: str = "iid",
    clients: int = 10,
    *,
    config: str | None = None,
    revision: str | None = None,
    features: str = "image",
    label: str = "label",
    user: str | None = None,
    train: str = "train",
    test: str | None = None,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    cache: str | Path | None = None,
    flat: bool = True,
    **options: Any,
) -> FederatedData:
    """Loads a data set of the Hugging Face hub as federated data; needs the extra `hub`.

    The cache of the `datasets` library is used without a network, also with
    `HF_HUB_OFFLINE=1`.

    Args:
        dataset: its name on the hub, such as "ylecun/mnist", or a local folder: of data files, or
            of a data set that the library wrote with `save_to_disk`; one of a single split is all
            dealt out.
        partition: a name of `fedax.data.partition`; "user" makes one client of each value of the
            column `user`.
        clients: at least 1; without effect under "user".
        config: the data set's configuration, if it has several.
        revision: a commit, tag or branch; give a commit to have the same data for ever.
        features: the column of inputs: images, which become numbers in [0, 1] if they are bytes, or
            lists of numbers.
        label: the column of labels. Without a column "label", the only one whose feature is a
            `ClassLabel`.
        user: the column of users' ids, for the partition "user".
        train: the split that is dealt out.
        test: the split that is kept as a central test set, or None.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for its own testing, in [0, 1).
        split: `"shuffled"` or `"in_order"`.
        cache: folder of the cache; by default that of the `datasets` library.
        flat: whether images become rows of numbers, as ready-made models take them; otherwise they
            keep their shape.
        options: of the partition.

    Raises:
        DataError: `datasets` is not installed, the data set cannot be had (no network, no such name
            or revision), a missing column, or inputs of unequal shapes.
    """
    _check_partition(partition, clients, seed, user, options)
    table, test_table = _load_splits(dataset, train, test, config, revision, cache)
    label = _find_label_column(table, label)
    y = _read_labels(table, label)
    x = _read_inputs(table, features, flat)
    client_rows, names = _partition_rows(table, y, partition, clients, seed, user, options)
    labels = None if test_table is None else _read_labels(test_table, label)
    _check_classes(table, test_table, label)
    label_arrays = [y] if labels is None else [y, labels]
    arguments = {
        # a class may have no example
        "classes": count_classes(label_arrays, _class_names(table, label), "hub(label=...)"),
        "test_fraction": test_fraction,
        "split": split,
        "seed": seed,
        "names": names,
    }
    data = FederatedData.partitioned(x, y, client_rows, name=f"{dataset}, {partition}", **arguments)
    if test_table is None:
        return data
    return FederatedData.from_arrays(
        data, central={"x": _read_inputs(test_table, features, flat), "y": labels}
    )


def _check_partition(
    partition: str, clients: int, seed: int, user: str | None, options: dict[str, Any]
) -> None:
    if partition != "user":
        check_partition(partition, clients, seed, **options)
    elif user is None:
        raise DataError.of("hub(user=...)", None, "the name of a column, for the partition 'user'")
    if partition != "user" and user is not None:
        allowed = f"None with the partition {partition!r}"
        raise InvalidInput.of("hub(user=...)", user, allowed, "Write partition='user'.")


def _partition_rows(
    table: Any,
    y: np.ndarray,
    partition: str,
    clients: int,
    seed: int,
    user: str | None,
    options: dict[str, Any],
) -> tuple[Partition, list[str] | None]:
    """Returns the rows of each client, and the names of clients that have some."""
    if partition == "user":
        _check_column(table, str(user))
        rows_by_user = named_users(list(table[str(user)]), **options)
        return list(rows_by_user.values()), list(rows_by_user)
    return partition_by(partition, y, clients, seed, **options), None


def _load_splits(
    dataset: str,
    train: str,
    test: str | None,
    config: str | None,
    revision: str | None,
    cache: str | Path | None,
) -> list[Any]:
    """Loads the split that is dealt out, and the one for testing or None."""
    if _is_single_split(dataset):
        hint = "Save all splits together (DatasetDict.save_to_disk), or use test_fraction."
        for option, split, expected in (("train", train, "train"), ("test", test, None)):
            if split != expected:
                allowed = f"{expected!r} for {dataset}, a folder of one split without a name"
                raise DataError.of(f"hub({option}=...)", split, allowed, hint)
    load_options = {
        "name": config,
        "revision": revision,
        "cache_dir": None if cache is None else str(cache),
    }
    return [
        None if split is None else _load(dataset, split, load_options) for split in (train, test)
    ]


def _is_single_split(dataset: str) -> bool:
    """Returns whether a folder was saved from a `Dataset`, not from a `DatasetDict`."""
    files = ("state.json", "dataset_dict.json")
    has_state, has_splits = (os.path.isfile(Path(dataset) / name) for name in files)
    return has_state and not has_splits


def _load(dataset: str, split: str, load_options: dict[str, Any]) -> Any:
    datasets = import_extra("datasets", "hub", f"hub({dataset!r})")
    try:
        if _is_single_split(dataset):
            return datasets.load_from_disk(dataset)
        # several splits in one folder
        if (Path(dataset) / "dataset_dict.json").is_file():
            return datasets.load_from_disk(dataset)[split]
        return datasets.load_dataset(dataset, split=split, **load_options)
    except Exception as error:
        # the library raises its own errors, those of the network and those of files
        offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
        hint = (
            "HF_HUB_OFFLINE is set: only the cache was looked at."
            if offline
            else "Without a network, only the cache helps."
        )
        got = (
            f"{type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
        )
        allowed = (
            f"a data set on the hub or in the cache, with the split {split!r} and "
            f"revision {load_options['revision']!r}"
        )
        raise DataError.of(f"hub({dataset!r})", got, allowed, hint) from error


def _check_column(table: Any, name: str) -> None:
    if name not in table.column_names:
        raise DataError.of(
            "hub(column)", name, "one of the columns " + ", ".join(table.column_names)
        )


def _find_label_column(table: Any, name: str) -> str:
    """Returns the column, or for the default without such a column the only one of classes."""
    if name != "label" or name in table.column_names:
        return name
    columns = getattr(table, "features", {}).items()
    classes = [column for column, feature in columns if type(feature).__name__ == "ClassLabel"]
    return classes[0] if len(classes) == 1 else name


def _read_labels(table: Any, name: str) -> np.ndarray:
    """Reads a column of labels: whole numbers from 0 on, one for each row."""
    _check_column(table, name)
    raw = list(table[name])
    for row, value in enumerate(raw):
        if isinstance(value, str) or value is None:
            hint = (
                "Number the classes: datasets has class_encode_column."
                if isinstance(value, str)
                else "Drop such rows."
            )
            raise DataError.of(
                f"hub(label={name!r})",
                f"{value!r} in row {row}",
                "labels that are whole numbers",
                hint,
            )
    values = labels_of("hub", np.asarray(raw))
    if values.dtype.kind not in "iub" or (len(values) and int(values.min()) < 0):
        got = (
            f"{values.dtype}"
            if values.dtype.kind not in "iub"
            else (f"{values.min()} in row {int(values.argmin())}")
        )
        hint = (
            "Rows without a label often have -1: drop them." if values.dtype.kind in "iub" else ""
        )
        raise DataError.of(f"hub(label={name!r})", got, "labels from 0 on", hint)
    # truth values are classes 0 and 1
    return values.astype(np.int64) if values.dtype.kind == "b" else values


def _class_names(table: Any, label: str) -> Sequence[str]:
    """Returns the names of the classes of a column of labels, if it has some."""
    return getattr(getattr(table, "features", {}).get(label), "names", ())


def _check_classes(table: Any, test_table: Any, label: str) -> None:
    """Refuses a test split whose classes have other names, or another order of them."""
    if test_table is None:
        return
    train_names, test_names = (_class_names(table, label), _class_names(test_table, label))
    if train_names and test_names and list(train_names) != list(test_names):
        raise DataError.of(
            f"hub(label={label!r})",
            list(test_names),
            f"classes {list(train_names)} in the test split, as in the other",
        )


def _read_inputs(table: Any, name: str, flat: bool) -> np.ndarray:
    _check_column(table, name)
    rows = [
        _to_array(value, f"hub(features={name!r}), row {row}")
        for row, value in enumerate(table[name])
    ]
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise DataError.of(f"hub(features={name!r})", f"shapes {shapes[:3]}", "inputs of one shape")
    kinds = sorted({row.dtype.name for row in rows})
    if len(kinds) > 1:
        raise DataError.of(
            f"hub(features={name!r})", f"images or rows of {kinds}", "inputs of one type"
        )
    x = np.stack(rows)
    # other types hold numbers, not pixels
    if x.dtype not in _LARGEST:
        return as_array(x, f"hub(features={name!r})")
    largest = np.float32(_LARGEST[x.dtype])
    return (x.reshape(len(x), -1) if flat else x).astype(np.float32) / largest


_LARGEST = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
"""The number of a white pixel, by the type of an image's numbers."""


def _to_array(value: Any, where: str) -> np.ndarray:
    """Converts an image or a row of numbers to an array.

    Numbers of a palette become colours, black and white become 0 and 255.
    """
    if value is None:
        raise DataError.found(
            where, "nothing", "an image or numbers in every row", "Drop such rows."
        )
    # images of Pillow have a mode; arrays have none
    mode = getattr(value, "mode", None) if hasattr(value, "convert") else None
    if mode == "P":
        value = value.convert("RGBA" if "transparency" in value.info else "RGB")
    elif mode == "1":
        value = value.convert("L")
    elif mode in ("CMYK", "YCbCr"):
        value = value.convert("RGB")
    elif mode in ("I", "F"):
        hint = "Scale them, and give the column as lists of numbers."
        raise DataError.found(
            where,
            f"an image of mode {mode!r}, of numbers without a largest one",
            "images of bytes",
            hint,
        )
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array
