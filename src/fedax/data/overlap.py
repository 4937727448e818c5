"""Overlaps of examples: exact copies, and windows of one series or text.

The one rule of every split in this library: what is drawn for testing, for validation or as unseen
clients shares no example with what is trained on, and no part of a series.

- Copies, of which all arrays are equal, stay together, also across clients. So do examples that
  share the value of an array, such as the number of the picture that they were made of, where it is
  named: `together="picture"`.
- Windows that overlap are split in order: the last ones are put aside, and those that overlap with
  windows that are trained on are left out.
- Otherwise examples are drawn one by one.

`"shuffled_rows"` and `"in_order_rows"` split without regard to overlaps, as many released codes do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from fedax.core import DataError
from fedax.data.near_copies import warn_of_near_copies
from fedax.data.series import hashes, window_places
from fedax.utils.shares import whole_part

FEW = 16
"""An example that more clients have says nothing about which of them are alike."""


@dataclass(frozen=True)
class Overlap:
    """Which of some pooled examples overlap.

    Attributes:
        copies: for each example a number that its copies share.
        places: for each example where it begins in its series, far apart for different series; None
            if there are no windows.
        extent: two windows overlap if they begin less than this apart.
    """

    copies: Int[np.ndarray, "examples"]
    places: Int[np.ndarray, "examples"] | None = None
    extent: int = 0

    @classmethod
    def of(cls, arrays: Mapping[str, Any], together: str | None = None) -> "Overlap":
        """Compares examples by their arrays.

        Args:
            arrays: of all clients, one row per example.
            together: the array of which equal values make copies; by default all arrays have to be
                equal.

        >>> windows = np.lib.stride_tricks.sliding_window_view(
        ...     np.random.default_rng(0).normal(size=9), 4
        ... )
        >>> Overlap.of({"x": windows}).places.tolist()
        [0, 1, 2, 3, 4, 5]
        """
        converted = {name: np.asarray(values) for name, values in arrays.items()}
        if together is not None:
            if together not in converted or converted[together].ndim != 1:
                raise DataError.of(
                    "together",
                    together,
                    f"None, or an array of one number per example among {sorted(converted)}",
                )
            return cls(np.unique(converted[together], return_inverse=True)[1])
        copies = np.unique(hashes(converted), return_inverse=True)[1]
        for values in converted.values():
            if values.ndim < 2 or values.shape[1] < 3 or len(values) < 3:
                continue
            length = values.shape[1]
            if (places := window_places(values, copies)) is not None:
                # what follows a window, such as its label, belongs to the series too
                following = [
                    v.shape[1] if v.ndim > 1 else 1 for v in converted.values() if v is not values
                ]
                return cls(
                    copies,
                    places,
                    length
                    + max((n for n in following if n < length), default=min(len(following), 1)),
                )
        return cls(copies)

    @property
    def any(self) -> bool:
        """Whether some examples overlap."""
        # fewer different examples than examples
        return self.places is not None or (
            len(self.copies) > 0 and int(self.copies.max()) + 1 < len(self.copies)
        )

    def clear(
        self, rows: Int[np.ndarray, "_"], others: Int[np.ndarray, "_"]
    ) -> Int[np.ndarray, "_"]:
        """Returns those of some rows that overlap with none of others."""
        rows = rows[~np.isin(self.copies[rows], self.copies[others])]
        if self.places is None or not len(others) or not len(rows):
            return rows
        # the nearest window on either side decides
        other_places, places = np.sort(self.places[others]), self.places[rows]
        next_index = np.searchsorted(other_places, places)
        far = other_places[-1] + 2 * self.extent + places.max()  # beyond every window
        gap_after = (
            np.where(
                next_index < len(other_places),
                other_places[np.minimum(next_index, len(other_places) - 1)],
                far,
            )
            - places
        )
        gap_before = places - np.where(
            next_index > 0, other_places[np.maximum(next_index - 1, 0)], -far
        )
        return rows[np.minimum(gap_after, gap_before) >= self.extent]


def divide(
    overlap: Overlap,
    orders: Sequence[Int[np.ndarray, "_"]],
    counts: Sequence[int],
    block: float | None = 1.0,
) -> list[tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]]:
    """Divides each client's examples into those to train on and those put aside.

    Args:
        overlap: which examples overlap.
        orders: for each client its rows, in the order in which they are drawn: the last ones are
            put aside.
        counts: for each client how many rows are trained on, at least 1.
        block: of windows, where the block that is put aside begins, from 0 for the first to 1 for
            the last ones; None leaves the orders as they are, for rows that are split in a given
            order.

    Returns:
        For each client the rows that are trained on and those put aside, in their order. Without
        overlaps these are the first `counts` rows and the others; with copies, sizes may differ a
        little, and windows at the edges of a block are in neither.
    """
    divided = [(rows[:count], rows[count:]) for rows, count in zip(orders, counts, strict=True)]
    if not overlap.any:
        return divided
    if overlap.places is not None and block is not None:
        divided = [
            _cut_block(rows, count, overlap.places, block)
            for rows, count in zip(orders, counts, strict=True)
        ]
    elif block is not None:
        return _draw_with_copies(overlap.copies, orders, counts)
    if overlap.places is None:  # in a given order, in which equal examples may come again
        return divided
    # windows at the edges of a block overlap with trained ones, and belong to neither side
    trained = np.concatenate([train_rows for train_rows, _ in divided])
    return [
        (train_rows, overlap.clear(held_out_rows, trained)) for train_rows, held_out_rows in divided
    ]


def split_rows(
    arrays: Mapping[str, Any],
    orders: Sequence[Int[np.ndarray, "_"]],
    counts: Sequence[int],
    split: str,
    together: str | None,
    share: float | int,
    field: str,
) -> list[tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]]:
    """Divides each client's examples by the name of a split, and warns of near copies across it.

    Args:
        arrays: of all examples.
        orders, counts: see `divide`.
        split: see `fedax.data.limits.SPLIT`.
        together: see `Overlap.of`.
        share: that is put aside, for messages.
        field: the argument with the share, for messages.

    Raises:
        DataError: overlaps leave nothing to put aside.
    """
    plain = [(rows[:count], rows[count:]) for rows, count in zip(orders, counts, strict=True)]
    if split.endswith("_rows") or not any(len(held_out_rows) for _, held_out_rows in plain):
        return plain
    overlap = Overlap.of(arrays, together)
    divided = divide(overlap, orders, counts, 1.0 if split == "shuffled" else None)
    if not any(len(held_out_rows) for _, held_out_rows in divided):
        hint = "Examples that overlap with others, copies or windows, cannot be put aside alone."
        raise DataError.of(field, share, "a share that leaves some client an example", hint)
    # only where likeness is not explained by a named array or by windows
    if together is None and overlap.places is None:
        trained, held_out = ([rows[index] for rows in divided] for index in (0, 1))
        warn_of_near_copies(arrays, trained, held_out, field)
    return divided


def draw_rows(
    arrays: Mapping[str, Any],
    offsets: Int[np.ndarray, "bounds"],
    share: float | int,
    seed: int,
    split: str = "shuffled",
    together: str | None = None,
    field: str = "validation",
) -> tuple[list[Int[np.ndarray, "_"]], list[Int[np.ndarray, "_"]]]:
    """Draws the rows of each client that stay and those that are put aside, both ascending.

    Args:
        arrays: of all clients, in client order.
        offsets: where each client's rows begin, and the number of all.
        share: to be put aside, in [0, 1); a client of n examples keeps the whole part of (1 -
            share) n, but at least one.
        seed: of the draw, which is each client's own.
        split: see `fedax.data.limits.SPLIT`.
        together: see `Overlap.of`.
        field: the argument with the share, for messages.

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
    divided = split_rows(arrays, orders, counts, split, together, share, field)
    if share and not any(len(held_out_rows) for _, held_out_rows in divided):
        raise DataError.of(field, share, "a share that leaves some client an example")
    return [np.sort(train_rows) for train_rows, _ in divided], [
        np.sort(held_out_rows) for _, held_out_rows in divided
    ]


