"""IDX, LEAF JSON, one file per client, the hub: small files of the true format, and what is
refused."""

import gzip
import importlib.util
import json
import struct
import sys
import types

import jax
import numpy as np
import pytest

import fedax
from fedax import data, tasks
from fedax.core import DataError, InvalidInput
from fedax.experiments.running.predictions import examples_of
from fedax.models import SentimentLSTM


@pytest.mark.parametrize(
    ("code", "dtype", "values"),
    [
        (0x08, ">u1", [[0, 255], [7, 8]]),
        (0x09, ">i1", [[-128, 127]]),
        (0x0B, ">i2", [[-300], [300]]),
        (0x0C, ">i4", [70_000]),
        (0x0D, ">f4", [0.5, -2]),
        (0x0E, ">f8", [[[0.1]]]),
    ],
)
def test_idx_of_every_type(tmp_path, code, dtype, values):
    array = np.array(values, dtype)
    content = (
        bytes([0, 0, code, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )
    for path, packed in (
        (tmp_path / "plain", content),
        (tmp_path / "packed.gz", gzip.compress(content)),
    ):
        path.write_bytes(packed)
        read = data.read_idx(path)
        assert np.array_equal(read, array)
        assert read.dtype.isnative


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with"),
        (b"\x00\x00\x07\x01\x00\x00\x00\x00", "begins with 00 00 07 01"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "begins with"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x01\x02", "of 10 bytes'; allowed: 11 bytes"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x01\x01\x02", "of 10 bytes'; allowed: 9 bytes"),
        (gzip.compress(bytes(range(256)) * 40, mtime=0)[:-9], "cannot be read"),
    ],
    ids=["empty", "unknown type", "no axes", "too short", "too long", "truncated gzip"],
)
def test_broken_idx_is_refused(tmp_path, content, message):
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        data.read_idx(tmp_path / "labels")
    assert str(tmp_path / "labels") in str(caught.value)


def test_a_missing_idx_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing.*cannot be read"):
        data.read_idx(tmp_path / "nothing")


def leaf_file(path, **users):
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    document = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": held,
    }
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_femnist_of_leaf(tmp_path):
    image = np.linspace(0, 1, 784).tolist()
    leaf_file(tmp_path / "train" / "all_data_0.json", f0=([image, image], [0, 61]))
    leaf_file(tmp_path / "train" / "all_data_1.json.gz", f1=([image], [3.0]), empty=([], []))
    leaf_file(tmp_path / "test" / "all_data_0.json", f1=([image], ["5"]), empty=([image], [1]))
    loaded = data.femnist(tmp_path)
    assert (loaded.clients, loaded.classes) == (2, 62)
    assert [client["y"].tolist() for client in loaded.train] == [[0, 61], [3]]
    assert [client["y"].tolist() for client in loaded.test] == [[], [5]]
    np.testing.assert_allclose(loaded.test[1]["x"], [image], rtol=1e-6)


@pytest.mark.parametrize("others", [{}, {"f0": ([[1.0]], [1])}])
def test_users_of_leaf_who_only_test_are_refused(tmp_path, others):
    """As after its option `-t user`: their examples were dropped without a word."""
    leaf_file(tmp_path / "train" / "a.json", f0=([[0.5]], [0]), f1=([[1.5]], [1]))
    leaf_file(tmp_path / "test" / "a.json", **others, stranger=([[2.5]], [1]))
    with pytest.raises(DataError, match=r"user 'stranger'.*users of the training part.*-t"):
        data.leaf(tmp_path / "train", tmp_path / "test", classes=2)


def test_shakespeare_of_leaf(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", hamlet=(["To be" * 16, "\n !}]" * 16], ["T", "\n"]))
    loaded = data.shakespeare(tmp_path)
    assert loaded.classes == 80
    assert loaded.train[0]["x"].shape == (2, 80)
    assert loaded.train[0]["x"][1, :5].tolist() == [0, 1, 2, 79, 52]
    assert loaded.train[0]["y"].tolist() == [data.LEAF_CHARACTERS.index("T"), 0]


