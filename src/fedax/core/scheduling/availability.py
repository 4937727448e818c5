"""Availability: which clients are available in a round."""

import bisect
import csv
import dataclasses
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from fedax.core.hyper import MOST_COUNT, check_declared, hyper
from fedax.core.scheduling.local_work import real
from fedax.core.scheduling.rule import Rule
from fedax.errors import DataError, InvalidInput
from fedax.examples.client_names import number_of
from fedax.utils.numbers import convert_fields
from fedax.utils.random import MOST_SEED, Index
from fedax.utils.shares import whole_part

AVAILABILITY: dict[str, type["Availability"]] = {}
"""Rules of availability by their name in experiment files."""


class Availability(Rule, ABC):
    r"""A rule that says which clients are available in a round; the others are not drawn.

    A new rule is one frozen dataclass with `available`; by its name (`NightOnly` is `"night_only"`)
    experiment files have it too. Its fields are its parameters.

    >>> @dataclasses.dataclass(frozen=True)
    ... class EvenRounds(Availability):
    ...     def available(self, key, round, clients):
    ...         return jnp.full(clients, round % 2 == 0)
    >>> Availability.of("even_rounds")
    EvenRounds()
    >>> del AVAILABILITY["even_rounds"]
    """

    known: ClassVar[dict[str, Any]] = AVAILABILITY
    argument = "availability"

    @abstractmethod
    def available(self, key: Key[Array, ""], round: Index, clients: int) -> Bool[Array, "clients"]:
        """Returns which clients are available.

        Args:
            key: the random stream of this round's availability, for all draws of the round.
            round: its number, from 0.
            clients: how many there are.
        """

    def check(self, clients: int) -> None:
        """Refuses a number of clients that the rule does not fit, before anything is compiled."""

    def bound_to(self, names: Sequence[str] | None, clients: int) -> "Availability":
        """Returns the rule for clients of these names, None if they have none.

        Most rules look at numbers only.
        """
        return self


@dataclasses.dataclass(frozen=True)
class Daily(Availability):
    """Day and night: every client is available for the same share of a day.

    A client's hour in round 0 is a whole number of rounds, drawn once, from `seed`, whatever the
    seed of a run. It is available from hour 0 of its day on.

    Args:
        fraction: of a day for which a client is available, in (0, 1], rounded to whole rounds but
            at least one.
        period: rounds of a day, at least 1.
        spread: the part of a day over which the hours in round 0 are drawn, in [0, 1]: with 1 all
            over the world, with 0 the same hour.
        seed: of the hours.

    >>> day = Daily(0.5, period=4, spread=0.0)
    >>> [int(day.available(jax.random.key(0), t, clients=1)[0]) for t in range(6)]
    [1, 1, 0, 0, 1, 1]
    """

    fraction: float = hyper(0.5, low=0.0, open_low=True, high=1.0)
    period: int = hyper(24, low=1)
    spread: float = hyper(1.0, low=0.0, high=1.0)
    seed: int = hyper(0, low=0, high=MOST_SEED)

    def __post_init__(self) -> None:
        convert_fields(self)
        check_declared(self)

    def available(self, key: Key[Array, ""], round: Index, clients: int) -> Bool[Array, "clients"]:
        # in rounds: over how many the hours are drawn, and for how many a client is available
        span, duration = (
            max(1, whole_part(self.spread, self.period)),
            max(1, math.floor(self.fraction * self.period + 0.5)),
        )
        # from the rule's own seed: the same clients are available in runs with different seeds
        hours = jax.random.randint(jax.random.key(self.seed), (clients,), 0, span, jnp.int32)
        return (jnp.asarray(round, jnp.int32) % self.period + hours) % self.period < duration


class Interval(NamedTuple):
    """A line of a trace: a client, by number or by name, is available from round `first` to before
    `end`.
    """

    client: int | str
    first: int
    end: int
    line: int


@dataclasses.dataclass(frozen=True)
class Trace(Availability):
    r"""A file of intervals in which clients are available: CSV with columns `device`, `from` and
    `to`.

    `device` is a client's name, or of clients without names the number, from 0. Where the names of
    all clients end in their own numbers, as `client0`, `client1` and so on, the number stands for
    the name. A client can be reached in round t if t times `round_length` lies in one of its
    intervals $[\text{from}, \text{to})$; one that has none is never available. The numbers of the
    file are compared exactly, as decimals.

    Args:
        file: its path.
        round_length: of a round, in the file's unit of time, above 0; 1 if the file counts rounds.
        repeat: whether it begins anew at the largest `to`, rounded up to whole rounds; otherwise
            no client is available afterwards.

    Raises:
        DataError: a missing file, or a line that is none; with file, line and value.
        InvalidInput: a round length out of range.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trace.csv"
    ...     _ = path.write_text("device,from,to\n0,0,120\n1,60,240\n")
    ...     trace = Trace(str(path), round_length=60)
    >>> [trace.available(jax.random.key(0), t, clients=2).tolist() for t in range(4)]
    [[True, False], [True, True], [False, True], [False, True]]
    """

    file: str
    round_length: float = 1.0
    repeat: bool = False
    intervals: tuple[Interval, ...] = dataclasses.field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        convert_fields(self)
        _require(self, "file", isinstance(self.file, str), "the path of a file")
        is_length = real(self.round_length) and 0 < self.round_length < math.inf
        _require(self, "round_length", is_length, "finite numbers > 0")
        _require(self, "repeat", isinstance(self.repeat, bool), "true or false")
        object.__setattr__(
            self, "intervals", _read_trace(self.file, Fraction(str(self.round_length)))
        )

    def check(self, clients: int) -> None:
        self.bound_to(None, clients)

    def bound_to(self, names: Sequence[str] | None, clients: int) -> "Trace":
        """Returns the trace with the numbers of the devices in place of their names.

        Raises:
            DataError: a device that is none of the clients, with its line.
        """
        number_by_name = {name: k for k, name in enumerate(names or ())}
        intervals = list[Interval]()
        for interval in self.intervals:
            client, where = interval.client, f"{self.file}, line {interval.line}, device"
            # a client may be called "7": names go before numbers
            number = number_by_name.get(str(client))
            number = number_of(str(client), names, clients, where) if number is None else number
            intervals.append(interval._replace(client=number))
        bound = object.__new__(type(self))  # without reading the file again
        for field in dataclasses.fields(self):
            object.__setattr__(bound, field.name, getattr(self, field.name))
        object.__setattr__(bound, "intervals", tuple(intervals))
        return bound

    def available(self, key: Key[Array, ""], round: Index, clients: int) -> Bool[Array, "clients"]:
        if not all(isinstance(interval.client, int) for interval in self.intervals):
            raise DataError.found(
                self.file,
                "names of devices",
                "a trace that is bound to a task's clients: bound_to(names, clients)",
            )
        client, first, end, _ = (
            jnp.asarray(column, jnp.int32) for column in zip(*self.intervals, strict=True)
        )
        now = jnp.asarray(round, jnp.int32)
        now = now % jnp.maximum(end.max(), 1) if self.repeat else now
        # a client with several intervals is available in any of them
        return jnp.zeros(clients, bool).at[client].max((first <= now) & (now < end))


