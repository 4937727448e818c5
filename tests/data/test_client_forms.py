"""Clients by name, in frames, and in forms that are refused: what messages say, and to do."""

import numpy as np
import pytest

import fedax
from fedax.core import DataError, InvalidInput
from fedax.data import FederatedData, stored_clients, write_clients

RNG = np.random.default_rng(0)
A, B = (
    {"x": RNG.normal(size=(n, 2)).astype(np.float32), "y": RNG.integers(0, 3, n)} for n in (3, 5)
)


def test_clients_by_name_are_those_of_a_list():
    data = FederatedData({"b": B, "a": A}, classes=3, test={"a": B}, validation={"b": A})
    assert list(data.names) == ["b", "a"]
    np.testing.assert_array_equal(data.train[0]["x"], B["x"])
    assert data.sizes.tolist() == [5, 3]
    assert data.test_sizes.tolist() == [0, 5]
    np.testing.assert_array_equal(data.test[1]["y"], B["y"])
    assert [len(own["y"]) for own in data.validation] == [3, 0]
    listed = FederatedData([B, A], classes=3, names=["b", "a"], test={"a": B})
    assert listed.test_sizes.tolist() == [0, 5]


def test_clients_by_name_are_written_with_their_names(tmp_path):
    folder = write_clients(tmp_path / "a", {"b": B, "a": A}, 3, test={"a": B})
    data = stored_clients(folder)
    assert list(data.names) == ["b", "a"]
    assert (data.sizes.tolist(), data.test_sizes.tolist()) == ([5, 3], [0, 5])
    with pytest.raises(DataError, match=r"write_clients\(test=...\): got a list of dict\[2\]"):
        write_clients(tmp_path / "b", {"b": B, "a": A}, 3, test=[B, A])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"train": A},
            r"train: got a dict of 'x': float32\[3, 2\], 'y': int64\[3\]; allowed: a list .*, or a "
            r"dict of names to them. Put the arrays of each client into a list",
        ),
        (
            {"train": [A], "test": A},
            r"test: got a dict of 'x': float32\[3, 2\], .*central=",
        ),
        (
            {"train": [(A["x"], A["y"])]},
            r"train\[0\]: got a tuple of float32\[3, 2\], int64\[3\]; .* Write \{'x': inputs, 'y'",
        ),
        ({"train": {"a": A}, "test": [A]}, r"test: got a list of dict\[2\]; allowed: a dict"),
        ({"train": {"a": A}, "test": {"b": A}}, r"test: got 'b'; allowed: names of clients: 'a'"),
        ({"train": {"a": A}, "names": ["b"]}, r"names: got \['b'\]; allowed: None.*the keys"),
        ({"train": {1: A, "1": B}}, r"train: got '1' twice"),
    ],
)
def test_other_forms_are_described_and_not_printed(arguments, message):
    with pytest.raises(DataError, match=message):
        FederatedData(**arguments, classes=3)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.0, 2.0], r"float64, 0.5 in row 0.*fedax.tasks.from_loss takes real ones"),
        ([0.0, 1.0, 2.0], r"got 'float64'.*Write .astype\(int\)"),
        ([0.0, np.nan, 2.0], r"NaN or infinity in row 1 of client 'q'.*Fill the cell"),
        ([True, False, True], r"got 'bool'.*Write .astype\(int\)"),
    ],
)
def test_labels_that_are_no_whole_numbers_have_a_remedy(labels, message):
    with pytest.raises(DataError, match=message):
        FederatedData({"q": A | {"y": np.array(labels)}}, classes=3)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (4, r"partition=...\): got 4; .*fedax.data.dirichlet\(y, clients=4, alpha=0.5\) makes one"),
        ({"a": [0, 1]}, r"a dict of 'a': list\[2\].*Write list\(partition.values\(\)\), names="),
        (np.arange(6) % 2, r"partition\[0\].*np.flatnonzero\(owner == k\)"),
    ],
)
def test_what_is_no_partition_has_a_remedy(partition, message):
    with pytest.raises(InvalidInput, match=message):
        FederatedData.partitioned(np.ones((6, 2)), np.zeros(6, int), partition, classes=1)


def wards(missing=False):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(6.0), "b": np.arange(6.0) * 10, "y": [0, 1, 0, 1, 1, 0]})
    if missing:
        frame.loc[4, "b"] = np.nan
    return {"south": frame[:4], "north": frame[4:]}


def square(w, examples):
    return (examples["a"] * w[0] + examples["b"] * w[1] - examples["y"].astype(w.dtype)) ** 2


def test_frames_by_name_are_clients_and_their_columns_the_arrays():
    frames = wards()
    central = frames["north"]
    task = fedax.tasks.from_loss(
        square, np.zeros(2), frames, test={"north": frames["south"]}, central=central
    )
    assert list(task.names) == ["south", "north"]
    assert task.train.sizes.tolist() == [4, 2]
    assert task.test.sizes.tolist() == [0, 4]
    assert task.train.client(1)["b"].tolist() == [40.0, 50.0]
    assert np.asarray(task.central["a"]).tolist() == [4.0, 5.0]
    columns = {
        name: {key: frame[key].to_numpy() for key in frame} for name, frame in frames.items()
    }
    arrays = fedax.tasks.from_loss(square, np.zeros(2), columns).train.arrays
    assert arrays.keys() == task.train.arrays.keys()
    for key, values in arrays.items():
        np.testing.assert_array_equal(values, task.train.arrays[key])


def test_splits_of_a_data_set_are_no_clients():
    frames = {"train": wards()["south"].assign(who="a"), "test": wards()["north"].assign(who="a")}
    task = fedax.tasks.from_loss(square, np.zeros(2), frames, client="who")
    assert (list(task.names), task.test.total) == (["a"], 2)
    with pytest.raises(DataError, match=r"the split 'train'.*Leave client=... out"):
        fedax.tasks.from_loss(square, np.zeros(2), wards(), client="who")


@pytest.mark.parametrize("part", ["clients", "test"])
@pytest.mark.parametrize("form", ["columns", "x"])
def test_a_missing_value_is_named_with_column_and_client(part, form):
    frames, complete = wards(missing=True), wards()
    if form == "x":
        frames, complete = (
            {name: {"x": frame[["a", "b"]], "y": frame["y"]} for name, frame in these.items()}
            for these in (frames, complete)
        )
    parts = {"clients": frames} if part == "clients" else {"clients": complete, "test": frames}
    array, column = ("b", "") if form == "columns" else ("x", " of the column 'b'")
    message = (
        rf"{part}\[1\]\['{array}'\]: got NaN or infinity in row 0{column} of client 'north'; "
        r"allowed: finite numbers. Fill the cell, or leave the row out."
    )
    with pytest.raises(DataError, match=message):
        fedax.tasks.from_loss(lambda w, e: e["y"] * w[0], np.zeros(2), **parts)


def test_a_missing_value_of_named_federated_data_is_named_too():
    clients = {
        name: {"x": frame[["a", "b"]], "y": frame["y"]}
        for name, frame in wards(missing=True).items()
    }
    with pytest.raises(DataError, match=r"row 0 of the column 'b' of client 'north'.*Fill the"):
        FederatedData(clients, classes=2)
