"""Windows of a series or text, detected by their contents."""

import hashlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

SAMPLE = 1024
"""Examples among which windows are looked for; with some, all examples are compared."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 20


def hashes(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Computes a number for each row; equal rows have equal numbers."""
    total = np.zeros(len(next(iter(arrays.values()))), np.uint64)
    # the order of the names, not of the dict
    for array_index, name in enumerate(sorted(arrays)):
        values = arrays[name]
        width = max(1, int(np.prod(values.shape[1:])))
        step = max(1, _BLOCK // width)
        for begin in range(0, len(values), step):
            block = values[begin : begin + step, ...]
            numbers = (
                # a digest for long rows, arithmetic over all rows for short ones
                _row_digests(block)
                if width * values.itemsize >= 64
                else _step_hashes(block, whole=True)
            )
            # with the place of the array, so that two that are exchanged differ
            total[begin : begin + step] += _mix_bits(numbers + np.uint64(array_index + 1))
    return total


def _canonical_bits(values: np.ndarray) -> np.ndarray:
    """Returns numbers of which equal ones have equal bytes: -0 becomes 0."""
    return np.ascontiguousarray(
        values + values.dtype.type(0) if values.dtype.kind == "f" else values.astype(np.int64)
    )


def _row_digests(values: np.ndarray) -> np.ndarray:
    """Computes a number for each row from its bytes."""
    rows = _canonical_bits(values).reshape(len(values), -1).view(np.uint8)
    digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, np.uint64)


def _step_hashes(values: np.ndarray, whole: bool = False) -> np.ndarray:
    """Computes a number for each row and step of the second axis, or for each row if `whole`."""
    plain = _canonical_bits(values)
    bits = plain.view(f"u{plain.dtype.itemsize}").astype(np.uint64)
    # (rows, steps, numbers of a step)
    flat = bits.reshape(len(values), 1 if whole or values.ndim < 2 else values.shape[1], -1)
    with np.errstate(over="ignore"):
        # with the place in the step, so that numbers that are exchanged differ
        position_salts = _mix_bits(np.arange(1, flat.shape[2] + 1, dtype=np.uint64) * _BASE)
        numbers = _mix_bits(flat + position_salts).sum(axis=2, dtype=np.uint64)
    return numbers[:, 0] if whole else numbers