def test_sent140_of_leaf(tmp_path):
    tweets = [["1", "Mon", "Q", "me", "don't go, now!"], ["2", "Tue", "Q", "me", "go " * 40]]
    leaf_file(tmp_path / "train" / "a.json", me=(tweets, ["4", 0]))
    loaded = data.sent140({"go": 0, "now": 1, ",": 2}, tmp_path)
    assert loaded.train[0]["x"].tolist() == [[3, 0, 2, 1] + [3] * 21, [0] * 25]
    assert loaded.train[0]["y"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("users", "loader", "message"),
    [
        ({"a": ([[0.0], [0.0, 1.0]], [0, 1])}, "femnist", "user 'a'"),
        (
            {"a": ([[0.0]], [62])},
            "femnist",
            r"train\['y'\]: got the label 62 in row 0 of client 0; allowed: "
            r"labels from 0 to 61",
        ),
        ({"a": ([[0.0]], ["x"])}, "femnist", "user 'a'"),
        ({"a": ([[0.0]], [0.5])}, "femnist", "whole numbers"),
        (
            {"a": (["ab", "abc"], ["a", "b"])},
            "shakespeare",
            r"user 'a' with texts of \[2, 3\] "
            r"characters",
        ),
        ({"a": (["a$"], ["a"])}, "shakespeare", r"user 'a': got .*\$.* at position 1"),
        ({"a": (["good"], [2])}, "sent140", "user 'a' with label 2; .*|user 'a' with label 2"),
        ({"a": ([], [])}, "femnist", "train: got no client; allowed: at least one client"),
    ],
)
def test_bad_users_are_refused(tmp_path, users, loader, message):
    leaf_file(tmp_path / "train" / "a.json", **users)
    arguments = ({},) if loader == "sent140" else ()
    with pytest.raises(DataError, match=message):
        getattr(data, loader)(*arguments, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "'a'"),
        (
            '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
            "1 inputs and 1 labels.*: 2 of both",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": []}}}',
            "1 inputs and 0 labels",
        ),
    ],
)
def test_bad_leaf_files_are_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        data.leaf(tmp_path, classes=2)


def test_leaf_needs_files_and_each_user_once(tmp_path):
    with pytest.raises(DataError, match=r"no .json file in"):
        data.leaf(tmp_path, classes=2)
    with pytest.raises(DataError, match=r"no folder .*train.*preprocess.sh"):
        data.femnist(tmp_path)
    for name in ("a.json", "b.json"):
        leaf_file(tmp_path / name, me=([[1.0]], [0]))
    with pytest.raises(DataError, match=r"b.json: got \"user 'me' again\""):
        data.leaf(tmp_path, classes=2)


def test_published_leaf_files(data_folder):
    path = data_folder / "fedprox_synthetic" / "synthetic_0.5_0.5_test.json.gz"
    if not path.is_file():
        pytest.skip(f"no published draw at {path}")
    loaded = data.leaf(path, classes=10)
    sizes = [
        5,
        7,
        40,
        11,
        6,
        12,
        8,
        37,
        21,
        20,
        10,
        5,
        33,
        465,
        8,
        9,
        20,
        6,
        11,
        9,
        6,
        6,
        62,
        6,
        15,
        11,
        19,
        18,
        11,
        15,
    ]
    assert loaded.sizes.tolist() == sizes
    assert loaded.train[0]["x"].shape == (5, 60)


def test_glove_needs_equal_lines(tmp_path):
    for bad in ("a 1 2\nb 1\n", "a 1 2\nb x y\n"):
        (tmp_path / "g.txt").write_text(bad)
        with pytest.raises(DataError, match=r"g.txt: got .*all of one length"):
            data.read_glove(tmp_path / "g.txt")
    with pytest.raises(DataError, match="without any of the words"):
        data.read_glove(tmp_path / "g.txt", {"absent"})


