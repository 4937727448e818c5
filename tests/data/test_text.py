"""Characters and windows, plays by role, against plain loops."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax import data

few = settings(max_examples=40, deadline=None, database=None, derandomize=True)


@few
@given(n=st.integers(0, 30), length=st.integers(1, 8), stride=st.integers(1, 5))
def test_windows_are_all_slices_with_a_next_character(n, length, stride):
    codes = np.arange(n, dtype=np.int32)
    x, y = data.windows(codes, length, stride)
    expected = [
        (codes[i : i + length].tolist(), codes[i + length]) for i in range(0, n - length, stride)
    ]
    assert x.tolist() == [window for window, _ in expected]
    assert y.tolist() == [after for _, after in expected]
    assert x.shape[1] == length


def test_the_vocabulary_is_that_of_leaf():
    assert len(set(data.LEAF_CHARACTERS)) == 80
    assert data.LEAF_CHARACTERS[:11] == "\n !\"&'(),-."
    assert data.encode(data.LEAF_CHARACTERS).tolist() == list(range(80))


PLAY = "A:\nOne  two\nthree.\n\nB:\nHm$.\n \nA:\nFour.\n"


def test_roles_join_their_speeches():
    assert data.roles_of(PLAY) == {"A": "One two three. Four.", "B": "Hm$."}
    for line_end in ("\r\n", "\r"):
        assert data.roles_of(PLAY.replace("\n", line_end)) == data.roles_of(PLAY)


def test_a_play_by_role_in_order():
    loaded = data.play(PLAY, length=3, test_fraction=0.5)
    text = "One two three. Four."
    codes = data.encode("One two three. Four.")
    assert loaded.clients == 1  # B says "Hm." in LEAF's characters, too little for a window
    count = len(text) - 3
    assert (loaded.sizes.tolist(), loaded.test_sizes.tolist()) == (
        [count // 2],
        [count - count // 2 - 3],
    )
    # with the three windows on the border
    every = data.play(PLAY, length=3, test_fraction=0.5, split="in_order_rows")
    assert every.train[0]["x"].tolist() == loaded.train[0]["x"].tolist()
    assert every.test[0]["x"][3:].tolist() == loaded.test[0]["x"].tolist()
    x, y = (np.concatenate([part[0][key] for part in (every.train, every.test)]) for key in "xy")
    assert x.tolist() == [codes[i : i + 3].tolist() for i in range(count)]
    assert y.tolist() == codes[3:].tolist()
    own = data.play(PLAY, length=3, vocabulary="own", test_fraction=0)
    assert own.clients == 2
    assert own.classes == len(set("One two three. Four.Hm$."))
    shuffled = data.play(PLAY, length=3, split="shuffled_rows", test_fraction=0.5, seed=1)
    assert sorted(map(tuple, shuffled.train[0]["x"].tolist())) != sorted(
        map(tuple, loaded.train[0]["x"].tolist())
    )


def test_roles_with_few_windows_are_left_out():
    assert data.play(PLAY, length=1, minimum=3, test_fraction=0).clients == 1


def test_tinyshakespeare(data_folder):
    if not (data_folder / "shakespeare").is_dir():
        pytest.skip("no tinyshakespeare")
    loaded = data.tinyshakespeare(
        stride=80, test_fraction=0.1, split="in_order_rows", folder=data_folder
    )
    text = gzip.decompress(
        (data_folder / "shakespeare" / "tinyshakespeare.txt.gz").read_bytes()
    ).decode()
    said = {}
    for block in text.strip().split("\n\n"):
        name, *lines = block.strip().split("\n")
        speech = " ".join(lines)
        said[name] = [*said.get(name, []), " ".join(speech.replace("$", "").split())]
    assert len(said) == 309
    lengths = [len(" ".join(part for part in parts if part)) for parts in said.values()]
    assert (loaded.sizes + loaded.test_sizes).tolist() == [
        -(-(n - 80) // 80) for n in lengths if n > 80
    ]
    assert (loaded.classes, loaded.train[0]["x"].shape[1]) == (80, 80)