def _mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Spreads the bits of 64-bit numbers (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def window_places(values: np.ndarray, copies: Int[np.ndarray, "examples"]) -> np.ndarray | None:
    """Returns where each window begins in its series; None if no rows overlap."""
    if (shift := _find_shift_in_order(values)) is not None:
        return _places_in_order(values, shift)
    first = np.unique(copies, return_index=True)[1]  # one row of each copy
    if len(first) < 3:
        return None
    # Windows with small shifts lie together in a file, shuffled ones anywhere: two samples.
    distant_rows = np.sort(first[:: max(1, len(first) // SAMPLE)])
    adjacent_rows = np.sort(first)[:SAMPLE]
    longest = max(_find_longest_shift(values[rows]) for rows in (adjacent_rows, distant_rows))
    if not longest:
        return None
    rows = np.sort(first)
    successors, shift = _find_successors(_step_hashes(values[rows]), longest)
    places = _follow_chains(successors, shift, values.shape[1])
    number = np.empty(len(first), np.int64)
    number[copies[rows]] = places
    return number[copies]


def _find_shift_in_order(values: np.ndarray) -> int | None:
    """Finds the shift by which at least half of the rows go on in the next one.

    And in no other row; None if there is none.
    """
    # up to 64 pairs of neighbouring rows, and rows far away for comparison
    pairs = np.linspace(0, len(values) - 2, min(len(values) - 1, 64)).astype(int)
    rows, next_rows, length = values[pairs], values[pairs + 1], values.shape[1]
    distant_rows = values[(pairs + 1 + len(values) // 2) % len(values)]
    for s in range(1, length):
        fits, chance = (
            _rows_equal(rows[:, s:], candidates[:, : length - s])
            for candidates in (next_rows, distant_rows)
        )
        if fits.mean() >= 0.5 and fits.sum() >= 2:
            # what goes on in distant rows too, such as constant rows, is no evidence
            return s if chance.mean() <= 0.1 else None
    return None


def _places_in_order(values: np.ndarray, shift: int) -> np.ndarray:
    """Computes places of windows that follow one another.

    A new series begins where one does not go on.
    """
    goes_on, length = np.empty(len(values) - 1, bool), values.shape[1]
    step = max(1, _BLOCK // length)
    for begin in range(0, len(goes_on), step):
        rows = np.asarray(values[begin : begin + step + 1])
        goes_on[begin : begin + step] = _rows_equal(rows[:-1, shift:], rows[1:, : length - shift])
    # four lengths apart, beyond any overlap
    return np.cumsum(np.concatenate([[0], np.where(goes_on, shift, 4 * length)]))


def _rows_equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns which rows are equal."""
    return (a == b).reshape(len(a), -1).all(axis=1)


def _find_longest_shift(values: np.ndarray) -> int:
    """Finds the largest shift at which rows go on in others more often than by chance.

    0 if the rows are no windows.

    Chance is what there is if the other rows are read backwards. A twentieth of the rows, and two,
    have to go on in others.
    """
    length, steps = values.shape[1], _step_hashes(values)
    by_chance, chance_shifts = _find_successors(steps, length - 1, backwards=True)
    longest = length - 1
    if (by_chance >= 0).any():
        # shifts at which chance finds overlaps, and a few shorter ones, say nothing
        longest = int(chance_shifts[by_chance >= 0].min()) - 1 - max(2, length // 10)
    successors, _ = _find_successors(steps, longest)
    return max(longest, 0) if int((successors >= 0).sum()) >= max(2, len(values) // 20) else 0


def _find_successors(
    steps: np.ndarray, longest: int, backwards: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Finds for each row the one that it goes on in, and how many steps later that one begins.

    -1 if there is none; at most `longest` steps.

    Overlaps that say nothing do not count: those of one value only, and those that several rows
    have in common.
    """
    count, length = steps.shape
    # Sums of hashes times powers of a base: those of equal pieces differ by a power, so that every
    # piece is compared at the cost of one number, as in the search of Rabin and Karp.
    with np.errstate(over="ignore"):
        # an odd base has no power that is 0 in 64 bits
        powers = np.cumprod(
            np.concatenate([[np.uint64(1)], np.full(length, _BASE | np.uint64(1), np.uint64)])
        )
        sums, other_sums = (
            _cumulative_sums(row_steps * powers[:length])
            for row_steps in (steps, steps[:, ::-1] if backwards else steps)
        )
        # how many of the first steps differ from the one before
        changes = _cumulative_sums(steps[:, 1:] != steps[:, :-1])
    successors, shift = np.full(count, -1), np.zeros(count, np.int64)
    for s in range(1, longest + 1):
        open_rows = np.flatnonzero(successors < 0)
        if not len(open_rows):
            break
        with np.errstate(over="ignore"):
            ends = (
                sums[open_rows, length] - sums[open_rows, s]
            )  # steps s to length of the open rows
            # steps 0 to length - s of all rows, with the powers that `ends` has
            begins = other_sums[:, length - s] * powers[s]
        # of one value only, or found in several rows: no evidence
        is_informative = changes[open_rows, length - 1] > changes[open_rows, s]
        distinct, first_rows, counts = np.unique(begins, return_index=True, return_counts=True)
        matches = np.minimum(np.searchsorted(distinct, ends), len(distinct) - 1)
        fits = (
            is_informative
            & (distinct[matches] == ends)
            & (counts[matches] == 1)
            & (first_rows[matches] != open_rows)
        )
        # nor may several rows end alike
        _, end_ids, end_counts = np.unique(ends, return_inverse=True, return_counts=True)
        fits &= end_counts[end_ids] == 1
        successors[open_rows[fits]], shift[open_rows[fits]] = first_rows[matches[fits]], s
    return successors, shift


def _cumulative_sums(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, ... columns."""
    total = np.cumsum(values, axis=1, dtype=np.uint64)
    return np.concatenate([np.zeros((len(values), 1), np.uint64), total], axis=1)


def _follow_chains(successors: np.ndarray, shift: np.ndarray, length: int) -> np.ndarray:
    """Computes places along chains of windows; chains that end in others are laid beside them."""
    places = np.full(len(successors), -1, np.int64)
    # rows that no other goes on in begin chains
    heads = np.setdiff1d(np.arange(len(successors)), successors[successors >= 0])
    base = 0
    next_rows, steps = successors.tolist(), shift.tolist()
    # and then all rows, for circles without a beginning
    for head in [*heads.tolist(), *range(len(successors))]:
        # follow to a row that has a place, to the end, or back to the chain (a periodic series)
        chain, row = list[int](), head
        on_chain = set[int]()
        while row >= 0 and places[row] < 0 and row not in on_chain:
            chain.append(row)
            on_chain.add(row)
            row = next_rows[row]
        if not chain:
            continue
        offsets = np.cumsum([0, *(steps[k] for k in chain[:-1])])
        # a chain that runs into another is laid so that the two fit
        joins = row >= 0 and places[row] >= 0
        start = places[row] - steps[chain[-1]] - offsets[-1] if joins else base
        places[chain] = start + offsets
        base = max(base, int(start + offsets[-1]) + 4 * length)  # beyond any overlap
    return places - places.min()
