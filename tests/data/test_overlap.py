"""Splits do not leak: what is put aside is no copy of what is trained on, and windows of a play do
not overlap with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import DataError
from fedax.data import FederatedData
from fedax.data.sources.play import play
from fedax.tasks import classification
from parts import with_unseen, with_validation

QUICK = settings(max_examples=20, deadline=None, database=None, derandomize=True)


def loss(w, examples):
    x = examples["x"]
    return (w - x.reshape(x.shape[0], -1).mean(1)) ** 2


def task_of(clients):
    return fedax.Task(0.0, loss, clients)


def halves(clients, share, seed=0, **options):
    """Training and validation examples as sets of the numbers in them, and of their rows."""
    labelled = [{**client, "y": np.zeros(len(client["x"]), int)} for client in clients]
    data = FederatedData.from_arrays(labelled, classes=1).with_validation(share, seed, **options)
    return data.train, data.validation


def kinds(side):
    return {row.tobytes() for client in side for row in client["x"]}


def rows(part):
    return {row.tobytes() for row in np.asarray(part.arrays["x"])}


@QUICK
@given(
    sizes=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    times=st.integers(2, 3),
    share=st.sampled_from([0.2, 0.34, 0.5]),
    seed=st.integers(0, 99),
)
def test_copies_stay_on_one_side_also_across_clients(sizes, times, share, seed):
    """Every example is there `times` times, at clients that are drawn; a share is put aside where
    it can be."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(sum(sizes), 3)), times, axis=0)
    order = rng.permutation(len(x))
    bounds = np.cumsum([times * n for n in sizes])[:-1]
    clients = [{"x": part} for part in np.split(x[order], bounds)]
    try:
        kept, away = halves(clients, share, seed)
    except DataError:  # what is left for a client to train on is one example with its copies
        return
    assert not kinds(kept) & kinds(away)
    assert kept.sizes.min() >= 1
    assert kept.sizes.sum() + away.sizes.sum() == len(x)


def characters(part):
    return {*np.ravel(part["x"]).tolist(), *np.ravel(part["y"]).tolist()}


TEXT = "".join(chr(0x4E00 + i) for i in range(900))
"""Every character is another one, so the steps of a window can be told from it."""


def two_roles(**options):
    return play(f"A:\n{TEXT[:500]}\n\nB:\n{TEXT[500:]}\n", vocabulary="own", seed=3, **options)


@pytest.mark.parametrize("split", ["in_order", "shuffled"])
def test_plays_are_split_without_overlaps(split):
    data = two_roles(length=20, test_fraction=0.3, split=split)
    other = two_roles(length=20, test_fraction=0.3, split=f"{split}_rows")
    for k in range(2):
        assert len(data.test[k]["y"]) > 50
        assert not characters(data.train[k]) & characters(data.test[k])
        assert len(other.train[k]["y"]) + len(other.test[k]["y"]) == [480, 380][k]
    if split == "shuffled":
        assert data.test[0]["x"].min() != other.test[0]["x"].min()


def test_validation_of_a_play_that_is_dealt_by_rows_does_not_overlap_with_training():
    parts = two_roles(length=6, test_fraction=0.2, split="shuffled_rows").with_validation(0.3)
    assert not any(characters(parts.train[k]) & characters(parts.validation[k]) for k in range(2))


@pytest.mark.parametrize(("length", "stride"), [(20, 1), (6, 4), (3, 5)])
def test_validation_windows_of_plays_do_not_overlap_with_training(length, stride):
    """The same by data and by task, also without some clients."""
    data = two_roles(length=length, stride=stride, test_fraction=0.2)
    parts = data.with_validation(0.3)
    for k in range(2):
        assert not characters(parts.train[k]) & characters(parts.validation[k])
        assert not characters(parts.test[k]) & characters(parts.validation[k])
        assert len(parts.validation[k]["y"]) > 15
    task = classification(data, fedax.models.Bigram(data.classes))
    np.testing.assert_array_equal(
        with_validation(task, 0.3).validation.arrays["x"], parts.validation.arrays["x"]
    )
    left = with_validation(with_unseen(task, 0.5), 0.3)
    assert not characters(left.train.arrays) & characters(left.validation.arrays)


def test_augmented_copies_stay_together_where_their_source_is_named():
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(30, 4, 4))
    x = np.concatenate(
        [pictures, pictures[:, :, ::-1], pictures + 0.1 * rng.normal(size=pictures.shape)]
    )
    source = np.tile(np.arange(30), 3)
    owner = np.arange(90) % 3
    clients = [
        {"x": x[owner == k], "y": np.zeros(30, int), "picture": source[owner == k]}
        for k in range(3)
    ]
    for split in ("shuffled", "in_order"):
        parts = with_validation(task_of(clients), 0.3, together="picture", split=split)
        kept, away = (
            set(np.asarray(part.arrays["picture"]).tolist())
            for part in (parts.train, parts.validation)
        )
        assert not kept & away
        assert parts.validation.total == 27
    data = FederatedData.from_arrays(clients, classes=1).with_validation(0.3, together="picture")
    assert not {p for c in data.train for p in c["picture"]} & {
        p for c in data.validation for p in c["picture"]
    }


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_unseen_clients_share_nothing_with_those_that_are_trained_on(share, seed):
    """Ten clients in pairs with three examples in common, and one example that all of them have."""
    rng = np.random.default_rng(seed)
    own, pairs, common = (rng.normal(size=shape) for shape in ((10, 3, 3), (5, 3, 3), (1, 3)))
    clients = [{"x": np.concatenate([own[k], pairs[k % 5], common])} for k in range(10)]
    parts = with_unseen(task_of(clients), share, seed)
    assert not rows(parts.train) & rows(parts.unseen.train)
    assert parts.train.clients == 10 - round(10 * share)
    assert parts.unseen.train.clients == round(10 * share)
    with pytest.raises(DataError, match="examples that no other client trains on"):
        with_unseen(task_of([clients[0]] * 3), 0.3)


def test_equal_rows_may_be_put_aside_where_it_is_said():
    task = task_of([{"x": np.ones((5, 3))}])
    assert with_validation(task, 0.4, split="shuffled_rows").validation.total == 2
