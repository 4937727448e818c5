"""Tasks on images: crops, flips and normalisation by name, drawn once or at every step; the test
set is normalised only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.data.sources.images import read_images
from fedax.tasks.images import CIFAR10

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
    side = source.shape[0]
    padded = np.pad(source, crop)
    windows = [
        padded[i : i + side, j : j + side] for i in range(2 * crop + 1) for j in range(2 * crop + 1)
    ]
    return any(
        np.array_equal(image, w) or (flip and np.array_equal(image, w[:, ::-1])) for w in windows
    )


@pytest.mark.slow
@pytest.mark.parametrize(("crop", "flip"), [(1, False), (2, True)])
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
    plain = fedax.task("digits", **SMALL)
    task = fedax.task("digits", **SMALL, crop=1, flip=True)
    assert np.array_equal(arrays(task), arrays(plain))
    assert np.array_equal(shown(task), arrays(plain))
    first, again, other = (shown(task, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    images = zip(first.reshape(-1, 8, 8)[:50], arrays(plain).reshape(-1, 8, 8), strict=False)
    assert all(is_window(a, b, 1, True) for a, b in images)


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
def test_pixels_of_cifar10(data_folder):
    """The published deviations are means over the images, so pixels come out wider."""
    if not (data_folder / "cifar10_test.npz").is_file():
        pytest.skip(f"no CIFAR-10 in {data_folder}")
    source = read_images("cifar10", data_folder)
    known = CIFAR10
    images = source.x
    single = np.stack(
        [images[i : i + 5000].reshape(-1, 1024, 3).std(1).mean(0) for i in range(0, 50000, 5000)]
    ).mean(0)
    np.testing.assert_allclose(images.reshape(-1, 3).mean(0) / 255, known.mean, atol=1e-4)
    np.testing.assert_allclose(single / 255, known.deviation, atol=1e-3)