def test_only_the_vectors_of_words_that_occur_are_read(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", me=([["1", "Mon", "Q", "me", "go, now"]], ["4"]))
    leaf_file(tmp_path / "test" / "a.json", me=([["1", "Mon", "Q", "me", "no"]], ["0"]))
    (tmp_path / "glove.6B.300d.txt").write_text("never 9 9\nno 1 2\ngo 3 4\n, 5 6\n")
    vocabulary, table = data.tweet_vectors(tmp_path)
    assert vocabulary == {"no": 0, "go": 1, ",": 2}
    assert table.tolist() == [[1, 2], [3, 4], [5, 6], [0, 0]]
    loaded = data.sent140(folder=tmp_path)
    assert loaded.train[0]["x"][0, :4].tolist() == [1, 2, 3, 3]
    assert loaded.test[0]["x"][0, :2].tolist() == [0, 3]


@pytest.mark.slow
def test_a_tweet_reaches_the_model_as_vectors(tmp_path):
    """The task's logits are those of the model on the vectors themselves, padding and unknown words
    as zeros."""
    leaf_file(tmp_path / "train" / "a.json", me=(["go now go", "now"], [1, 0]), you=(["go"], [0]))
    (tmp_path / "glove.6B.300d.txt").write_text("go 0.5 -1 2\n")
    task = tasks.make_task("sent140", folder=str(tmp_path))
    params = task.start(jax.random.key(0))
    x = np.zeros((1, 25, 3))
    x[0, [0, 2]] = [0.5, -1, 2]
    z = np.asarray(SentimentLSTM(3)(params, jax.numpy.asarray(x)))[0, 1]
    first = {key: jax.numpy.asarray(values[:1]) for key, values in task.train[0].items()}
    np.testing.assert_allclose(task.loss(params, first, None), [np.log1p(np.exp(-z))], rtol=1e-6)
    history = fedax.run(
        fedax.FedAvg(), task, rounds=1, schedule=fedax.Schedule(steps=1, batch_size=2)
    )
    assert history.outcome.ok
    with pytest.raises(InvalidInput, match="model"):
        tasks.make_task("sent140", folder=str(tmp_path), model="lstn")


TABLE = {"a": [1.0, 2.5, 3.0], "b": [0.0, -1.0, 4.0], "y": [1, 0, 2]}


def write_table(path, columns):
    if path.suffix == ".parquet":
        pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix == ".npz":
        x = np.column_stack([values for name, values in columns.items() if name != "y"])
        np.savez(path, x=x, y=columns["y"], weight=np.arange(len(x)))
    else:
        rows = zip(*columns.values())
        text = "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "npz", "parquet"])
def test_one_file_per_client(tmp_path, ending):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    write_table(tmp_path / "train" / f"berta.{ending}", TABLE)
    write_table(
        tmp_path / "train" / f"anna.{ending}", {name: values[:2] for name, values in TABLE.items()}
    )
    write_table(
        tmp_path / "test" / f"berta.{ending}", {name: values[1:] for name, values in TABLE.items()}
    )
    (tmp_path / "train" / "notes.txt").write_text("not data")
    loaded = data.client_files(tmp_path)
    assert (loaded.sizes.tolist(), loaded.test_sizes.tolist(), loaded.classes) == (
        [2, 3],
        [0, 2],
        3,
    )
    assert loaded.train[1]["x"].tolist() == [[1.0, 0.0], [2.5, -1.0], [3.0, 4.0]]
    assert loaded.test[1]["y"].tolist() == [0, 2]
    if ending == "npz":
        assert loaded.train[1]["weight"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,b\n1,2\n", r"a.csv: got \['a', 'b'\]; allowed: the name 'y'"),
        ("a.csv", b"a,y\n1,2\n1\n", "cannot be read"),
        ("a.csv", b"a,y\nred,0\n", "red"),
        ("a.csv", b"", "cannot be read"),
        ("a.csv", b"y\n1\n", "at least one column of features"),
        ("a.csv", b"a,y\n", r"train\[0\]: got 0 examples"),
        ("a.csv", b"a,y\n1,0.5\n", "whole numbers"),
        ("a.csv", b"a,y\nnan,0\n", "'nan' in row 1 of the column 'a'"),
        ("a.csv", b"a,y\n1,-1\n", "labels from 0"),
        ("a.csv.gz", gzip.compress(b"a,y\n" + b"1,0\n" * 9999, mtime=0)[:-12], "cannot be read"),
        ("a.npz", b"PK", "cannot be read"),
        ("a.parquet", b"PAR1", "cannot be read|pip install fedax"),
        ("a.txt", b"", "no data file in"),
    ],
)
def test_bad_client_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.client_files(tmp_path)


