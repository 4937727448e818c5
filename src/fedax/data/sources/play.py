"""Plays cut by speaking role, for predicting the next character."""

import dataclasses
import re
from typing import Literal

import numpy as np

from fedax.core import DataError
from fedax.data.files import FILES
from fedax.data.folder import data_file, read_whole, verify
from fedax.data.options import Count, Folder, Seed, Share, Split, validated
from fedax.data.text import LEAF_CHARACTERS, encode, windows
from fedax.examples.federated import FederatedData
from fedax.examples.overlap import train_size
from fedax.examples.ragged import Examples

Vocabulary = Literal["leaf", "own"]


def roles_of(text: str) -> dict[str, str]:
    r"""Collects the lines of each speaking role, in the order of first words.

    A speech is a line `Name:` and the lines up to the next empty one. Line ends become spaces, and
    runs of spaces one, as in LEAF; a role's speeches are joined by a space.

    >>> roles_of("A:\nTo be,\nor not\n\nB:\nHm.\n\nA:\nto be.\n")
    {'A': 'To be, or not to be.', 'B': 'Hm.'}

    Raises:
        DataError: a block of text that does not begin with `Name:`.
    """
    speeches: dict[str, list[str]] = {}
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for block in re.split(r"\n[ \t]*\n", text.strip()):
        head, _, speech = block.strip().partition("\n")
        if not head.endswith(":"):
            got = f"a block that begins with {head[:40]!r}"
            raise DataError.of("play", got, "blocks that begin with a line 'Name:'")
        speeches.setdefault(head[:-1], []).append(re.sub(r"\s+", " ", speech).strip())
    return {role: " ".join(filter(None, spoken)) for role, spoken in speeches.items()}


@validated
def play(
    text: str,
    minimum: Count = 1,
    length: Count = 80,
    stride: Count = 1,
    vocabulary: Vocabulary = "leaf",
    *,
    seed: Seed = 0,
    test_fraction: Share = 0.2,
    split: Split = "in_order",
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
        split: `"in_order"` and `"shuffled"` take the last ones, without those that overlap with
            windows that are trained on. `"in_order_rows"` and `"shuffled_rows"` keep these;
            `"shuffled_rows"` draws single windows, as the released codes do, most of which then
            overlap with others that are trained on.
        name: for tables and messages.

    Raises:
        DataError: a text that is not cut into speeches, or no role with `minimum` windows.

    >>> data = play("A:\nTo be or not.\n\nB:\nHm.\n", length=4, test_fraction=0)
    >>> data.clients, data.train[0]["x"].shape, data.classes
    (1, (9, 4), 80)
    """
    speeches = roles_of(text)
    characters = LEAF_CHARACTERS
    if vocabulary == "own":
        characters = "".join(sorted(set("".join(speeches.values()))))
    # windows less than this apart overlap, the character that follows them included
    gap = -(-(length + 1) // stride)
    rng = np.random.default_rng([seed, 1])
    train = dict[str, Examples]()
    test = dict[str, Examples]()
    for role, speech in speeches.items():
        known = "".join(character for character in speech if character in characters)
        x, y = windows(encode(known, characters, f"role {role!r}"), length, stride)
        if len(y) < minimum:
            continue
        rows = rng.permutation(len(y)) if split == "shuffled_rows" else np.arange(len(y))
        count = train_size(len(y), test_fraction)
        # in the text's order, for validation is put aside by it
        kept = np.sort(rows[:count])
        put_aside = rows[count:] if split.endswith("_rows") else rows[count + gap - 1 :]
        train[role] = {"x": x[kept], "y": y[kept]}
        test[role] = {"x": x[put_aside], "y": y[put_aside]}
    if not train:
        raise DataError.of(f"{name}(minimum=...)", minimum, "numbers that some role reaches")
    data = FederatedData.from_arrays(
        train, classes=len(characters), test=test if test_fraction else None, name=name
    )
    return dataclasses.replace(data, train=dataclasses.replace(data.train, gap=gap))


@validated
def tinyshakespeare(
    minimum: Count = 1,
    length: Count = 80,
    stride: Count = 1,
    vocabulary: Vocabulary = "leaf",
    seed: Seed = 0,
    test_fraction: Share = 0.2,
    split: Split = "in_order",
    folder: Folder = None,
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
    file = "tinyshakespeare.txt"
    how = "Put it there, plain or gzipped: data/tinyshakespeare/input.txt of karpathy/char-rnn."
    path = data_file(
        folder, how, f"shakespeare/{file}.gz", f"shakespeare/{file}", f"{file}.gz", file
    )
    content = read_whole(path)
    verify(file, FILES[f"shakespeare/{file}"].sha256, [content], path)
    return play(
        content.decode("ascii"),
        minimum,
        length,
        stride,
        vocabulary,
        seed=seed,
        test_fraction=test_fraction,
        split=split,
        name="tinyshakespeare",
    )
