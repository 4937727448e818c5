"""Tasks on images: crops, flips and normalisation by name, drawn once or at every step; the test
set is normalised only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import data
from fedax.core import InvalidInput
from fedax.data.sources.images import read_images
from fedax.tasks.images import CIFAR10, preprocess
from fedax.tasks.sources import DATASETS, task_options

SMALL = {"partition": "iid", "clients": 3, "seed": 5}


def arrays(task, split="train"):
    return np.asarray(getattr(task, split).arrays["x"])


def augment_of(task):
    return getattr(task.loss.model, "augment", None)


def shown(task, key=None, split="train"):
    """The images as the model gets them."""
    augment = augment_of(task)
    images = arrays(task, split)
    return images if augment is None else np.asarray(jax.jit(augment)(jnp.asarray(images), key))


def is_window(image, source, crop, flip):
    """Whether an image is a window of a source with zeros around it, mirrored perhaps."""
    side, padded = source.shape[0], np.pad(source, crop)
    windows = [
        padded[i : i + side, j : j + side] for i in range(2 * crop + 1) for j in range(2 * crop + 1)
    ]
    return any(
        np.array_equal(image, w) or (flip and np.array_equal(image, w[:, ::-1])) for w in windows
    )


@pytest.mark.slow
@pytest.mark.parametrize(("crop", "flip"), [(1, False), (0, True), (2, True)])
def test_frozen_changes_are_made_once(crop, flip):
    plain, task = (
        fedax.task("digits", **SMALL, **o)
        for o in ({}, {"crop": crop, "flip": flip, "frozen": True})
    )
    before, after = (arrays(t).reshape(-1, 8, 8) for t in (plain, task))
    assert all(is_window(a, b, crop, flip) for a, b in zip(after, before, strict=True))
    same = np.mean([np.array_equal(a, b) for a, b in zip(after, before, strict=True)])
    # of the window in the middle, not mirrored
    chance = (2 * crop + 1) ** -2 * (0.5 if flip else 1)
    assert abs(same - chance) < 5 * np.sqrt(chance / len(after))
    assert augment_of(task) is None  # so nothing is drawn at the steps
    assert np.array_equal(arrays(task, "test"), arrays(plain, "test"))
    assert np.array_equal(
        arrays(task), arrays(fedax.task("digits", **SMALL, crop=crop, flip=flip, frozen=True))
    )
    assert not np.array_equal(
        arrays(task),
        arrays(fedax.task("digits", **SMALL | {"seed": 6}, crop=crop, flip=flip, frozen=True)),
    )


def test_fresh_changes_are_made_at_every_step():
    plain, task = fedax.task("digits", **SMALL), fedax.task("digits", **SMALL, crop=1, flip=True)
    assert np.array_equal(arrays(task), arrays(plain))
    assert np.array_equal(shown(task), arrays(plain))
    first, again, other = (shown(task, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    images = zip(first.reshape(-1, 8, 8)[:50], arrays(plain).reshape(-1, 8, 8), strict=False)
    assert all(is_window(a, b, 1, True) for a, b in images)


def softmax_descent(x, y, rounds, rate):
    """Full gradient descent on softmax regression, from what the model starts with."""
    w = fedax.models.Softmax(x.shape[1], 10).init(jax.random.fold_in(jax.random.key(0), 0))[0]
    kernel, bias = np.array(w.kernel), np.array(w.bias)
    for _ in range(rounds):
        z = np.exp(x @ kernel + bias)
        slope = (z / z.sum(1, keepdims=True) - np.eye(10)[y]) / len(y)
        kernel, bias = kernel - rate * x.T @ slope, bias - rate * slope.sum(0)
    return kernel


@pytest.mark.slow
def test_frozen_images_stay_over_the_rounds_and_fresh_ones_do_not():
    """Three rounds of gradient descent in NumPy on the images that were drawn once."""
    options = {
        "solver": fedax.SGD(0.5),
        "schedule": fedax.Schedule(batch_size="full", steps=1),
        "rounds": 3,
    }
    changes = {"clients": 1, "partition": "iid", "crop": 1, "flip": True, "normalize": "dataset"}
    frozen, fresh = fedax.task("digits", **changes, frozen=True), fedax.task("digits", **changes)
    plain = arrays(fedax.task("digits", clients=1, partition="iid"))
    x = (arrays(frozen) - plain.mean()) / plain.std()
    expected = softmax_descent(x, np.asarray(frozen.train.arrays["y"]), 3, 0.5)
    found, other = (
        fedax.run(fedax.FedAvg(), task, **options).params.kernel for task in (frozen, fresh)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(np.asarray(other) - expected).max() > 1e-3


def test_the_statistics_are_those_of_the_training_images():
    task = fedax.task("digits", **SMALL, normalize="dataset", crop=2, frozen=True)
    plain = arrays(fedax.task("digits", **SMALL))
    augment = augment_of(task)
    np.testing.assert_allclose(
        (augment.mean, augment.deviation), ([plain.mean()], [plain.std()]), rtol=1e-10
    )
    still = shown(fedax.task("digits", **SMALL, normalize="dataset"))
    np.testing.assert_allclose((still.mean(), still.std()), (0, 1), atol=1e-10)
    test = arrays(fedax.task("digits", **SMALL), "test")
    np.testing.assert_allclose(
        shown(task, split="test"), (test - plain.mean()) / plain.std(), rtol=1e-10, atol=1e-12
    )
    assert task.scores["accuracy"].model.augment == augment


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "mnist_writers", "mnist_devices"])
def test_pixels_of_the_data_sets(name, data_folder):
    if not all(
        (data_folder / f"{file}.npz").is_file() for file in {name, "mnist"} - {"mnist_devices"}
    ):
        pytest.skip(f"no images in {data_folder}")
    options = {"folder": data_folder} | ({"clients": 10} if name != "mnist_writers" else {})
    for how in ("published", "dataset") if DATASETS[name].make.images.mean else ("dataset",):
        task = fedax.task(name, **options, normalize=how)
        images = shown(task)
        assert images.shape == (task.train.total, 784)
        np.testing.assert_allclose(
            (images.mean(dtype=float), images.std(dtype=float)), (0, 1), atol=0.01
        )


@pytest.mark.slow
def test_pixels_of_cifar10(data_folder):
    """The published deviations are means over the images, so pixels come out wider."""
    if not (data_folder / "cifar10_test.npz").is_file():
        pytest.skip(f"no CIFAR-10 in {data_folder}")
    source, known = read_images("cifar10", data_folder), CIFAR10
    images = source.x
    single = np.stack(
        [images[i : i + 5000].reshape(-1, 1024, 3).std(1).mean(0) for i in range(0, 50000, 5000)]
    ).mean(0)
    np.testing.assert_allclose(images.reshape(-1, 3).mean(0) / 255, known.mean, atol=1e-4)
    np.testing.assert_allclose(single / 255, known.deviation, atol=1e-3)
    changes = {"crop": 4, "flip": True, "frozen": True, "normalize": "published"}
    task = fedax.task(
        "cifar10",
        folder=data_folder,
        partition="iid",
        clients=2,
        examples=200,
        model="softmax",
        **changes,
    )
    first = images[:200].astype(np.float32).reshape(200, -1) / np.float32(255)
    test = source.test_x[:200].astype(np.float32).reshape(200, 32, 32, 3) / np.float32(255)
    assert not np.isin(arrays(task)[:, 0], first[:, 0]).all()  # zeros from around the images
    augment = augment_of(task)
    assert (augment.crop, augment.flip, augment.mean, augment.deviation) == (
        0,
        False,
        known.mean,
        known.deviation,
    )
    central = np.asarray(augment(jnp.asarray(task.central["x"]), None)).reshape(-1, 32, 32, 3)
    np.testing.assert_allclose(central, (test - known.mean) / known.deviation, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "mlp", "mlp_dropout"])
def test_every_model_of_rows_takes_changed_images(model):
    """In single precision, and from an experiment file's words."""
    with jax.enable_x64(False):
        task = fedax.task("digits", **SMALL, model=model, crop=1, flip=True, normalize="dataset")
        options = {"solver": fedax.SGD(0.1), "schedule": fedax.Schedule(batch_size=50), "rounds": 3}
        history = fedax.run(
            fedax.FedAvg(), task, observe=[fedax.observe.TrainLoss()], **options, throw=True
        )
    assert history.metrics["train_loss"][-1] < history.metrics["train_loss"][0]