def choose_unseen_clients(
    copies: Int[np.ndarray, "examples"],
    sizes: Sequence[int],
    order: Int[np.ndarray, "clients"],
    count: int,
) -> Int[np.ndarray, "some"]:
    """Returns clients to set apart, the first ones of an order.

    Clients who share half of their examples come together.

    Args:
        copies: of the clients' training examples, see `Overlap`.
        sizes: of the clients.
        order: of all clients.
        count: how many; fewer if those who share examples are more.

    >>> choose_unseen_clients(np.array([0, 1, 2, 0, 1]), [2, 1, 2], np.array([0, 1, 2]), 1).tolist()
    [1]
    """
    # examples by client and copy, shape (clients, copies); rare copies alone tell who is alike
    owners = np.repeat(np.arange(len(sizes)), sizes)
    width = int(copies.max()) + 1
    table = csr_array((np.ones(len(copies)), (owners, copies)), (len(sizes), width))
    table.sum_duplicates()
    owner_counts = np.bincount(table.indices, minlength=width)
    table = csr_array(table[:, (owner_counts > 1) & (owner_counts <= FEW)])
    marks = table.copy()
    marks.data[:] = 1
    # entry (i, j): how many examples of client i client j has too
    common = (table @ marks.T).tocoo()
    # client j has at least half of client i's examples
    close = 2 * common.data >= np.asarray(sizes)[common.row]
    links = coo_array((np.ones(close.sum()), (common.row[close], common.col[close])), common.shape)
    group = connected_components(links, directed=False)[1]
    members = np.bincount(group)
    # groups come as a whole, so that one that does not fit is passed over
    chosen, visited = list[int](), set[int]()
    for client in order.tolist():
        group_id = int(group[client])
        if group_id not in visited and len(chosen) + members[group_id] <= count:
            chosen += np.flatnonzero(group == group_id).tolist()
        visited.add(group_id)
        if len(chosen) == count:
            break
    return np.sort(chosen or order[:count])


