"""Files, arrays and options that would be misread, each refused with the argument, column or file
that is wrong."""

import functools
import gzip
import math
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedax
from fedax import data, observe, tasks
from fedax.core import DataError, InvalidInput, UnknownName
from fedax.data import FederatedData, from_table, store, stored
from leaf_files import of_leaf
from parts import with_unseen, with_validation

pytestmark = pytest.mark.usefixtures("as_users_run")
FRAME = pd.DataFrame(
    {"ward": ["a", "a", "b"], "age": [1.0, 2.0, 4.0], "sex": ["f", "m", "f"], "y": [0, 1, 0]}
)
OF_FRAME = functools.partial(from_table, client="ward")


def refused(field, make, kind=InvalidInput):
    with pytest.raises(kind, match=field):
        make()


HEAD = "who,a,y\n"
TWO = HEAD + "a,1,0\nb,2,1\n"
WHO = {"client": "who"}


@pytest.mark.parametrize(
    ("field", "text", "options"),
    [
        ("all.csv", HEAD + "a,1,0\nb,1,2,0\n", WHO),
        ("'a'", HEAD, WHO),
        ("y=", "who;a;y\na;1;0\n", WHO),
        ("'1_000'", HEAD + "a,1_000,0\nb,1,1\n", WHO),
        ("'a'", HEAD + "a,\uff11,0\nb,1,1\n", WHO),
        ("'a'.*row 2", HEAD + "a,inf,0\nb,1,1\n", WHO),
        ("'a'.*row 3", HEAD + "a,1,0\nb,,1\n", WHO),
        ("'a'", HEAD + 'a,"1,5",0\nb,"2,5",1\n', WHO),
        ("'who'", HEAD + "a,1,0\n,2,1\n", WHO),
        ("'who'", HEAD + "AT,1,0\nNA,2,1\n", WHO),
        ("'y'.*row 3", HEAD + "a,1,0\nb,2,\n", WHO),
        ("classes=", HEAD + "a,1,1\nb,2,2\n", WHO),
        ("labels", HEAD + "a,1,0\nb,2,10000\n", WHO),
        ("classes=0", HEAD + "a,1,0\nb,2,.5\n", WHO),
        ("'y'", HEAD + "a,1,0\nb,2,2\n", WHO | {"classes": 2}),
        ("'y'.*row 3", HEAD + "a,1,no\nb,2,yes\n", WHO | {"classes": ["no"]}),
        ("'who'", TWO, {"client": "wo"}),
        ("client=", TWO, {}),
        ("drop=", TWO, WHO | {"columns": {"drop": "b"}}),
        ("key of columns.*missing", TWO, WHO | {"columns": {"dorp": "a"}}),
        ("minimum=", TWO, WHO | {"minimum": 9}),
        ("standardize=", HEAD + "a,1e300,0\nb,2e300,1\n", WHO),
        ("index twice", "a,y\n1,0\n2,1\n", {"partition": [[0, 1], [1]]}),
        ("mask", "a,y\n1,0\n2,1\n", {"partition": [[True, False], [False, True]]}),
    ],
)
def test_texts_of_tables(tmp_path, field, text, options):
    (tmp_path / "all.csv").write_text(text, encoding="utf-8")
    refused(f"(?s){field}", lambda: from_table(tmp_path / "all.csv", **options))


@pytest.mark.parametrize(
    ("field", "files"),
    [
        ("'b'", {"a.csv": "h,y\n1,0\n", "b.csv": "w,y\n1,0\n"}),
        ("'b'", {"a.csv": "h,y\n1,0\n", "b.csv": "h,y\n"}),
        ("'a' twice", {"a.csv": "h,y\n1,0\n", "a.csv.gz": ""}),
        ("no table", {"a.txt": ""}),
    ],
)
def test_folders_of_tables(tmp_path, field, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refused(field, lambda: from_table(tmp_path))


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("'ward'", lambda: OF_FRAME(FRAME.assign(ward=["a", "", "b"]))),
        ("'ward'", lambda: OF_FRAME(FRAME.assign(ward=["a", "a ", "b"]))),
        ("'ward'", lambda: OF_FRAME(FRAME.assign(ward=[1, "1", 2]))),
        ("'ward'", lambda: OF_FRAME(FRAME.assign(ward=["a", None, "b"]))),
        ("standardize=", lambda: OF_FRAME(FRAME, columns={"standardize": ({"ag": 1}, {"ag": 1})})),
        (
            "standardize=",
            lambda: OF_FRAME(FRAME, columns={"standardize": ({"age": 1}, {"age": 0})}),
        ),
        ("west", lambda: OF_FRAME(FRAME, test=FRAME.assign(ward="west"))),
        ("column", lambda: OF_FRAME(FRAME[["ward", "y"]])),
        ("x=", lambda: OF_FRAME(FRAME, columns={"x": ["age", "y"]})),
        ("3", lambda: OF_FRAME(3)),
    ],
)
def test_frames(field, make):
    refused(field, make)


