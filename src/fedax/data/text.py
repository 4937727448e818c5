"""Text for models of characters: vocabularies and windows."""

import numpy as np
from jaxtyping import Int

from fedax.core import DataError

LEAF_CHARACTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
"""The 80 characters of LEAF's Shakespeare, in the order of their numbers."""


def encode(
    text: str, vocabulary: str = LEAF_CHARACTERS, where: str = "text"
) -> Int[np.ndarray, "characters"]:
    """Returns the number of each character in a vocabulary.

    Args:
        text: of any length.
        vocabulary: all characters, each once.
        where: names the text in messages.

    Raises:
        DataError: a character that is not in the vocabulary, with its position.

    >>> encode("A z").tolist()
    [25, 1, 78]
    """
    numbers = {character: number for number, character in enumerate(vocabulary)}
    codes = np.array([numbers.get(character, -1) for character in text], dtype=np.int32)
    unknown = np.flatnonzero(codes < 0)
    if len(unknown):
        position = unknown[0]
        got = f"{text[position]!r} at position {position}"
        raise DataError.of(where, got, f"the {len(vocabulary)} characters {vocabulary!r}")
    return codes


def windows(
    codes: Int[np.ndarray, "characters"], length: int = 80, stride: int = 1
) -> tuple[Int[np.ndarray, "windows length"], Int[np.ndarray, "windows"]]:
    """Cuts windows of `length` characters, `stride` apart, with the character after each.

    The windows are a view of `codes`; length and stride are at least 1.

    >>> x, y = windows(np.arange(6, dtype=np.int32), length=3, stride=2)
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2], [2, 3, 4]], [3, 5])
    """
    if len(codes) <= length:
        return np.zeros((0, length), np.int32), np.zeros(0, np.int32)
    x = np.lib.stride_tricks.sliding_window_view(codes[:-1], length)[::stride]
    return x, codes[length::stride]
