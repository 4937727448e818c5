"""Tweets by user (Sent140), from LEAF's files or the published table, and GloVe's vectors."""

import csv
import dataclasses
import io
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from fedax.core import DataError
from fedax.data.folder import data_file, read_whole, reading
from fedax.data.formats.leaf import (
    Convert,
    Users,
    from_users,
    leaf_folders,
    named_folder,
    read_users,
)
from fedax.data.options import Clients, Count, Folder, Seed, Share, validated
from fedax.examples.federated import FederatedData
from fedax.examples.ragged import Examples

GLOVE = "glove.6B.300d.txt"
TABLE = "training.1600000.processed.noemoticon.csv"
POSITIVE = {"0": 0, "1": 1, "4": 1}
Vectors: TypeAlias = tuple[dict[str, int], Float[np.ndarray, "words_and_unknown width"]]
"""The number of each word, and a row for each; the last one is for unknown words and padding."""


def words(vocabulary: Mapping[str, int], length: int = 25) -> Convert:
    """Converts tweets of Sent140 to the numbers of their first words and marks.

    The label is 1 for a positive one (label 4 in the raw data, or 1).

    Args:
        vocabulary: from a word to its number 0, 1, ..., as `read_glove` gives it. Other words, and
            the end of short tweets, are `len(vocabulary)`.
        length: words of a tweet that are kept.

    Raises:
        DataError: by what it returns: other labels, or rows that are no tweets.

    >>> tweet = ["1", "Mon", "", "me", "so good, really"]
    >>> {
    ...     key: values.tolist()
    ...     for key, values in words({"so": 0, "good": 1}, 5)([tweet], ["4"], "user 'me'").items()
    ... }
    {'x': [[0, 1, 2, 2, 2]], 'y': [1]}
    """

    def convert(x: list[Any], y: list[Any], where: str) -> Examples:
        unknown = [label for label in y if str(label) not in POSITIVE]
        if unknown:
            raise ValueError(f"label {unknown[0]!r}, and not 0 for negative, 1 or 4 for positive")
        codes = np.full((len(x), length), len(vocabulary), dtype=np.int32)
        for row, tweet in zip(codes, x):
            for position, word in enumerate(tokens(_text_of(tweet))[:length]):
                row[position] = vocabulary.get(word, len(vocabulary))
        return {"x": codes, "y": np.array([POSITIVE[str(label)] for label in y])}

    return convert


def _text_of(tweet: Any) -> Any:
    """Returns the words of a tweet: itself, or the fifth field of a record."""
    return tweet if isinstance(tweet, str) else tweet[4]


def tokens(text: str) -> list[str]:
    """Splits a tweet into words and marks, as FedProx does.

    >>> tokens("so good, really")
    ['so', 'good', ',', 'really']
    """
    return re.findall(r"[\w']+|[.,!?;]", text)


def read_glove(path: str | Path, among: Container[str] | None = None) -> Vectors:
    r"""Reads word vectors in GloVe's text format (`glove.6B.300d.txt`).

    A last row of zeros is for unknown words and padding.

    Args:
        path: the file, plain or gzipped.
        among: reads only the vectors of these words; of all by default.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "glove.txt"
    ...     _ = path.write_text("so 0.5 1\ngood -1 2\n")
    ...     read_glove(path)[1].tolist()
    [[0.5, 1.0], [-1.0, 2.0], [0.0, 0.0]]

    Raises:
        DataError: a missing file, or lines that are not a word and as many numbers as in the first
            line.

    Source: Pennington, Socher and Manning, GloVe: Global Vectors for Word Representation, 2014.
    """
    path = Path(path)
    rows: dict[str, np.ndarray] = {}
    with reading(path, "lines of a word and finite numbers, all of one length"):
        for line in io.BytesIO(read_whole(path)):
            word, _, numbers = line.decode("utf-8", errors="replace").rstrip().partition(" ")
            if among is None or word in among:
                rows[word] = np.array(numbers.split(" "), dtype=np.float32)
        if not rows:
            raise ValueError("without any of the words")
        table = np.stack(list(rows.values()))
        if not np.isfinite(table).all():
            raise ValueError("NaN or infinity")
    vocabulary = {word: number for number, word in enumerate(rows)}
    return vocabulary, np.vstack([table, np.zeros_like(table[:1])])


