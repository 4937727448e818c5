"""Clients in whatever form, starting points, signatures; and the mistakes that people make, each
one message."""

import collections
import subprocess
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.errors import TracerArrayConversionError, TracerBoolConversionError

import fedax

RNG = np.random.default_rng(0)
CLIENTS = {
    name: {"x": RNG.normal(size=(n, 2)), "y": RNG.integers(0, 2, n)}
    for name, n in (("anna", 3), ("bert", 5), ("cleo", 2))
}
POOLED = {key: np.concatenate([client[key] for client in CLIENTS.values()]) for key in "xy"}
START = {"b": np.zeros(2), "w": np.zeros((2, 2))}


def logits(p, e):
    return e["x"] @ p["w"] + p["b"][None, :]


def cross_entropy(p, e):
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, e), e["y"])


FORMS = {
    "a list": lambda: list(CLIENTS.values()),
    "a generator": lambda: fedax.FederatedData.from_arrays(client for client in CLIENTS.values()),
    "names": lambda: CLIENTS,
    "any mappings": lambda: types.MappingProxyType(
        {k: collections.UserDict(v) for k, v in CLIENTS.items()}
    ),
    "federated data": lambda: fedax.FederatedData.from_arrays(CLIENTS, classes=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_clients_come_in_any_form(form):
    task = fedax.Task(START, cross_entropy, FORMS[form]())
    assert task.train.sizes.tolist() == [3, 5, 2]
    for key in "xy":
        np.testing.assert_array_equal(task.train.arrays[key], POOLED[key])


def test_test_examples_go_by_name():
    task = fedax.Task(
        START,
        cross_entropy,
        fedax.FederatedData.from_arrays(CLIENTS, test={"cleo": CLIENTS["anna"]}),
    )
    assert task.test.sizes.tolist() == [0, 0, 3]


def test_a_function_makes_another_start_for_every_seed():
    def start(key):
        return {"b": jnp.zeros(2), "w": jax.random.normal(key, (2, 2))}

    def run(seed):
        return fedax.run(fedax.FedAvg(), task, rounds=0, seed=seed, observe=[]).params["w"]

    task = fedax.Task(start, cross_entropy, CLIENTS)
    assert np.array_equal(run(1), run(np.int64(1)))
    assert not np.array_equal(run(1), run(2))


def test_arguments_with_a_default_are_not_the_key():
    seen = []

    def scaled(p, e, scale=3.0):
        seen.append(scale)
        return scale * cross_entropy(p, e)

    def keyed(p, e, scale=3.0, *, key=None):
        seen.append(key)
        return scale * cross_entropy(p, e)

    task = fedax.Task(START, scaled, CLIENTS)
    assert set(seen) == {3.0}
    seen.clear()
    fedax.Task(START, keyed, CLIENTS)
    assert any(key is None for key in seen)
    assert any(key is not None for key in seen)
    found = fedax.run(fedax.FedAvg(), task, rounds=0)
    np.testing.assert_allclose(found.metrics["train_loss"], [3 * np.log(2)])


def test_loss_and_accuracy_are_watched_by_default():
    def accuracy(p, e):
        return (logits(p, e).argmax(1) == e["y"]).astype(float)

    found = fedax.run(
        fedax.FedAvg(),
        fedax.Task(START, cross_entropy, CLIENTS, scores={"accuracy": accuracy}),
        rounds=0,
    )
    assert found.metrics.keys() == {"train_loss", "train_accuracy"}
    np.testing.assert_allclose(found.metrics["train_loss"], [np.log(2)])
    np.testing.assert_allclose(found.metrics["train_accuracy"], [(POOLED["y"] == 0).mean()])


@pytest.mark.slow
def test_numbers_of_modules_within_a_pytree_are_settings():
    """As those of a module alone: a rate of dropout is not trained, a number beside it is."""
    modules = {"dense": eqx.nn.Linear(2, 3, key=jax.random.key(0)), "drop": eqx.nn.Dropout(0.5)}
    params = modules | {"scale": 2.0}

    def loss(p, e, key):
        z = p["drop"](jax.vmap(p["dense"])(e["x"]), key=key, inference=key is None)
        return (p["scale"] * z.sum(1) - e["y"].astype(z.dtype)) ** 2

    for start in (params, lambda key: params):
        task = fedax.Task(start, loss, CLIENTS, l2=0.5)
        trained = task.start(jax.random.key(0))
        assert [np.shape(leaf) for leaf in jax.tree.leaves(trained)] == [(3, 2), (3,), ()]
        whole = task.assembled(trained)
        assert (whole["drop"].p, whole["drop"].inference) == (0.5, False)


@pytest.mark.slow
def test_equinox_modules_keep_their_other_leaves():
    """Of a multilayer perceptron only the real arrays are trained; it comes back whole, and can be
    started from."""

    def loss(z, e):
        return optax.softmax_cross_entropy_with_integer_labels(z, e["y"])

    model = fedax.models.equinox(lambda key: eqx.nn.MLP(2, 2, 4, 1, key=key))
    task = fedax.from_model(model, loss, CLIENTS)
    options = {"solver": fedax.SGD(0.5), "schedule": fedax.Schedule(batch_size="full")}
    found = fedax.run(fedax.FedAvg(), task, rounds=1, **options)
    before = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.fold_in(jax.random.key(0), 0))
    model = found.params

    def step(model, client):
        gradient = eqx.filter_grad(lambda model: loss(jax.vmap(model)(client["x"]), client).mean())(
            model
        )
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.5 * g, gradient))

    steps = [step(before, client) for client in CLIENTS.values()]
    for leaf, *ends in zip(
        *(jax.tree.leaves(eqx.filter(m, eqx.is_inexact_array)) for m in (model, *steps)),
        strict=True,
    ):
        np.testing.assert_allclose(leaf, np.average(ends, axis=0, weights=[3, 5, 2]), rtol=1e-10)
    assert model.activation is before.activation
    assert set(found.metrics) == {"train_loss", "train_accuracy"}
    again = fedax.run(fedax.FedAvg(), task, rounds=0, params=model)
    np.testing.assert_allclose(again.metrics["train_loss"], found.metrics["train_loss"][-1:])


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (lambda p, e: e["z"] @ p["b"], KeyError, "key=None on examples of shapes {'x': (2,), 'y'"),
        (lambda p, e, *, dropout: p, TypeError, "Task(loss=...) fails"),
        (lambda p, e, key: jax.random.uniform(key, (3,)), TypeError, "key=None"),
        (lambda p, e: 0.0 if p["b"][0] > 0 else 1.0, TracerBoolConversionError, "loss"),
        (lambda p, e: np.abs(e["x"] @ p["w"]).sum(1), TracerArrayConversionError, "loss"),
    ],
)
def test_an_error_of_a_loss_is_its_own_with_the_shapes_of_its_examples(loss, kind, words):
    with pytest.raises(kind) as found:
        fedax.Task(START, loss, CLIENTS)
    assert any(words in note for note in found.value.__notes__)


@pytest.mark.slow
def test_libraries_are_imported_where_they_are_used():
    """A run on arrays of one's own, with every room of the library looked into, asks for none of
    the optional ones."""
    code = (
        "import sys, fedax, fedax.data, fedax.tasks, fedax.observe, fedax.models; "
        "fedax.models.nnx;"
        "task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0]]); "
        "fedax.run(fedax.FedAvg(), task, rounds=1);"
        "others = 'flax haiku datasets pandas pyarrow flwr mpi4py dp_accounting "
        "torch'.split();"
        "print([name for name in others if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
