"""Inputs are taken as they are meant or refused in a sentence: names, ranges, shapes, types of
numbers."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import DataError
from fedax.data import (
    FederatedData,
    store,
    stored,
)
from fedax.tasks import classification
from parts import with_unseen

QUICK = settings(max_examples=25, deadline=None, database=None, derandomize=True)
TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">i4", ">i8", ">u4"]


pytestmark = pytest.mark.usefixtures("as_users_run")


def squares(w, examples):
    return (w - examples["x"]) ** 2


def loss(w, x):
    return (w - x) ** 2


@QUICK
@given(kind=st.sampled_from(TYPES), data=st.data())
def test_whole_numbers_arrive_as_they_are_or_are_refused(kind, data):
    """Of every type, up to its ends: as a list of clients, as one array in files, and in a test
    part."""
    limits = np.iinfo(kind)
    edge = st.sampled_from(
        [limits.min, limits.max, max(limits.min, -(2**31)), min(limits.max, 2**31 - 1)]
    )
    values = np.array(
        data.draw(st.lists(edge | st.integers(limits.min, limits.max), min_size=1, max_size=4)),
        dtype=kind,
    )
    fits = limits.kind == "u" and int(values.max()) < 2**32 and values.dtype.itemsize >= 4
    fits = fits or bool(
        (values.astype(object) >= -(2**31)).all() and (values.astype(object) < 2**31).all()
    )
    if not fits:
        with pytest.raises(
            DataError,
            match="'x'",
        ):
            fedax.core.Ragged.of([{"x": values}])
        return
    held = fedax.core.Ragged.of([{"x": values}]).arrays["x"]
    assert held.dtype.isnative
    assert held.tolist() == values.tolist()


def test_flipped_labels_are_labels_of_the_task():
    data = FederatedData.from_arrays([{"x": np.eye(3), "y": [0, 1, 2]}] * 4, classes=3)
    attack = fedax.attacks.LabelFlip(share=0.5)
    task = classification(data, fedax.models.Softmax(3, 3))
    poisoned = attack.poison(task, 0, 4).train.arrays["y"].reshape(4, 3)
    for k, own in enumerate(poisoned.tolist()):
        assert own == ([2, 1, 0] if k in attack.members(4) else [0, 1, 2])
    with pytest.raises(DataError, match="classes="):
        fedax.attacks.LabelFlip(share=0.5, classes=4).poison(task, 0, 4)


def test_flipped_labels_of_data_that_do_not_say_their_classes():
    def flipped(classes, low):
        clients = [{"x": np.ones(2), "y": np.array([low, 1])}] * 5
        task = fedax.Task(0.0, lambda w, e: (w - e["y"].astype(e["x"].dtype)) ** 2, clients)
        return fedax.attacks.LabelFlip(share=0.4, classes=classes).poison(task, 0, 5)

    assert set(flipped(2, 0).train.arrays["y"].tolist()) == {0, 1}
    for classes, low in ((0, 0), (1, 0), (2, -1)):
        with pytest.raises(DataError, match="classes="):
            flipped(classes, low)


def test_parts_get_the_types_of_the_training_examples():
    task = fedax.Task(
        0.0, loss, fedax.FederatedData.from_arrays([[1.0, 2.0]], test=[[3, 4]], central=[5])
    )
    assert task.test.arrays["x"].dtype == task.central["x"].dtype == np.float32
    counts = fedax.Task(
        0.0, squares, fedax.FederatedData.from_arrays([{"x": [1, 2]}], test=[{"x": [3.0]}])
    )
    assert counts.test.arrays["x"].dtype == np.int32


def test_names_go_with_clients(tmp_path):
    clients = {
        name: {"x": np.arange(6.0).reshape(3, 2) + i, "y": [0, 1, 0]}
        for i, name in enumerate("dcba")
    }
    data = FederatedData.from_arrays(list(clients.values()), classes=2, names=list(clients))
    assert list(data.with_validation(0.4).names) == list("dcba")
    assert list(stored(store(tmp_path / "stored", data)).names) == list("dcba")
    task = classification(data, fedax.models.Softmax(2, 2))
    parts = with_unseen(task, 0.5, seed=1)
    assert sorted([*parts.names, *parts.unseen.names]) == list("abcd")
    for half in (parts, parts.unseen):
        for k, name in enumerate(half.names):
            np.testing.assert_array_equal(half.train[k]["x"], clients[name]["x"].astype(np.float32))


@pytest.mark.slow
def test_leaves_without_entries_are_kept_as_they_are():
    params = {"w": jnp.zeros(()), "none": jnp.zeros((0, 3))}
    task = fedax.Task(params, lambda p, x: (p["w"] - x) ** 2 + p["none"].sum(), [[1.0, 2.0], [3.0]])
    options = {"solver": fedax.SGD(0.1), "schedule": fedax.Schedule(batch_size="full"), "rounds": 2}
    plain = fedax.run(fedax.FedAvg(), fedax.Task(0.0, loss, [[1.0, 2.0], [3.0]]), **options)
    history = fedax.run(fedax.FedAvg(), task, **options)
    assert history.params["none"].shape == (0, 3)
    np.testing.assert_allclose(history.params["w"], plain.params, rtol=1e-6)
