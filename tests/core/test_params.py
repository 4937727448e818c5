"""Models as files: names, structure, other libraries' weights, damage."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.core import InvalidInput, WriteFailed
from fedax.models.storage import leaf_names, read_weights, to_bytes

MODELS = {
    "dict": {"dense": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.zeros(3)}},
    "tuple": ({"file": np.ones(2)}, [np.array(3.0)]),
    "lone array": np.arange(4.0),
    "dots in keys": {"a.b": np.ones(1), "a": {"b": np.zeros(2)}},
    "half precision": {"w": jnp.arange(3, dtype=jnp.bfloat16), "n": np.array([1, 2], np.int32)},
    "eight bits": {"w": jnp.arange(3, dtype=jnp.float8_e4m3fn), "v": jnp.ones(2, jnp.float8_e5m2)},
}


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back(name, ending, tmp_path):
    model, path = MODELS[name], tmp_path / "new" / f"m.{ending}"
    fedax.save_params(model, path, about={"seed": 3})
    back = fedax.load_params(path, like=jax.tree.map(jnp.zeros_like, model))
    assert jax.tree.structure(back) == jax.tree.structure(model)
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(back), strict=True):
        assert jnp.result_type(one) == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert list(fedax.load_params(path)) == leaf_names(model)


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
    assert (facts["task"], facts["fedax"], facts["leaves"]) == (
        "T",
        fedax.__version__,
        ["dense.bias", "dense.kernel"],
    )
    assert to_bytes(model, about={"task": "T"}) == (tmp_path / "m.safetensors").read_bytes()


NAMES = {"dense.kernel": "0.weight", "dense.bias": "0.bias", "filters": "1.weight"}
AXES = {"dense.kernel": (1, 0), "filters": (2, 3, 1, 0)}


def test_weights_of_pytorch_and_back(tmp_path):
    """A state dict has (out, in) and (out, in, height, width) in single precision."""
    rng = np.random.default_rng(0)
    state = {"0.weight": (3, 2), "0.bias": (3,), "1.weight": (4, 3, 5, 5), "steps": ()}
    state = {name: rng.normal(size=shape).astype(np.float32) for name, shape in state.items()}
    safetensors.numpy.save_file(state, tmp_path / "torch.safetensors")
    like = {
        "dense": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)},
        "filters": jnp.zeros((5, 5, 3, 4)),
    }
    read = fedax.load_params(
        tmp_path / "torch.safetensors", like, names=NAMES, transpose=AXES, strict=False
    )
    x = rng.normal(size=2)
    np.testing.assert_allclose(x @ read["dense"]["kernel"], state["0.weight"] @ x)
    assert float(read["filters"][1, 2, 0, 3]) == state["1.weight"][3, 0, 1, 2]
    assert read["filters"].dtype == jnp.float64
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), read)
    fedax.save_params(single, tmp_path / "back.safetensors", names=NAMES.get, transpose=AXES)
    back = safetensors.numpy.load_file(tmp_path / "back.safetensors")
    assert set(back) == set(NAMES.values())
    for name, array in back.items():
        np.testing.assert_array_equal(array, state[name])


def dropping():
    key = jax.random.key(0)
    linear = eqx.nn.Linear(2, 3, dtype=jnp.float32, key=key)
    return eqx.nn.Sequential([linear, eqx.nn.Dropout(0.25)])


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_numbers_that_are_settings_of_modules_are_in_no_file(ending, tmp_path):
    """A rate of dropout stays a number: as an array, the module could not be traced."""
    path, model = tmp_path / f"m.{ending}", dropping()
    fedax.save_params({"net": model, "scale": 2.0}, path)
    assert list(fedax.load_params(path)) == ["net.layers.0.weight", "net.layers.0.bias", "scale"]
    read = fedax.load_params(path, like={"net": model, "scale": 0.0})
    assert (read["net"].layers[1].p, read["net"].layers[1].inference) == (0.25, False)
    assert float(read["scale"]) == 2.0
    # shapes alone, and a loaded module is traced
    like = eqx.filter_eval_shape(dropping)
    fedax.save_params(model, path)
    loaded = fedax.load_params(path, like=like)
    x = eqx.filter_jit(loaded)(jnp.ones(2, jnp.float32), key=jax.random.key(1))
    assert x.shape == (3,)


def test_settings_of_modules_in_older_files_are_passed_over(tmp_path):
    model, path = dropping(), tmp_path / "old.safetensors"
    arrays = {"weight": np.ones((3, 2), np.float32), "bias": np.ones(3, np.float32)}
    arrays = {f"layers.0.{name}": array for name, array in arrays.items()}
    old = arrays | {"layers.1.p": np.array(0.5), "layers.1.inference": np.array(False)}
    safetensors.numpy.save_file(old, path)
    read = fedax.load_params(path, like=model)
    assert (read.layers[1].p, read.layers[1].inference) == (0.25, False)
    np.testing.assert_array_equal(read.layers[0].weight, arrays["layers.0.weight"])
    safetensors.numpy.save_file(arrays | {"layers.1.q": np.array(0.5)}, path)
    with pytest.raises(InvalidInput, match=r"arrays that no leaf takes: \['layers.1.q'\]"):
        fedax.load_params(path, like=model)


LIKE = {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}


@pytest.mark.parametrize(
    ("arrays", "arguments", "words"),
    [
        (
            {"kernel": np.zeros((3, 2)), "bias": np.zeros(3)},
            {},
            r"kernel: got shape \(3, "
            r"2\).*transpose=\['kernel'\]",
        ),
        ({"kernel": np.zeros((2, 3))}, {}, "no array for the leaf 'bias'"),
        (
            {"kernal": np.zeros((2, 3)), "bias": np.zeros(3)},
            {},
            "leaf 'kernel'.*Did you mean 'kernal'",
        ),
        (
            {"kernel": np.zeros((2, 3)), "bias": np.zeros(3), "more": np.zeros(1)},
            {},
            "no leaf takes: .*'more'.*strict=False",
        ),
        (
            {"kernel": np.zeros((2, 3)), "bias": np.zeros(3, int)},
            {},
            "bias: got int64; allowed: real numbers",
        ),
        (
            {"kernel": np.zeros((2, 3)), "bias": np.zeros(3)},
            {"names": {"kernl": "a"}},
            "Did you mean 'kernel'",
        ),
        (
            {"kernel": np.zeros((2, 3)), "bias": np.zeros(3)},
            {"transpose": {"kernel": (0, 0)}},
            "the axes 0 to 1",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(arrays, arguments, words, tmp_path):
    safetensors.numpy.save_file(arrays, tmp_path / "m.safetensors")
    with pytest.raises(InvalidInput, match=words):
        fedax.load_params(tmp_path / "m.safetensors", LIKE, **arguments)


def test_numbers_that_the_type_cannot_hold_are_refused(tmp_path):
    fedax.save_params(np.array([1e300]), tmp_path / "m.npz")
    with pytest.raises(InvalidInput, match="beyond the range"):
        fedax.load_params(tmp_path / "m.npz", np.zeros(1, np.float32))


def test_damage_is_seen(tmp_path):
    path = tmp_path / "m.safetensors"
    whole = to_bytes(LIKE)
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    for content in (whole[:-1], bytes(flipped), b"", b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(
            InvalidInput,
            match=r"m\.safetensors: no safetensors file, or a "
            r"damaged one",
        ):
            fedax.load_params(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        fedax.load_params(tmp_path / "missing.npz")
    with pytest.raises(InvalidInput, match=r"end in \.safetensors or \.npz\. PyTorch writes"):
        fedax.load_params(tmp_path / "model.pt")
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match="cannot be written"):
        fedax.save_params(LIKE, tmp_path / "file" / "m.npz")


@pytest.mark.slow
def test_a_run_starts_from_a_model(tmp_path):
    """The half-way step of a client with the examples 1 and 5 goes from w to (w + 3) / 2."""
    task = fedax.tasks.from_loss(
        lambda w, x: (w["a"] - x) ** 2 / 2, {"a": 0.0}, clients=[[1.0, 5.0]]
    )
    options = {"solver": fedax.SGD(0.5), "schedule": fedax.Schedule(batch_size="full"), "rounds": 1}
    begun = fedax.run(fedax.FedAvg(), task, params={"a": 7.0}, **options)
    assert float(begun.params["a"]) == 5.0
    begun.save(tmp_path / "m.safetensors")
    assert read_weights(tmp_path / "m.safetensors").about["outcome"] == "ok"
    for again in (tmp_path / "m.safetensors", str(tmp_path / "m.safetensors")):
        assert float(fedax.run(fedax.FedAvg(), task, params=again, **options).params["a"]) == 4.0
    session = fedax.start(fedax.FedAvg(), task, params={"a": 7.0})
    assert float(session.params(session.init())["a"]) == 7.0
    for wrong, words in (({"b": 7.0}, "leaf 'a'"), ({"a": np.zeros(2)}, r"a: got shape \(2,\)")):
        with pytest.raises(InvalidInput, match=r"run\(params=\.\.\.\).*" + words):
            fedax.run(fedax.FedAvg(), task, params=wrong, **options)


@pytest.mark.slow
def test_checkpoints_know_the_starting_model(tmp_path):
    task = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0, 5.0]])
    options = {"checkpoint": tmp_path / "c", "rounds": 2}
    fedax.run(fedax.FedAvg(), task, params=7.0, **options)
    with pytest.raises(InvalidInput, match="start"):
        fedax.run(fedax.FedAvg(), task, params=8.0, **options)