def train_size(examples: int, test_fraction: float | int) -> int:
    """Returns the number of training examples of a client.

    The whole part of (1 - test_fraction) examples, but at least one.

    >>> [train_size(n, 0.1) for n in (1, 2, 50)], train_size(10, 0.8)
    ([1, 1, 45], 2)
    """
    return max(1, whole_part(1 - test_fraction, examples))


def _cut_block(
    rows: Int[np.ndarray, "_"], count: int, places: Int[np.ndarray, "_"], block: float
) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]:
    """Cuts a block of consecutive windows out; returns the other rows and the block."""
    ordered = rows[np.argsort(places[rows], kind="stable")]
    # from 0, the first windows, to `count`, the last ones
    begin = round(block * count)
    held_out = slice(begin, begin + len(rows) - count)
    return np.delete(ordered, held_out), ordered[held_out]


def _draw_with_copies(
    copies: Int[np.ndarray, "examples"],
    orders: Sequence[Int[np.ndarray, "_"]],
    counts: Sequence[int],
) -> list[tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]]:
    """Draws examples with all their copies, also across clients; leaves every client one."""
    owners = {int(copy): list[int]() for copy in copies[np.concatenate(orders)]}
    for client, rows in enumerate(orders):
        for copy in copies[rows].tolist():
            owners[copy].append(client)
    # by copy, whether it is put aside, once that is decided; by client, how many rows stay
    is_held_out, remaining = dict[int, bool](), [len(rows) for rows in orders]
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