COLUMNS, MOST_BYTES = ("device", "from", "to"), 1 << 28


def _read_trace(file: str, length: Fraction) -> tuple[Interval, ...]:
    try:
        # a pipe or device would never end
        if not os.path.isfile(file) or os.path.getsize(file) > MOST_BYTES:
            raise ValueError(f"no plain file of at most {MOST_BYTES} bytes")
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError.of(
            "availability", f"a file at {file} that cannot be read ({error})", "a trace in CSV"
        ) from error
    try:
        # (line, row); an empty file has a header without names, which is refused below
        header, *rows = [
            (i, row) for i, row in enumerate(csv.reader(text.splitlines(), strict=True), 1) if row
        ] or [(1, [])]
    except csv.Error as error:
        raise DataError.of(
            file, f"text that is no table ({error})", "CSV with the columns device, from and to"
        ) from error
    names = [name.strip() for name in header[1]]
    for name in COLUMNS:
        if names.count(name) != 1:
            raise DataError.of(
                f"{file}, line {header[0]}", names, f"a header with {', '.join(COLUMNS)}, each once"
            )
    if not rows:
        raise DataError.found(file, "no line below the header", "at least one interval")
    # indices of the columns, the intervals, and those of each device in order of time
    column_indices, intervals, intervals_by_device = (
        [names.index(name) for name in COLUMNS],
        [],
        dict[int | str, list[tuple[Fraction, Fraction, int]]](),
    )
    for line, row in rows:
        if len(row) != len(names):
            raise DataError.of(
                f"{file}, line {line}", row, f"{len(names)} values, as the header has"
            )
        device = _parse_device(file, line, row[column_indices[0]].strip())
        begin, end = (
            _parse_number(file, line, name, row[i].strip())
            for name, i in zip(COLUMNS[1:], column_indices[1:])
        )
        if begin >= end:
            raise DataError.of(
                f"{file}, line {line}, to",
                row[column_indices[2]].strip(),
                f"more than from, {row[column_indices[1]].strip()}",
            )
        _insert_interval(file, intervals_by_device.setdefault(device, []), (begin, end, line))
        # the rounds t with from <= t * length < to: both ends round up
        first, last = (min(math.ceil(t / length), MOST_COUNT) for t in (begin, end))
        intervals.append(Interval(device, first, last, line))
    return tuple(intervals)


def _parse_device(file: str, line: int, text: str) -> int | str:
    """Returns the number of a client if the text is one, else its name."""
    # no leading zeros: 007 is a name
    if re.fullmatch(r"0|[1-9][0-9]{0,9}", text, re.ASCII) and int(text) <= MOST_COUNT:
        return int(text)
    # other numbers, such as -1 and 1.5, are mistakes and no names
    number = re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", text, re.ASCII)
    if not text or (number and not text.isdigit()):
        raise DataError.of(
            f"{file}, line {line}, device", text, "the number of a client, from 0, or a name"
        )
    return text


def _parse_number(file: str, line: int, name: str, text: str) -> Fraction:
    # bounded, because a Fraction of 1e999999999 would never be finished
    if not re.fullmatch(r"\d{1,30}(\.\d{0,30})?([eE][+-]?\d{1,2})?", text, re.ASCII):
        raise DataError.of(f"{file}, line {line}, {name}", text, "finite numbers >= 0")
    return Fraction(text)


def _insert_interval(
    file: str, intervals: list[tuple[Fraction, Fraction, int]], new: tuple[Fraction, Fraction, int]
) -> None:
    """Puts an interval among the others of its client, in order, and refuses one that overlaps with
    them.
    """
    # sorted intervals that do not overlap: only the neighbours of a new one can overlap with it
    index = bisect.bisect(intervals, new)
    for other in intervals[max(index - 1, 0) : index + 1]:
        if new[0] < other[1] and other[0] < new[1]:
            got = f"{float(new[0]):g} to {float(new[1]):g}, which overlaps with line {other[2]}"
            raise DataError.of(
                f"{file}, line {new[2]}", got, "intervals of a device that lie apart"
            )
    intervals.insert(index, new)


def _require(rule: Rule, name: str, holds: bool, allowed: str) -> None:
    if not holds:
        raise InvalidInput.of(f"{type(rule).__name__}({name}=...)", getattr(rule, name), allowed)
