"""The devices of FedProx: two digits each, against a plain transcription of their definition."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax import data

few = settings(max_examples=15, deadline=None, database=None, derandomize=True)


def pairs_transcription(labels, devices, seed):
    """Lists of indices, one statement after another, before the order within a device."""
    state = np.random.RandomState(seed)
    queue = {c: [i for i, label in enumerate(labels) if label == c] for c in range(10)}
    whole = {c: len(queue[c]) for c in range(10)}
    held = [[] for _ in range(devices)]
    for u in range(devices):
        for c in (u % 10, (u + 1) % 10):
            held[u] += [queue[c].pop(0) for _ in range(5)]
    weight = state.lognormal(0, 2.0, (10, devices // 10, 2))
    for u in range(devices):
        for j, c in enumerate((u % 10, (u + 1) % 10)):
            count = int(weight[c, u // 10, j] / weight[c].sum() * (whole[c] - devices))
            held[u] += [queue[c].pop(0) for _ in range(count)]
    return held


@few
@given(tens=st.integers(1, 5), spare=st.integers(0, 200), seed=st.integers(0, 2**32 - 1))
def test_digit_pairs_are_the_generator(tens, spare, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(10), 10 * tens + spare))
    parts = data.digit_pairs(labels, clients=10 * tens, seed=seed)
    expected = pairs_transcription(labels.tolist(), 10 * tens, seed)
    assert [sorted(part.tolist()) for part in parts] == [sorted(held) for held in expected]
    taken = np.concatenate(parts)
    assert len(set(taken.tolist())) == len(taken)
    shuffle = random.Random(seed)
    for part, held in zip(parts, expected):
        shuffle.shuffle(held)
        assert part.tolist() == held


@pytest.mark.slow
def test_mnist_devices(data_folder):
    if not (data_folder / "mnist.npz").is_file():
        pytest.skip("no mnist.npz")
    loaded = data.mnist_devices(folder=data_folder)
    total = int(loaded.sizes.sum() + loaded.test_sizes.sum())
    # 2,000 shares lose half an example each to rounding, with a deviation of at most 1/2: 69,035 in
    # the published draw
    assert abs(total - 69_000) < 5 * np.sqrt(2000) / 2 + 1
    assert loaded.clients == 1000
    for device in (0, 9, 538):
        assert set(np.flatnonzero(loaded.label_counts[device])) <= {device % 10, (device + 1) % 10}
    images = np.concatenate([part["x"] for part in (*loaded.train[:100], *loaded.test[:100])])
    with np.load(data_folder / "mnist.npz") as file:
        raw = np.concatenate([file["x_train"], file["x_test"]])[:, 14, 12].astype(float)
    column = 14 * 28 + 12
    known = (np.arange(256) - raw.mean()) / (raw.std() + 0.001)
    assert np.abs(images[:, column, None] - known).min(axis=1).max() < 1e-4
