"""Files and arrays that would be misread, or that no memory holds: each is refused before it is
read as something else."""

import json
import os
import struct

import numpy as np
import pytest

from fedax import data
from fedax.core import DataError
from fedax.data import characters, read_glove, words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"users": ["a", "a"], "num_samples": [1, 1], "user_data": {"a": {"x": [[1]], "y": '
            "[0]}}}",
            "the key .*a.* twice",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0]}, '
            '"a": {"x": [], "y": []}}}',
            r"the key .*a.* twice",
        ),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": '
            "[Infinity]}}}",
            "finite numbers",
        ),
        ("[" * 100_000, "cannot be read"),
    ],
    ids=["user twice", "key twice", "infinite label", "nested"],
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "labels")
    with pytest.raises(DataError, match="no plain file"):
        data.read_idx(tmp_path / "labels")


def test_shapes_that_no_array_has_are_refused(tmp_path):
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 0, 2**32 - 1, 2**32 - 1)
    (tmp_path / "x").write_bytes(header)
    with pytest.raises(DataError, match=r"cannot be read"):
        data.read_idx(tmp_path / "x")


@pytest.mark.parametrize(
    ("line", "message"),
    [("1 200000000:1", "200000000"), ("nan 1:1", "finite"), ("1 1:inf", "finite")],
)
def test_libsvm_lines_that_make_no_data_set_are_refused(tmp_path, line, message):
    (tmp_path / "toy").write_text("-1 1:1\n" * 10 + line + "\n")
    with pytest.raises(DataError, match=message):
        data.read_libsvm(tmp_path / "toy")


@pytest.mark.parametrize(
    ("form", "x", "y"),
    [
        ("characters", [1], ["a"]),
        ("characters", ["ab"], [None]),
        ("words", [["a"]], [0]),
        ("words", [3], [0]),
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
