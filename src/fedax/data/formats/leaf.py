"""The JSON files of LEAF: `users`, `num_samples` and `user_data[user] = {x, y}`."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedax.core import DataError
from fedax.data.federated import FederatedData, Labelled
from fedax.data.folder import MissingFile, data_folder, read_whole, reading
from fedax.data.limits import checked
from fedax.data.text import LEAF_CHARACTERS, encode

Users: TypeAlias = dict[str, tuple[list[Any], list[Any]]]
"""Inputs and labels of each user as the file has them."""
Convert: TypeAlias = Callable[[list[Any], list[Any], str], Labelled]
"""From a user's inputs and labels as the file has them, and a place for messages."""


@checked()
def read_users(path: str | Path) -> Users:
    """Reads the users of a LEAF file, or of all files of a folder in order of their names.

    Files end in `.json` or `.json.gz`.

    Args:
        path: of the file or the folder.

    Raises:
        DataError: no file, JSON that cannot be read or has another form, unequal numbers of inputs
            and labels, or a user twice.
    """
    path = Path(path)
    files = sorted([*path.glob("*.json"), *path.glob("*.json.gz")]) if path.is_dir() else [path]
    if not files:
        raise MissingFile.of("leaf", f"no .json file in {path}", "a folder with LEAF's .json files")
    users: Users = {}
    for file in files:
        for user, examples in _read_document(file).items():
            if user in users:
                raise DataError.of(file.name, f"user {user!r} again", "each user in one file")
            users[user] = examples
    return users


def _read_document(file: Path) -> Users:
    with reading(file, "LEAF JSON with the keys users, num_samples and user_data"):
        # of equal keys, JSON would keep the last one without a word
        document = json.loads(read_whole(file), object_pairs_hook=_check_unique_keys)
        if not isinstance(document["users"], list):
            raise TypeError(f"users of {type(document['users']).__name__}")
        examples = {
            user: (document["user_data"][user]["x"], document["user_data"][user]["y"])
            for user in document["users"]
        }
        expected_counts = dict(zip(document["users"], document["num_samples"], strict=True))
    if len(examples) < len(document["users"]):
        repeated = _first_repeated(document["users"])
        raise DataError.of(file.name, f"user {repeated!r} twice", "each user once")
    for user, (x, y) in examples.items():
        if not isinstance(x, list) or not isinstance(y, list):
            raise DataError.of(
                file.name,
                f"user {user!r} with x of {type(x).__name__} and y of {type(y).__name__}",
                "two lists",
            )
        if not len(x) == len(y) == expected_counts[user]:
            got = f"user {user!r} with {len(x)} inputs and {len(y)} labels"
            raise DataError.of(
                file.name, got, f"{expected_counts[user]} of both, as num_samples says"
            )
    return examples


def _check_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError(f"the key {_first_repeated(key for key, _ in pairs)!r} twice")
    return unique