def twice(text):
    """A document with a key twice."""
    return text.replace('"a": {', '"a": {"x": [], "y": []}, "a": {', 1)


ONE_USER = of_leaf(a=([[1]], [0]))
CONVERTED = functools.partial(data.leaf, classes=80)


@pytest.mark.parametrize(
    ("content", "read", "field"),
    [
        (b"", data.read_idx, "file"),
        (b"\0\0\x07\x01\0\0\0\0", data.read_idx, "file"),
        (b"\0\0\x08\x01\0\0\0\x03\x01\x02", data.read_idx, "file"),
        (b"\0\0\x08\x01\0\0\0\x01\x01\x02", data.read_idx, "file"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 0, 2**32 - 1, 2**32 - 1), data.read_idx, "file"),
        (gzip.compress(bytes(range(256)) * 40, mtime=0)[:-9], data.read_idx, "file"),
        (b"1 1:1\n0 x:2\n", data.read_libsvm, "file"),
        (b"", data.read_libsvm, "file"),
        (b"1 1:1\n0 5:1\n", functools.partial(data.read_libsvm, features=3), "n_features"),
        (b"-1 1:1\n" * 10 + b"1 200000000:1\n", data.read_libsvm, "200000000"),
        (b"1 1:1\nnan 1:1\n", data.read_libsvm, "finite"),
        (b"a 1 2\nb 1\n", data.read_glove, "file"),
        (b"so nan 1\n", data.read_glove, "NaN"),
    ],
)
def test_files(tmp_path, content, read, field):
    (tmp_path / "file").write_bytes(content)
    refused(field, lambda: read(tmp_path / "file"), DataError)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "all.json"),
        ("[" * 100_000, "all.json"),
        (ONE_USER.replace('"a": {', '"b": {'), "'a'"),
        (ONE_USER.replace("[1]", "[2]", 1), "'a'|inputs"),
        (ONE_USER.replace('["a"]', '["a", "a"]').replace("[1]", "[1, 1]", 1), "a.* twice"),
        (twice(ONE_USER), "a.* twice"),
        (of_leaf(a=([[1]], [math.inf])), "finite"),
        (of_leaf(a=([[0.0], [0.0, 1.0]], [0, 1])), "'a'"),
        (of_leaf(a=([[0.0]], [80])), "label 80"),
        (of_leaf(a=([[0.0]], [0.5])), "whole"),
        (of_leaf(a=([], [])), "no client"),
    ],
)
def test_files_of_leaf(tmp_path, text, field):
    (tmp_path / "all.json").write_text(text)
    refused(field, lambda: data.leaf(tmp_path, classes=80), DataError)


@pytest.mark.parametrize(
    ("users", "convert"),
    [
        ({"a": (["ab", "abc"], ["a", "b"])}, data.characters),
        ({"a": (["a$"], ["a"])}, data.characters),
        ({"a": ([1], ["a"])}, data.characters),
        ({"a": ([["a"]], [0])}, data.words({"a": 0})),
        ({"a": ([["1", "Mon", "Q", "me", "good"]], [2])}, data.words({"a": 0})),
    ],
)
def test_texts_of_leaf(tmp_path, users, convert):
    (tmp_path / "all.json").write_text(of_leaf(**users))
    refused("user 'a'", lambda: CONVERTED(tmp_path, convert=convert), DataError)


