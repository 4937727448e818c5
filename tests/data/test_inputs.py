"""Inputs are taken as they are meant or refused in a sentence: names, ranges, shapes, types of
numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import DataError, InvalidInput
from fedax.data import (
    PARTITIONS,
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
            match=r"\['x'\]: got whole numbers from .*; allowed: -?\d+ to",
        ):
            fedax.core.Ragged.of([{"x": values}])
        return
    held = fedax.core.Ragged.of([{"x": values}]).arrays["x"]
    assert held.dtype.isnative
    assert held.tolist() == values.tolist()


@pytest.mark.parametrize("part", ["clients", "test", "central", "validation"])
def test_numbers_beyond_32_bits_are_refused_in_every_part(part):
    good, bad = {"x": np.array([1, 2])}, {"x": np.array([1, 4_000_000_000])}
    parts = {"clients": [good], part: bad if part == "central" else [bad]}
    with pytest.raises(
        DataError,
        match=r"whole numbers from 1 to 4000000000; allowed: -2147483648 to 2147483647",
    ):
        fedax.Task(0.0, squares, fedax.FederatedData.from_arrays(**parts))


def test_numbers_beyond_32_bits_are_refused_in_data_files_and_models(tmp_path):
    x, y = np.array([[4_000_000_000], [1]]), np.array([0, 1])
    message = r"\['x'\]: got whole numbers from 1 to 4000000000"
    with pytest.raises(DataError, match=message):
        classification(
            FederatedData.from_arrays([{"x": x, "y": y}], classes=2), fedax.models.Softmax(1, 2)
        )
    with pytest.raises(DataError, match=message):
        store(tmp_path / "stored", [{"x": x, "y": y}], classes=2)
    assert not (tmp_path / "stored").exists()
    with pytest.raises(DataError, match=r"leaf 'table': got whole numbers from 1 to 4000000000"):
        fedax.Task({"w": 0.0, "table": x}, lambda p, x: (p["w"] - x) ** 2, [[1.0]], frozen="table")
    with pytest.raises(
        DataError, match=r"Task\(state=...\): got whole numbers from 1 to 4000000000"
    ):
        fedax.Task(0.0, lambda w, x, state: ((w - x) ** 2, state), [[1.0]], state={"table": x})


@pytest.mark.slow
@QUICK
@given(classes=st.integers(2, 12), clients=st.integers(2, 6), share=st.floats(0.2, 1.0))
def test_flipped_labels_are_labels_of_the_task(classes, clients, share):
    labels = np.arange(clients * classes) % classes
    data = FederatedData.from_arrays(
        [{"x": np.eye(classes)[part], "y": part} for part in np.split(labels, clients)],
        classes=classes,
    )
    attack = fedax.attacks.LabelFlip(share=share)
    task = classification(data, fedax.models.Softmax(classes, classes))
    poisoned = np.asarray(attack.poison(task, 0, clients).train.arrays["y"]).reshape(clients, -1)
    for k, own in enumerate(poisoned):
        before = np.split(labels, clients)[k]
        assert (
            own.tolist()
            == (classes - 1 - before if k in attack.members(clients) else before).tolist()
        )
    with pytest.raises(
        DataError,
        match=rf"LabelFlip\(classes=...\): got {classes + 1}; "
        rf"allowed: at most {classes}",
    ):
        fedax.attacks.LabelFlip(share=share, classes=classes + 1).poison(task, 0, clients)


def test_flipped_labels_of_two_classes():
    """The case of a task without predictions, and of one client of several, who does not know the
    others' labels."""
    clients = [{"x": np.ones(2), "y": np.array([0, 1])}] * 5
    task = fedax.Task(0.0, lambda w, e: (w - e["y"].astype(e["x"].dtype)) ** 2, clients)
    flipped = fedax.attacks.LabelFlip(share=0.4).poison(task, 0, 5).train.arrays["y"]
    assert sorted(set(np.asarray(flipped).tolist())) == [0, 1]
    with pytest.raises(InvalidInput, match=r"One client does not know the labels of the others"):
        fedax.attacks.LabelFlip(share=1.0).poison(task, 0, 9)


def looked_up(w, examples):
    return (w["table"][examples["item"]] - examples["x"]) ** 2


def taken_along(w, examples):
    rows = w["table"][None] * examples["x"][:, None]
    return jnp.take_along_axis(rows, examples["item"][:, None], axis=1)[:, 0] ** 2


def looked_up_words(w, examples):
    return (
        w["table"][jnp.stack([examples["item"], examples["item"]], 1)].sum(1) - examples["x"]
    ) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("lookup", [looked_up, taken_along, looked_up_words])
