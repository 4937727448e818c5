"""Real data through the whole path: counts and label histograms, then one round of FedAvg each."""

import hashlib
import struct

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
import fedax.models
from fedax import data, tasks
from fedax.core import DataError
from fedax.data.sources import images as source
from fedax.data.sources.images import read_images

TEN = 10
COUNTS = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion_mnist": ([6000] * TEN, [1000] * TEN),
    "cifar10": ([5000] * TEN, [1000] * TEN),
    "a5a": ([4845, 1569], None),
    "mushrooms": ([3916, 4208], None),
}
FILES = {
    "cifar10": "cifar10_train_1of4.npz",
    "a5a": "libsvm",
    "mushrooms": "libsvm",
    "tinyshakespeare": "shakespeare",
}


def needed(folder, name):
    if not (folder / FILES.get(name, f"{name}.npz")).exists():
        pytest.skip(f"no {name} in {folder}")
    return str(folder)


def one_round(task, rate):
    """The training loss before and after a round in which two clients take 20 steps each."""
    schedule = fedax.Schedule(cohort=2, steps=20, batch_size=20)
    observe = [fedax.observe.TrainLoss()]
    history = fedax.run(
        fedax.FedAvg(),
        task,
        solver=fedax.SGD(rate),
        schedule=schedule,
        rounds=1,
        observe=observe,
        throw=True,
    )
    return history.metrics["train_loss"].tolist()


@pytest.mark.parametrize(
    ("name", "rate"), [("mnist", 0.1), ("fashion_mnist", 0.1), ("cifar10", 0.002)]
)
@pytest.mark.slow
def test_images(name, rate, data_folder):
    federated = getattr(data, name)(partition="iid", clients=50, folder=needed(data_folder, name))
    train, test = COUNTS[name]
    assert federated.label_counts.sum(axis=0).tolist() == train
    assert np.bincount(federated.central["y"]).tolist() == test
    assert federated.sizes.tolist() == [sum(train) // 50] * 50
    x = federated.train[0]["x"]
    assert (x.shape[1], x.min(), x.max()) == (3072 if name == "cifar10" else 784, 0, 1)
    central = {key: values[:500] for key, values in federated.central.items()}
    few = data.FederatedData.from_arrays(federated.train[:3], classes=10, central=central)
    before, after = one_round(tasks.classification(few, fedax.models.Softmax(x.shape[1], 10)), rate)
    assert before == pytest.approx(np.log(10), rel=0.2)  # the starting point is not zero
    assert after < before - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a5a", "mushrooms"])
def test_tables(name, data_folder):
    task = fedax.task(name, clients=20, folder=needed(data_folder, name))
    assert np.bincount(task.train.arrays["y"]).tolist() == COUNTS[name][0]
    before, after = one_round(task, 0.1)
    assert before == pytest.approx(np.log(2), abs=1e-6)
    assert after < before - 0.01


@pytest.mark.slow
def test_text(data_folder):
    folder = needed(data_folder, "tinyshakespeare")
    task = fedax.task("tinyshakespeare", stride=40, minimum=100, test_fraction=0.1, folder=folder)
    federated = data.tinyshakespeare(stride=40, minimum=100, test_fraction=0.1, folder=folder)
    assert task.train.sizes.tolist() == federated.sizes.tolist()
    assert (federated.sizes + federated.test_sizes).min() >= 100
    space, letter = data.encode(" e").tolist()
    share = np.bincount(task.train.arrays["y"], minlength=80) / task.train.total
    assert share[[space, letter]] == pytest.approx([0.18, 0.09], abs=0.03)  # as in English text
    assert share[data.encode("0123456789").tolist()].max() < 1e-3
    before, after = one_round(task, 5.0)
    assert before == pytest.approx(np.log(80), abs=1e-5)
    assert after < before - 0.1


@pytest.mark.slow
def test_cifar_is_colour_in_rows(data_folder):
    """The published means and deviations of the channels, in the order red, green, blue."""
    pixels = read_images("cifar10", needed(data_folder, "cifar10")).x.reshape(-1, 3)
    mean, square = (
        pixels.mean(axis=0) / 255,
        (pixels[::37].astype(np.uint16) ** 2).mean(axis=0) / 255**2,
    )
    np.testing.assert_allclose(mean, [0.49140, 0.48216, 0.44653], atol=1e-5)
    # of a sample
    np.testing.assert_allclose(np.sqrt(square - mean**2), [0.24703, 0.24349, 0.26159], atol=1e-3)


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
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte: got 'no file at"):
        data.mnist("iid", clients=3, folder=tmp_path)


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
    images, labels = (
        rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8),
        (np.arange(60) % 10).astype(np.uint8),
    )
    binary_batches(folder, images, labels, [10] * 6)
    with pytest.raises(
        DataError,
        match=r"data_batch_1.bin: got 'SHA-256 .*published data, "
        r"SHA-256 cee91656",
    ):
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
    with pytest.raises(
        DataError,
        match=r"data_batch_3.bin: got 'SHA-256 ",
    ):
        data.cifar10(folder=tmp_path)
    batch.unlink()
    with pytest.raises(DataError, match=r"data_batch_3.bin: got 'no file at"):
        data.cifar10(folder=tmp_path)


def test_missing_and_broken_cifar(tmp_path):
    with pytest.raises(
        DataError,
        match=r"no file at "
        r".*cifar10_train_1of4.npz.*cifar-10-batches-bin",
    ):
        data.cifar10(folder=tmp_path)
    for part in ("train_1of4", "train_2of4", "train_3of4", "train_4of4", "test"):
        np.savez(
            tmp_path / f"cifar10_{part}.npz",
            x=np.zeros((5, 32, 32, 3), np.uint8),
            y=np.zeros(5, np.uint8),
        )
    with pytest.raises(DataError, match=r"cifar10: got 'SHA-256 "):
        data.cifar10(folder=tmp_path)


@pytest.mark.slow
def test_a_bigram_learns_what_follows():
    codes = jnp.array([[0, 1], [1, 0]])
    federated = data.FederatedData.from_arrays([{"x": codes, "y": jnp.array([1, 0])}], classes=2)
    task = tasks.classification(federated, fedax.models.Bigram(2))
    history = fedax.run(
        fedax.FedAvg(),
        task,
        solver=fedax.SGD(4.0),
        schedule=fedax.Schedule(batch_size="full"),
        rounds=5,
    )
    probability = jnp.exp(history.params) / jnp.exp(history.params).sum(axis=1, keepdims=True)
    assert float(probability[1, 1]) > 0.9
    assert float(probability[0, 0]) > 0.9
