"""Splits warn of near copies: held-out examples that are changed training examples."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.data import FederatedData, iid
from fedax.data.near_copies import find_near_copies
from fedax.tasks import with_held_back, with_validation

QUICK = settings(max_examples=10, deadline=None, database=None, derandomize=True)
CLIENTS = 8
LOOKS = "held-out examples look like changed copies of training examples"


def pictures(count, seed, side=28, channels=1):
    """Smooth random images: blobs of a few places, widths and colours each."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side]
    images = np.zeros((count, side, side, channels))
    for _ in range(8):
        places, widths = (
            rng.uniform(2, side - 2, (2, count, 1, 1)),
            rng.uniform(1, 4, (count, 1, 1)),
        )
        blobs = np.exp(-((y - places[0]) ** 2 + (x - places[1]) ** 2) / (2 * widths**2))
        images += blobs[..., None] * rng.uniform(-1, 1, (count, 1, 1, channels))
    return images


def shifted(images, rng):
    """Crops at random places of the images with two zeros around them."""
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    corners, side = rng.integers(0, 5, (len(images), 2)), images.shape[1]
    return np.stack([image[i : i + side, j : j + side] for image, (i, j) in zip(padded, corners)])


def enlarged(images, rng):
    """The middle without two pixels on every side, at the old size."""
    side = images.shape[1]
    places = np.linspace(2, side - 3, side)
    low = np.floor(places).astype(int).clip(max=side - 2)
    weight = np.zeros((side, side))
    weight[np.arange(side), low], weight[np.arange(side), low + 1] = (
        1 - (places - low),
        places - low,
    )
    return np.einsum("ri,nijc,sj->nrsc", weight, images, weight)


CHANGES = {
    "cropped": shifted,
    "resized": enlarged,
    "mirrored": lambda images, rng: images[:, :, ::-1],
    "noisy": lambda images, rng: images + 0.1 * images.std() * rng.normal(size=images.shape),
    "brighter": lambda images, rng: 1.3 * images + 0.2,
    "encoded": lambda images, rng: np.round(images * 16) / 16,
    "labelled": lambda images, rng: images.copy(),
}