@pytest.mark.parametrize("part", ["clients", "test", "central"])
@pytest.mark.parametrize(("item", "fits"), [(4, True), (5, False), (-1, False), (10**6, False)])
def test_whole_numbers_are_checked_against_what_they_index(lookup, part, item, fits):
    params, good = (
        {"table": np.zeros(5, np.float32)},
        {"x": np.ones(3, np.float32), "item": np.array([0, 1, 2])},
    )
    bad = good | {"item": np.array([0, item, 2])}
    parts = {"clients": [good], part: bad if part == "central" else [bad]}
    if fits:
        assert fedax.Task(params, lookup, fedax.FederatedData.from_arrays(**parts)).train.total == 3
        return
    with pytest.raises(
        DataError,
        match=r"Task\(loss=...\): got whole numbers 'item' from "
        r".*allowed: indices within tables",
    ):
        fedax.Task(params, lookup, fedax.FederatedData.from_arrays(**parts))


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32])
def test_negative_numbers_of_narrow_types_are_no_indices(kind):
    """They would count from the end, as -1 does; and small ones do not hold the far numbers that
    tell so."""
    params, good = {"table": np.zeros(5, np.float32)}, {"x": np.ones(3, np.float32)}
    item = np.array([0, 1, 4], kind)
    assert fedax.Task(params, looked_up, [good | {"item": item}]).train.total == 3
    with pytest.raises(DataError, match=r"'item' from -1 to 3, of which 'item' with -1 counts"):
        fedax.Task(params, looked_up, [good | {"item": item - kind(1)}])


def test_numbers_that_index_nothing_may_be_any():
    params, x = {"table": np.zeros(5, np.float32)}, {"x": np.ones(3, np.float32)}
    task = fedax.Task(
        params,
        lambda w, e: (w["table"][0] - e["x"]) ** 2 * e["count"],
        [x | {"count": np.array([7, -3, 100])}],
    )
    assert task.train.total == 3


@pytest.mark.parametrize("token", [5, -1])
def test_tokens_are_those_of_the_vocabulary(token):
    model = fedax.models.Bigram(5)
    data = [{"x": np.array([[0, 1], [2, 4]]), "y": np.array([0, 1])}]
    assert classification(FederatedData.from_arrays(data, classes=5), model).train.total == 2
    bad = [{"x": np.array([[0, 1], [2, token]]), "y": np.array([0, 1])}]
    for given_ in (
        FederatedData.from_arrays(bad, classes=5),
        FederatedData.from_arrays(data, classes=5, test=bad),
        FederatedData.from_arrays(data, classes=5, central=bad[0]),
    ):
        with pytest.raises(
            DataError,
            match=rf"\['x'\]: got token {token}; allowed: 0 to 4, the "
            r"vocabulary of",
        ):
            classification(given_, model)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(12, 12, 3), (8, 8, 1), (6, 4, 2)])
def test_images_are_compared_not_reshaped(shape):
    rows, columns, channels = shape
    model = fedax.models.CNN(shape, (fedax.models.Stage(2, 3),), (4,), 2)
    good = [shape, (rows * columns * channels,)] + [(rows, columns)] * (channels == 1)
    bad = [
        (channels, rows, columns),
        (columns, rows, channels) if rows != columns else (rows * columns, channels),
    ]
    y = np.array([0, 1, 0])
    for form in good:
        assert (
            classification(
                FederatedData.from_arrays([{"x": np.ones((3, *form)), "y": y}], classes=2), model
            ).train.clients
            == 1
        )
    for form in bad:
        with pytest.raises(InvalidInput, match=r"rows of shape|logits|fails on examples of shapes"):
            classification(
                FederatedData.from_arrays([{"x": np.ones((3, *form)), "y": y}], classes=2), model
            )
    with pytest.raises(InvalidInput, match=r"Channels come last: write x.transpose\(0, 2, 3, 1\)"):
        model.apply(model.init(jax.random.key(0))[0], None, np.ones((3, *bad[0])), None)


@pytest.mark.parametrize("part", ["test", "validation", "central"])
@QUICK
@given(
    own=st.integers(1, 4),
    other=st.integers(1, 4),
    labels=st.sampled_from([(), (1,), (2,)]),
    form=st.sampled_from([(), (1,)]),
)
def test_parts_have_the_shapes_of_the_training_examples(part, own, other, labels, form):
    def score(w, examples):
        return (w - examples["x"].sum(1)) ** 2

    train = [{"x": np.ones((2, own)), "y": np.zeros((2, *form))}]
    given_ = {"x": np.ones((3, other)), "y": np.zeros((3, *labels))}
    options = {part: given_ if part == "central" else [given_]}
    if own == other and labels == form:
        assert (
            fedax.Task(0.0, score, fedax.FederatedData.from_arrays(train, **options)).train.total
            == 2
        )
        return
    with pytest.raises(
        DataError,
        match=rf"{part}.*: got rows of shape .*; allowed: .* as the "
        r"training examples have",
    ):
        fedax.Task(0.0, score, fedax.FederatedData.from_arrays(train, **options))


