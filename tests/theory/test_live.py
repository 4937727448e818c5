"""Runs of the library held to the theorems: FedDANE's decrease, DFedAvgM's consensus."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import Task
from fedax.data import FederatedData
from fedax.theory import dfedavgm, feddane
from random_problems import quadratics


def quadratic(w, examples, key):
    off = w[None] - examples["b"]
    return jnp.einsum("ni,nij,nj->n", off, examples["a"], off) / 2


def task_of(q, start=3.0):
    clients = [{"a": a[None], "b": b[None]} for a, b in zip(q.a, q.b, strict=True)]
    return Task(
        lambda key: jnp.full(q.b.shape[1], start), quadratic, FederatedData.from_arrays(clients)
    )


@pytest.mark.slow
def test_feddane_keeps_what_is_promised_with_all_devices():
    """All devices make a round its own expectation; what a promise needs is mu, and a small one has
    none."""
    q = quadratics(np.random.default_rng(0), spread=0.1, lowest=0.3)
    observers = [fedax.observe.Objective(), fedax.observe.Dissimilarity()]
    for mu, said in (
        (feddane.best_mu(smoothness=q.smoothness, dissimilarity=1.1).mu, True),
        (0.1, False),
    ):
        options = {"solver": fedax.Exact(), "rounds": 5, "observe": observers, "observe_every": 1}
        history = fedax.run(
            fedax.FedDANE(mu=mu), task_of(q), schedule=fedax.Schedule(cohort=5), **options
        )
        metrics = {
            name: np.asarray(history.metrics[name])
            for name in ("objective", "gradient_norm", "dissimilarity")
        }
        rho = np.array(
            [
                feddane.decrease(mu=mu, smoothness=q.smoothness, dissimilarity=max(b, 1.0))
                for b in metrics["dissimilarity"][:-1].tolist()
            ]
        )
        assert (rho > 0).all() == said
        assert (rho > 0).any() == said
        promised = np.maximum(rho, 0) * metrics["gradient_norm"][:-1] ** 2
        assert np.all(-np.diff(metrics["objective"]) >= promised)


def test_consensus_of_a_run_is_below_its_bound():
    """Losses whose gradients are bounded by construction, on the library's own ring with its own
    momentum."""
    slopes = np.random.default_rng(0).normal(size=(8, 3))

    def linear(w, examples, key):
        return examples["g"] @ w

    task = Task(
        lambda key: jnp.zeros(3),
        linear,
        FederatedData.from_arrays([{"g": g[None]} for g in slopes]),
    )
    options = {
        "solver": fedax.SGD(1e-2, momentum=0.5),
        "schedule": fedax.Schedule(steps=4, batch_size="full"),
        "rounds": 60,
    }
    history = fedax.run(
        fedax.DFedAvgM(),
        task,
        observe=[fedax.observe.ConsensusSquare()],
        observe_every=10,
        **options,
    )
    found = np.asarray(history.metrics["consensus_square"])
    nodes = np.zeros((8, 3))
    w = np.asarray(fedax.Graph.ring(8).matrix())
    worth = dfedavgm.effective_steps(local_steps=4, momentum=0.5)
    for t in range(1, 61):
        nodes = w @ (nodes - 1e-2 * worth * slopes)
        if t % 10 == 0:
            assert found[t // 10] == pytest.approx(
                np.mean(((nodes - nodes.mean(0)) ** 2).sum(-1)), rel=1e-9
            )
    spread = float(np.mean(np.sum((slopes - slopes.mean(0)) ** 2, axis=1)))
    setting = dfedavgm.Setting(
        1e-3,
        0.0,
        spread,
        float(np.linalg.norm(slopes, axis=1).max()),
        4,
        1e-2,
        0.5,
        fedax.Graph.ring(8).lam,
    )
    assert 0 < found[-1] <= dfedavgm.consensus_bound(setting)


def test_with_a_server_there_is_consensus():
    history = fedax.run(
        fedax.FedAvg(),
        task_of(quadratics(np.random.default_rng(0))),
        rounds=1,
        solver=fedax.SGD(0.1),
        observe=[fedax.observe.ConsensusSquare()],
    )
    assert np.all(np.asarray(history.metrics["consensus_square"]) == 0)
