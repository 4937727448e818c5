"""Splits that do not leak: exact copies of examples, and windows of one text.

The one rule of every split in this library: what is drawn for testing, for validation or as unseen
clients shares no example with what is trained on.

- Copies, of which all arrays are equal, stay together, also across clients, unless they are split
  in order. So do examples that share the value of an array, such as the number of the picture that
  they were made of, where it is named: `together="picture"`.
- Windows that fedax cut from a text are split in order: the last ones are put aside, without those
  that overlap with windows that are trained on. The data say so by their `gap`.
- Otherwise examples are drawn one by one.

`"shuffled_rows"` and `"in_order_rows"` split without regard to overlaps, as many released codes do.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int

from fedax.errors import DataError, UnknownName
from fedax.examples.memmap import blocks
from fedax.utils.shares import whole_part

SPLITS = ("shuffled", "in_order", "shuffled_rows", "in_order_rows")
"""Ways to choose the examples that are put aside."""
Divided: TypeAlias = list[tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]]
"""For each client the rows that are trained on and those put aside."""


def check_share(field: str, share: float, split: str = "shuffled") -> None:
    """Refuses a share outside [0, 1), or an unknown split.

    Args:
        field: the argument with the share, for messages.
        share: of what is put aside.
        split: one of `SPLITS`.
    """
    if not 0 <= share < 1:
        raise DataError.of(field, share, "numbers in [0, 1)")
    if split not in SPLITS:
        raise UnknownName.among("split", split, SPLITS)


def number_copies(
    arrays: Mapping[str, Any], together: str | None = None
) -> Int[np.ndarray, "examples"]:
    """Returns for each example a number that its copies share.

    Args:
        arrays: of all clients, one row per example.
        together: the array of which equal values make copies; by default all arrays have to be
            equal.

    >>> a, b, c = number_copies({"x": np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0]])})
    >>> bool(a == c), bool(a == b)
    (True, False)
    """
    if together is None:
        rows = zip(*map(_row_bytes, arrays.values()), strict=True)
        # eight bytes for each row, equal for equal rows
        digests = [hashlib.blake2b(b"".join(row), digest_size=8).digest() for row in rows]
        return np.unique(digests, return_inverse=True)[1]
    if together not in arrays or np.ndim(arrays[together]) != 1:
        allowed = f"None, or an array of one number per example among {sorted(arrays)}"
        raise DataError.of("together", together, allowed)
    return np.unique(arrays[together], return_inverse=True)[1]


def split_rows(
    arrays: Mapping[str, Any],
    orders: Sequence[Int[np.ndarray, "_"]],
    counts: Sequence[int],
    split: str,
    together: str | None,
    share: float | int,
    field: str,
    gap: int = 1,
) -> Divided:
    """Divides each client's examples into those to train on and those put aside.

    Args:
        arrays: of all examples.
        orders: for each client its rows, in the order in which they are drawn: the last ones are
            put aside.
        counts: for each client how many rows are trained on, at least 1.
        split: one of `SPLITS`.
        together: see `number_copies`.
        share: that is put aside, for messages.
        field: the argument with the share, for messages.
        gap: rows of a client less than this apart overlap, as windows of a text do.

    Returns:
        Without overlaps the first `counts` rows and the others. With copies, sizes may differ a
        little, and windows at the edge are in neither.

    Raises:
        DataError: overlaps leave nothing to put aside.
    """
    plain = [(rows[:count], rows[count:]) for rows, count in zip(orders, counts, strict=True)]
    if split.endswith("_rows") or not any(len(held_out_rows) for _, held_out_rows in plain):
        return plain
    copies = number_copies(arrays, together)
    if gap > 1:
        divided = _divide_windows(copies, orders, counts, gap)
    elif (split == "shuffled" or together) and copies.max() + 1 < len(copies):
        divided = _draw_with_copies(copies, orders, counts)
    else:
        # in a given order, equal examples may come again
        divided = plain
    if not any(len(held_out_rows) for _, held_out_rows in divided):
        hint = "Examples that overlap with others, copies or windows, cannot be put aside alone."
        raise DataError.of(field, share, "a share that leaves some client an example", hint)
    return divided


def draw_rows(
    arrays: Mapping[str, Any],
    offsets: Int[np.ndarray, "bounds"],
    share: float | int,
    seed: int,
    split: str = "shuffled",
    together: str | None = None,
    field: str = "validation",
    gap: int = 1,
) -> tuple[list[Int[np.ndarray, "_"]], list[Int[np.ndarray, "_"]]]:
    """Draws the rows of each client that stay and those that are put aside, both ascending.

    Args:
        arrays: of all clients, in client order.
        offsets: where each client's rows begin, and the number of all.
        share: to be put aside, in [0, 1); a client of n examples keeps the whole part of (1 -
            share) n, but at least one.
        seed: of the draw, which is each client's own.
        split: one of `SPLITS`.
        together: see `number_copies`.
        field: the argument with the share, for messages.
        gap: see `split_rows`.

    Raises:
        DataError: nothing is left to put aside.
    """
    sizes = np.diff(offsets)
    # a stream for each client, which the others do not change
    rngs = (np.random.default_rng([seed, 2, k]) for k in range(len(sizes)))
    local_orders = [
        rng.permutation(n) if split.startswith("shuffled") else np.arange(n)
        for rng, n in zip(rngs, sizes.tolist())
    ]
    orders = [begin + rows for begin, rows in zip(offsets.tolist(), local_orders)]
    counts = [train_size(int(n), share) for n in sizes]
    divided = split_rows(arrays, orders, counts, split, together, share, field, gap)
    if share and not any(len(held_out_rows) for _, held_out_rows in divided):
        raise DataError.of(field, share, "a share that leaves some client an example")
    return [np.sort(train_rows) for train_rows, _ in divided], [
        np.sort(held_out_rows) for _, held_out_rows in divided
    ]


def train_size(examples: int, test_fraction: float | int) -> int:
    """Returns the number of training examples of a client.

    The whole part of (1 - test_fraction) examples, but at least one.

    >>> [train_size(n, 0.1) for n in (1, 2, 50)], train_size(10, 0.8)
    ([1, 1, 45], 2)
    """
    return max(1, whole_part(1 - test_fraction, examples))


def _row_bytes(values: Any) -> Iterator[bytes]:
    """Yields the bytes of each row, equal for equal rows."""
    for block in blocks(np.asanyarray(values)):
        # zeros of either sign are equal
        numbers = block + block.dtype.type(0) if block.dtype.kind == "f" else block
        for row in numbers:
            yield row.tobytes()


def _divide_windows(
    copies: Int[np.ndarray, "examples"],
    orders: Sequence[Int[np.ndarray, "_"]],
    counts: Sequence[int],
    gap: int,
) -> Divided:
    """Puts the last windows of each client aside, without those that overlap with trained ones."""
    trained = list[np.ndarray]()
    held_out = list[np.ndarray]()
    for rows, count in zip(orders, counts, strict=True):
        ordered = np.sort(rows)
        trained.append(ordered[:count])
        held_out.append(ordered[count + gap - 1 :])
    trained_copies = copies[np.concatenate(trained)]
    unseen = [rows[~np.isin(copies[rows], trained_copies)] for rows in held_out]
    return list(zip(trained, unseen, strict=True))


def _draw_with_copies(
    copies: Int[np.ndarray, "examples"],
    orders: Sequence[Int[np.ndarray, "_"]],
    counts: Sequence[int],
) -> Divided:
    """Draws examples with all their copies, also across clients; leaves every client one."""
    owners = {int(copy): list[int]() for copy in copies[np.concatenate(orders)]}
    for client, rows in enumerate(orders):
        for copy in copies[rows].tolist():
            owners[copy].append(client)
    # by copy, whether it is put aside, once that is decided; by client, how many rows stay
    is_held_out = dict[int, bool]()
    remaining = [len(rows) for rows in orders]
    for client, (rows, count) in enumerate(zip(orders, counts, strict=True)):
        # rows that are still to be put aside
        excess = remaining[client] - count
        # the last rows of the order first
        for copy in copies[rows[::-1]].tolist():
            if excess <= 0:
                break
            if copy in is_held_out:
                continue
            # all owners of the copy give theirs away, and each must keep an example
            copy_owners = owners[copy]
            needed = {other: copy_owners.count(other) for other in set(copy_owners)}
            is_held_out[copy] = needed[client] <= excess and all(
                remaining[other] > number for other, number in needed.items()
            )
            if is_held_out[copy]:
                excess -= needed[client]
                for other, number in needed.items():
                    remaining[other] -= number
        # copies that were not reached stay
        for copy in copies[rows].tolist():
            is_held_out.setdefault(copy, False)
    held_out_marks = [
        np.array([is_held_out[copy] for copy in copies[rows].tolist()], bool) for rows in orders
    ]
    return [
        (rows[~held_out], rows[held_out])
        for rows, held_out in zip(orders, held_out_marks, strict=True)
    ]
