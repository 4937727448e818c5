"""The predictions of a model on examples, as a table."""

import contextlib
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from fedax.core import DataError, InvalidInput, Ragged, Task, UnknownName
from fedax.data.folder import read_npz
from fedax.data.tables import read_table
from fedax.examples.encoding import Encoding
from fedax.examples.ragged import conformed, rows_of

SPLITS = ("train", "validation", "test", "central", "unseen")
"""Examples of a task that predictions can be made of."""


class Chosen(NamedTuple):
    """Examples by name, the client of each where there is one, and the names of clients that have
    some.
    """

    arrays: dict[str, np.ndarray]
    client: Int[np.ndarray, "examples"] | None
    names: Sequence[str] | None = None


def of_split(task: Task, split: str | None, client: int | None = None) -> Chosen:
    """Returns the examples of a split of a task, or one client's.

    `unseen` are the test examples of clients that never took part.

    Raises:
        UnknownName: no such split.
        InvalidInput: the task does not have it, or a client has no part in it.
    """
    if split not in SPLITS:
        raise UnknownName.among("EXAMPLES", str(split), SPLITS)
    if client is not None and split in ("central", "unseen"):
        raise InvalidInput.of(
            "EXAMPLES", split, "a split by client, with --client: train, validation, test"
        )
    # its examples belong to no client
    if split == "central" and task.central is not None:
        return Chosen({name: np.asarray(values) for name, values in task.central.items()}, None)
    owner, name = (task.unseen, "test") if split == "unseen" else (task, split)
    data: Ragged | None = getattr(owner, name, None)
    if owner is None or data is None:
        available = [split_name for split_name in SPLITS if getattr(task, split_name) is not None]
        raise InvalidInput.of(
            "EXAMPLES", split, f"one that task {task.name!r} has: {', '.join(available)}"
        )
    # the client of each row: rows are ordered by client
    owners = np.repeat(np.arange(data.clients), np.asarray(data.sizes))
    rows = slice(None) if client is None else owners == client
    return Chosen(
        {name: np.asarray(values)[rows] for name, values in data.arrays.items()},
        owners[rows],
        owner.names,
    )


def examples_of(task: Task, path: Path, encoding: Encoding | None = None) -> Chosen:
    """Returns the examples of a file, checked against the task's.

    The file is an `.npz` of its arrays, or a table with the columns that the task was made of.

    Args:
        task: of the model.
        path: of the file.
        encoding: of tables; by default the task's. Labels are not needed: a column that is missing,
            empty or no labels of the task counts for nothing.

    Raises:
        DataError: a file that cannot be read, or whose examples are not such as the task's.
    """
    task_arrays = task.train.arrays
    encoding = encoding or task.encoding
    if path.suffix.lower() == ".npz":
        file_arrays = read_npz(path)
    elif encoding is None:
        hint = "Write an .npz file with the task's arrays."
        raise DataError.found("EXAMPLES", f"{path}, and a task with no encoding", "arrays", hint)
    else:
        table = read_table(path, encoding.categories)
        file_arrays = {"x": encoding.features(table)}
        with contextlib.suppress(DataError):
            file_arrays["y"] = encoding.targets(table)
    for name in file_arrays:
        if name not in task_arrays:
            raise UnknownName.among(f"{path.name}, array", name, task_arrays)
    if missing := [name for name in task_arrays if name not in file_arrays and name != "y"]:
        raise DataError.found(
            path.name,
            f"no array {missing[0]!r}",
            f"the arrays {sorted(task_arrays)} of the task; y may be missing",
        )
    rows_of(file_arrays, path.name)
    arrays = conformed(file_arrays, {name: task_arrays[name] for name in file_arrays}, path.name)
    return Chosen(arrays, None)


def predictions_csv(task: Task, params: PyTree, examples: Chosen) -> str:
    """Returns a line for each example: its client and true label, where they are known, and the
    prediction.
    """
    values = task.predict(params, examples.arrays)
    columns: dict[str, Any] = {}
    if examples.client is not None:
        columns["client"] = (
            examples.client
            if examples.names is None
            else np.array(examples.names, dtype=str)[examples.client]
        )
    if "y" in examples.arrays and examples.arrays["y"].ndim == 1:
        columns |= {"y": _as_texts(task, examples.arrays["y"])}
    # shape (examples, outputs), also without examples
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    # without examples, a training example tells what the outputs are
    sample = values
    if not len(values):
        sample = task.predict(params, {name: a[:1] for name, a in task.train.arrays.items()})
    if _are_probabilities(sample):
        labels = _as_texts(task, np.arange(flat.shape[1]))
        largest = labels[flat.argmax(1)].astype(str)
        # a model that diverged has no label
        largest[np.isnan(flat).any(1)] = ""
        columns |= {"label": largest} | {
            f"probability_{label}": flat[:, c] for c, label in enumerate(labels)
        }
    else:
        # outputs are numbers, such as those of a regression
        columns |= {
            f"prediction_{c}" if flat.shape[1] > 1 else "prediction": flat[:, c]
            for c in range(flat.shape[1])
        }
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(columns)
    # nine digits give every float32 back
    form = [
        (lambda v: f"{v:.9g}") if np.issubdtype(column.dtype, np.floating) else str
        for column in columns.values()
    ]
    table.writerows(
        [write(value) for write, value in zip(form, row, strict=True)]
        for row in zip(*columns.values(), strict=True)
    )
    return buffer.getvalue()


def _are_probabilities(values: np.ndarray) -> bool:
    """Returns whether the rows of predictions are the probabilities of several classes.

    Rows with NaN, of a model that diverged, do not count.
    """
    if values.ndim != 2 or values.shape[1] < 2 or not jnp.issubdtype(values.dtype, jnp.floating):
        return False
    # rounding of the predictions' own type, and of a sum of many
    tolerance = max(1e-3, 4 * float(jnp.finfo(values.dtype).eps))
    rows = values.astype(float)
    rows = rows[~np.isnan(rows).any(1)]
    in_range = (rows >= 0).all() and (rows <= 1 + tolerance).all()
    return bool(in_range and (np.abs(rows.sum(1) - 1) <= tolerance).all())


def _as_texts(task: Task, labels: np.ndarray) -> np.ndarray:
    """Returns the texts of labels where the task knows them, else the labels."""
    texts = (task.encoding and task.encoding.labels) or ()
    # a model may have more outputs than there are labels
    if labels.dtype.kind not in "iu" or labels.max(initial=0) >= len(texts):
        return labels
    # marks of unknown labels, such as -1, stay as they are
    return np.array([texts[label] if label >= 0 else str(label) for label in labels], dtype=str)
