"""A client's own examples (`fedax deploy pack --data`): columns are the task's by their names."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import pandas as pd

import fedax
from fedax.core import DataError
from fedax.data import from_table
from fedax.flower.deploy.worker import load_client_data

IMPORTS = "import numpy as np, pandas as pd\n"
FRAME = "pd.DataFrame({'w': [2, 4, 6], 'age': [1, 3, 5], 'y': ['no', 'yes', 'no']})"
ORDERED = "pd.DataFrame({'age': [7], 'more': ['a'], 'y': ['no'], 'w': [8]})"
ARRAYS = "{'x': np.float32([[9, 10]]), 'y': np.array([1])}"

pytestmark = pytest.mark.usefixtures("as_users_run")


def table_task():
    """A stand-in whose means and deviations are given."""
    stand_in = pd.DataFrame({"age": [0, 0], "w": [0, 1], "y": ["no", "yes"]})
    scales = ({"age": 1.0, "w": 2.0}, {"age": 2.0, "w": 2.0})
    data = from_table({"a": stand_in}, test={"a": stand_in}, columns={"standardize": scales})
    return fedax.classification(data, fedax.models.Softmax(2, 2))


@pytest.fixture
def load(tmp_path):
    """A function that returns the training and test examples that code gives a client."""

    def load(task, code):
        path = tmp_path / "mine.py"
        path.write_text(f"{IMPORTS}def examples(partition):\n    return {code}\n")
        own = load_client_data(task, 0, path)
        return [
            [np.asarray(split.arrays[name]).tolist() for name in "xy"]
            for split in (own.train, own.test)
        ]

    return load


def test_columns_of_tables_are_matched_by_name_and_encoded_as_the_tasks(load):
    task = table_task()
    train = [[[0, 0], [1, 1], [2, 2]], [0, 1, 0]]
    assert load(task, FRAME) == [train, [[], []]]
    assert load(task, f"({FRAME}, {ORDERED})") == [train, [[[3, 3]], [0]]]
    # arrays are in the task's order, and scaled as its arrays are
    assert load(task, f"({FRAME}, {ARRAYS})") == [train, [[[9, 10]], [1]]]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_are_read_as_frames_are(load, tmp_path, ending):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"y": ["yes", "no"], "w": [4, 6], "age": [3, 5]})
    path = tmp_path / f"own.{ending}"
    frame.to_csv(path) if ending == "csv" else frame.to_parquet(path)
    assert load(table_task(), repr(str(path))) == [[[[1, 1], [2, 2]], [1, 0]], [[], []]]


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (FRAME.replace("'age'", "'foo'"), "'age'"),
        (FRAME.replace("'yes'", "'maybe'"), "'y': got 'maybe'"),
        (FRAME.replace("'y'", "'z'"), "'y'"),
        (FRAME.replace("[2, 4, 6]", "[2, None, 6]"), "'w': got nan"),
    ],
)
def test_tables_that_do_not_fit_the_task_are_refused(load, code, named):
    with pytest.raises(DataError, match=named):
        load(table_task(), code)


def test_tables_need_a_task_that_has_an_encoding(load):
    data = fedax.data.FederatedData.from_arrays(
        [{"x": np.zeros((2, 2), np.float32), "y": [0, 1]}], classes=2
    )
    task = fedax.classification(data, fedax.models.Softmax(2, 2))
    with pytest.raises(DataError, match="a data frame"):
        load(task, FRAME)
