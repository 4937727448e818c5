"""Clients in NumPy files: what is written comes back, what does not fit is named, and nothing
half-written stays."""

import dataclasses

import numpy as np
import pytest

import fedax
from fedax.data import FederatedData, store, stored
from fedax.examples.arrays import canonical
from fedax.examples.encoding import Encoding
from fedax.examples.memmap import BLOCK, RowReader, blocks


def people(count, features=3, seed=0):
    rng = np.random.default_rng(seed)
    for k in range(count):
        yield {"x": rng.normal(size=(1 + k % 4, features)), "y": rng.integers(0, 3, 1 + k % 4)}


def test_what_is_written_comes_back(tmp_path):
    train = list(people(9))
    test = [*people(8, seed=1), {"x": np.zeros((0, 3)), "y": np.zeros(0, int)}]
    central = {"x": np.ones((2, 3)), "y": [0, 2]}
    folder = store(tmp_path / "a", iter(train), classes=3, test=iter(test), central=central)
    data = stored(folder)
    plain = FederatedData.from_arrays(train, classes=3, test=test, central=central)
    assert (data.name, data.clients, data.classes) == ("a", 9, 3)
    for part in ("train", "test"):
        for mine, own in zip(getattr(data, part), getattr(plain, part), strict=True):
            assert isinstance(mine["x"], np.memmap) or not len(mine["x"])
            np.testing.assert_array_equal(mine["x"], canonical(own["x"]))
            np.testing.assert_array_equal(mine["y"], own["y"])
    np.testing.assert_array_equal(data.central["x"], central["x"])
    assert data.label_counts.tolist() == plain.label_counts.tolist()
    store(tmp_path / "b", plain, test=test[::-1])
    assert stored(tmp_path / "b").test_sizes.tolist() == plain.test_sizes[::-1].tolist()
    assert stored(store(tmp_path / "c", iter([[1.0], [3.0]]))).plain


def test_rows_are_read_from_the_file_and_not_mapped(tmp_path):
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.save(tmp_path / "a.npy", values)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for array, in_file in (
        (mapped, True),
        (mapped[3:], False),
        (mapped[:5], False),
        (mapped[::2], False),
        (values, False),
    ):
        reader = RowReader(array)
        assert (reader._file is not None) == in_file
        np.testing.assert_array_equal(reader.read(1, 3), array[1:4])
        np.testing.assert_array_equal(reader.read(len(array) - 1, 9), array[-1:])
    assert np.concatenate(list(blocks(mapped))).tolist() == values.tolist()
    big = np.memmap(tmp_path / "b.bin", np.uint8, "w+", shape=(BLOCK + 5,))
    big[-1] = 7
    big.flush()
    assert [len(block) for block in blocks(big)] == [BLOCK, 5]


def test_a_file_that_shrinks_is_told(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 100)))
    reader = RowReader(np.load(tmp_path / "a.npy", mmap_mode="r"))
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(OSError, match="ends after 1000 bytes"):
        reader.read(0, 100)


def test_tasks_by_name_take_a_folder(tmp_path):
    folder = store(tmp_path / "a", people(6), classes=3)
    task = fedax.task("stored", folder=folder, model="mlp")
    assert task.train.clients == 6
    assert isinstance(task.train.arrays["x"], np.memmap)
    own = fedax.Task(np.zeros(3), lambda w, c: ((w[None] - c["x"]) ** 2).sum(1), stored(folder))
    assert isinstance(own.train.arrays["x"], np.memmap)
    np.testing.assert_array_equal(own.train[5]["x"], task.train[5]["x"])


def test_validation_and_the_encoding_come_back(tmp_path):
    plain = FederatedData.from_arrays(
        list(people(3, 2)),
        classes=3,
        validation=list(people(3, 2, seed=1)),
    )
    encoding = Encoding(["h", "w"], {}, {"h": 0.1, "w": 2.0}, y="sick", labels=["a", "b", "c"])
    data = stored(store(tmp_path / "a", dataclasses.replace(plain, encoding=encoding)))
    assert data.encoding == encoding
    for mine, own in zip(data.validation, plain.validation, strict=True):
        np.testing.assert_array_equal(mine["x"], canonical(own["x"]))
        np.testing.assert_array_equal(mine["y"], own["y"])


@pytest.mark.parametrize("name", ["sizes", "Maße"])
def test_arrays_of_other_names_come_back(tmp_path, name):
    clients = [client | {name: np.arange(len(client["y"]))} for client in people(3)]
    data = stored(store(tmp_path / "a", clients, classes=3))
    for mine, own in zip(data.train, clients, strict=True):
        assert mine.keys() == own.keys()
        np.testing.assert_array_equal(mine[name], own[name])


def test_validation_of_stored_windows_overlaps_no_training_window(tmp_path):
    text = "".join(np.random.default_rng(0).choice([*"abcdefgh"], 300))
    windows = fedax.data.play(f"A:\n{text}\n", length=8, test_fraction=0.0)
    back = stored(store(tmp_path / "windows", windows))
    kept, own = (data.with_validation(0.2, split="in_order") for data in (back, windows))
    assert own.train.total + own.validation.total < windows.train.total
    np.testing.assert_array_equal(kept.validation.arrays["x"], own.validation.arrays["x"])