@pytest.mark.parametrize("test_fraction", [0, 0.5])
def test_clients_of_a_folder_agree(tmp_path, test_fraction):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), y=np.zeros(2, int))
    np.savez(tmp_path / "b.npz", x=np.ones((2, 3)), y=np.zeros(3, int))
    with pytest.raises(DataError, match=r"train\[1\]: got \{'x': 2, 'y': 3\}; .* same length"):
        data.client_files(tmp_path, test_fraction=test_fraction)
    for more, message in (
        (
            {"x": np.ones((2, 3)), "other": np.ones(2)},
            r"train\[1\]: got \['y', 'x', 'other'\]; .*as the first client has",
        ),
        ({"x": np.ones((2, 4))}, r"'x'.*at index 1 has size 4"),
    ):
        np.savez(tmp_path / "b.npz", y=np.zeros(2, int), **more)
        with pytest.raises(DataError, match=message):
            data.client_files(tmp_path, test_fraction=test_fraction)
    (tmp_path / "a.csv").write_text("a,y\n1,0\n")
    with pytest.raises(DataError, match="two files of 'a'"):
        data.client_files(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        data.client_files(tmp_path / "nowhere")


def test_rows_of_clients_that_do_not_fit_are_not_taken_for_others(tmp_path):
    """Two clients with as many inputs as labels together, though not each by itself."""
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), y=np.zeros(3, int))
    np.savez(tmp_path / "b.npz", x=np.ones((3, 3)), y=np.zeros(2, int))
    with pytest.raises(DataError, match=r"train\[0\]: got \{'x': 2, 'y': 3\}; .* same length"):
        data.client_files(tmp_path, test_fraction=0.5)


def test_a_table_of_no_clients(tmp_path):
    (tmp_path / "all.csv").write_text("who,a,y\n")
    for test_fraction in (0, 0.5):
        with pytest.raises(DataError, match="train: got no client; allowed: at least one cl"):
            data.client_files(tmp_path / "all.csv", client="who", test_fraction=test_fraction)


def test_an_array_y_beside_other_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), target=np.array([0, 1]), y=np.array([1, 1]))
    with pytest.raises(DataError, match=r"a.npz: got the array 'y' beside the labels 'target'"):
        data.client_files(tmp_path, label="target")
    found = data.client_files(tmp_path, label="target", drop="y")
    assert found.train[0]["y"].tolist() == [0, 1]
    assert data.client_files(tmp_path, 2, drop="target").train[0]["y"].tolist() == [1, 1]


def test_a_feature_y_beside_other_labels(tmp_path):
    """It is no label of a table to predict for, and the texts of the labels are not its own."""
    pandas = pytest.importorskip("pandas")
    (tmp_path / "one").mkdir()
    table = pandas.DataFrame({"y": [3.0, 1.0], "target": ["no", "yes"]})
    table.to_csv(tmp_path / "one" / "a.csv", index=False)
    options = {"label": "target", "labels": ["no", "yes"]}
    with pytest.raises(InvalidInput, match="got the feature 'y' beside the labels 'target'"):
        data.client_files(tmp_path / "one", **options, categories={"y": ["low", "high"]})
    task = fedax.tasks.client_files(tmp_path / "one", **options)
    assert task.train[0]["x"].tolist() == [[3.0], [1.0]]
    params = task.start(jax.random.key(0))
    np.testing.assert_array_equal(
        task.predict(params, table), task.predict(params, np.array([[3.0], [1.0]], np.float32))
    )
    chosen = examples_of(task, tmp_path / "one" / "a.csv")
    assert list(chosen.arrays) == ["x"]


