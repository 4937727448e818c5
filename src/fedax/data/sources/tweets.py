"""Tweets by user (Sent140), from LEAF's files or the published table, and GloVe's vectors."""

import csv
import io
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fedax.core import DataError, InvalidInput
from fedax.data.federated import FederatedData, Labelled
from fedax.data.folder import MissingFile, data_file, data_folder, read_whole, reading
from fedax.data.formats.leaf import Convert, Users, from_users, leaf_folders, read_users
from fedax.data.limits import CLIENTS, SEED, TEST_FRACTION, checked, whole
from fedax.examples.overlap import draw_rows


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
    positive = {"0": 0, "1": 1, "4": 1}

    def convert(x: list[Any], y: list[Any], where: str) -> Labelled:
        for label in y:
            if str(label) not in positive:
                raise DataError.of(
                    "leaf", f"{where} with label {label!r}", "0 for negative, 1 or 4 for positive"
                )
        codes = np.full((len(x), length), len(vocabulary), dtype=np.int32)
        for row, tweet in zip(codes, x):
            for position, word in enumerate(tokens(_text_of_tweet(tweet, where))[:length]):
                row[position] = vocabulary.get(word, len(vocabulary))
        return {"x": codes, "y": np.array([positive[str(label)] for label in y])}

    return convert


def _text_of_tweet(tweet: Any, where: str) -> str:
    """Returns the words of a tweet: itself, or the fifth field of a record."""
    text = tweet[4] if isinstance(tweet, list) and len(tweet) > 4 else tweet
    if not isinstance(text, str):
        raise DataError.of(
            "leaf", f"{where} with {tweet!r}", "texts, or records with a text as the fifth field"
        )
    return text


def tokens(text: str) -> list[str]:
    """Splits a tweet into words and marks, as FedProx does.

    >>> tokens("so good, really")
    ['so', 'good', ',', 'really']
    """
    return re.findall(r"[\w']+|[.,!?;]", text)


@checked()
def read_glove(
    path: str | Path, among: Container[str] | None = None
) -> tuple[dict[str, int], Float[np.ndarray, "words_and_unknown width"]]:
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
    try:
        for line in io.BytesIO(read_whole(path)):
            word, _, numbers = line.decode("utf-8", errors="replace").rstrip().partition(" ")
            if among is None or word in among:
                rows[word] = np.array(numbers.split(" "), dtype=np.float32)
        table = np.array(list(rows.values()), dtype=np.float32)
        if not np.isfinite(table).all():
            raise ValueError("NaN or infinity")
    except ValueError as error:
        raise DataError.of(
            path.name,
            f"a file at {path} with {error}",
            "lines of a word and numbers, all of one length",
        ) from error
    if not rows:
        raise DataError.of(
            path.name,
            f"a file at {path} without any of the words",
            "vectors of some words of the texts",
        )
    return {word: number for number, word in enumerate(rows)}, np.vstack(
        [table, np.zeros_like(table[:1])]
    )


@checked()
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
                raise DataError.of(
                    f"{path.name}, line {rows.line_num}", row, allowed, f"The file is {path}."
                )
            x, y = users.setdefault(row[4], ([], []))
            x.append(row[1:])
            y.append(row[0])
    return users


