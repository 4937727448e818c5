"""Plays cut by speaking role, for predicting the next character."""

import re
from pathlib import Path

import numpy as np

from fedax.core import DataError
from fedax.data.federated import FederatedData
from fedax.data.folder import data_file, read_whole, verify
from fedax.data.limits import SEED, SPLIT, TEST_FRACTION, checked, choice, whole
from fedax.data.text import LEAF_CHARACTERS, encode, windows
from fedax.examples.overlap import train_size
from fedax.examples.ragged import Ragged

CHECKSUM = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_HOW = (
    "Put tinyshakespeare.txt there, plain or gzipped: the file "
    "data/tinyshakespeare/input.txt of karpathy/char-rnn."
)


def roles_of(text: str) -> dict[str, str]:
    r"""Collects the lines of each speaking role, in the order of first words.

    A speech is a line `Name:` and the lines up to the next empty one. Line ends become spaces, and
    runs of spaces one, as in LEAF; a role's speeches are joined by a space.

    >>> roles_of("A:\nTo be,\nor not\n\nB:\nHm.\n\nA:\nto be.\n")
    {'A': 'To be, or not to be.', 'B': 'Hm.'}

    Raises:
        DataError: a block of text that does not begin with `Name:`.
    """
    speeches_by_role: dict[str, list[str]] = {}
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for block in re.split(r"\n[ \t]*\n", text.strip()):
        head, _, speech = block.strip().partition("\n")
        if not head.endswith(":"):
            raise DataError.of(
                "play",
                f"a block that begins with {head[:40]!r}",
                "blocks that begin with a line 'Name:'",
            )
        speeches_by_role.setdefault(head[:-1], []).append(re.sub(r"\s+", " ", speech).strip())
    return {
        role: " ".join(spoken for spoken in speeches if spoken)
        for role, speeches in speeches_by_role.items()
    }


@checked(
    minimum=whole(low=1), length=whole(low=1), stride=whole(low=1), vocabulary=choice("leaf",
    "own"), seed=SEED,
    test_fraction=TEST_FRACTION, split=SPLIT,
)  # fmt: skip
def play(
    text: str,
    minimum: int = 1,
    length: int = 80,
    stride: int = 1,
    vocabulary: str = "leaf",
    *,
    seed: int = 0,
    test_fraction: float | int = 0.2,
    split: str = "in_order",
    name: str = "play",
) -> FederatedData:
    r"""Makes a client of each speaking role of a play.

    Examples are windows of characters, and the character that follows.

    Args:
        text: see `roles_of`.
        minimum: roles with fewer windows are left out; at least 1.
        length: characters in a window.
        stride: characters from one window to the next; 1 in LEAF.
        vocabulary: `"leaf"` for the 80 characters of LEAF (`fedax.data.LEAF_CHARACTERS`; others are
            left out of the text, in tinyshakespeare one `$`), `"own"` for those of the text,
            sorted.
        seed: of the split.
        test_fraction: share of each client's windows kept for testing, in [0, 1).
        split: `"in_order"` takes the last ones, `"shuffled"` a block at a random place, both
            without those that overlap with windows that are trained on. `"in_order_rows"` and
            `"shuffled_rows"` keep these; `"shuffled_rows"` draws single windows, as the released
            codes do, most of which then overlap with others that are trained on.
        name: for tables and messages.

    Raises:
        DataError: a text that is not cut into speeches, or no role with `minimum` windows.

    >>> data = play("A:\nTo be or not.\n\nB:\nHm.\n", length=4, test_fraction=0)
    >>> data.clients, data.train[0]["x"].shape, data.classes
    (1, (9, 4), 80)
    """
    text_by_role = roles_of(text)
    characters = (
        LEAF_CHARACTERS
        if vocabulary == "leaf"
        else "".join(sorted(set("".join(text_by_role.values()))))
    )
    rng = np.random.default_rng([seed, 1])
    # windows of all roles one after the other, and each role's rows in the order of the split
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    orders: list[np.ndarray] = []
    names: list[str] = []
    begin = 0
    for role, speech in text_by_role.items():
        known_text = "".join(character for character in speech if character in characters)
        role_x, role_y = windows(encode(known_text, characters, f"role {role!r}"), length, stride)
        if len(role_y) < minimum:
            continue
        orders.append(
            begin
            + (
                rng.permutation(len(role_y))
                if split.startswith("shuffled")
                else np.arange(len(role_y))
            )
        )
        begin += len(role_y)
        x.append(role_x)
        y.append(role_y)
        names.append(role)
    if not names:
        raise DataError.of(
            f"{name}(minimum=...)",
            minimum,
            "numbers that some role reaches",
            "Take fewer or shorter windows.",
        )
    # windows less than this apart overlap, the character that follows them included
    gap = -(-(length + 1) // stride)
    # a random block begins at the same part of each role's text
    block = float(np.random.default_rng([seed, 5]).random()) if split == "shuffled" else 1.0
    train, test = list[np.ndarray](), list[np.ndarray]()
    for rows in orders:
        count = train_size(len(rows), test_fraction)
        if split.endswith("_rows") or not test_fraction:
            train.append(rows[:count])
            test.append(rows[count:])
            continue
        ordered = np.sort(rows)
        start = round(block * count)
        stop = start + len(rows) - count
        train.append(np.concatenate([ordered[:start], ordered[stop:]]))
        # without the windows at the edges that overlap with trained ones
        first = start + gap - 1 if start else 0
        last = stop - gap + 1 if stop < len(rows) else stop
        test.append(ordered[first : max(first, last)])
    all_x, all_y = np.concatenate(x), np.concatenate(y)

    def select(parts: list[np.ndarray]) -> Ragged:
        flat = np.concatenate(parts)
        return Ragged.flat(
            {"x": all_x[flat], "y": all_y[flat]}, [len(rows) for rows in parts], gap=gap
        )

    tests = select(test) if test_fraction else None
    return FederatedData.from_arrays(
        select(train), classes=len(characters), test=tests, name=name, names=names
    )


@checked()
def tinyshakespeare(
    minimum: int = 1,
    length: int = 80,
    stride: int = 1,
    vocabulary: str = "leaf",
    seed: int = 0,
    test_fraction: float | int = 0.2,
    split: str = "in_order",
    folder: str | Path | None = None,
) -> FederatedData:
    """Reads tinyshakespeare, an excerpt of Shakespeare's plays, by speaking role; see `play`.

    1,115,394 characters.

    Args:
        minimum: windows that a role must have; at least 1.
        length: characters in a window.
        stride: characters from one window to the next.
        vocabulary: "leaf" or "own".
        seed: of the split.
        test_fraction: share of each client's windows kept for testing, in [0, 1).
        split: "in_order", "shuffled", "in_order_rows" or "shuffled_rows".
        folder: where `tinyshakespeare.txt` or `.txt.gz` lies, or their folder `shakespeare`.

    Raises:
        DataError: a missing, broken or different file.

    Source: Karpathy, char-rnn (2015). By role as Caldas et al., LEAF (arXiv:1812.01097) do with all
    plays.
    """
    options = {
        "seed": seed,
        "test_fraction": test_fraction,
        "split": split,
        "name": "tinyshakespeare",
    }
    name = "tinyshakespeare.txt"
    path = data_file(
        f"shakespeare/{name}.gz", folder, _HOW, [f"shakespeare/{name}", f"{name}.gz", name]
    )
    content = read_whole(path, _HOW)
    verify(name, CHECKSUM, [content], path, _HOW)
    return play(content.decode("ascii"), minimum, length, stride, vocabulary, **options)
