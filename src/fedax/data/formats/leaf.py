"""The JSON files of LEAF: `users`, `num_samples` and `user_data[user] = {x, y}`."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedax.core import DataError
from fedax.data.folder import MissingFile, data_folder, read_whole, reading
from fedax.data.options import Folder
from fedax.data.text import LEAF_CHARACTERS, encode
from fedax.examples.federated import FederatedData
from fedax.examples.ragged import Examples

Users: TypeAlias = dict[str, tuple[list[Any], list[Any]]]
"""Inputs and labels of each user as the file has them."""
Convert: TypeAlias = Callable[[list[Any], list[Any], str], Examples]
"""From a user's inputs and labels as the file has them, and a place for messages."""


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
        document = json.loads(read_whole(file), object_pairs_hook=_unique)
        names = document["users"]
        held = document["user_data"]
        users = _unique([(name, (held[name]["x"], held[name]["y"])) for name in names])
        counts = list(zip(names, document["num_samples"], strict=True))
    for name, count in counts:
        x, y = users[name]
        if not len(x) == len(y) == count:
            got = f"user {name!r} with {len(x)} inputs and {len(y)} labels"
            raise DataError.found(file.name, got, f"{count} of both, as num_samples says")
    return users


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"the key {repeated[0]!r} twice")
    return dict(pairs)


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
        train: a file that ends in `.json` or `.json.gz`, or a folder of such files.
        test: the same for the test part, where a user may be missing, but none may be there alone,
            as after LEAF's `-t user`. Users whose list of training examples is empty are left out.
        classes: how many.
        convert: from a user's inputs and labels in the file to `{"x": ..., "y": ...}`; by default
            numbers as they are, which fits FEMNIST (784 pixels in [0, 1], 62 classes) and the
            synthetic sets. See `words` and `characters`.
        name: for tables and messages.

    Raises:
        DataError: no file, JSON that cannot be read or has another form, unequal numbers of inputs
            and labels, a user twice; inputs of unequal lengths, a label outside the classes, or a
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
    tests = None if test is None else read_users(test)
    return from_users(read_users(train), tests, classes, convert or numbers, name)


def from_users(
    train: Users, test: Users | None, classes: int, convert: Convert, name: str
) -> FederatedData:
    """Makes federated data with a client for each user who has training examples; see `leaf`."""
    clients = _convert(train, convert)
    tests = None
    if test is not None:
        # those of others are refused
        left_out = train.keys() - clients.keys()
        tests = {user: own for user, own in _convert(test, convert).items() if user not in left_out}
    return FederatedData.from_arrays(clients, test=tests, classes=classes, name=name)


def _convert(users: Users, convert: Convert) -> dict[str, Examples]:
    """Converts the examples of all users who have any."""
    converted = dict[str, Examples]()
    for user, (x, y) in users.items():
        if not y:
            continue
        try:
            converted[user] = convert(x, y, f"user {user!r}")
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise DataError.found(
                "leaf", f"user {user!r} with {error}", "examples that `convert` takes"
            ) from error
    return converted


def numbers(x: list[Any], y: list[Any], where: str) -> Examples:
    """Converts inputs `x` and labels `y` that are numbers already.

    Labels such as 3.0 or "3" count as 3. `where` names the user in messages.

    Raises:
        DataError: rows of unequal length, or labels that are no whole numbers.
    """
    labels = np.asarray(y, dtype=float)
    # other labels stay, and are refused
    if np.isfinite(labels).all() and (labels == np.rint(labels)).all():
        labels = labels.astype(np.int64)
    return {"x": np.asarray(x, dtype=np.float32), "y": labels}


def characters(x: list[Any], y: list[Any], where: str) -> Examples:
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
    lengths = {len(text) for text in x}
    if len(lengths) > 1:
        raise ValueError(f"texts of {sorted(lengths)} characters")
    codes = encode("".join(x), LEAF_CHARACTERS, where).reshape(len(x), -1)
    return {"x": codes, "y": encode("".join(y), LEAF_CHARACTERS, where)}


def femnist(folder: Folder = None) -> FederatedData:
    """Reads FEMNIST from the folders `train` and `test` that LEAF writes.

    62 classes, rows of 784 numbers in [0, 1].

    Args:
        folder: that holds them; by default `femnist` in `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf`.
    """
    return leaf(*leaf_folders(folder, "femnist"), classes=62, name="FEMNIST")


def femnist_letters(folder: Folder = None) -> FederatedData:
    """Reads the 200 devices of FedProx and FedDANE with the lower-case letters a to j.

    From their published files: rows of 784 numbers.

    26 classes, of which 0 to 9 occur.

    Args:
        folder: that holds the folders `train` and `test`; by default `femnist_letters` in
            `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf`.
    """
    return leaf(*leaf_folders(folder, "femnist_letters"), classes=26, name="FEMNIST_letters")


def shakespeare(folder: Folder = None) -> FederatedData:
    """Reads Shakespeare from the folders `train` and `test` that LEAF writes.

    Windows of 80 characters, 80 classes.

    Args:
        folder: that holds them; by default `shakespeare` in `fedax.data.data_folder`.

    Raises:
        DataError: see `leaf`.
    """
    folders = leaf_folders(folder, "shakespeare")
    data = leaf(*folders, classes=len(LEAF_CHARACTERS), convert=characters, name="Shakespeare")
    # windows of 80 characters, one character apart, and the character that follows
    return dataclasses.replace(data, train=dataclasses.replace(data.train, gap=81))


_LEAF = (
    "Run `./preprocess.sh {}` in data/{} of github.com/TalwalkarLab/leaf, and put the "
    "folders train and test there."
)
_HOW = {
    "femnist": _LEAF.format("-s niid --sf 0.05 -k 0 -t sample", "femnist"),
    "femnist_letters": "Unpack the archive that github.com/litian96/FedProx names there.",
    "shakespeare": _LEAF.format("-s niid --sf 0.2 -k 0 -t sample --tf 0.8", "shakespeare"),
    "sent140": _LEAF.format("-s niid --sf 0.3 -k 30 -t sample --tf 0.8", "sent140"),
}


def leaf_folders(folder: Folder, name: str) -> tuple[Path, Path | None]:
    """Returns the folders `train` and `test` of one of LEAF's data sets; `test` may be missing.

    Raises:
        MissingFile: no folder `train`; the message says how LEAF writes it.
    """
    root = named_folder(folder, name)
    train = root / "train"
    test = root / "test"
    if not train.is_dir():
        hint = f"{_HOW[name]} `fedax data prepare {name}` then checks them."
        allowed = "the folders train and test with LEAF's .json files"
        raise MissingFile.of(name, f"no folder {train}", allowed, hint)
    return train, test if test.is_dir() else None


def named_folder(folder: Folder, name: str) -> Path:
    """Returns a folder, by default that of a data set in the data folder."""
    return data_folder() / name if folder is None else data_folder(folder)