def test_users_of_leaf(tmp_path):
    refused("json", lambda: CONVERTED(tmp_path), DataError)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(of_leaf(me=([[1.0]], [0])))
    refused("'me'", lambda: CONVERTED(tmp_path), DataError)
    (tmp_path / "test").mkdir()
    (tmp_path / "b.json").unlink()
    # as after LEAF's option `-t user`: their examples were dropped without a word
    (tmp_path / "test" / "a.json").write_text(of_leaf(stranger=([[2.5]], [1])))
    refused("test.*'stranger'", lambda: CONVERTED(tmp_path, tmp_path / "test"), DataError)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist.npz"),
        ("cifar10", "cifar10_train_1of4.npz"),
        ("femnist", "train"),
        ("shakespeare", "train"),
        ("mushrooms", "mushrooms.gz"),
        ("tinyshakespeare", "tinyshakespeare.txt"),
        ("sent140", "train"),
    ],
)
def test_data_sets_without_files(tmp_path, name, file):
    """The error names the file or the folder, and how to get it."""
    refused(file, lambda: getattr(data, name)(folder=tmp_path), DataError)


IMAGES = {
    "x_train": np.zeros((60_000, 28, 28), np.uint8),
    "y_train": np.zeros(60_000, np.uint8),
    "x_test": np.zeros((10_000, 28, 28), np.uint8),
    "y_test": np.zeros(10_000, np.uint8),
}


@pytest.mark.parametrize(
    ("name", "file", "write"),
    [
        ("mnist", "mnist.npz", lambda path: path.write_bytes(b"not an archive")),
        ("mnist", "mnist.npz", lambda path: np.savez(path, x_train=IMAGES["x_train"][:5])),
        ("mnist", "mnist.npz", lambda path: np.savez_compressed(path, **IMAGES)),
        ("a5a", "a5a", lambda path: path.write_text("1 1:1\n-1 1:0\n")),
        (
            "tinyshakespeare",
            "tinyshakespeare.txt.gz",
            lambda path: path.write_bytes(gzip.compress(b"A:\nb\n")),
        ),
    ],
)
def test_data_sets_of_other_content(tmp_path, name, file, write):
    write(tmp_path / file)
    refused(file, lambda: getattr(data, name)(folder=tmp_path), DataError)


def client(*labels, features=2):
    return {"x": np.ones((len(labels), features)), "y": np.array(labels, dtype=int)}


