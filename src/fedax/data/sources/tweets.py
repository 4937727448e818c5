"""Tweets by user (Sent140), from LEAF's files, and GloVe's vectors."""

import io
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from fedax.data.folder import data_file, read_whole, reading
from fedax.data.formats.leaf import (
    Convert,
    from_users,
    leaf_folders,
    named_folder,
    read_users,
)
from fedax.data.options import Folder
from fedax.examples.federated import FederatedData
from fedax.examples.ragged import Examples

GLOVE = "glove.6B.300d.txt"
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


def sent140(folder: Folder = None) -> FederatedData:
    """Reads Sent140, tweets by user, from the folders `train` and `test` that LEAF writes: 25
    words, 2 classes.

    Words have numbers in the order of GloVe's file, which `read_glove` gives, without those that do
    not occur.

    Args:
        folder: that holds them and `glove.6B.300d.txt` (or `.gz`); by default `sent140` in
            `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf` and `read_glove`.

    Source: Go, Bhayani and Huang, Twitter Sentiment Classification using Distant Supervision, 2009.
    """
    return read_sent140(folder)[0]


def read_sent140(folder: Folder = None) -> tuple[FederatedData, Vectors]:
    """Reads the tweets of all users, and the vectors of their words; see `sent140`."""
    train_folder, test_folder = leaf_folders(folder, "sent140")
    train = read_users(train_folder)
    test = None if test_folder is None else read_users(test_folder)
    how = "Unpack it from glove.6B.zip of https://nlp.stanford.edu/projects/glove."
    path = data_file(named_folder(folder, "sent140"), how, GLOVE, f"{GLOVE}.gz")
    tweets = [tweet for users in (train, test or {}) for x, _ in users.values() for tweet in x]
    vectors = read_glove(path, {word for tweet in tweets for word in tokens(_text_of(tweet))})
    return from_users(train, test, 2, words(vectors[0]), "Sent140"), vectors