def warned(make):
    """The text of the warning of a split, or None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    texts = [str(warning.message) for warning in caught if LOOKS in str(warning.message)]
    assert len(texts) <= 1
    return texts[0] if texts else None


def dealt(x, labels=None, seed=0):
    labels = np.arange(len(x)) % 7 if labels is None else labels
    return [{"x": x[rows], "y": labels[rows]} for rows in iid(len(x), CLIENTS, seed)]


def splits(x, flat=False):
    """All splits that the library draws, of the same examples."""
    x = x.reshape(len(x), -1) if flat else x
    y = np.arange(len(x)) % 7
    clients = dealt(x)
    task = fedax.tasks.from_loss(
        lambda w, e: (w - e["x"].reshape(e["x"].shape[0], -1).mean(1)) ** 2, 0.0, clients
    )
    return {
        "test_fraction": lambda: FederatedData.partitioned(
            x, y, iid(len(x), CLIENTS, 0), classes=7, test_fraction=0.2
        ),
        "validation": lambda: FederatedData(clients, 7).with_validation(0.2),
        "validation of a task": lambda: with_validation(task, 0.2),
        "held back": lambda: with_held_back(task, 0.25),
    }


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("flat", [False, True], ids=["images", "rows"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_changed_copies_of_images_are_found(change, flat, seed):
    sources = pictures(240, seed)
    x = np.concatenate([sources, CHANGES[change](sources, np.random.default_rng(seed))])
    x = x.reshape(len(x), -1) if flat else x
    order = np.random.default_rng(seed + 1).permutation(len(x))
    found = find_near_copies({"x": x}, np.split(order[:384], 4), np.split(order[384:], 4))
    # four fifths of the held-out examples have their other version in training
    assert found.share > 0.1
    assert np.mean(found.held_out % 240 == found.trained % 240) > 0.9


@pytest.mark.parametrize(
    "name", ["test_fraction", "validation", "validation of a task", "held back"]
)
@pytest.mark.parametrize("flat", [False, True], ids=["images", "rows"])
def test_every_split_warns_once_and_names_an_example(name, flat):
    sources = pictures(300, 0)
    text = warned(splits(np.concatenate([sources, sources[:, :, ::-1]]), flat)[name])
    assert "such as row" in text
    assert "together='...'" in text
    assert warned(splits(pictures(600, 1), flat)[name]) is None


def test_named_sources_and_splits_by_rows_do_not_warn():
    sources = pictures(300, 0)
    x = np.concatenate([sources, sources[:, :, ::-1]])
    clients = [
        client | {"source": rows % 300} for client, rows in zip(dealt(x), iid(600, CLIENTS, 0))
    ]
    data = FederatedData(clients, 7)
    assert warned(lambda: data.with_validation(0.2)) is not None
    assert warned(lambda: data.with_validation(0.2, together="source")) is None
    assert warned(lambda: data.with_validation(0.2, split="shuffled_rows")) is None


@QUICK
@given(
    dim=st.integers(6, 40),
    seed=st.integers(0, 99),
    change=st.sampled_from(["rounded", "noisy"]),
    spread=st.sampled_from([0.0, 3.0]),
)
def test_rounded_and_noisy_rows_are_found(dim, seed, change, spread):
    rng = np.random.default_rng(seed)
    sources = (
        rng.normal(size=(500, dim)) + spread * rng.normal(size=(5, dim))[rng.integers(0, 5, 500)]
    )
    copies = (
        np.round(sources, 2)
        if change == "rounded"
        else sources + 0.02 * rng.normal(size=sources.shape)
    )
    x, order = np.concatenate([sources, copies]) * rng.uniform(0.1, 100, dim), rng.permutation(1000)
    found = find_near_copies({"x": x}, np.split(order[:800], 4), np.split(order[800:], 4))
    assert found.share > 0.3
    assert np.mean(found.held_out % 500 == found.trained % 500) > 0.9


KINDS = {
    "normal": lambda rng, n, dim: rng.normal(size=(n, dim)),
    "heavy": lambda rng, n, dim: np.exp(1.5 * rng.normal(size=(n, dim))),
    "clusters": lambda rng, n, dim: (
        5 * rng.normal(size=(20, dim))[rng.integers(0, 20, n)] + rng.normal(size=(n, dim))
    ),
    "curve": lambda rng, n, dim: np.sin(10 * rng.random(n)[:, None] * np.arange(1, dim + 1)),
    "plane": lambda rng, n, dim: rng.normal(size=(n, 2)) @ rng.normal(size=(2, dim)),
    "rounded": lambda rng, n, dim: np.round(rng.normal(size=(n, dim)), 1),
    "counts": lambda rng, n, dim: rng.integers(0, 4, (n, dim)).astype(float),
    "sparse": lambda rng, n, dim: rng.exponential(size=(n, dim)) * (rng.random((n, dim)) < 0.1),
    "mixed": lambda rng, n, dim: np.c_[rng.normal(size=(n, 1)), rng.integers(0, 3, (n, dim))],
}


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(
    n=st.integers(300, 2000),
    dim=st.integers(1, 64),
    clients=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_unrelated_rows_are_not_taken_for_copies(kind, n, dim, clients, seed):
    x = KINDS[kind](np.random.default_rng(seed), n, dim)
    y, parts = np.zeros(n, int), iid(n, clients, seed)
    assert (
        warned(lambda: FederatedData.partitioned(x, y, parts, classes=1, test_fraction=0.3)) is None
    )


@QUICK
@given(
    clients=st.integers(5, 200), size=st.integers(2, 30), dim=st.integers(3, 30), distance=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_clients_that_differ_are_not_taken_for_copies(clients, size, dim, distance, seed):
    """A client's examples are close to each other and far from all others."""
    rng = np.random.default_rng(seed)
    x = [distance * rng.normal(size=dim) + rng.normal(size=(size, dim)) for _ in range(clients)]
    data = FederatedData([{"x": own, "y": np.zeros(size, int)} for own in x], 1)
    assert warned(lambda: data.with_validation(0.3, seed)) is None


def test_real_data_are_not_taken_for_copies(request):
    """Digits here; docs/evaluation.md has the other data sets."""
    assert warned(lambda: fedax.data.digits("iid", clients=10, test_fraction=0.3)) is None
    images = fedax.data.digits("iid", clients=1, test_fraction=0).train[0]
    x = images["x"].reshape(-1, 8, 8, 1)
    assert warned(lambda: FederatedData(dealt(x, images["y"]), 10).with_validation(0.2)) is None


def test_few_examples_and_other_arrays_are_left_alone():
    x = pictures(40, 0)
    assert find_near_copies({"x": x}, [np.arange(20)], [np.arange(20, 40)]) is None
    tokens = np.random.default_rng(0).integers(0, 9, (500, 20))
    assert find_near_copies({"x": tokens}, [np.arange(300)], [np.arange(300, 500)]) is None