def _first_repeated(names: Iterable[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


@checked()
def leaf(
    train: str | Path,
    test: str | Path | None = None,
    *,
    classes: int,
    convert: Convert | None = None,
    name: str = "LEAF",
) -> FederatedData:
    """Reads LEAF JSON as federated data, one client for each user of the training part.

    Args:
        train: a file or a folder of files, see `read_users`.
        test: the same for the test part, where a user may be missing, but none may be there alone,
            as after LEAF's `-t user`. Users whose list of training examples is empty are left out.
        classes: how many.
        convert: from a user's inputs and labels in the file to `{"x": ..., "y": ...}`; by default
            numbers as they are, which fits FEMNIST (784 pixels in [0, 1], 62 classes) and the
            synthetic sets. See `words` and `characters`.
        name: for tables and messages.

    Raises:
        DataError: as `read_users`; inputs of unequal lengths, a label outside the classes, or a
            user with test examples who is not in the training part, naming the client.

    >>> import tempfile
    >>> file = (
    ...     '{"users": ["a"], "num_samples": [2],'
    ...     ' "user_data": {"a": {"x": [[0.5], [1.0]], "y": [3, 0]}}}'
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "all.json").write_text(file)
    ...     leaf(folder, classes=4).label_counts.tolist()
    [[1, 0, 0, 1]]

    Source: Caldas et al., LEAF (arXiv:1812.01097).
    """
    return from_users(
        read_users(train),
        None if test is None else read_users(test),
        classes,
        convert or numbers,
        name,
    )


def from_users(
    train: Users, test: Users | None, classes: int, convert: Convert, name: str
) -> FederatedData:
    """Makes federated data with a client for each user who has training examples; see `leaf`."""
    training = {user: examples for user, examples in train.items() if examples[1]}
    clients = [convert(x, y, f"user {user!r}") for user, (x, y) in training.items()]
    data = FederatedData.from_arrays(clients, classes=classes, name=name, names=list(training))
    if test is None:
        return data
    for user, (_, labels) in test.items():
        if labels and user not in train:
            hint = "LEAF's `-t sample` divides every user's examples, `-t user` the users."
            raise DataError.of("test", f"user {user!r}", "users of the training part", hint)
    # for users without test examples
    empty = {name: np.asarray(values)[:0] for name, values in clients[0].items()}
    test_clients = [
        convert(*test[user], f"user {user!r}") if test.get(user, ([], []))[1] else empty
        for user in training
    ]
    return FederatedData.from_arrays(data, test=test_clients)


def numbers(x: list[Any], y: list[Any], where: str) -> Labelled:
    """Converts inputs `x` and labels `y` that are numbers already.

    Labels such as 3.0 or "3" count as 3. `where` names the user in messages.

    Raises:
        DataError: rows of unequal length, or labels that are no whole numbers.
    """
    try:
        labels = np.array(
            # 3.0 and "3" are 3; other labels stay, and are refused
            [int(label) if float(label) == int(float(label)) else label for label in y]
        )
        return {"x": np.asarray(x, dtype=np.float32), "y": labels}
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError.of(
            "leaf", f"{where} with {error}", "rows of numbers of one length, and whole numbers"
        ) from error


def characters(x: list[Any], y: list[Any], where: str) -> Labelled:
    """Encodes Shakespeare's strings of equal length and the character that follows each.

    As numbers of `fedax.data.LEAF_CHARACTERS`.

    Args:
        x: the texts.
        y: the character after each.
        where: names the user in messages.

    Raises:
        DataError: no texts, texts of unequal length, or characters that are not among them.

    >>> {key: values.tolist() for key, values in characters(["AB"], ["C"], "user 'a'").items()}
    {'x': [[25, 26]], 'y': [27]}
    """
    for text in (*x, *y):
        if not isinstance(text, str):
            raise DataError.of("leaf", f"{where} with {text!r}", "texts")
    lengths = {len(text) for text in x}
    if len(lengths) > 1:
        raise DataError.of(
            "leaf", f"{where} with texts of {sorted(lengths)} characters", "texts of one length"
        )
    codes = encode("".join(x), LEAF_CHARACTERS, where).reshape(len(x), -1)
    return {"x": codes, "y": encode("".join(y), LEAF_CHARACTERS, where)}


@checked()
def femnist(folder: str | Path | None = None) -> FederatedData:
    """Reads FEMNIST from the folders `train` and `test` that LEAF writes.

    62 classes, rows of 784 numbers in [0, 1].

    Args:
        folder: that holds them; by default `femnist` in `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf`.
    """
    return _read_folders(folder, 62, None, "FEMNIST", _COMMANDS["femnist"])


@checked()
def femnist_letters(folder: str | Path | None = None) -> FederatedData:
    """Reads the 200 devices of FedProx and FedDANE with the lower-case letters a to j.

    From their published files: rows of 784 numbers.

    26 classes, of which 0 to 9 occur. See `letter_devices` for own draws of such devices.

    Args:
        folder: that holds the folders `train` and `test`; by default `femnist_letters` in
            `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf`.
    """
    return _read_folders(folder, 26, None, "FEMNIST_letters", _ARCHIVE.format("nist"))


@checked()
def shakespeare(folder: str | Path | None = None) -> FederatedData:
    """Reads Shakespeare from the folders `train` and `test` that LEAF writes.

    Windows of 80 characters, 80 classes.

    Args:
        folder: that holds them; by default `shakespeare` in `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf`.
    """
    data = _read_folders(
        folder, len(LEAF_CHARACTERS), characters, "Shakespeare", _COMMANDS["shakespeare"]
    )
    # windows of 80 characters, one character apart, and the character that follows
    return dataclasses.replace(data, train=dataclasses.replace(data.train, gap=81))


_ARCHIVE = "Unpack the archive that github.com/litian96/FedProx names in data/{}/README.md there."
_LEAF = (
    "Run `./preprocess.sh {}` in data/{} of github.com/TalwalkarLab/leaf, and put the "
    "folders train and test there."
)
_COMMANDS = {
    "femnist": _LEAF.format("-s niid --sf 0.05 -k 0 -t sample", "femnist"),
    "shakespeare": _LEAF.format("-s niid --sf 0.2 -k 0 -t sample --tf 0.8", "shakespeare"),
    "sent140": _LEAF.format("-s niid --sf 0.3 -k 30 -t sample --tf 0.8", "sent140"),
}


def leaf_folders(folder: str | Path | None, name: str) -> tuple[Path, Path]:
    """Returns the folders `train` and `test` of one of LEAF's data sets; `test` may be missing.

    Raises:
        MissingFile: no folder `train`; the message says how LEAF writes it.
    """
    return _find_folders(folder, name, _COMMANDS[name.lower()])


def _find_folders(folder: str | Path | None, name: str, how: str) -> tuple[Path, Path]:
    root = data_folder() / name.lower() if folder is None else data_folder(folder)
    train, test = root / "train", root / "test"
    if not train.is_dir():
        hint = f"{how} `fedax data prepare {name.lower()}` then checks them."
        raise MissingFile.of(
            name, f"no folder {train}", "the folders train and test with LEAF's .json files", hint
        )
    return train, test


def _read_folders(
    folder: str | Path | None, classes: int, convert: Convert | None, name: str, how: str
) -> FederatedData:
    train, test = _find_folders(folder, name, how)
    return leaf(train, test if test.is_dir() else None, classes=classes, convert=convert, name=name)