@checked(minimum=whole(low=1), test_fraction=TEST_FRACTION, seed=SEED)
def sent140(
    vocabulary: Mapping[str, int] | None = None,
    folder: str | Path | None = None,
    *,
    minimum: int = 30,
    clients: int | None = None,
    test_fraction: float | int = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Reads Sent140, tweets by user: 25 words, 2 classes.

    From the folders `train` and `test` that LEAF writes; or, if there is no `train`, from the
    published table `training.1600000.processed.noemoticon.csv` (or `.csv.gz`).

    Args:
        vocabulary: as in `words`; by default that of `tweet_vectors`.
        folder: that holds them; by default `sent140` in `fedax.data.data_folder`.
        minimum: of the table, users with fewer tweets are left out, as LEAF's `-k` does.
        clients: of the table, how many of the others are drawn at random; all by default.
        test_fraction: of the table, share of each user's tweets kept for testing, drawn at random
            with all tweets of the same text, in [0, 1).
        seed: of the draws.

    Raises:
        DataError: see `leaf`, `read_tweets` and `tweet_vectors`; no user with `minimum` tweets, or
            fewer than `clients`.
    """
    selection = {
        "minimum": minimum,
        "clients": clients,
        "test_fraction": test_fraction,
        "seed": seed,
    }
    word_numbers = tweet_vectors(folder, **selection)[0] if vocabulary is None else vocabulary
    return from_users(*_read_users(folder, **selection), 2, words(word_numbers), "Sent140")


@checked(minimum=whole(low=1), test_fraction=TEST_FRACTION, seed=SEED)
def tweet_vectors(
    folder: str | Path | None = None,
    *,
    minimum: int = 30,
    clients: int | None = None,
    test_fraction: float | int = 0.2,
    seed: int = 0,
) -> tuple[dict[str, int], Float[np.ndarray, "words_and_unknown width"]]:
    """Reads the vectors of the words that occur in Sent140, as `read_glove` gives them.

    Args:
        folder: that holds the tweets (see `sent140`) and `glove.6B.300d.txt` (or `.gz`); by default
            `sent140` in `fedax.data.data_folder`.
        minimum, clients, test_fraction, seed: as in `sent140`.

    Raises:
        DataError: a missing or broken file.
    """
    splits = _read_users(
        folder, minimum=minimum, clients=clients, test_fraction=test_fraction, seed=seed
    )
    how = "Unpack it from glove.6B.zip of https://nlp.stanford.edu/projects/glove."
    path = data_file(GLOVE, _tweets_folder(folder), how, [f"{GLOVE}.gz"])
    texts = (
        tweet for users in splits if users is not None for x, _ in users.values() for tweet in x
    )
    return read_glove(
        path, {word for tweet in texts for word in tokens(_text_of_tweet(tweet, "a user"))}
    )


GLOVE, TABLE = "glove.6B.300d.txt", "training.1600000.processed.noemoticon.csv"


def _tweets_folder(folder: str | Path | None) -> Path:
    return data_folder() / "sent140" if folder is None else data_folder(folder)


def _read_users(
    folder: str | Path | None,
    *,
    minimum: int,
    clients: int | None,
    test_fraction: float | int,
    seed: int,
) -> tuple[Users, Users | None]:
    """Reads the users of the training and of the test part."""
    tables = (_tweets_folder(folder) / name for name in (TABLE, f"{TABLE}.gz"))
    table = next(filter(Path.is_file, tables), None)
    if table is None or (_tweets_folder(folder) / "train").is_dir():
        try:
            train, test = leaf_folders(folder, "Sent140")
        except MissingFile as error:
            raise MissingFile(
                f"{error} The published table, {TABLE}, does as well, in {_tweets_folder(folder)}."
            ) from error
        return read_users(train), read_users(test) if test.is_dir() else None
    tweets_by_user = {
        user: tweets
        for user, tweets in sorted(read_tweets(table).items())
        if len(tweets[1]) >= minimum
    }
    if not tweets_by_user:
        raise DataError.of(
            "sent140(minimum=...)", minimum, "numbers of tweets that some user reaches"
        )
    if clients is not None:
        if not CLIENTS.allows(clients) or clients > len(tweets_by_user):
            raise InvalidInput.of(
                "sent140(clients=...)",
                clients,
                f"1 to {len(tweets_by_user)}, the users with {minimum} tweets, or None",
            )
        # from another stream than the split
        selected = np.sort(
            np.random.default_rng([seed, 4]).permutation(len(tweets_by_user))[:clients]
        )
        users = list(tweets_by_user)
        tweets_by_user = {users[k]: tweets_by_user[users[k]] for k in selected}
    splits: tuple[Users, Users] = {}, {}
    texts = [tweet[-1] for x, _ in tweets_by_user.values() for tweet in x]
    # tweets of the same text are copies
    text_ids = {"text": np.unique(np.array(texts, dtype=str), return_inverse=True)[1]}
    offsets = np.cumsum([0, *(len(y) for _, y in tweets_by_user.values())])
    rows_by_split = draw_rows(
        text_ids, offsets, test_fraction, seed, together="text", field="sent140(test_fraction=...)"
    )
    for split_users, rows_by_user in zip(splits, rows_by_split, strict=True):
        # rows count over the tweets of all users
        for begin, rows, (user, (x, y)) in zip(
            offsets.tolist(), rows_by_user, tweets_by_user.items(), strict=False
        ):
            split_users[user] = [x[i - begin] for i in rows], [y[i - begin] for i in rows]
    return splits[0], splits[1] if test_fraction else None
