"""Crops, flips and normalisation: what they may give, and where they act."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.data import FederatedData
from fedax.models import CNN, Augmentation, Softmax, Stage
from fedax.tasks import classification

RNG = np.random.default_rng(0)
IMAGES = RNG.random((64, 3, 4, 2))


def test_a_crop_is_one_of_the_windows_and_all_occur():
    flat = jax.jit(Augmentation((3, 4, 2), crop=1))(
        jnp.asarray(IMAGES.reshape(64, -1)), jax.random.key(0)
    )
    assert flat.shape == (64, 24)  # in the form in which they came
    images = flat.reshape(IMAGES.shape)
    padded = np.pad(IMAGES, ((0, 0), (1, 1), (1, 1), (0, 0)))
    seen = set()
    for image, source in zip(np.asarray(images), padded, strict=True):
        windows = [
            (i, j)
            for i in range(3)
            for j in range(3)
            if np.array_equal(source[i : i + 3, j : j + 4], image)
        ]
        assert len(windows) == 1
        seen |= set(windows)
    assert len(seen) == 9


def test_a_flip_mirrors_about_half_of_the_images():
    images = np.asarray(
        jax.jit(Augmentation((3, 4, 2), flip=True))(jnp.asarray(IMAGES), jax.random.key(0))
    )
    mirrored = [
        np.array_equal(image, source[:, ::-1]) for image, source in zip(images, IMAGES, strict=True)
    ]
    kept = [np.array_equal(image, source) for image, source in zip(images, IMAGES, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert abs(sum(mirrored) - 32) < 5 * 4  # five standard deviations


def test_frozen_leaves_of_a_model_stay_frozen():
    """Its own, as a module of PyTorch has them."""

    class Half(Softmax):
        frozen = staticmethod(lambda name, leaf: name == "kernel")

    data = FederatedData.from_arrays([{"x": [[0.0], [1.0]], "y": [0, 1]}] * 2, classes=2)
    for augment in (None, lambda x, _: x):
        start = classification(data, Half(1, 2), augment=augment).start(jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(start)) == 2


def test_evaluation_only_normalises():
    augmentation = Augmentation(
        (3, 4, 2), crop=2, flip=True, mean=(0.5, 0.25), deviation=(2.0, 4.0)
    )
    expected = (IMAGES - [0.5, 0.25]) / [2.0, 4.0]
    np.testing.assert_allclose(augmentation(jnp.asarray(IMAGES), None), expected, rtol=1e-12)


def test_zeros_around_a_crop_are_normalised_like_pixels():
    augmentation = jax.jit(Augmentation((3, 4, 2), crop=3, mean=(0.5, 0.5), deviation=(1.0, 1.0)))
    assert float(augmentation(jnp.asarray(IMAGES), jax.random.key(0)).min()) == -0.5


@pytest.mark.slow
def test_a_task_augments_training_steps_only():
    client = {"x": IMAGES.reshape(64, -1), "y": np.arange(64) % 2}
    augmentation = Augmentation((3, 4, 2), crop=1, flip=True, mean=(0.5, 0.5))
    model = CNN((3, 4, 2), (Stage(2, 2, pool=False),), (), 2)
    task = classification(
        FederatedData.from_arrays([client], classes=2), model, augment=augmentation
    )
    plain = classification(
        FederatedData.from_arrays([{**client, "x": client["x"] - 0.5}], classes=2), model
    )
    params = model.init(jax.random.key(0))[0]
    loss = jax.jit(task.loss)
    examples, shifted = (jax.tree.map(jnp.asarray, t.train[0]) for t in (task, plain))
    np.testing.assert_allclose(
        loss(params, examples, None), plain.loss(params, shifted, None), rtol=1e-9
    )
    np.testing.assert_allclose(
        task.scores["accuracy"](params, examples, None),
        plain.scores["accuracy"](params, shifted, None),
    )
    first, again, other = (loss(params, examples, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert hash(task.loss) == hash(
        classification(
            FederatedData.from_arrays([client], classes=2), model, augment=augmentation
        ).loss
    )
