"""Models as files: names, structure, other libraries' weights, damage."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.core import InvalidInput
from fedax.models.storage import leaf_names, read_weights

MODELS = {
    "dict": {"dense": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.zeros(3)}},
    "tuple": ({"file": np.ones(2)}, [np.array(3.0)]),
    "lone array": np.arange(4.0),
    "dots in keys": {"a.b": np.ones(1), "a": {"b": np.zeros(2)}},
    "half precision": {"w": jnp.arange(3, dtype=jnp.bfloat16), "n": np.array([1, 2], np.int32)},
    "eight bits": {"w": jnp.arange(3, dtype=jnp.float8_e4m3fn), "v": jnp.ones(2, jnp.float8_e5m2)},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back(name, tmp_path):
    model = MODELS[name]
    path = tmp_path / "new" / "m.safetensors"
    fedax.save_params(model, path, about={"seed": 3})
    back = fedax.load_params(path, like=jax.tree.map(jnp.zeros_like, model))
    assert jax.tree.structure(back) == jax.tree.structure(model)
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(back), strict=True):
        assert jnp.result_type(one) == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert sorted(fedax.load_params(path)) == sorted(leaf_names(model))


def test_any_reader_of_safetensors_reads_it(tmp_path):
    """The format's own library sees the arrays under the names of the tree, and the facts beside
    them."""
    model = MODELS["dict"]
    fedax.save_params(model, tmp_path / "m.safetensors", about={"task": "T"})
    seen = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    assert {name: array.shape for name, array in seen.items()} == {
        "dense.kernel": (2, 3),
        "dense.bias": (3,),
    }
    np.testing.assert_array_equal(seen["dense.kernel"], model["dense"]["kernel"])
    with safetensors.safe_open(tmp_path / "m.safetensors", "numpy") as file:
        facts = json.loads(file.metadata()["fedax"])
    assert (facts["task"], facts["fedax"]) == ("T", fedax.__version__)


NAMES = {"dense.kernel": "0.weight", "dense.bias": "0.bias"}


def test_weights_of_pytorch_and_back(tmp_path):
    """A state dict in single precision, with another entry beside."""
    rng = np.random.default_rng(0)
    state = {"0.weight": (3, 2), "0.bias": (3,), "steps": ()}
    state = {name: rng.normal(size=shape).astype(np.float32) for name, shape in state.items()}
    safetensors.numpy.save_file(state, tmp_path / "torch.safetensors")
    like = {"dense": {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(3)}}
    read = fedax.load_params(tmp_path / "torch.safetensors", like, names=NAMES, strict=False)
    np.testing.assert_array_equal(read["dense"]["kernel"], state["0.weight"])
    assert read["dense"]["kernel"].dtype == jnp.float64
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), read)
    fedax.save_params(single, tmp_path / "back.safetensors", names=NAMES)
    back = safetensors.numpy.load_file(tmp_path / "back.safetensors")
    assert set(back) == set(NAMES.values())
    for name, array in back.items():
        np.testing.assert_array_equal(array, state[name])


@pytest.mark.parametrize("state", [{"kernel": np.ones(2)}, {"mean": np.ones(2)}])
def test_a_state_whose_names_are_those_of_leaves_comes_back(state, tmp_path):
    path = tmp_path / "m.safetensors"
    fedax.save_params(LIKE, path, state=state)
    jax.tree.map(np.testing.assert_array_equal, fedax.load_state(path, state), state)
    (name,) = state
    assert f"state.{name}" in fedax.load_params(path) or name == "mean"


def dropping():
    key = jax.random.key(0)
    linear = eqx.nn.Linear(2, 3, dtype=jnp.float32, key=key)
    return eqx.nn.Sequential([linear, eqx.nn.Dropout(0.25)])


def test_numbers_that_are_settings_of_modules_are_in_no_file(tmp_path):
    """A rate of dropout stays a number: as an array, the module could not be traced."""
    path = tmp_path / "m.safetensors"
    model = dropping()
    fedax.save_params({"net": model, "scale": 2.0}, path)
    assert set(fedax.load_params(path)) == {"net.layers.0.weight", "net.layers.0.bias", "scale"}
    read = fedax.load_params(path, like={"net": model, "scale": 0.0})
    assert (read["net"].layers[1].p, read["net"].layers[1].inference) == (0.25, False)
    assert float(read["scale"]) == 2.0
    # shapes alone, and a loaded module is traced
    like = eqx.filter_eval_shape(dropping)
    fedax.save_params(model, path)
    loaded = fedax.load_params(path, like=like)
    x = eqx.filter_jit(loaded)(jnp.ones(2, jnp.float32), key=jax.random.key(1))
    assert x.shape == (3,)


def test_whole_numbers_do_not_wrap(tmp_path):
    path = tmp_path / "m.safetensors"
    fedax.save_params(300, path)
    with pytest.raises(InvalidInput, match="params: got whole numbers from 300"):
        fedax.load_params(path, jnp.uint8(0))


LIKE = {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}


@pytest.mark.slow
def test_a_run_starts_from_a_model(tmp_path):
    """The half-way step of a client with the examples 1 and 5 goes from w to (w + 3) / 2."""
    task = fedax.Task({"a": 0.0}, lambda w, x: (w["a"] - x) ** 2 / 2, [[1.0, 5.0]])
    options = {"solver": fedax.SGD(0.5), "schedule": fedax.Schedule(batch_size="full"), "rounds": 1}
    begun = fedax.run(fedax.FedAvg(), task, params={"a": 7.0}, **options)
    assert float(begun.params["a"]) == 5.0
    path = tmp_path / "m.safetensors"
    begun.save(path)
    assert read_weights(path).about["outcome"] == "ok"
    for again in (path, str(path)):
        assert float(fedax.run(fedax.FedAvg(), task, params=again, **options).params["a"]) == 4.0
    session = fedax.start(fedax.FedAvg(), task, params={"a": 7.0})
    assert float(session.params(session.init())["a"]) == 7.0
    for wrong, words in (
        ({"b": 7.0}, "name: got 'a'"),
        ({"a": np.zeros(2)}, r"a: got shape \(2,\)"),
    ):
        with pytest.raises(InvalidInput, match=r"run\(params=\.\.\.\).*" + words):
            fedax.run(fedax.FedAvg(), task, params=wrong, **options)


@pytest.mark.slow
def test_checkpoints_know_the_starting_model(tmp_path):
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 5.0]])
    options = {"checkpoint": tmp_path / "c", "rounds": 2}
    fedax.run(fedax.FedAvg(), task, params=7.0, **options)
    with pytest.raises(InvalidInput, match="start"):
        fedax.run(fedax.FedAvg(), task, params=8.0, **options)
