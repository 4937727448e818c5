"""Digits and MNIST: what the arrays hold, and what happens without a usable file."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedax.data import data_folder as folder_of
from fedax.data import digits, iid, mnist, power_law


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "options"), [("shards", {"shards_per_client": 1}), ("power_law", {"ratio": 1.1})]
)
def test_digits_are_all_there_under_every_partition(partition, options):
    data = digits(partition, clients=8, seed=3, **options)
    images, labels = load_digits(return_X_y=True)
    x = np.concatenate([part["x"] for part in (*data.train, *data.test)])
    y = np.concatenate([part["y"] for part in (*data.train, *data.test)])
    rows = np.column_stack([x * 16, y])
    expected = np.column_stack([images, labels])
    assert np.array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])
    assert (x.min(), x.max()) == (0.0, 1.0)


TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # of the official files
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture
def mnist_folder(data_folder: Path) -> Path:
    if not (data_folder / "mnist.npz").is_file():
        pytest.skip(f"no mnist.npz in {data_folder}")
    return data_folder


@pytest.mark.slow
def test_mnist_keeps_the_official_test_set_apart(mnist_folder):
    data = mnist("iid", clients=6, seed=5, folder=mnist_folder, split="in_order")
    with np.load(mnist_folder / "mnist.npz") as file:
        images = file["x_train"]
        labels = file["y_train"]
    for part, client in zip(iid(60_000, 6, seed=5), data.train):
        assert np.array_equal(client["y"], labels[part])
        row = np.argmax(client["x"].sum(axis=1))
        np.testing.assert_allclose(
            client["x"][row], images[part[row]].reshape(784) / 255.0, rtol=1e-6
        )
    assert data.label_counts.sum(axis=0).tolist() == TRAIN_COUNTS
    assert np.bincount(data.central["y"]).tolist() == TEST_COUNTS
    assert data.test is None
    assert data.central["x"].dtype == float
    assert (data.central["x"].min(), data.central["x"].max()) == (0.0, 1.0)


@pytest.mark.slow
def test_examples_are_the_first_ones(mnist_folder):
    whole = mnist("index", 1, folder=mnist_folder)
    few = mnist("index", 3, folder=mnist_folder, examples=100)
    assert (sum(few.sizes), len(few.central["y"])) == (100, 100)
    with np.load(mnist_folder / "mnist.npz") as file:
        first = file["x_train"][:100].reshape(100, 784) / np.float32(255)
    dealt = np.concatenate([client["x"] for client in few.train])
    assert sorted(map(bytes, dealt)) == sorted(map(bytes, first.astype(dealt.dtype)))
    assert np.array_equal(few.central["y"], whole.central["y"][:100])
    assert sum(mnist("iid", 3, folder=mnist_folder, examples=10, merged=True).sizes) == 20


@pytest.mark.slow
def test_mnist_merged_is_dealt_out_whole(mnist_folder):
    data = mnist(
        "power_law",
        20,
        1,
        0.2,
        "in_order",
        merged=True,
        folder=mnist_folder,
        classes_per_client=1,
        ratio=1.1,
    )
    sizes = data.sizes + data.test_sizes
    assert (sizes[0], sizes[-1]) == (1222, 7486)  # FedBC, Table 5
    assert data.central is None
    tested = sum(np.bincount(client["y"], minlength=10) for client in data.test)
    merged = np.add(TRAIN_COUNTS, TEST_COUNTS)
    assert (data.label_counts.sum(axis=0) + tested).tolist() == merged.tolist()
    # In order: a device that holds several classes in blocks is tested on its last one.
    with np.load(mnist_folder / "mnist.npz") as file:
        images, labels = (
            np.concatenate([file[f"{key}_train"], file[f"{key}_test"]]) for key in "xy"
        )
    largest = power_law(labels, 20, 1, 1.1, seed=1)[-1]
    tail = largest[-data.test_sizes[-1] :]
    assert np.array_equal(data.test[-1]["y"], labels[tail])
    np.testing.assert_allclose(data.test[-1]["x"] * 255, images[tail].reshape(-1, 784), atol=1e-4)


def test_the_folder_is_looked_up_in_order(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDAX_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folder_of() == tmp_path / ".cache" / "fedax"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folder_of() == tmp_path / "cache" / "fedax"
    monkeypatch.setenv("FEDAX_DATA", "~/files")
    assert folder_of() == tmp_path / "files"
    assert folder_of(tmp_path / "own") == tmp_path / "own"
    assert list(tmp_path.iterdir()) == []