OF = FederatedData.from_arrays
TWO = functools.partial(OF, classes=2)
DEALT = functools.partial(FederatedData.partitioned, np.ones((4, 2)), np.zeros(4, int), classes=1)
LARGE = {"x": np.array([[4_000_000_000], [1]]), "y": np.array([0, 1])}
TWINS = {1: [[1.0]], "1": [[2.0]]}


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("train", lambda: TWO([])),
        ("label 0", lambda: OF([client(0)], classes=0)),
        (r"'y'.*label 2 in row 1 of client 1", lambda: TWO([client(0), client(0, 2)])),
        (r"'y'.*label -1", lambda: TWO([client(0, -1)])),
        (r"train\[1\].*0 examples", lambda: TWO([client(0), client()])),
        (r"train\[0\]", lambda: TWO([{"x": np.ones((3, 1)), "y": [0]}])),
        (r"'x'.*NaN", lambda: TWO([{"x": [[0.0], [np.nan]], "y": [0, 1]}])),
        ("'x'", lambda: TWO([client(0), client(0, features=3)])),
        ("'y'", lambda: TWO([{"x": [[1.0]], "y": [0.5]}])),
        ("'y'", lambda: TWO([{"x": [[1.0]], "y": [[0]]}])),
        ("'y'", lambda: TWO([{"x": [[1.0]]}])),
        ("test", lambda: TWO([client(0)], test=[client(0)] * 2)),
        ("test.*label 5", lambda: TWO([client(0)], test=[client(5)])),
        ("test", lambda: TWO([client(0)], test=[client()])),
        ("validation", lambda: OF([[1.0], [2.0]], validation=[[], []])),
        ("central.*label 7", lambda: TWO([client(0)], central=client(0, 7))),
        ("central", lambda: OF([[1.0], [2.0]], central=np.zeros(0))),
        ("central", lambda: OF([client(0) | {"weight": [1]}], classes=2, central=client(0))),
        ("clients", lambda: TWO(client(0))),
        ("test.*'b'", lambda: TWO({"a": client(0)}, test={"b": client(0)})),
        ("names.*'a' twice", lambda: TWO([client(0)] * 2, names=["a", "a"])),
        ("names.*twice", lambda: TWO([client(0)] * 2, names=["caf\u00e9", "cafe\u0301"])),
        ("clients.*'1' twice", lambda: OF(TWINS)),
        ("test.*'1' twice", lambda: OF({"1": [[1.0]]}, test=TWINS)),
        ("name or number", lambda: OF({"a": {"x": [1.0]}, pd.NA: {"x": [2.0]}})),
        ("name or number", lambda: OF({"a": {"x": [1.0]}, "": {"x": [2.0]}})),
        ("'x'.*4000000000", lambda: TWO([LARGE])),
        ("test.*4000000000", lambda: TWO([client(0, features=1)], test=[LARGE])),
        ("2147483647", lambda: OF([{"x": [[0.0]], "y": [2**31]}], classes=2**31 + 1)),
        (
            "'table'.*4000000000",
            lambda: fedax.Task(
                {"w": 0.0, "table": LARGE["x"]}, lambda p, x: (p["w"] - x) ** 2, [[1.0]]
            ),
        ),
        ("test.*shape", lambda: OF([{"x": np.ones((2, 3))}], test=[{"x": np.ones((2, 4))}])),
        ("central.*shape", lambda: OF([{"x": np.ones((2, 3))}], central={"x": np.ones((2, 4))})),
        ("test.*int32", lambda: OF([{"x": [1, 2]}], test=[{"x": [3.5]}])),
        ("partition=", lambda: DEALT([[0, 1], [4]])),
        ("partition=", lambda: DEALT([[0, -1]])),
        ("index twice", lambda: DEALT([[0, 1], [2, 1]])),
        ("without examples", lambda: DEALT([[0], []])),
        ("partition=", lambda: DEALT([np.array([0.0, 1.0])])),
        ("partition=", lambda: DEALT([np.array([True, False, True, True])])),
        ("split", lambda: DEALT([[0, 1]], split="random")),
        ("put aside alone", lambda: DEALT([[0, 1, 2, 3]], test_fraction=0.4)),
        ("classes", lambda: tasks.logistic(OF([{"x": [[0.0]] * 2, "y": [0, 2]}], classes=3))),
        ("token", lambda: tasks.classification(TWO([{"x": [[0, 5]], "y": [0]}]), BIGRAM)),
        ("token", lambda: tasks.classification(TWO([{"x": [[0, -1]], "y": [0]}]), BIGRAM)),
    ],
)
def test_arrays(field, make):
    refused(field, make)


BIGRAM = fedax.models.Bigram(5)
LABELS = np.arange(40) % 4


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("clients=", lambda: data.iid(3, 4)),
        ("users=", lambda: data.by_user([])),
        ("classes_per_client=", lambda: data.power_law(LABELS, 5, 5)),
        ("ratio=", lambda: data.power_law(LABELS, 5, 2, 2.0)),
        ("clients=", lambda: data.digit_pairs(np.arange(300) % 10, clients=15)),
        ("clients=", lambda: data.digit_pairs(np.arange(300) % 10, clients=40)),
        ("text", lambda: data.encode("ab#")),
        ("minimum=", lambda: data.play("A:\nOne.\n", minimum=99)),
        ("no name", lambda: data.roles_of("A:\nx\n\nno name\ny\n")),
        ("labels=", lambda: data.dirichlet(LABELS[:, None], 2)),
        ("masked", lambda: data.dirichlet(np.ma.array(LABELS, mask=LABELS == 0), 2)),
    ],
)
def test_partitions(field, make):
    refused(field, make)


DIGITS = functools.partial(fedax.task, "digits")


