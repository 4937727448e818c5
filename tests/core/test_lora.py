"""Low-rank adapters: exact averages, what is sent, and merged weights, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.core import InvalidInput

RNG = np.random.default_rng(0)
CLIENTS = [{"x": RNG.normal(size=(n, 6)), "y": RNG.normal(size=(n, 4))} for n in (5, 9)]
BASE = {"dense": {"kernel": RNG.normal(size=(6, 4)), "bias": np.ones(4)}}
FULL = {"solver": fedax.SGD(0.1), "schedule": fedax.Schedule(steps=3, batch_size="full")}


def loss(p, e):
    return ((e["x"] @ p["dense"]["kernel"] + p["dense"]["bias"][None, :] - e["y"]) ** 2).sum(1) / 2


TASK = fedax.Task(
    BASE,
    loss,
    CLIENTS,
    scores={"error": loss},
    predictor=lambda p, e: e["x"] @ p["dense"]["kernel"],
)

with jax.enable_x64(False):
    TASK_32 = fedax.Task(jax.tree.map(np.float32, BASE), loss, CLIENTS)


@pytest.mark.slow
def test_the_mean_of_adapters_is_the_mean_of_the_clients_models():
    history = fedax.run(
        fedax.FedAvg(), fedax.lora(TASK, rank=2, targets="*.kernel", alpha=3.0), rounds=1, **FULL
    )
    a = np.asarray(history.params.left["dense.kernel"])
    models = []
    for client in CLIENTS:
        b = np.zeros((2, 4))
        for _ in range(3):
            kernel = BASE["dense"]["kernel"] + 1.5 * a @ b
            error = client["x"] @ kernel + 1 - client["y"]
            b -= 0.1 * 1.5 * a.T @ (client["x"].T @ error) / len(error)
        models.append(BASE["dense"]["kernel"] + 1.5 * a @ b)
    mean = np.average(models, axis=0, weights=(5, 9))
    np.testing.assert_allclose(history.params.merged()["dense"]["kernel"], mean, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(history.params.merged()["dense"]["bias"], 1)
    np.testing.assert_array_equal(history.params.base["dense"]["kernel"], BASE["dense"]["kernel"])
    assert np.linalg.matrix_rank(mean - BASE["dense"]["kernel"]) == 2
    assert history.bits.up[0] == 2 * 2 * 4 * 64


@pytest.mark.slow
def test_both_factors_are_trained_and_sent_where_asked():
    history = fedax.run(
        fedax.FedAvg(), fedax.lora(TASK, 2, targets="*.kernel", average="factors"), rounds=2, **FULL
    )
    assert history.bits.up[0] == 2 * 2 * (6 + 4) * 64
    exact = fedax.lora(TASK, 2, targets="*.kernel")
    assert abs(history.params.left["dense.kernel"] - exact.frozen.left["dense.kernel"]).max() > 1e-3


def test_a_weight_has_outputs_first():
    def turned(p, e):
        return ((e["x"] @ p["weight"].T - e["y"]) ** 2).sum(1)

    task = fedax.lora(
        fedax.Task({"weight": np.zeros((4, 6))}, turned, CLIENTS), 3, targets="weight"
    )
    trained = task.start(jax.random.key(0))
    assert (trained.left["weight"].shape, trained.right["weight"]) == ((4, 3), None)


@pytest.mark.slow
def test_a_pretrained_transformer_learns_by_its_attention(as_users_run):
    language_model = pytest.importorskip("language_model", reason="needs Flax")
    text = "to be or not to be that is the question " * 4
    clients = [language_model.sequences(text[k:], "".join(sorted(set(text))), 8) for k in range(3)]
    network = language_model.Transformer(15, width=16)
    model = fedax.models.linen(network, clients[0]["x"])
    task = fedax.from_model(model, language_model.loss, clients)
    adapted = fedax.lora(task, 4, targets=["*.attention.kernel", "*.wide.kernel"])
    settings = {
        "solver": fedax.Optax(optax.adam(0.02)),
        "schedule": fedax.Schedule(epochs=2, batch_size=10),
        "rounds": 5,
    }
    found = fedax.run(fedax.FedAvg(), adapted, **settings)
    whole = fedax.run(fedax.FedAvg(), task, **settings)
    assert found.metrics["train_loss"][-1] < found.metrics["train_loss"][0] - 0.03
    assert found.bits.up[0] * 8 < whole.bits.up[0]
    merged = found.params.merged()
    assert jax.tree.structure(merged) == jax.tree.structure(whole.params)
    examples = {name: jnp.asarray(values) for name, values in clients[0].items()}
    losses = (
        task.loss(merged, examples, None),
        adapted.functions["loss"](found.params, examples, None),
    )
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_factors_are_drawn_apart_from_a_base_of_the_same_seed():
    """No A is a scaled copy of the first entries of its matrix."""
    model = fedax.models.MLP((6, 5, 4, 2))
    clients = [{"x": CLIENTS[0]["x"], "y": np.arange(5) % 2}]
    task = fedax.classification(fedax.FederatedData.from_arrays(clients, classes=2), model)
    for seed in (0, 3):
        adapted = fedax.lora(task, 2, targets="*.kernel", seed=seed)
        base = model.init(jax.random.key(seed))[0]
        for i, layer in enumerate(base):
            np.testing.assert_array_equal(adapted.frozen.base[i].kernel, layer.kernel)
            a = np.ravel(adapted.frozen.left[f"{i}.kernel"])
            assert abs(np.corrcoef(a, np.ravel(layer.kernel)[: a.size])[0, 1]) < 0.95


def centred(p, e, *, state, training):
    """The loss of inputs less their mean over the minibatch, or less the running mean."""
    mean = e["x"].mean(0) if training else state["mean"]
    losses = loss(p, e | {"x": e["x"] - mean[None, :]})
    return (losses, {"mean": 0.5 * state["mean"] + 0.5 * mean}) if training else losses


@pytest.mark.slow
def test_a_pretrained_model_brings_its_state_in_every_form(tmp_path):
    """The run of the adapters starts at the loss where the pretrained model is."""
    task = fedax.Task(BASE, centred, CLIENTS[:1], state={"mean": np.zeros(6)})
    settings = FULL | {"observe": [fedax.observe.TrainLoss()]}
    pretrained = fedax.run(fedax.FedAvg(), task, rounds=2, **settings)
    pretrained.save(tmp_path / "model.safetensors")
    whole = {"dense.kernel": pretrained.params["dense"]["kernel"], **pretrained.model_state}
    whole["dense.bias"] = pretrained.params["dense"]["bias"]
    for params in (pretrained, str(tmp_path / "model.safetensors"), whole):
        adapted = fedax.lora(task, 2, targets="*.kernel", params=params)
        begun = fedax.run(fedax.FedAvg(), adapted, rounds=0, **settings)
        np.testing.assert_array_equal(adapted.state["mean"], pretrained.model_state["mean"])
        assert begun.metrics["train_loss"][0] == pretrained.metrics["train_loss"][-1]
    with pytest.warns(UserWarning, match=r"lora\(params=...\): .*without the model's state"):
        fedax.lora(task, 2, targets="*.kernel", params=pretrained.params)
    with pytest.raises(
        InvalidInput, match=r"no array for a leaf, name: got '(left|right).dense.kernel'"
    ):
        fedax.run(fedax.FedAvg(), adapted, rounds=0, params=pretrained)


def test_a_pretrained_model_replaces_frozen_leaves():
    task = fedax.Task(BASE, loss, CLIENTS, frozen="bias")
    given = jax.tree.map(lambda leaf: leaf + 1, BASE)
    adapted = fedax.lora(task, 2, targets="*.kernel", params=given)
    jax.tree.map(np.testing.assert_array_equal, adapted.frozen.base, given)


def layers(p, e):
    y = e["x"]
    for layer in p[:-1]:
        y = jnp.tanh(y @ layer["kernel"])
    return ((y @ p[-1]["kernel"] - e["y"]) ** 2).sum(1) / 2


@pytest.mark.slow
@pytest.mark.parametrize("average", ["factors", "exact"])
def test_the_last_layer_of_adapters_is_that_of_the_model(average):
    """Of eleven layers, whose names sort 0, 1, 10, 2, ...; the last one stays with the clients."""
    kernels = [{"kernel": np.eye(6, 6 if i < 10 else 4)} for i in range(11)]
    task = fedax.Task(tuple(kernels), layers, CLIENTS)
    targets = ["1.kernel", "2.kernel", "10.kernel"]
    adapted = fedax.lora(task, 1, targets=targets, average=average)
    history = fedax.run(fedax.FedPer(), adapted, rounds=2, personal=True, **FULL)
    own = history.personal
    for sides in (own.left, own.right) if average == "factors" else (own.right,):
        differs = {name: np.ptp(np.asarray(rows), axis=0).any() for name, rows in sides.items()}
        assert differs == {"1.kernel": False, "2.kernel": False, "10.kernel": True}
    shared = 2 * (6 + 6 if average == "factors" else 6)
    bits = 8 * history.params.right["1.kernel"].dtype.itemsize
    assert history.bits.up[0] == len(CLIENTS) * shared * bits
    # by name it is the same part
    named = fedax.run(fedax.FedPer(head="10.kernel"), adapted, rounds=2, **FULL)
    assert all(map(np.array_equal, jax.tree.leaves(named.params), jax.tree.leaves(history.params)))


@pytest.mark.parametrize(
    ("change", "form"), [("seed", "history"), ("alpha", "file"), ("base", "history")]
)
def test_adapters_go_on_with_their_own_model_alone(tmp_path, change, form):
    """Another A, factor or base would be another model."""
    with jax.enable_x64(False):
        options = {"targets": "*.kernel", "seed": 0, "alpha": 2.0, "params": BASE}
        adapted = fedax.lora(TASK_32, 2, **options)
        history = fedax.run(fedax.FedAvg(), adapted, rounds=3, **FULL)
        history.save(tmp_path / "model.safetensors")
        params = history if form == "history" else str(tmp_path / "model.safetensors")
        same = fedax.run(fedax.FedAvg(), adapted, rounds=0, params=params, **FULL)
        assert same.metrics["train_loss"][0] == history.metrics["train_loss"][-1]
        other = {"seed": 1, "alpha": 8.0, "params": jax.tree.map(lambda leaf: leaf + 1, BASE)}
        key = "params" if change == "base" else change
        task = fedax.lora(TASK_32, 2, **options | {key: other[key]})
        with pytest.raises(InvalidInput, match="was trained with another"):
            fedax.run(fedax.FedAvg(), task, rounds=0, params=params, **FULL)
