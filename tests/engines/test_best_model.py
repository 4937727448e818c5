"""The best model of a run that is continued, with leaves that are not trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax

ONE = fedax.Simulation(devices=1)
FULL = fedax.Schedule(steps=1, batch_size="full")
SETTING = {"schedule": FULL, "engine": ONE, "observe": [fedax.observe.TrainLoss()]}
FROZEN = {
    "real": {"base": np.float32([1.0, -1.0])},
    "mixed": {
        "base": np.float32([1.0, -1.0]),
        "count": np.int32([3, 4]),
        "half": jnp.full(2, 0.5, jnp.bfloat16),
    },
}


@pytest.fixture(autouse=True)
def in_float32():
    with jax.enable_x64(False):
        yield


def task_with(frozen):
    """Three named clients with 1, 2 and 3 examples; the trained leaf is the last one."""
    rows = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    clients = {"c": rows[:1], "a": rows[1:3], "b": rows[3:]}
    params = {**frozen, "w": np.float32([2.0, 2.0])}

    def loss(params, x):
        return jnp.sum(((params["w"] + params["base"])[None] - x) ** 2, -1) / 2

    return fedax.Task(params, loss, clients, frozen=list(frozen))


def run(task, rounds=4, **options):
    return fedax.run(
        fedax.FedAvg(), task, rounds=rounds, **{"solver": fedax.SGD(0.1)} | SETTING | options
    )


def same(one, other):
    """The same model, with the types of all leaves."""
    assert (one.metric, one.round, one.value) == (other.metric, other.round, other.value)
    leaves = [jax.tree.leaves(eqx.filter(best.params, eqx.is_array)) for best in (one, other)]
    assert jax.tree.structure(one.params) == jax.tree.structure(other.params)
    for a, b in zip(*leaves, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, float), np.asarray(b, float))


@pytest.mark.slow
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_a_checkpoint_has_the_trained_leaves_of_the_best_model(frozen, tmp_path):
    """And of the best model of a history in memory; no later model is better than the first."""
    options = {"keep_best": "train_loss", "solver": fedax.SGD(5.0)}
    straight = run(task_with(frozen), **options, checkpoint=tmp_path)
    assert straight.best.round == 0
    same(run(task_with(frozen), **options, checkpoint=tmp_path).best, straight.best)
    same(run(task_with(frozen), **options, resume=straight, rounds=6).best, straight.best)
