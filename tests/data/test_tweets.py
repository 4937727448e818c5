"""Sent140 from the published table, and from LEAF's files, in exactly their formats."""

import gzip

import numpy as np
import pytest

import fedax
from fedax import data
from fedax.core import DataError
from fedax.data.sources.tweets import read_sent140
from leaf_files import leaf_file

TABLE = "training.1600000.processed.noemoticon.csv"
LINE = '"{}","{}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{}","{}"\n'
TWEETS = {
    "anna": [("so good, really", 4), ("bad day", 0)] * 2,
    "zoë": [("good", 4)] * 3 + [('no "no" bad', 0)] * 2,
    "few": [("hm", 0)],
}


def table(folder, tweets=None, name=TABLE):
    """Lines of several users among each other, as in the published file; quotes are doubled, the
    text is Latin-1."""
    rows = [
        (user, i, *tweet) for user, own in (tweets or TWEETS).items() for i, tweet in enumerate(own)
    ]
    rows.sort(key=lambda row: row[1])
    text = "".join(
        LINE.format(label, k, user, said.replace('"', '""'))
        for k, (user, _, said, label) in enumerate(rows)
    )
    content = text.encode("latin-1")
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (folder / "glove.6B.300d.txt").write_text("good 1 0\nbad -1 0\n, 0 1\nunused 5 5\n")


def leaf(folder, part, users):
    """As LEAF's preprocessing writes it: records of id, date, query, user, text and the set, and
    labels as numbers."""
    held = {
        user: (
            [
                [str(k), "Mon", "NO_QUERY", user, said, "training"]
                for k, (said, _) in enumerate(own)
            ],
            [label // 4 for _, label in own],
        )
        for user, own in users.items()
    }
    leaf_file(folder / part / f"all_data_niid_3_keep_2_{part}_8.json", **held)


@pytest.mark.parametrize("name", [TABLE, f"{TABLE}.gz"])
def test_the_published_table_by_user(tmp_path, name):
    table(tmp_path, name=name)
    assert list(data.read_tweets(tmp_path / name)) == ["anna", "zoë", "few"]
    assert data.read_tweets(tmp_path / name)["zoë"][0][-1][4] == 'no "no" bad'
    found = data.sent140(folder=tmp_path, minimum=4, test_fraction=0.25)
    # anna says either of two things twice, and what she says twice stays on one side: half of her
    # tweets would be too many
    assert (found.sizes.tolist(), found.test_sizes.tolist()) == ([4, 3], [0, 2])
    _, (vocabulary, vectors) = read_sent140(tmp_path, 4, None, 0.5, 0)
    assert (vocabulary, vectors.tolist()) == (
        {"good": 0, "bad": 1, ",": 2},
        [[1, 0], [-1, 0], [0, 1], [0, 0]],
    )
    whole = [
        {key: np.concatenate([part[k][key] for part in (found.train, found.test)]) for key in "xy"}
        for k in (0, 1)
    ]
    said = [
        sorted((row[:5].tolist(), int(y)) for row, y in zip(own["x"], own["y"], strict=True))
        for own in whole
    ]
    assert said[0] == [([1, 3, 3, 3, 3], 0)] * 2 + [([3, 0, 2, 3, 3], 1)] * 2
    assert said[1] == [([0, 3, 3, 3, 3], 1)] * 3 + [([3, 3, 1, 3, 3], 0)] * 2
    again = data.sent140(folder=tmp_path, minimum=4, test_fraction=0.25)
    assert all(
        np.array_equal(a["x"], b["x"]) for a, b in zip(found.train, again.train, strict=True)
    )


def test_some_of_the_users(tmp_path):
    table(tmp_path, {f"user {k}": [("good", 4), ("bad", 0)][: 1 + k % 2] * 2 for k in range(9)})
    drawn = {
        data.sent140(folder=tmp_path, minimum=4, clients=2, seed=seed, test_fraction=0).sizes.sum()
        for seed in range(3)
    }
    assert drawn == {8}


@pytest.mark.slow
def test_table_and_files_of_leaf_are_the_same_task(tmp_path):
    """One user's tweets in order, from both formats; then a round of training."""
    anna = {"anna": TWEETS["anna"]}
    (tmp_path / "table").mkdir()
    table(tmp_path / "table", anna)
    leaf(tmp_path / "leaf", "train", anna)
    leaf(tmp_path / "leaf", "test", anna)
    (tmp_path / "leaf" / "glove.6B.300d.txt").write_bytes(
        (tmp_path / "table" / "glove.6B.300d.txt").read_bytes()
    )
    one = fedax.task("sent140", folder=str(tmp_path / "leaf"))
    two = fedax.task("sent140", folder=str(tmp_path / "table"), minimum=4, test_fraction=0.0)
    rows = [
        sorted(zip(task.train.arrays["x"].tolist(), task.train.arrays["y"].tolist(), strict=True))
        for task in (one, two)
    ]
    assert rows[0] == rows[1]
    assert (one.test.total, two.test) == (4, None)
    schedule = fedax.Schedule(steps=1, batch_size=4)
    assert fedax.run(fedax.FedAvg(), one, rounds=1, schedule=schedule, observe=[]).outcome.ok


@pytest.mark.parametrize(
    "line",
    [
        '"2","1","Mon","Q","me","neutral"\n',
        '"4","1","Mon","Q","me"\n',
        '"4","1","Mon","Q","me","never closed' + "x" * 200_000,
    ],
)
def test_bad_lines_are_named(tmp_path, line):
    (tmp_path / TABLE).write_text(LINE.format(4, 1, "me", "hi") + line)
    with pytest.raises(DataError, match=r"line 2|\.csv"):
        data.sent140(tmp_path, minimum=1)
