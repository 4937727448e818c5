"""IDX and LEAF JSON: small files of the true format, and what is refused."""

import gzip
import struct

import jax
import numpy as np
import pytest

import fedax
from fedax import data
from fedax.data.sources.tweets import read_sent140
from fedax.models import SentimentLSTM
from leaf_files import leaf_file


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


def test_published_leaf_files(data_folder):
    path = data_folder / "fedprox_synthetic" / "synthetic_0.5_0.5_test.json.gz"
    if not path.is_file():
        pytest.skip(f"no published draw at {path}")
    loaded = data.leaf(path, classes=10)
    assert loaded.sizes[:8].tolist() == [5, 7, 40, 11, 6, 12, 8, 37]
    assert (loaded.clients, loaded.sizes.sum()) == (30, 912)
    assert loaded.train[0]["x"].shape == (5, 60)


def test_only_the_vectors_of_words_that_occur_are_read(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", me=([["1", "Mon", "Q", "me", "go, now"]], ["4"]))
    leaf_file(tmp_path / "test" / "a.json", me=([["1", "Mon", "Q", "me", "no"]], ["0"]))
    (tmp_path / "glove.6B.300d.txt").write_text("never 9 9\nno 1 2\ngo 3 4\n, 5 6\n")
    loaded, (vocabulary, table) = read_sent140(tmp_path)
    assert vocabulary == {"no": 0, "go": 1, ",": 2}
    assert table.tolist() == [[1, 2], [3, 4], [5, 6], [0, 0]]
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
