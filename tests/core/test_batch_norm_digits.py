"""A CNN with batch norm on digits that differ between clients: averaged statistics and FedBN, as
Flax and Optax compute them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import fedax

nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
RATE = 0.1
BATCH = 8
ROUNDS = 3


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(4 * 16, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x.reshape(-1, 8, 8, 1))))
        return self.head(nnx.avg_pool(x, (2, 2), (2, 2)).reshape(len(x), -1))


def cross_entropy(outputs, examples):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])


def clients(sizes, contrast, light):
    """Three labels each, in order, seen in the client's own light; and as many examples for
    tests."""
    pictures, labels = load_digits(return_X_y=True)
    train = []
    test = []
    for k, (n, a, b) in enumerate(zip(sizes, contrast, light, strict=True)):
        rows = np.flatnonzero(np.isin(labels, [(3 * k + i) % 10 for i in range(3)]))
        for part, own in ((train, rows[:n]), (test, rows[n : 2 * n])):
            part.append({"x": a * pictures[own] / 16 + b, "y": labels[own]})
    return train, test


def transcription(train, own):
    """Rounds of everybody with Flax's model and Optax's steps; leaves and statistics whose path has
    a word of `own` stay."""
    graph, start, statistics = nnx.split(
        CNN(nnx.Rngs(jax.random.fold_in(jax.random.key(0), 0))), nnx.Param, nnx.BatchStat
    )
    optimizer = optax.sgd(RATE)

    @jax.jit
    def step(params, statistics, x, y):
        def loss(params):
            # variables of this trace
            model = nnx.merge(graph, *jax.tree.map(lambda leaf: leaf, (params, statistics)))
            model.train()
            value = optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
            return value, nnx.split(model, nnx.Param, nnx.BatchStat)[2]

        gradients, after = jax.grad(loss, has_aux=True)(params)
        return optax.apply_updates(
            params, optimizer.update(gradients, optimizer.init(params))[0]
        ), after

    def kept(path):
        return any(word in jax.tree_util.keystr(path) for word in own)

    weights = [len(client["y"]) for client in train]
    models = [(start, statistics)] * len(train)
    for _ in range(ROUNDS):
        ends = []
        for client, (params, state) in zip(train, models, strict=True):
            x = client["x"].astype(np.float32)
            y = client["y"]
            for begin in range(0, len(y), BATCH):
                # a short minibatch is filled with the client's first examples
                rows = np.arange(begin, begin + BATCH) % len(y)
                params, state = step(params, state, x[rows], y[rows])
            ends.append((params, state))
        mean = jax.tree.map(
            lambda *leaves: jnp.asarray(
                np.average(leaves, axis=0, weights=weights), leaves[0].dtype
            ),
            *ends,
        )
        choose = jax.tree_util.tree_map_with_path
        models = [
            choose(lambda path, mine, all_: mine if kept(path) else all_, end, mean) for end in ends
        ]
    return models


CASES = {
    "averaged": (fedax.FedAvg(), "average", ()),
    "FedBN": (fedax.FedBN(), "local", ("norm",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_three_rounds_are_those_of_flax_and_optax(case):
    method, policy, own = CASES[case]
    train, _ = clients((21, 16, 30), (1.0, -1.0, 3.0), (0.0, 0.5, -1.0))  # short minibatches too
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = transcription(train, own)
        task = fedax.from_model(fedax.models.nnx(CNN), cross_entropy, train, state_policy=policy)
        schedule = fedax.Schedule(epochs=1, batch_size=BATCH, order="given")
        engine = fedax.Simulation(devices=1)
        found = fedax.run(
            method,
            task,
            solver=fedax.SGD(RATE),
            schedule=schedule,
            rounds=ROUNDS,
            engine=engine,
            observe=[],
            personal=True,
        )
    for k, (params, statistics) in enumerate(expected):
        state = found.model_state if policy == "average" else found.model_state.of(k)
        pairs = (
            (jax.tree.map(lambda rows, k=k: rows[k], found.personal), params),
            (state, statistics),
        )
        for mine, theirs in pairs:
            for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)
    moved = [
        np.ptp([jax.tree.leaves(statistics)[0] for _, statistics in expected], axis=0).max() > 0.1
    ]
    assert moved == [policy == "local"]
