"""IDX and LEAF JSON: small files of the true format, and what is refused."""

import gzip
import json
import struct

import jax
import numpy as np
import pytest

import fedax
from fedax import data
from fedax.core import DataError, InvalidInput
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
        (b"", "begins otherwise"),
        (b"\x00\x00\x07\x01\x00\x00\x00\x00", "cannot be read"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "cannot be read"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x01\x02", "cannot be read"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x01\x01\x02", "cannot be read"),
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
    with pytest.raises(
        DataError, match=r"test: got 'stranger'; allowed: names of clients: 'f0', 'f1'"
    ):
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
    (tmp_path / "glove.6B.300d.txt").write_text("go 1\nnow 2\n, 3\n")
    loaded = data.sent140(tmp_path)
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
    (tmp_path / "glove.6B.300d.txt").write_text("good 1\n")
    with pytest.raises(DataError, match=message):
        getattr(data, loader)(tmp_path)


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
    task = fedax.task("sent140", folder=str(tmp_path))
    params = task.start(jax.random.key(0))
    x = np.zeros((1, 25, 3))
    x[0, [0, 2]] = [0.5, -1, 2]
    z = np.asarray(SentimentLSTM(3).apply(params, None, jax.numpy.asarray(x), None)[0])[0, 1]
    first = {key: jax.numpy.asarray(values[:1]) for key, values in task.train[0].items()}
    np.testing.assert_allclose(task.loss(params, first, None), [np.log1p(np.exp(-z))], rtol=1e-6)
    history = fedax.run(
        fedax.FedAvg(), task, rounds=1, schedule=fedax.Schedule(steps=1, batch_size=2)
    )
    assert history.outcome.ok
    with pytest.raises(InvalidInput, match="model"):
        fedax.task("sent140", folder=str(tmp_path), model="lstn")
