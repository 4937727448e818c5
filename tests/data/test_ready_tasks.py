"""Ready-made tasks by name, from their options to a trained model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import data
from fedax.core import DataError, InvalidInput, UnknownName
from fedax.models import MLP, Softmax
from fedax.tasks.sources import DATASETS, task_options


def test_options_are_named_alike_everywhere():
    convex = {"libsvm", "a5a", "a9a", "mushrooms", "w8a"}
    for name in DATASETS:
        options = set(task_options(name))
        assert {"l2"} | (set() if name in convex else {"model"}) <= options, name
        assert (
            "partition" not in options or {"clients", "seed", "test_fraction", "split"} <= options
        ), name
    assert {"partition", "split"} <= set(task_options("digits")) & set(task_options("mnist"))


def test_defaults_depend_on_the_partition():
    assert task_options("digits")["shards_per_client"].default == 2
    assert "shards_per_client" not in task_options("digits", {"partition": "iid"})
    assert set(task_options("mnist", {"partition": "power_law"})) >= {
        "classes_per_client",
        "ratio",
        "folder",
        "merged",
    }


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_written_out_defaults_make_the_same_task(name):
    short, long = (
        fedax.task(name, clients=4),
        fedax.task(
            name,
            **{key: option.default for key, option in task_options(name).items()} | {"clients": 4},
        ),
    )
    assert all(
        np.array_equal(short.train.arrays[key], long.train.arrays[key]) for key in ("x", "y")
    )
    assert short.train.sizes.tolist() == long.train.sizes.tolist()
    assert (short.loss, short.name) == (long.loss, long.name)


@pytest.mark.parametrize(
    ("name", "options", "model"),
    [
        ("synthetic", {"clients": 2}, Softmax(60, 10)),
        ("digits", {}, Softmax(64, 10)),
        ("digits", {"model": "mlp"}, MLP((64, 200, 200, 10))),
        ("digits", {"model": MLP((64, 7, 10))}, MLP((64, 7, 10))),
    ],
)
def test_models_by_name_or_as_objects(name, options, model):
    task = fedax.task(name, **options)
    assert task.loss.model == model
    assert set(task.scores) == {"accuracy"}


@pytest.mark.slow
def test_mnist_by_name(data_folder):
    if not (data_folder / "mnist.npz").is_file():
        pytest.skip(f"no mnist.npz in {data_folder}")
    task = fedax.task(
        "mnist", folder=str(data_folder), partition="shards", clients=100, model="mlp"
    )
    assert task.train.sizes.tolist() == [600] * 100  # 200 equal shards, two for each
    assert task.loss.model == MLP((784, 200, 200, 10))
    assert (task.test, len(task.test_set["y"])) == (None, 10_000)


NOT_DEFAULT = {
    "synthetic": {"alpha": 0.5, "beta": 2, "clients": 3, "seed": 7, "test_fraction": 0.3},
    "digits": {
        "partition": "power_law",
        "ratio": 1.3,
        "clients": 6,
        "seed": 7,
        "test_fraction": 0.3,
        "split": "in_order",
    },
    "mnist": {
        "partition": "iid",
        "clients": 5,
        "seed": 7,
        "test_fraction": 0.3,
        "split": "in_order",
        "merged": True,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NOT_DEFAULT))
def test_every_option_reaches_the_data(name, data_folder):
    options = NOT_DEFAULT[name]
    if name == "mnist":
        if not (data_folder / "mnist.npz").is_file():
            pytest.skip(f"no mnist.npz in {data_folder}")
        options = {**options, "folder": data_folder}
    direct, task = getattr(data, name)(**options), fedax.task(name, **options, l2=0.25)
    for part, ragged in ((direct.train, task.train), (direct.test, task.test)):
        for key in ("x", "y"):
            assert np.array_equal(
                np.concatenate([client[key] for client in part]), ragged.arrays[key]
            )
    assert (task.central, task.l2) == (direct.central, 0.25)
    assert fedax.task("synthetic", clients=2, test_fraction=0).test is None


@pytest.mark.slow
def test_a_method_learns_digits():
    task = fedax.task("digits", partition="dirichlet", alpha=1.0, clients=5)
    schedule = fedax.Schedule(epochs=2, batch_size=20)
    history = fedax.run(
        fedax.FedAvg(), task, solver=fedax.SGD(0.5), schedule=schedule, rounds=5, throw=True
    )
    test = jax.tree.map(jnp.asarray, dict(task.test_set))
    assert float(task.scores["accuracy"](history.params, test, None).mean()) > 0.85
    assert float(task.loss(history.params, test, None).mean()) < np.log(10) / 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "digit",
            {},
            r"task: got 'digit'; allowed: one of .*digits, .*mnist, .*synthetic.* Did "
            r"you mean 'digits'\?",
        ),
        (
            "digits",
            {"client": 3},
            r"option of task 'digits': got 'client'; .* Did you mean "
            r"'clients'\?",
        ),
        # the default partition has none
        ("digits", {"alpha": 0.1}, r"option of task 'digits': got 'alpha'"),
        (
            "synthetic",
            {"aplha": 1},
            r"option of task 'synthetic': got 'aplha'; .* Did you mean "
            r"'alpha'\?",
        ),
        (
            "digits",
            {"model": "sofmax"},
            r"model: got 'sofmax'; .* Did you mean "
            r"'softmax'\?",
        ),
        (
            "mnist",
            {"partition": "power-law"},
            r"partition: got 'power-law'; .* Did you mean "
            r"'power_law'\?",
        ),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name, options, message):
    with pytest.raises(UnknownName, match=message):
        fedax.task(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "digits",
            {"partition": 3},
            r"digits\(partition=...\): got 3; allowed: a valid string",
        ),
        ("digits", {"model": 3}, r"model: got 3; allowed: a model"),
        ("digits", {"model": None}, r"model: got None; allowed: a model"),
        (
            "digits",
            {"clients": 2.5},
            r"digits\(clients=...\): got 2.5; allowed: a valid integer",
        ),
        ("digits", {"clients": True}, r"\(clients=...\): got True"),
        ("digits", {"clients": "20"}, r"\(clients=...\): got '20'"),
        ("digits", {"seed": -1}, r"\(seed=...\): got -1"),
        ("mnist", {"partition": "dirichlet", "alpha": 0, "folder": "/none"}, r"alpha=...\): got 0"),
        (
            "digits",
            {"split": "sorted"},
            r"digits\(split=...\): got 'sorted'; allowed: "
            r"'shuffled', 'in_order'",
        ),
        (
            "digits",
            {"test_fraction": 1},
            r"digits\(test_fraction=...\): got 1; allowed: less "
            r"than 1",
        ),
        (
            "digits",
            {"l2": -0.1},
            r"digits\(l2=...\): got -0.1; allowed: greater than "
            r"or equal to 0",
        ),
        ("synthetic", {"alpha": -1}, r"synthetic\(alpha=...\): got -1"),
        ("mnist", {"merged": 1}, r"mnist\(merged=...\): got 1; allowed: a valid boolean"),
        (
            "mnist",
            {"partition": "power_law", "ratio": 0.5, "folder": "nowhere"},
            r"mnist\(ratio=...\): got 0.5",
        ),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        fedax.task(name, **options)


def test_mnist_without_a_file(tmp_path):
    with pytest.raises(DataError, match=r"mnist.npz: got 'no file at .*mnist.npz'"):
        fedax.task("mnist", folder=str(tmp_path))
