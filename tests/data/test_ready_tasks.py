"""Ready-made tasks by name, from their options to a trained model."""

import numpy as np
import pytest

import fedax
from fedax import data
from fedax.models import MLP, Softmax
from fedax.tasks.sources import task_options


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_written_out_defaults_make_the_same_task(name):
    short = fedax.task(name, clients=4)
    long = fedax.task(
        name,
        **{key: option.default for key, option in task_options(name).items()} | {"clients": 4},
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
    direct = getattr(data, name)(**options)
    task = fedax.task(name, **options, l2=0.25)
    for part, ragged in ((direct.train, task.train), (direct.test, task.test)):
        for key in ("x", "y"):
            assert np.array_equal(
                np.concatenate([client[key] for client in part]), ragged.arrays[key]
            )
    assert (task.central, task.l2) == (direct.central, 0.25)
    assert fedax.task("synthetic", clients=2, test_fraction=0).test is None