def test_parquet_without_its_package(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install \"pyarrow>="):
        data.client_files(tmp_path)


class Table(dict):
    """The library's result for a split, as far as it is used."""

    @property
    def column_names(self):
        return list(self)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the library with one data set; it notes what it is asked."""
    asked = []
    image = np.arange(4, dtype=np.uint8).reshape(2, 2)
    rows = {
        "image": [image + k for k in range(6)],
        "label": [0, 1, 2, 0, 1, 2],
        "person": list("abcabc"),
    }

    def load_dataset(path, split, **options):
        asked.append((path, split, options))
        if path != "house/set" or split not in ("train", "test"):
            raise ConnectionError("Couldn't reach 'house/set' on the Hub\nlong story")
        return Table({key: values[: 6 if split == "train" else 2] for key, values in rows.items()})

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return asked


def test_the_hub_is_asked_for_a_revision(hub, tmp_path):
    loaded = data.hub(
        "house/set", "index", clients=2, revision="abc123", test="test", cache=tmp_path
    )
    assert hub[0] == (
        "house/set",
        "train",
        {"name": None, "revision": "abc123", "cache_dir": str(tmp_path)},
    )
    assert [split for _, split, _ in hub] == ["train", "test"]
    assert (loaded.classes, loaded.sizes.tolist(), len(loaded.central["y"])) == (3, [3, 3], 2)
    assert sorted(loaded.train[0]["x"][:, 0].tolist()) == pytest.approx([0, 1 / 255, 2 / 255])


def test_labels_of_the_hub_that_begin_at_1_are_refused(hub, monkeypatch):
    rows = Table({"image": [np.zeros(2)] * 3, "label": [1, 2, 1], "person": list("aab")})
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", lambda *_, **__: rows)
    with pytest.raises(DataError, match=r"labels 1 to 2; allowed: .* y - 1 for labels"):
        data.hub("house/set", "user", user="person")


def test_the_hub_by_user(hub):
    loaded = data.hub("house/set", "user", user="person")
    assert [client["y"].tolist() for client in loaded.train] == [[0, 0], [1, 1], [2, 2]]


def test_a_data_set_of_the_hub_is_a_task(hub):
    options = {"dataset": "house/set", "partition": "user", "user": "person"}
    task = fedax.tasks.make_task("hub", **options)
    assert (task.train.clients, task.train.arrays["x"].shape) == (3, (6, 4))
    kept = data.hub(**options, flat=False)
    first = min(kept.train[1]["x"], key=lambda image: image.min())
    np.testing.assert_allclose(first, np.array([[1, 2], [3, 4]]) / 255, rtol=1e-6)
    with pytest.raises(InvalidInput, match=r"hub\(dataset=\.\.\.\): got nothing"):
        fedax.tasks.make_task("hub")


def test_a_data_set_that_the_library_saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"image": [[0.0, 1.0], [2.0, 3.0]] * 3, "label": [0, 1] * 3, "person": list("aabbcc")}
    table = datasets.Dataset.from_dict(rows)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(tmp_path / "two")
    for name, more in (("one", {}), ("two", {"test": "test"})):
        found = data.hub(str(tmp_path / name), "user", user="person", **more)
        assert [sorted(client["x"].tolist()) for client in found.train] == [
            [[0.0, 1.0], [2.0, 3.0]]
        ] * 3
        assert (found.central is None) == (name == "one")


@pytest.mark.parametrize("split", [{"test": "test"}, {"test": "train"}, {"train": "validation"}])
def test_a_folder_of_one_split_has_no_other(tmp_path, split):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"image": [[0.0], [1.0]], "label": [0, 1]})
    table.save_to_disk(tmp_path / "one")
    (option,) = split
    allowed = "'train'" if option == "train" else "None"
    with pytest.raises(
        DataError,
        match=rf"hub\({option}=...\).*; allowed: {allowed} for .*one, a folder of one split",
    ):
        data.hub(str(tmp_path / "one"), clients=1, **split)


def test_the_only_column_of_classes_is_the_label(tmp_path):
    datasets = pytest.importorskip("datasets")
    for names, columns in (("one", ["digit"]), ("two", ["digit", "writer"])):
        kinds = dict.fromkeys(columns, datasets.ClassLabel(names=["zero", "one"]))
        features = datasets.Features(
            {"image": datasets.Sequence(datasets.Value("float32")), **kinds}
        )
        rows = {"image": [[0.0, 1.0]] * 4} | {name: [0, 1, 1, 0] for name in columns}
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / names)
    found = data.hub(str(tmp_path / "one"), "index", clients=2)
    assert (found.classes, sorted(y for client in found.train for y in client["y"].tolist())) == (
        2,
        [0, 0, 1, 1],
    )
    with pytest.raises(
        DataError, match="got 'label'; allowed: one of the columns image, digit, writer"
    ):
        data.hub(str(tmp_path / "two"), "index", clients=2)


def test_the_hub_without_network_name_or_column(hub, monkeypatch):
    with pytest.raises(
        DataError,
        match=r"hub\('house/other'\): got .ConnectionError: Couldn't reach .*; "
        r".*only the cache helps",
    ):
        data.hub("house/other")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set: only the cache was looked at"):
        data.hub("house/other", revision="v1")
    for options, column in (({"features": "img"}, "img"), ({"label": "digit"}, "digit")):
        with pytest.raises(
            DataError,
            match=rf"got '{column}'; allowed: one of the columns "
            r"image, label, person",
        ):
            data.hub("house/set", clients=2, **options)
    with pytest.raises(DataError, match=r"hub\(user=...\)"):
        data.hub("house/set", "user")
    asked = len(hub)
    with pytest.raises(InvalidInput, match="clients"):
        data.hub("house/set", clients=0)
    assert len(hub) == asked


def test_the_hub_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install \"datasets>="):
        data.hub("house/set")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the library datasets is not installed"
)
def test_the_real_library_fails_clearly_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"hub\('nobody/nothing'\)"):
        data.hub("nobody/nothing", cache=tmp_path)


def test_users_need_their_partition_and_classes_without_examples_count(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["zero", "one", "two"])
    features = datasets.Features(
        {"image": datasets.Sequence(datasets.Value("float32")), "label": names}
    )
    rows = {"image": [[0.0, 1.0]] * 4, "label": [0, 1, 1, 0]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "one")
    assert data.hub(str(tmp_path / "one"), clients=2).classes == 3
    bools = datasets.Dataset.from_dict(rows | {"label": [True, False, True, False]})
    bools.save_to_disk(tmp_path / "two")
    assert data.hub(str(tmp_path / "two"), clients=2).classes == 2
    with pytest.raises(InvalidInput, match=r"hub\(user=...\): got 'w'.*partition='user'"):
        data.hub(str(tmp_path / "one"), user="w")


def test_the_index_of_a_frame_in_parquet_is_no_feature(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for client in "ab":
        frame = pandas.DataFrame({"x": [0.5, 1.0, 2.0], "y": [0, 1, 1]})
        frame.index = pandas.Index([1000, 1002, 1007], name="patient")
        frame.to_parquet(tmp_path / f"{client}.parquet")
    assert data.client_files(tmp_path, label="y").train[0]["x"].tolist() == [[0.5], [1.0], [2.0]]
