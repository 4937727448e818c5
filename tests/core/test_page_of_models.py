"""The recipes of docs/models.md for predictions give the outputs of the task itself."""

import re
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from sources import ROOT

PAGE = (ROOT / "docs" / "models.md").read_text()
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
CLIENTS = {
    name: {"x": X[:n] + 1, "y": np.zeros(n, np.float32)} for name, n in (("anna", 4), ("bert", 2))
}


def squares(z, e):
    return (z[:, 0] - e["y"]) ** 2


def flax_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.head = nnx.Linear(3, 1, rngs=rngs)

        def __call__(self, x):
            return self.head(self.dropout(self.norm(x)))

    return fedax.from_model(fedax.models.nnx(Net), squares, CLIENTS), {
        "nnx": nnx,
        "model": Net(nnx.Rngs(7)),
    }


def flax_linen():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            x = nn.BatchNorm(use_running_average=not train)(x)
            return nn.Dense(1)(nn.Dropout(0.5, deterministic=not train)(x))

    model = fedax.models.linen(Net(), X, train="train")
    return fedax.from_model(model, squares, CLIENTS), {"module": Net()}


def haiku():
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    def net(x, is_training=False):
        return hk.Linear(1)(hk.BatchNorm(True, True, 0.9)(x, is_training))

    model = fedax.models.haiku(net, X, train="is_training")
    return fedax.from_model(model, squares, CLIENTS), {"hk": hk, "function": net}


def equinox():
    class Net(eqx.Module):
        head: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __init__(self, key):
            self.head = eqx.nn.Linear(3, 1, key=key)
            self.dropout = eqx.nn.Dropout(0.5)

        def __call__(self, x, key=None):
            return self.head(self.dropout(x, key=key))

    model = fedax.models.equinox(Net, key="key")
    return fedax.from_model(model, squares, CLIENTS), {"eqx": eqx}


def equinox_with_state():
    class Net(eqx.Module):
        head: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.head = eqx.nn.Linear(3, 1, key=key)
            self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")

        def __call__(self, x, state):
            x, state = self.norm(x, state)
            return self.head(x), state

    model = fedax.models.equinox(eqx.nn.make_with_state(Net))
    return fedax.from_model(model, squares, CLIENTS), {"eqx": eqx}


def torch():
    library = pytest.importorskip("torch", reason="needs PyTorch: make torch")
    nn = library.nn

    def net():
        return nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))

    task = fedax.from_model(fedax.models.torch(net(), X), squares, CLIENTS)
    return task, {"module": net(), "x": library.from_numpy(X)}


ROWS = {
    "`nnx`": flax_nnx,
    "`linen`": flax_linen,
    "`haiku`": haiku,
    "`equinox`": equinox,
    "`equinox`, with a state": equinox_with_state,
    "`torch`": torch,
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_recipes_for_predictions_are_what_the_task_predicts(row, as_users_run):
    (recipe,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", PAGE, re.MULTILINE)
    *statements, expression = re.findall("`([^`]+)`", recipe)
    task, names = ROWS[row]()
    params = task.assembled(task.start(jax.random.key(1)))

    # statistics as after training, other than those of a new module
    def trained(leaf):
        return leaf + 0.5 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    state = jax.tree.map(trained, task.state)
    history = SimpleNamespace(params=params, final_state=state)
    history.state_dict = lambda: fedax.History.state_dict(history)
    names = {"jax": jax, "x": X, "history": history} | names
    for statement in statements:
        exec(statement, names)
    outputs = eval(expression, names)
    found = np.asarray(outputs.detach() if row == "`torch`" else outputs)
    expected = task.at(state).predict(params, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
