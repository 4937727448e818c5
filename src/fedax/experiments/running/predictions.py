"""The predictions of a model on examples, as a table."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import PyTree

from fedax.core import DataError, Task, UnknownName
from fedax.data.folder import read_npz
from fedax.data.tables import read_table
from fedax.examples.encoding import Encoding, cell_text
from fedax.experiments.results.models import client_number

ROUNDING = 1e-2
"""How far a sum of probabilities may be from 1: numbers of bfloat16 near 1 are 0.008 apart."""


class Chosen(NamedTuple):
    """Examples by name, and what else is known of each: the client, by its name or else its number,
    or the columns of a table that are no features, with its labels as `y`.
    """

    arrays: dict[str, Any]
    columns: dict[str, Any] = {}  # noqa: RUF012, never changed


def of_split(task: Task, split: str, client: str | None = None) -> Chosen:
    """Returns the examples of a split of a task, or one client's, with the client of each and its
    row among the client's, from 0.

    `unseen` are the test examples of clients that never took part.

    Raises:
        UnknownName: no split that the task, or the client, has; no such client.
    """
    parts: dict[str, Any] = {"train": task.train, "validation": task.validation, "test": task.test}
    if client is None:
        parts |= {"central": task.central, "unseen": task.unseen and task.unseen.test}
    splits = {name: examples for name, examples in parts.items() if examples is not None}
    if split not in splits:
        raise UnknownName.among("EXAMPLES", split, splits)
    data = splits[split]
    if split == "central":
        return Chosen(data)
    # rows are ordered by client
    owners = data.owners
    numbers = np.arange(data.total) - np.asarray(data.offsets)[owners]
    rows = slice(None) if client is None else owners == client_number(task, client)
    arrays = {name: np.asarray(values)[rows] for name, values in data.arrays.items()}
    names = task.unseen.names if split == "unseen" and task.unseen else task.names
    clients = owners if names is None else np.array(names, dtype=str)[owners]
    return Chosen(arrays, {"client": clients[rows], "row": numbers[rows]})


def examples_of(path: Path, encoding: Encoding | None = None) -> Chosen:
    """Reads the examples of a file.

    The file is an `.npz` of its arrays, or a table with the columns that the task was made of.

    Args:
        path: of the file.
        encoding: of tables. Labels are not needed, and stay as they are in the table.

    Raises:
        DataError: a file that cannot be read, or a table whose columns are not the task's.
    """
    if path.suffix.lower() == ".npz":
        return Chosen(read_npz(path))
    if encoding is None:
        raise DataError.found(
            "EXAMPLES",
            f"{path}, and a task with no encoding",
            "arrays",
            "Write an .npz file with the task's arrays.",
        )
    # ids keep their zeros, and a region may be called NA
    given = read_table(path, verbatim=True)
    others = [name for name in given if name not in (*encoding.columns, encoding.y)]
    columns = {"given_y" if name == "y" else name: given[name].fillna("") for name in others}
    table = read_table(path, encoding.categories)
    if encoding.y in table:
        columns["y"] = table[encoding.y].map(cell_text).fillna("")
    return Chosen({"x": encoding.features(table)}, columns)


def predictions_csv(task: Task, params: PyTree, examples: Chosen) -> str:
    """Returns a line for each example: its client or the other columns of its table, its true label
    where it is known, and the prediction.

    Raises:
        DataError: examples that do not fit the task's, see `Task.predict`.
    """
    predicted = task.predict(params, examples.arrays)
    # (examples, outputs), also without examples
    values = predicted.reshape(len(predicted), math.prod(predicted.shape[1:])).astype(float)
    given = dict(examples.columns)
    if "y" in examples.arrays and examples.arrays["y"].ndim == 1:
        given["y"] = _label_texts(task, examples.arrays["y"])
    columns = dict[str, Any]()
    names = ["prediction"]
    if _are_probabilities(values):
        labels = _label_texts(task, np.arange(values.shape[1]))
        # a model that diverged has no label
        is_lost = np.isnan(values).any(1)
        columns["label"] = np.where(is_lost, "", np.array(labels, str)[values.argmax(1)])
        names = [f"probability_{label}" for label in labels]
    elif values.shape[1] > 1:
        names = [f"prediction_{output}" for output in range(values.shape[1])]
    columns |= dict(zip(names, values.T, strict=True))
    # other columns of the table may have the names of predictions
    for name in columns:
        if name in given:
            given[f"given_{name}"] = given.pop(name)
    # nine digits give every float32 back
    return pd.DataFrame(given | columns).to_csv(
        index=False, float_format="%.9g", na_rep="nan", lineterminator="\n"
    )


def _are_probabilities(values: np.ndarray) -> bool:
    """Returns whether the rows of predictions are the probabilities of several classes.

    Rows with NaN, of a model that diverged, do not count.
    """
    rows = values[~np.isnan(values).any(1)]
    has_sum = np.abs(rows.sum(1) - 1) < ROUNDING
    return values.shape[1] > 1 and bool((rows >= 0).all() and has_sum.all())


def _label_texts(task: Task, labels: np.ndarray) -> list[str]:
    """Returns the texts of labels where the task knows them, else the labels.

    A model may have more outputs than there are labels, and unknown labels marks such as -1.
    """
    texts = dict(enumerate(task.data.labels))
    # as texts, numbers of single precision are as short as they were
    return [texts.get(label, str(label)) for label in labels]
