"""Real data through the whole path: counts and label histograms, then one round of FedAvg each."""

import hashlib
import struct

import numpy as np
import pytest

from fedax import data
from fedax.core import DataError
from fedax.data.sources import images as source

TEN = 10
COUNTS = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion_mnist": ([6000] * TEN, [1000] * TEN),
    "cifar10": ([5000] * TEN, [1000] * TEN),
}
FILES = {
    "cifar10": "cifar10_train_1of4.npz",
    "tinyshakespeare": "shakespeare",
}


def needed(folder, name):
    if not (folder / FILES.get(name, f"{name}.npz")).exists():
        pytest.skip(f"no {name} in {folder}")
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_images(name, data_folder):
    federated = getattr(data, name)(partition="iid", clients=50, folder=needed(data_folder, name))
    train, test = COUNTS[name]
    assert federated.label_counts.sum(axis=0).tolist() == train
    assert np.bincount(federated.central["y"]).tolist() == test
    assert federated.sizes.tolist() == [sum(train) // 50] * 50
    x = federated.train[0]["x"]
    assert (x.shape[1], x.min(), x.max()) == (3072 if name == "cifar10" else 784, 0, 1)


@pytest.mark.slow
def test_writers(data_folder):
    folder = needed(data_folder, "mnist_writers")
    federated = data.mnist_writers(folder=folder)
    total = federated.sizes
    assert (federated.clients, total.min(), total.max(), int(np.median(total))) == (
        539,
        19,
        131,
        116,
    )
    assert federated.label_counts.sum(axis=0).tolist() == COUNTS["mnist"][0]
    assert data.mnist_writers(merged=True, folder=folder).clients == 836
    assert data.mnist_writers(minimum=100, folder=folder).clients == (total >= 100).sum()


@pytest.mark.slow
def test_idx_files_stand_in_for_the_archive(data_folder, tmp_path):
    needed(data_folder, "mnist")
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    with np.load(data_folder / "mnist.npz") as file:
        for split, name in (("train", "train"), ("test", "t10k")):
            for kind, axis in (("images-idx3", "x"), ("labels-idx1", "y")):
                array = file[f"{axis}_{split}"]
                header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
                (tmp_path / "MNIST" / "raw" / f"{name}-{kind}-ubyte").write_bytes(
                    header + array.tobytes()
                )
    one, other = (
        data.mnist("index", clients=3, folder=folder) for folder in (data_folder, tmp_path)
    )
    assert all(
        np.array_equal(a["x"], b["x"])
        for a, b in zip((*one.train, one.central), (*other.train, other.central))
    )


def binary_batches(folder, images, labels, sizes):
    """The official binary version: a label, then the red, the green and the blue pixels of an
    image."""
    folder.mkdir()
    names = [f"data_batch_{part}.bin" for part in range(1, 6)] + ["test_batch.bin"]
    ends = np.cumsum(sizes)[:-1]
    for name, x, y in zip(names, np.split(images, ends), np.split(labels, ends)):
        records = [
            bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(x, y)
        ]
        (folder / name).write_bytes(b"".join(records))


def test_official_cifar_batches(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-bin"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(60) % 10).astype(np.uint8)
    binary_batches(folder, images, labels, [10] * 6)
    with pytest.raises(DataError, match=r"data_batch_1\.bin"):
        data.cifar10(folder=tmp_path)
    own = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in source._BATCHES
    }
    monkeypatch.setattr(source, "_BATCHES", own)
    federated = data.cifar10(partition="index", clients=2, folder=tmp_path, split="in_order")
    x = np.concatenate([client["x"] for client in federated.train])
    np.testing.assert_allclose(x.reshape(-1, 32, 32, 3) * 255, images[:50], atol=1e-3)
    assert federated.central["y"].tolist() == labels[50:].tolist()
    batch = folder / "data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin"):
        data.cifar10(folder=tmp_path)