@pytest.mark.parametrize(
    ("kind", "field", "make"),
    [
        (UnknownName, "digits", lambda: fedax.task("digit")),
        (UnknownName, "clients", lambda: DIGITS(client=3)),
        (UnknownName, "alpha", lambda: DIGITS(alpha=0.1)),  # the default partition has none
        (UnknownName, "softmax", lambda: DIGITS(model="sofmax")),
        (InvalidInput, "model", lambda: DIGITS(model=3)),
        # ranges are read before any file
        (InvalidInput, "merged=", lambda: fedax.task("mnist", folder="/none", merged=1)),
        (InvalidInput, "l2=", lambda: fedax.task("a5a", folder="/none", l2=-1)),
        (InvalidInput, "crop", lambda: DIGITS(crop=9)),
        (InvalidInput, "normalize", lambda: DIGITS(normalize="published")),
        (InvalidInput, "flipped", lambda: DIGITS(validation=0.2, frozen=True, flip=True)),
        (InvalidInput, "1 clients", lambda: with_unseen(DIGITS(clients=1), 0.5)),
        (InvalidInput, "validation", lambda: with_validation(DIGITS(validation=0.1), 0.1)),
        (InvalidInput, "unseen", lambda: observe.Unseen().check(DIGITS())),
        (InvalidInput, "validation", lambda: observe.ValidationLoss().check(DIGITS())),
        (DataError, "validation", lambda: TWO([client(0)]).with_validation(0.9)),
        (DataError, "together", lambda: TWO([client(0, 1)]).with_validation(0.5, together="z")),
    ],
)
def test_options_of_tasks(kind, field, make):
    refused(field, make, kind)


def people(count, features=3):
    rng = np.random.default_rng(0)
    for k in range(count):
        yield {"x": rng.normal(size=(1 + k % 4, features)), "y": rng.integers(0, 3, 1 + k % 4)}


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda c: c | {"x": c["x"] * np.nan}, r"'x'.* client 2"),
        (lambda c: c | {"y": c["y"] + 9}, r"'y'.* client 2"),
        (lambda c: c | {"x": c["x"][:, :2]}, "'x'.*index 2"),
    ],
)
def test_clients_that_are_stored(tmp_path, monkeypatch, spoil, place):
    """In the second block of four; nothing half-written stays."""
    monkeypatch.setattr("fedax.data.storage.MANY", 4)
    train = list(people(9))
    train[6] = spoil(train[6])
    refused(f"clients from 4.*{place}", lambda: store(tmp_path / "a", train, classes=3), DataError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil", "", "a\\b"])
def test_names_of_stored_arrays(tmp_path, name):
    clients = [person | {name: np.ones(len(person["y"]))} for person in people(3)]
    refused("names of arrays", lambda: store(tmp_path / "a", clients, classes=3), DataError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train/x.npy", "about.json"])
def test_stored_files_that_are_cut_off(tmp_path, name):
    file = store(tmp_path / "a", people(5), classes=3) / name
    file.write_bytes(file.read_bytes()[:-3])
    refused("a", lambda: stored(tmp_path / "a"), DataError)


def looked_up(w, examples):
    return (w["table"][examples["item"]] - examples["x"]) ** 2


def taken_along(w, examples):
    rows = w["table"][None] * examples["x"][:, None]
    return jnp.take_along_axis(rows, examples["item"][:, None], axis=1)[:, 0] ** 2


@pytest.mark.parametrize("lookup", [looked_up, taken_along])
def test_whole_numbers_beyond_what_they_index(lookup):
    params = {"table": np.zeros(5, np.float32)}

    def task(*items, kind=np.int64):
        rows = {"x": np.ones(len(items), np.float32), "item": np.array(items, kind)}
        return fedax.Task(params, lookup, [rows])

    assert task(0, 4, kind=np.int8).train.total == 2
    for item, kind in ((5, np.int64), (10**6, np.int64), (-1, np.int8)):
        refused("'item'", functools.partial(task, 0, item, kind=kind), DataError)


@pytest.mark.parametrize("shape", [(3, 8, 6), (6, 8, 3)])
def test_images_of_another_order(shape):
    """Channels come last, rows first."""
    model = fedax.models.CNN((8, 6, 3), (fedax.models.Stage(2, 3),), (4,), 2)
    images = TWO([{"x": np.ones((3, *shape)), "y": [0, 1, 0]}])
    refused("shape", lambda: tasks.classification(images, model))
    whole = TWO([{"x": np.ones((3, 8, 6, 3)), "y": [0, 1, 0]}])
    assert tasks.classification(whole, model).train.clients == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: fedax.Task(0.0, lambda w, x: (w - x) ** 2, [x]),
        lambda x: fedax.Task(x, lambda w, x: (w.sum() - x) ** 2, [[1.0]]),
        lambda x: TWO([{"x": x, "y": [0, 1]}]),
    ],
)
def test_arrays_that_are_being_traced(make):
    refused("traced", lambda: jax.jit(lambda x: (make(x), 0.0)[1])(jnp.ones(2)))
