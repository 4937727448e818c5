"""Text as tokens: bytes, characters, or learned pieces of words, by the library `tokenizers`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Bool, Int

from fedax.core import DataError, InvalidInput
from fedax.data.folder import import_extra, reading
from fedax.data.limits import checked, choice, whole

PADDING = 0
"""The token that fills up short sequences; no text has it."""
SIZES = {"characters": 128, "bytes": 257, "bpe": 512}
"""Kinds of tokens, with the size of the vocabulary if none is given."""
LEAST = {"characters": 3, "bytes": 257, "bpe": 257}
KIND, LENGTH = choice(*SIZES), whole(low=1, high=1 << 20)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A vocabulary of fixed size, from text to whole numbers and back. Needs the extra `text`.

    Token 0 is padding (`PADDING`), and no text has it.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; its token i is i + 1 here.
        size: of the vocabulary with padding: tokens are less than that.

    >>> tokens = Tokens.of(["to be, or not to be"], "characters", 12)
    >>> tokens.size, tokens.decode(tokens.encode(["to be"])[0])
    (12, 'to be')
    >>> Tokens.of([], "bytes").encode(["To"])[0].tolist()
    [85, 112]
    """

    tokenizer: Any
    size: int

    @classmethod
    def of(cls, texts: Iterable[str], kind: str = "bpe", size: int | None = None) -> "Tokens":
        """Makes the tokens of a kind; "characters" and "bpe" are learned from texts.

        Their number does not depend on the texts.

        Learning looks at all texts in one place: in a simulation that costs nothing, in a
        deployment the clients would have to agree on a vocabulary first.

        Args:
            texts: the clients' training texts.
            kind: "bytes" of UTF-8 (byte b is b + 1), "characters" (the most frequent ones; 1 is any
                other), or "bpe" (byte-pair encoding of bytes, which loses nothing).
            size: of the vocabulary with padding; 128 characters, 512 of "bpe", always 257 bytes. At
                least 3, 257 of "bpe".

        Raises:
            InvalidInput: no such kind, a size out of range.
            DataError: texts that are none, or `tokenizers` is not installed.

        Source: Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword
        Units (arXiv:1508.07909).
        """
        width = size_of(kind, size)
        library = import_extra("tokenizers", "text", "Tokens")
        checked_texts = [_check_text(text, f"texts[{i}]") for i, text in enumerate(texts)]
        if kind == "characters":
            order = Counter(character for text in checked_texts for character in text)
            order.pop(_UNKNOWN, None)
            # ties by the character, so that the vocabulary is the same everywhere
            frequent = sorted(order, key=lambda character: (-order[character], character))[
                : width - 2
            ]
            character_ids = {
                character: i for i, character in enumerate([_UNKNOWN, *sorted(frequent)])
            }
            # without merges it takes characters one by one
            return cls(
                library.Tokenizer(library.models.BPE(character_ids, [], unk_token=_UNKNOWN)), width
            )
        tokenizer = library.Tokenizer(
            library.models.BPE(
                _byte_characters() if kind == "bytes" else None, [] if kind == "bytes" else None
            )
        )
        # text of the kind "bytes" is not cut into words first
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=kind == "bpe"
        )
        tokenizer.decoder = library.decoders.ByteLevel()
        if kind == "bpe":
            alphabet = sorted(_byte_characters())
            trainer = library.trainers.BpeTrainer(
                # padding is no token of the library
                vocab_size=width - 1,
                initial_alphabet=alphabet,
                special_tokens=[],
                show_progress=False,
            )
            tokenizer.train_from_iterator(checked_texts, trainer)
        return cls(tokenizer, width)

    @classmethod
    def load(cls, path: str | Path, size: int | None = None) -> "Tokens":
        """Reads the tokens from a file that `save`, or the library, wrote.

        `size` as it was, by default one more than the file's tokens.

        Raises:
            DataError: no such file, or none of the library's.
            InvalidInput: a size that is too small for the file's tokens.
        """
        library = import_extra("tokenizers", "text", "Tokens")
        with reading(Path(path), "a file of `tokenizers`"):
            tokenizer = library.Tokenizer.from_file(str(path))
        least_size = tokenizer.get_vocab_size() + 1
        if size is not None and size < least_size:
            raise InvalidInput.of(
                "Tokens.load(size=...)", size, f"whole numbers >= {least_size}, or None"
            )
        return cls(tokenizer, size or least_size)

    def save(self, path: str | Path) -> None:
        """Writes the vocabulary to a file of the library's format (JSON)."""
        Path(path).write_text(self.tokenizer.to_str(), encoding="utf-8")

    def encode(self, texts: Sequence[str]) -> list[Int[np.ndarray, "_"]]:
        """Returns each text's tokens.

        Raises:
            DataError: texts that are none.
        """
        checked_texts = [_check_text(text, f"texts[{i}]") for i, text in enumerate(texts)]
        encodings = self.tokenizer.encode_batch(checked_texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int32) + 1 for encoding in encodings]

    def decode(self, tokens: Iterable[SupportsIndex]) -> str:
        """Returns the text of tokens; padding, and numbers that stand for nothing, are left out."""
        token_ids = [
            i for token in tokens if (i := int(token) - 1) >= 0 and self.tokenizer.id_to_token(i)
        ]
        # characters have no decoder
        pieces = (
            None if self.tokenizer.decoder else [self.tokenizer.id_to_token(i) for i in token_ids]
        )
        return (
            self.tokenizer.decode(token_ids, skip_special_tokens=False)
            if pieces is None
            else "".join(pieces)
        )

    def rows(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        """Encodes each text as one row, cut off or filled up.

        `x`, shape (texts, length), and `mask`, which is False for padding.

        >>> rows = Tokens.of([], "bytes").rows(["abc", "a"], 2)
        >>> rows["x"].tolist(), rows["mask"].tolist()
        ([[98, 99], [98, 0]], [[True, True], [True, False]])

        Raises:
            InvalidInput: a length below 1.
        """
        x, mask = pad([tokens[:length] for tokens in self.encode(texts)], _check_length(length))
        return {"x": x, "mask": mask}

    def sequences(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        """Cuts the texts into sequences for predicting the next token.

        A text of n tokens makes ceil((n - 1) / length), the last one filled up.

        Returns:
            `x`, the tokens, `y`, the token after each, and `mask`, which is False for padding; all
            of shape (pieces, length).

        >>> pieces = Tokens.of([], "bytes").sequences(["abcd"], 2)
        >>> pieces["x"].tolist(), pieces["y"].tolist(), pieces["mask"].tolist()
        ([[98, 99], [100, 0]], [[99, 100], [101, 0]], [[True, True], [True, False]])

        Raises:
            InvalidInput: a length below 1.
        """
        step = _check_length(length)
        starts = [
            (tokens, i) for tokens in self.encode(texts) for i in range(0, len(tokens) - 1, step)
        ]
        # nothing follows the last token, so x leaves it out
        x, _ = pad([tokens[i : min(i + step, len(tokens) - 1)] for tokens, i in starts], step)
        y, mask = pad([tokens[i + 1 : i + 1 + step] for tokens, i in starts], step)
        return {"x": x, "y": y, "mask": mask}


@checked(kind=KIND)
def size_of(kind: str, size: int | None) -> int:
    """Returns the size of a vocabulary, padding included; see `Tokens.of`."""
    if kind == "bytes" or size is None:
        return SIZES[kind]
    if not whole(low=LEAST[kind], high=1 << 24).allows(size):
        raise InvalidInput.of(
            "vocabulary",
            size,
            f"whole numbers from {LEAST[kind]} to {1 << 24} for {kind!r}, or None",
        )
    return size


def pad(
    rows: Sequence[Int[np.ndarray, "_"]], length: int
) -> tuple[Int[np.ndarray, "rows length"], Bool[np.ndarray, "rows length"]]:
    """Pads rows of unequal lengths with `PADDING`; returns them with a mask of their entries."""
    mask = np.arange(length) < np.array([len(row) for row in rows], int)[:, None]
    x = np.full((len(rows), length), PADDING, np.int32)
    x[mask] = np.concatenate([np.zeros(0, np.int32), *rows])
    return x, mask


_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def _byte_characters() -> dict[str, int]:
    """Returns the library's characters for the 256 bytes.

    Printable ones of Latin-1 as they are, the others from 256 on.
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte if byte in plain else 256 + others.index(byte)): byte for byte in range(256)}


def _check_text(text: Any, where: str) -> str:
    if not isinstance(text, str) or not _is_encodable(text):
        raise DataError.of(where, text, "text (str, of whole characters)")
    return text


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair
        return False
    return True


def _check_length(length: Any) -> int:
    if not LENGTH.allows(length):
        raise InvalidInput.of("length", length, LENGTH.allowed)
    return int(length)