def read_tweets(path: str | Path) -> Users:
    r"""Reads the users of the published table of Sent140.

    Records of id, date, query, user and text, and labels 0 or 4.

    Every line has six quoted values, in Latin-1: label, id, date, query, user, text. There is no
    header.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "tweets.csv"
    ...     _ = path.write_text('"4","7","Mon Apr 06","NO_QUERY","me","so good"\n')
    ...     read_tweets(path)
    {'me': ([['7', 'Mon Apr 06', 'NO_QUERY', 'me', 'so good']], ['4'])}

    Raises:
        DataError: a missing or broken file, a line without six values or with another label; with
            its number.

    Source: Go, Bhayani and Huang, Twitter Sentiment Classification using Distant Supervision, 2009.
    """
    path, users = Path(path), Users()
    rows = csv.reader(io.StringIO(read_whole(path).decode("latin-1"), newline=""))
    with reading(path, "a table in CSV"):
        for row in rows:
            if len(row) != 6 or row[0] not in ("0", "4"):
                allowed = "six values: label (0 or 4), id, date, query, user, text"
                raise DataError.of(f"{path}, line {rows.line_num}", row, allowed)
            x, y = users.setdefault(row[4], ([], []))
            x.append(row[1:])
            y.append(row[0])
    return users


@validated
def sent140(
    folder: Folder = None,
    *,
    minimum: Count = 30,
    clients: Clients | None = None,
    test_fraction: Share = 0.2,
    seed: Seed = 0,
) -> FederatedData:
    """Reads Sent140, tweets by user: 25 words, 2 classes.

    From the folders `train` and `test` that LEAF writes; or, if there is no `train`, from the
    published table `training.1600000.processed.noemoticon.csv` (or `.csv.gz`). Words have numbers
    in the order of GloVe's file, which `read_glove` gives, without those that do not occur.

    Args:
        folder: that holds them and `glove.6B.300d.txt` (or `.gz`); by default `sent140` in
            `fedax.data.data_folder`.
        minimum: of the table, users with fewer tweets are left out, as LEAF's `-k` does.
        clients: of the table, how many of the others are drawn at random; all by default.
        test_fraction: of the table, share of each user's tweets kept for testing, drawn at random
            with all tweets of the same words, in [0, 1).
        seed: of the draws.

    Raises:
        DataError: see `leaf`, `read_tweets` and `read_glove`; no user with `minimum` tweets, or
            fewer than `clients`.
    """
    return read_sent140(folder, minimum, clients, test_fraction, seed)[0]


def read_sent140(
    folder: Folder, minimum: int, clients: int | None, test_fraction: float, seed: int
) -> tuple[FederatedData, Vectors]:
    """Reads the tweets of all users, and the vectors of their words; see `sent140`."""
    root = named_folder(folder, "sent140")
    table = next((root / name for name in (TABLE, f"{TABLE}.gz") if (root / name).is_file()), None)
    test = None
    if table is None or (root / "train").is_dir():
        test_fraction = 0.0
        train_folder, test_folder = leaf_folders(folder, "sent140")
        train = read_users(train_folder)
        if test_folder is not None:
            test = read_users(test_folder)
    else:
        train = _select_users(read_tweets(table), minimum, clients, seed)
    how = "Unpack it from glove.6B.zip of https://nlp.stanford.edu/projects/glove."
    path = data_file(root, how, GLOVE, f"{GLOVE}.gz")
    tweets = [tweet for users in (train, test or {}) for x, _ in users.values() for tweet in x]
    vectors = read_glove(path, {word for tweet in tweets for word in tokens(_text_of(tweet))})
    data = from_users(train, test, 2, words(vectors[0]), "Sent140")
    if test_fraction:
        divided = data.with_validation(test_fraction, seed)
        data = dataclasses.replace(divided, test=divided.validation, validation=None)
    return data, vectors


def _select_users(users: Users, minimum: int, clients: int | None, seed: int) -> Users:
    """Returns users with enough tweets, in order of their names; all, or some at random."""
    names = sorted(user for user, (_, labels) in users.items() if len(labels) >= minimum)
    if len(names) < (clients or 1):
        got = f"{len(names)} users with {minimum} tweets"
        raise DataError.found("sent140(clients=..., minimum=...)", got, f"{clients or 1} or more")
    if clients is not None:
        # from another stream than the split
        order = np.random.default_rng([seed, 4]).permutation(len(names))
        names = [names[k] for k in np.sort(order[:clients])]
    return {name: users[name] for name in names}