def test_tasks_on_images_alone_have_the_options():
    assert {"crop", "flip", "frozen", "normalize"} <= set(task_options("cifar10"))
    assert not {"crop", "normalize"} & set(task_options("shakespeare"))


def test_published_constants_and_changes_at_every_step_reach_the_model():
    """As the recipes on CIFAR-10 ask for, without its images."""
    none = data.FederatedData.from_arrays(
        [{"x": np.zeros((2, 3072), np.float32), "y": np.arange(2)}], classes=10
    )
    _, augment = preprocess(
        none, CIFAR10, 0, crop=4, flip=True, frozen=False, normalize="published"
    )
    known = CIFAR10
    assert (augment.crop, augment.flip, augment.mean, augment.deviation) == (
        4,
        True,
        known.mean,
        known.deviation,
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"crop": -1}, r"digits\(crop=...\): got -1; allowed: greater than or equal"),
        ("digits", {"crop": 9}, r"crop: got 9; allowed: at most 8"),
        ("digits", {"flip": 1}, r"digits\(flip=...\): got 1; allowed: a valid boolean"),
        (
            "digits",
            {"frozen": True},
            r"frozen: got True; allowed: False without "
            r"crop or flip",
        ),
        (
            "digits",
            {"normalize": "published"},
            r"normalize: got 'published'; allowed: 'none' or 'dataset'",
        ),
        (
            "cifar10",
            {"normalize": True},
            r"cifar10\(normalize=...\): got True; allowed: 'none', 'published' or 'dataset'",
        ),
        ("mnist", {"crop": 1.5, "folder": "nowhere"}, r"mnist\(crop=...\): got 1.5"),
    ],
)
def test_bad_changes_are_refused_before_any_file(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        fedax.task(name, **options)
