"""The container of labelled examples: splits, counts, and what it refuses."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax.core import DataError
from fedax.data import FederatedData, iid, power_law


def client(*labels, features=2):
    return {"x": np.ones((len(labels), features)), "y": np.array(labels, dtype=int)}


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(
    n=st.integers(1, 60),
    clients=st.integers(1, 6),
    fraction=st.floats(0.01, 0.99),
    split=st.sampled_from(["shuffled", "in_order"]),
)
def test_a_split_keeps_every_example_once_and_a_training_example_everywhere(
    n, clients, fraction, split
):
    if clients > n:
        return
    parts = iid(n, clients, seed=n)
    x = np.arange(n)[:, None] * 1.0
    y = np.arange(n) % 3
    arguments = {"classes": 3, "test_fraction": fraction, "split": split, "seed": n}
    try:
        data = FederatedData.partitioned(x, y, parts, **arguments)
    except DataError as error:
        if "test: got 0 examples in all" not in str(error) or max(len(part) for part in parts) > 1:
            raise
        return  # single examples are all kept for training
    # none is left for a test set where all clients are small
    kept = data.test or [{"x": x[:0], "y": y[:0]}] * clients
    for part, train, test in zip(parts, data.train, kept):
        assert sorted(np.concatenate([train["x"], test["x"]])[:, 0].tolist()) == sorted(
            part.tolist()
        )
        assert len(train["y"]) >= 1
        # The whole part of the training share: less than one example below it, never above it but
        # for the guaranteed one.
        share = (1 - fraction) * len(part)
        assert len(train["y"]) == 1 or share - 1 < len(train["y"]) <= share + 1e-9
        for side in (train, test):
            assert np.array_equal(side["y"], side["x"][:, 0] % 3)
    if split == "in_order":
        assert np.array_equal(data.train[0]["x"][:, 0], parts[0][: len(data.train[0]["y"])])


def test_a_shuffled_split_depends_on_the_seed_only():
    parts = [np.arange(50)]
    splits = [
        FederatedData.partitioned(
            np.eye(50), np.zeros(50, int), parts, classes=1, test_fraction=0.5, seed=seed
        ).train[0]["x"]
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(splits[0], splits[1])
    assert not np.array_equal(np.sort(splits[0].argmax(1)), np.sort(splits[2].argmax(1)))


def test_further_arrays_go_where_the_examples_go():
    x = np.arange(12.0)[:, None]
    y = np.arange(12) % 2
    data = FederatedData.partitioned(
        x, y, iid(12, 3), classes=2, test_fraction=0.5, more={"weight": np.arange(12) * 10}
    )
    for part in (*data.train, *data.test):
        assert part["weight"].tolist() == (part["x"][:, 0] * 10).tolist()


def test_the_split_in_class_blocks_of_fedbc():
    """The largest of 20 devices of CIFAR-10 (C = 3, a = 1.2) is tested on a class that it never
    trained on."""
    labels = np.repeat(np.arange(10), 6000)
    parts = power_law(labels, 20, 3, 1.2, seed=1)
    data = FederatedData.partitioned(
        labels[:, None], labels, parts, classes=10, test_fraction=0.2, split="in_order"
    )
    assert np.bincount(data.test[-1]["y"]).tolist() == [646, 1434]
    assert data.label_counts[-1].tolist() == [1331 - 646, 0, 2681, 186, 0, 2207, 2151, 408, 0, 0]


def test_it_cannot_be_changed():
    given = client(0, 1)
    data = FederatedData.from_arrays([given], classes=2)
    with pytest.raises(ValueError, match="read-only"):
        data.train[0]["x"][0, 0] = 5.0
    with pytest.raises(AttributeError):
        data.classes = 3
    given["x"][0, 0] = 1.0  # the caller's own array stays writeable


def test_many_clients_are_split_without_a_loop_over_them():
    """5,000 clients of 4 examples: each keeps its own, three to learn from, and all 24 orders are
    equally likely."""
    clients = 5000
    x = np.arange(20_000.0)
    partition = list(np.random.default_rng(0).permutation(20_000).reshape(clients, 4))
    data = FederatedData.partitioned(
        x[:, None], np.zeros(20_000, int), partition, classes=1, test_fraction=0.25
    )
    assert data.sizes.tolist() == [3] * clients
    assert data.test_sizes.tolist() == [1] * clients
    drawn = np.array(
        [[*a["x"][:, 0], *b["x"][:, 0]] for a, b in zip(data.train, data.test, strict=True)]
    )
    assert np.array_equal(np.sort(drawn, axis=1), np.sort(partition, axis=1))
    places = (drawn[:, :, None] == np.array(partition)[:, None, :]).argmax(2)
    counts = np.bincount(places @ [64, 16, 4, 1], minlength=256)
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert ((counts - clients / 24) ** 2 / (clients / 24)).sum() < scipy.stats.chi2(23).isf(1e-6)


def test_lists_of_clients_and_flat_arrays_are_the_same_data():
    """Whichever way the clients come, also with clients that have no test examples, or other types
    of numbers."""
    train = [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": np.float32([[2]]), "y": np.uint8([1])}]
    test = [{"x": np.zeros((0, 1)), "y": []}, {"x": [[3.0]], "y": [0]}]
    data = FederatedData.from_arrays(train, classes=2, test=test)
    for clients, raws in ((data.train, train), (data.test, test)):
        assert len(clients) == 2
        for own, raw in zip(clients, raws, strict=True):
            assert np.array_equal(own["x"], raw["x"])
            assert np.array_equal(own["y"], raw["y"])
            assert own["y"].dtype == np.int32
            with pytest.raises(ValueError, match="read-only"):
                own["x"][...] = 0
    assert data.train[-1]["x"].tolist() == [[2.0]]
    assert [len(client["y"]) for client in data.train[:1]] == [2]
    again = FederatedData.from_arrays(data.train, classes=2, test=data.test)
    assert again.label_counts.tolist() == data.label_counts.tolist() == [[1, 1], [0, 1]]
    with pytest.raises(IndexError):
        data.train[2]
