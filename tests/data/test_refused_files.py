"""Files and arrays that would be misread, or that no memory holds: each is refused before it is
read as something else."""

import gzip
import io
import json
import os
import struct

import jax
import numpy as np
import pytest

from fedax import data, tasks
from fedax.core import DataError
from fedax.data import characters, read_glove, words


def clients(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content)
    return data.client_files(tmp_path)


def test_labels_from_1_need_the_number_of_classes(tmp_path):
    """Class 0 would be an output of the model that no example has."""
    files = {"a": "height,y\n1,1\n", "b": "height,y\n2,2\n3,1\n"}
    message = r"client_files\(classes=...\): got labels 1 to 2; .* y - 1 for labels from 1"
    with pytest.raises(DataError, match=message):
        clients(tmp_path, **files)
    frame = pytest.importorskip("pandas").DataFrame(
        {"height": [1.0, 2.0, 3.0], "y": [1, 2, 1], "who": ["a", "b", "b"]}
    )
    with pytest.raises(DataError, match=message):
        data.client_files(frame, client="who")
    given = data.client_files(tmp_path, classes=3)
    assert given.label_counts.tolist() == [[0, 1, 0], [0, 1, 1]]
    texts = data.client_files(
        frame.assign(y=["ill", "ill", "ill"]), client="who", labels=["well", "ill"]
    )
    assert (texts.classes, texts.train[0]["y"].tolist()) == (2, [1])


def test_columns_of_tables_are_matched_by_name(tmp_path):
    made = clients(tmp_path, a="height,weight,y\n1,60,0\n", b="y,weight,height\n1,80,2\n")
    assert made.train[1]["x"].tolist() == [[2.0, 80.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("height,y\n1,0,2,1\n", "4 fields in the row '1, 0, 2, 1' under 2 headings"),
        ("height,height,y\n1,2,0\n", "heading 'height' twice"),
        ("height,width,y\n1,2,0\n", "columns .'height', 'width'."),
        ("height,y\n1,10000\n", "labels 0 to 10000; allowed: that number"),
        ("height,y\n1,1e300\n", "labels that are whole numbers"),
        ("height,y\n1,nan\n", "'nan' in row 1 of the column 'y'"),
        ("height,y\n" + "1" * 200_000 + ",0\n", "field larger than field limit"),
    ],
    ids=[
        "row too long",
        "heading twice",
        "other columns",
        "large label",
        "huge label",
        "NaN label",
        "long field",
    ],
)
def test_tables_that_would_be_misread_are_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        clients(tmp_path, a="height,y\n1,0\n", b=content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"users": ["a", "a"], "num_samples": [1, 1], "user_data": {"a": {"x": [[1]], "y": '
            "[0]}}}",
            "user 'a' twice",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0]}, '
            '"a": {"x": [], "y": []}}}',
            r"the key .*a.* twice",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": "1", "y": [0]}}}',
            "x of str and y of list",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": '
            "[Infinity]}}}",
            "whole numbers",
        ),
        ("[" * 100_000, "cannot be read"),
    ],
    ids=["user twice", "key twice", "no list", "infinite label", "nested"],
)
def test_leaf_files_that_would_be_misread_are_refused(tmp_path, content, message):
    (tmp_path / "all.json").write_text(content)
    with pytest.raises(DataError, match=message):
        data.leaf(tmp_path, classes=2)


def test_rows_of_another_width_are_refused():
    with pytest.raises(DataError, match=r"'x'.*at index 1 has size 3"):
        data.FederatedData.from_arrays(
            [{"x": np.zeros((1, 2)), "y": [0]}, {"x": np.zeros((1, 3)), "y": [0]}], classes=2
        )


def test_labels_beyond_32_bits_are_refused():
    with pytest.raises(DataError, match="2147483647"):
        data.FederatedData.from_arrays([{"x": np.zeros((1, 2)), "y": [2**31]}], classes=2**31 + 1)


def test_gzip_files_have_a_bound(tmp_path, monkeypatch):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,0\n" * 5_000))
    monkeypatch.setattr("fedax.data.folder.MOST_BYTES", 10_000)
    with pytest.raises(DataError, match="more than 10000 bytes"):
        data.client_files(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "labels")
    with pytest.raises(DataError, match="no plain file"):
        data.read_idx(tmp_path / "labels")


@pytest.mark.parametrize(
    "shape", [(1,) * 9, (0, 2**32 - 1, 2**32 - 1)], ids=["many axes", "overflow"]
)
def test_shapes_that_no_array_has_are_refused(tmp_path, shape):
    size = int(np.prod([float(n) for n in shape]))
    (tmp_path / "x").write_bytes(
        bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(size)
    )
    with pytest.raises(DataError, match=r"axes|shape"):
        data.read_idx(tmp_path / "x")


@pytest.mark.parametrize(
    ("line", "message"),
    [("1 200000000:1", "200000000 columns"), ("nan 1:1", "NaN"), ("1 1:inf", "NaN")],
)
def test_libsvm_lines_that_make_no_data_set_are_refused(tmp_path, line, message):
    (tmp_path / "toy").write_text("-1 1:1\n" * 10 + line + "\n")
    with pytest.raises(DataError, match=message):
        data.read_libsvm(tmp_path / "toy")


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.float64(3), "y": np.arange(3)},
        {"x": np.ones((3, 2)), "y": np.int64(0)},
        {"x": np.ones((2, 2)), "y": np.arange(2), "z": np.float64(1)},
    ],
    ids=["inputs", "labels", "further"],
)
def test_scalars_in_archives_are_refused(tmp_path, arrays):
    (tmp_path / "a.npz").write_bytes(archive(**arrays))
    with pytest.raises(DataError, match="the scalar"):
        data.client_files(tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.parquet"])
def test_clients_that_are_no_plain_files_are_refused(tmp_path, name):
    clients(tmp_path, b="x,y\n1,0\n")
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(DataError, match="no plain file"):
        data.client_files(tmp_path)


def test_tasks_refuse_single_numbers_as_inputs(tmp_path):
    (tmp_path / "a.npz").write_bytes(archive(x=np.zeros(2), y=np.arange(2)))
    with pytest.raises(DataError, match="rows of features"):
        tasks.client_files(tmp_path)


def test_numbers_that_single_precision_cannot_hold_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(archive(x=np.full((2, 1), 1e300), y=np.arange(2)))
    with jax.enable_x64(False), pytest.raises(DataError, match="numbers of type float32"):
        tasks.client_files(tmp_path)


@pytest.mark.parametrize(
    ("form", "x", "y"),
    [
        ("characters", [1], ["a"]),
        ("characters", ["ab"], [None]),
        ("words", [["a"]], [0]),
        ("words", [3], [0]),
        ("words", [[1, 2, 3, 4, None]], [0]),
    ],
)
def test_texts_of_leaf_that_are_none_are_refused(tmp_path, form, x, y):
    (tmp_path / "all.json").write_text(
        json.dumps({"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": x, "y": y}}})
    )
    convert = {"characters": characters, "words": words({"a": 0})}[form]
    with pytest.raises(DataError, match="user 'a' with"):
        data.leaf(tmp_path, classes=80, convert=convert)


def test_word_vectors_are_finite(tmp_path):
    (tmp_path / "glove").write_text("so nan 1\n")
    with pytest.raises(DataError, match="NaN or infinity"):
        read_glove(tmp_path / "glove")
