"""What solvers and second models leave to methods: the state of a model with batch norm, step sizes
that a method takes itself, the weight of gradients under a small pull."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import fedax
from problems import vector

CHUNKS = fedax.Simulation(chunk=2, devices=1)


class Net(eqx.Module):
    """A network of 5 inputs with batch norm between two layers."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Linear(5, 4, key=key)
        self.last = eqx.nn.Linear(4, 3, key=jax.random.fold_in(key, 1))
        self.norm = eqx.nn.BatchNorm(4, "batch", momentum=0.9, mode="batch")

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jax.nn.relu(x)), state


def numbers(tree):
    """The real numbers of a pytree, one after the other."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    return np.concatenate([np.ravel(x) for x in leaves if x.dtype.kind == "f"])


def normed(sizes=(8, 12, 4, 16)):
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(k, 1, (n, 5)).astype(np.float32),
            "y": rng.integers(0, 3, n).astype(np.int32),
        }
        for k, n in enumerate(sizes)
    ]
    return fedax.from_model(
        fedax.models.equinox(eqx.nn.make_with_state(Net)),
        lambda z, e: optax.softmax_cross_entropy_with_integer_labels(z, e["y"]),
        clients,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_run")
def test_a_second_model_leaves_the_statistics_of_the_first():
    """Ditto, APFL and a sharpness of 0 train FedAvg's global model, with its batch statistics."""
    solver = fedax.SGD(0.05)
    schedule = fedax.Schedule(cohort=3, steps=3, batch_size=4)

    def run(method, solver=solver):
        found = fedax.run(
            method, normed(), solver=solver, schedule=schedule, rounds=2, engine=CHUNKS
        )
        return numbers(found.params), numbers(found.model_state)

    params, state = run(fedax.FedAvg())
    assert np.abs(state).max() > 0.1
    for method, other_solver in (
        (fedax.Ditto(lam=0.1), solver),
        (fedax.APFL(alpha=0.5), solver),
        (fedax.FedSAM(rho=0.0), solver),
        (fedax.FedAvg(), fedax.SGD(0.05, sharpness=0.0)),
    ):
        found = run(method, other_solver)
        np.testing.assert_allclose(found[0], params, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found[1], state, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("mu", [1e-1, 1e-7])
def test_fednova_with_a_tiny_proximal_term_in_float32(mu):
    """(1 - (1 - a)^K) / a for a from 0.01 to 1e-13: 1 - a is 1 in float32 below 6e-8."""
    b = np.array([1.0, 2.0, 5.0, -1.0], np.float32)
    sizes = [4, 8, 12, 40]
    lr = 0.1
    task = fedax.Task(
        np.float32(0),
        lambda w, e: (w - e["x"]) ** 2 / 2,
        [{"x": np.full(n, x)} for x, n in zip(b, sizes, strict=True)],
    )
    found = fedax.run(
        fedax.FedNova(mu=mu),
        task,
        solver=fedax.SGD(lr),
        schedule=fedax.Schedule(epochs=2, batch_size=4),
        rounds=3,
    )
    w = 0.0
    steps = np.array([2 * n // 4 for n in sizes])
    weights = np.array(sizes) / sum(sizes)
    for _ in range(3):
        # K steps on a bowl with a pull to w end at a known point
        ends = w + (b - w) / (1 + mu) * (1 - (1 - lr * (1 + mu)) ** steps)
        norms = -np.expm1(steps * np.log1p(-lr * mu)) / (lr * mu) if mu else steps
        w = w + weights @ norms * (weights @ ((ends - w) / norms))
    assert np.asarray(found.params).dtype == np.float32
    np.testing.assert_allclose(vector(found), w, rtol=2e-6)
