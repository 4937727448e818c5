"""A client's own examples (`fedax deploy client --data`): columns are the task's by their names."""

import dataclasses

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import fedax
from fedax.core import DataError
from fedax.flower.deploy.worker import load_client_data

IMPORTS = "import fedax, numpy as np, pandas as pd\n"
FRAME = "{'x': pd.DataFrame({'w': np.float32([2, 4, 6]), 'age': np.float32([1, 3, 5])}), 'y': Y}"
ORDERED = "{'x': pd.DataFrame({'age': np.float32([7]), 'w': np.float32([8])}), 'y': Y[:1]}"
ARRAY = "{'x': np.float32([[9, 10]]), 'y': Y[:1]}"
LABELS = "Y = np.float32([0, 1, 0])\n"


@pytest.fixture(autouse=True)
def single_precision():
    with jax.enable_x64(False):
        yield


def squares(w, example):
    return (example["x"] @ w - example["y"].astype(w.dtype)) ** 2 / 2


def task_of(columns, y=(0.0, 0.0)):
    rows = {"x": np.zeros((2, 2), np.float32), "y": np.array(y)}
    data = fedax.data.FederatedData.from_arrays([rows], test=[rows])
    data = dataclasses.replace(data, columns=columns)
    return fedax.tasks.from_loss(squares, np.zeros(2, np.float32), data)


NAMED = ("age", "w")
UNNAMED = None


@pytest.fixture
def load(tmp_path):
    """A function that returns the rows of training and test examples that code gives a client."""

    def load(task, code):
        path = tmp_path / "mine.py"
        path.write_text(f"{IMPORTS}{LABELS}def examples(partition):\n    return {code}\n")
        own = load_client_data(task, 0, path)
        return [np.asarray(split.arrays["x"]).tolist() for split in (own.train, own.test)]

    return load


def test_columns_of_frames_are_matched_by_name(load):
    task = task_of(NAMED)
    train = [[1, 2], [3, 4], [5, 6]]
    assert load(task, FRAME) == [train, []]
    assert load(task, f"({FRAME}, {ORDERED})") == [train, [[7, 8]]]
    # without names the order is the task's
    assert load(task, f"({ORDERED}, {ARRAY})") == [[[7, 8]], [[9, 10]]]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            FRAME.replace("'age'", "'foo'"),
            r"training examples, 'x': got \['w', 'foo'\]; allowed: \['age', 'w'\] in any order, as",
        ),
        (
            f"({ORDERED}, {FRAME.replace(chr(39) + 'w', chr(39) + 'v')})",
            r"test examples, 'x': got \['v', 'age'\]; allowed: \['age', 'w'\]",
        ),
        (
            f"({FRAME}, {ARRAY})",
            r"test examples, 'x': got an array, beside training examples with columns in another "
            r"order; allowed: a data frame with the columns \['age', 'w'\]",
        ),
        (f"({ARRAY}, {FRAME})", "training examples, 'x': got an array, beside test examples"),
    ],
)
def test_columns_that_are_not_the_tasks_are_refused(load, code, message):
    with pytest.raises(DataError, match=message):
        load(task_of(NAMED), code)


def test_rows_of_frames_are_those_of_their_labels(load):
    """As everywhere else: the labels of y are sorted, the rows of x are not."""
    code = (
        "{'x': pd.DataFrame({'age': np.float32([1, 2]), 'w': np.float32([3, 4])}, index=[7, 5]), "
        "'y': pd.Series(Y[:2], index=[5, 7])}"
    )
    with pytest.raises(DataError, match="the rows of 'x' in another order, by their labels"):
        load(task_of(NAMED), code)


@pytest.mark.parametrize("code", [FRAME, f"({ARRAY}, {ORDERED})"])
def test_names_that_the_task_does_not_know_are_refused(load, code):
    """Clients with other orders could not be told from each other."""
    task = task_of(UNNAMED)
    assert load(task, f"({ARRAY}, {ARRAY})") == [[[9, 10]], [[9, 10]]]
    message = (
        r"'x': got the columns \['\w+', '\w+'\]; allowed: an array .* no names of these columns\. "
        "Or let the task, such as a stand-in, have x as a data frame"
    )
    with pytest.raises(DataError, match=message):
        load(task, code)


def test_other_arrays_have_no_names(load):
    rows = {"x": np.zeros((1, 2), np.float32), "z": np.zeros((1, 2), np.float32)}
    task = fedax.tasks.from_loss(
        lambda w, example: (example["x"] + example["z"]) @ w,
        np.zeros(2, np.float32),
        [rows],
        test=[rows],
    )
    code = "{'x': np.zeros((3, 2), np.float32), 'z': pd.DataFrame({'b': Y, 'a': Y})}"
    with pytest.raises(DataError, match=r"'z': got the columns \['b', 'a'\]; allowed: an array"):
        load(task, code)
    own = load(task, code.replace("'a': Y})", "'a': Y}).to_numpy()"))
    assert own == [[[0, 0]] * 3, []]


@pytest.mark.parametrize("header", ["age,w,y", "w,age,y"])
def test_columns_of_files_are_matched_by_name(load, tmp_path, header):
    """Also with a stand-in of one's own, if its x has names."""
    cells = {"age": [30, 40], "w": [1, 2], "y": [0, 1]}
    lines = zip(*(map(str, cells[name]) for name in header.split(",")), strict=True)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "own.csv").write_text("\n".join([header, *map(",".join, lines)]) + "\n")
    code = f"fedax.data.client_files({str(tmp_path / 'site')!r})"

    y = np.array([0, 1])
    assert load(task_of(NAMED, y), code) == [[[30, 1], [40, 2]], []]
    with pytest.raises(DataError, match=r"examples\(partition\), columns: got the columns .*names"):
        load(task_of(UNNAMED, y), code)
    with pytest.raises(DataError, match=r"columns: got .*; allowed: \['age', 'v'\] in any order"):
        load(task_of(("age", "v"), y), code)
