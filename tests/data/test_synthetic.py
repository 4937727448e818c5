"""Synthetic(alpha, beta) against a straight transcription of its definition, and against the
published draws."""

import gzip
import json
import random

import numpy as np
import pytest

from fedax.data import synthetic


def transcription(alpha, beta, clients, seed):
    """The generator, one statement after another."""
    state = np.random.RandomState(seed)
    shuffle = random.Random(seed)
    n = [int(draw) + 50 for draw in state.lognormal(mean=4, sigma=2, size=clients)]
    u = state.normal(loc=0, scale=alpha, size=clients)
    B = state.normal(loc=0, scale=beta, size=clients)
    v = [state.normal(B[k], 1, 60) for k in range(clients)]
    sigma = np.zeros((60, 60))
    for j in range(60):
        sigma[j, j] = np.power(j + 1, -1.2)
    data = []
    for k in range(clients):
        W = state.normal(u[k], 1, (60, 10))
        b = state.normal(u[k], 1, 10)
        x = state.multivariate_normal(v[k], sigma, n[k])
        pairs = [(row, int(np.argmax(np.dot(row, W) + b))) for row in x]
        shuffle.shuffle(pairs)
        data.append(pairs)
    return data


@pytest.mark.parametrize(
    ("alpha", "beta", "fraction", "share"), [(0.5, 1.5, 0.1, 0.9), (1.0, 0.0, 0.2, 0.8)]
)
def test_it_is_the_generator(alpha, beta, fraction, share):
    data = synthetic(alpha, beta, clients=7, seed=11, test_fraction=fraction)
    for k, pairs in enumerate(transcription(alpha, beta, 7, 11)):
        cut = int(share * len(pairs))
        for part, expected in ((data.train[k], pairs[:cut]), (data.test[k], pairs[cut:])):
            assert np.array_equal(part["x"], np.stack([x for x, _ in expected]))
            assert part["y"].tolist() == [y for _, y in expected]
    assert data.classes == 10


def test_the_iid_variant_has_one_model_and_centred_inputs():
    clients = 5
    seed = 4
    state = np.random.RandomState(seed)
    sizes = state.lognormal(4, 2, clients).astype(int) + 50
    W = state.normal(0, 1, (60, 10))
    b = state.normal(0, 1, 10)
    data = synthetic(iid=True, clients=clients, seed=seed)
    assert (data.sizes + data.test_sizes).tolist() == sizes.tolist()
    for part in (*data.train, *data.test):
        assert np.array_equal(part["y"], (part["x"] @ W + b).argmax(axis=1))


def published(folder, name):
    path = folder / "fedprox_synthetic" / f"synthetic_{name}_test.json.gz"
    if not path.is_file():
        pytest.skip(f"no published draw at {path}")
    users = json.loads(gzip.decompress(path.read_bytes()))["user_data"].values()
    return [np.array(user["x"]) for user in users]


@pytest.mark.parametrize("kind", ["iid", "1_1"])
def test_inputs_vary_like_the_published_ones(kind, data_folder):
    """Within clients, feature j has variance j^-1.2. Its estimate has n - K degrees of freedom:
    error sqrt(2 / (n - K))."""
    ours = synthetic(1, 1, iid=kind == "iid", seed=2)
    for clients in (published(data_folder, kind), [client["x"] for client in ours.test]):
        centred = np.concatenate([x - x.mean(axis=0) for x in clients])
        freedom = len(centred) - len(clients)
        ratio = (centred**2).sum(axis=0) / freedom * np.arange(1, 61) ** 1.2
        assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / freedom)
        overall = np.concatenate(clients).mean(axis=0)
        if kind == "iid":  # v = 0: means are zero up to their own error
            assert np.abs(overall * np.arange(1, 61) ** 0.6).max() < 5 / np.sqrt(len(centred))