def test_parts_get_the_types_of_the_training_examples():
    task = fedax.Task(
        0.0, loss, fedax.FederatedData.from_arrays([[1.0, 2.0]], test=[[3, 4]], central=[5])
    )
    assert task.test.arrays["x"].dtype == task.central["x"].dtype == np.float32
    counts = fedax.Task(
        0.0, squares, fedax.FederatedData.from_arrays([{"x": [1, 2]}], test=[{"x": [3.0]}])
    )
    assert counts.test.arrays["x"].dtype == np.int32
    with pytest.raises(
        DataError,
        match=r"test\['x'\]: got numbers of type float32; allowed: numbers of type int32",
    ):
        fedax.Task(
            0.0, squares, fedax.FederatedData.from_arrays([{"x": [1, 2]}], test=[{"x": [3.5]}])
        )
    with pytest.raises(DataError, match=r"test\[0\]: got \['z'\]; allowed: the arrays \['x'\]"):
        fedax.Task(
            0.0, squares, fedax.FederatedData.from_arrays([{"x": [1, 2]}], test=[{"z": [3]}])
        )


PARTITIONED = {
    "dirichlet": {"minimum": 1},
    "shards": {},
    "power_law": {"classes_per_client": 1, "ratio": 1.0},
}


@pytest.mark.parametrize("name", PARTITIONED)
@QUICK
@given(classes=st.integers(2, 4), form=st.sampled_from(["one-hot", "column", "row"]))
def test_partitions_take_one_label_for_each_example(name, classes, form):
    labels = np.arange(12 * classes) % classes
    other = {
        "one-hot": np.eye(classes, dtype=int)[labels],
        "column": labels[:, None],
        "row": labels[None],
    }[form]
    options = {"clients": 2, **PARTITIONED[name]}
    parts = PARTITIONS[name](labels, **options)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    with pytest.raises(
        DataError,
        match=r"labels=...\): got 'shape \(.*allowed: one label per "
        r"example",
    ):
        PARTITIONS[name](other, **options)
    with pytest.raises(DataError, match=r"train\['y'\]: .*one for each|same length|indices from"):
        FederatedData.partitioned(
            np.ones((len(other), 2)), other, [np.arange(len(other))], classes=classes
        )
    same = PARTITIONS[name](labels.astype(float), **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, same, strict=True))


@pytest.mark.parametrize("indices", [[True, False, True], [0.0, 1.0], [[0, 1]], ["0", "1"]])
def test_indices_of_a_partition_are_whole_numbers(indices):
    with pytest.raises(
        DataError,
        match=r"partition=...\): got other arrays than .*; allowed: the indices of each client's",
    ):
        FederatedData.partitioned(np.ones((3, 2)), np.zeros(3, int), [np.array(indices)], classes=1)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT, ""], ids=str)
def test_a_missing_client_is_no_client(missing):
    clients = {"a": {"x": [1.0]}, missing: {"x": [2.0]}}
    with pytest.raises(
        DataError,
        match=r"allowed: a name or number for each client. Drop these "
        r"rows",
    ):
        fedax.FederatedData.from_arrays(clients)


def files(folder, **tables):
    for name, text in tables.items():
        (folder / f"{name}.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


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
    with pytest.raises(DataError, match=r"names: got 'a' twice"):
        FederatedData.from_arrays(list(clients.values()), classes=2, names=["a", "b", "a", "c"])
    with pytest.raises(DataError, match=r"names: got 1 names; allowed: 4, one for each client"):
        FederatedData.from_arrays(list(clients.values()), classes=2, names=["a"])


@QUICK
@given(
    kind=st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<f2", ">f2", ">i4", "i8"]),
    shape=st.lists(st.integers(0, 3), max_size=3),
    order=st.sampled_from("CF"),
)
def test_models_of_any_type_are_read_as_they_were_saved(tmp_path_factory, kind, shape, order):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    leaf = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind), order=order)
    fedax.save_params({"w": leaf}, path, state={"s": leaf})
    held = fedax.load_params(path)
    np.testing.assert_array_equal(held["w"], leaf)
    assert held["w"].dtype == leaf.dtype.newbyteorder("=")
    if leaf.dtype.kind == "f":
        like = {"w": leaf.astype(leaf.dtype.newbyteorder("="))}
        read = fedax.load_params(path, like=like, strict=False)
        np.testing.assert_array_equal(read["w"], leaf)


@pytest.mark.slow
def test_leaves_without_entries_are_kept_as_they_are():
    params = {"w": jnp.zeros(()), "none": jnp.zeros((0, 3))}
    task = fedax.Task(params, lambda p, x: (p["w"] - x) ** 2 + p["none"].sum(), [[1.0, 2.0], [3.0]])
    options = {"solver": fedax.SGD(0.1), "schedule": fedax.Schedule(batch_size="full"), "rounds": 2}
    plain = fedax.run(fedax.FedAvg(), fedax.Task(0.0, loss, [[1.0, 2.0], [3.0]]), **options)
    for engine in (fedax.Simulation(), fedax.Eager()):
        history = fedax.run(fedax.FedAvg(), task, engine=engine, **options)
        assert history.params["none"].shape == (0, 3)
        np.testing.assert_allclose(history.params["w"], plain.params, rtol=1e-6)
