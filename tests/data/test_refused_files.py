"""Files and arrays that would be misread, or that no memory holds: each is refused before it is read as something else."""

import gzip
import os
import struct

import numpy as np
import pytest

from fedax import data
from fedax.core import DataError


def clients(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content)
    return data.client_files(tmp_path)


def test_columns_of_tables_are_matched_by_name(tmp_path):
    made = clients(tmp_path, a="height,weight,y\n1,60,0\n", b="y,weight,height\n1,80,2\n")
    assert made.train[1]["x"].tolist() == [[2.0, 80.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("height,y\n1,0,2,1\n", "4 fields in the row '1, 0, 2, 1' under 2 headings"),
        ("height,height,y\n1,2,0\n", "heading 'height' twice"),
        ("height,width,y\n1,2,0\n", "columns .'height', 'width'."),
        ("height,y\n1,10000\n", "a label 10000 without the number of classes"),
        ("height,y\n1,1e300\n", "labels that are whole numbers"),
        ("height,y\n1,nan\n", "NaN"),
        ("height,y\n" + "1" * 200_000 + ",0\n", "field larger than field limit"),
    ],
    ids=["row too long", "heading twice", "other columns", "large label", "huge label", "NaN label", "long field"],
)
def test_tables_that_would_be_misread_are_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        clients(tmp_path, a="height,y\n1,0\n", b=content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": ["a", "a"], "num_samples": [1, 1], "user_data": {"a": {"x": [[1]], "y": [0]}}}', "user 'a' twice"),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0]}, "a": {"x": [], "y": []}}}',
            r"the key .*a.* twice",
        ),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": "1", "y": [0]}}}', "x of str and y of list"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [Infinity]}}}', "whole numbers"),
        ("[" * 100_000, "cannot be read"),
    ],
    ids=["user twice", "key twice", "no list", "infinite label", "nested"],
)
def test_leaf_files_that_would_be_misread_are_refused(tmp_path, content, message):
    (tmp_path / "all.json").write_text(content)
    with pytest.raises(DataError, match=message):
        data.leaf(tmp_path, classes=2)


def test_rows_of_another_width_are_refused():
    with pytest.raises(DataError, match=r"rows of shape \(3,\).*\(2,\), as the first client has"):
        data.FederatedData([{"x": np.zeros((1, 2)), "y": [0]}, {"x": np.zeros((1, 3)), "y": [0]}], 2)


def test_labels_beyond_32_bits_are_refused():
    with pytest.raises(DataError, match="2147483647"):
        data.FederatedData([{"x": np.zeros((1, 2)), "y": [2**31]}], 2**31 + 1)


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


@pytest.mark.parametrize("shape", [(1,) * 9, (0, 2**32 - 1, 2**32 - 1)], ids=["many axes", "overflow"])
def test_shapes_that_no_array_has_are_refused(tmp_path, shape):
    size = int(np.prod([float(n) for n in shape]))
    (tmp_path / "x").write_bytes(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(size))
    with pytest.raises(DataError, match=r"axes|shape"):
        data.read_idx(tmp_path / "x")


@pytest.mark.parametrize(
    ("line", "message"), [("1 200000000:1", "200000000 columns"), ("nan 1:1", "NaN"), ("1 1:inf", "NaN")]
)
def test_libsvm_lines_that_make_no_data_set_are_refused(tmp_path, line, message):
    (tmp_path / "toy").write_text("-1 1:1\n" * 10 + line + "\n")
    with pytest.raises(DataError, match=message):
        data.read_libsvm(tmp_path / "toy")
