"""Search spaces of methods, and settings drawn from them by a quasi-random sequence."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports what is asked for, and only then

from fedax.core import SGD, InvalidInput, UnknownName
from fedax.core.hyper import Hyper, declared
from fedax.experiments.config.toml import Source

FILE = Path(__file__).parent / "spaces.toml"
"""Declared search spaces by the name of a method's class."""
EDGE = 0.125
"""Outer part of a range in which a selected value is at the edge."""
SHIFT = 0.25
"""Part of a range that a shifted one covers on each side of the edge."""
GENERAL = "not looked up: a tenth to ten times the default, or the whole declared range"
FACTOR = 10.0
"""A derived range goes from the default over this number to the default times it."""

Setting = dict[str, float]


class Range(NamedTuple):
    """An interval of a hyperparameter, on a linear or a logarithmic scale.

    >>> Range(0.01, 1.0, log=True).at(0.5)
    0.1
    """

    low: float
    high: float
    log: bool = False

    def at(self, place: float) -> float:
        """Returns the value at a place in [0, 1], to four digits: powers differ between systems."""
        low, high = self._ends
        # `low` and `high` are logarithms on a logarithmic scale
        value = low + (high - low) * place
        return float(f"{math.exp(value) if self.log else value:.4g}")

    def edge(self, value: float) -> str:
        """Returns `low` or `high` if a value lies in that outer part of the range, else nothing."""
        low, high = self._ends
        # 0 at the lower end, 1 at the upper one
        place = ((math.log(value) if self.log else value) - low) / (high - low)
        return "low" if place < EDGE else "high" if place > 1 - EDGE else ""

    def shifted(self, edge: str, limits: Hyper | None) -> "Range | None":
        """Returns the range around one of its edges within the declared limits; None if the edge is
        the limit.
        """
        low, high = self._ends
        middle, reach = low if edge == "low" else high, SHIFT * (high - low)
        ends = [middle - reach, middle + reach]
        if self.log:
            ends = [math.exp(end) for end in ends]
        least, most = (-math.inf, math.inf) if limits is None else (limits.low, limits.top)
        # the range ends where the hyperparameter's does: nothing lies beyond
        if (self.low <= least) if edge == "low" else (self.high >= most):
            return None
        return Range(max(ends[0], least), min(ends[1], most), self.log)

    @property
    def _ends(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    @property
    def plain(self) -> dict[str, list[float]]:
        """As files spell it."""
        return {"log" if self.log else "linear": [self.low, self.high]}


class Space(NamedTuple):
    """The ranges of a method on a task, the local learning rate first, and where they come from."""

    ranges: dict[str, Range]
    limits: dict[str, Hyper]
    source: str

    def settings(self, points: np.ndarray | Sequence[Sequence[float]]) -> list[Setting]:
        """Returns the settings at points of the unit cube, shape (settings, hyperparameters)."""
        return [
            {
                key: self._allowed(key, place)
                for key, place in zip(self.ranges, map(float, point), strict=True)
            }
            for point in points
        ]

    def _allowed(self, key: str, place: float) -> float:
        """Returns a value within open limits: rounding may put it onto one."""
        value, limits = self.ranges[key].at(place), self.limits.get(key)
        if limits is None or limits.allows(value):
            return value
        # a little inside the range, where the rounded value is allowed
        return self.ranges[key].at(min(max(place, 0.001), 0.999))

    def edges(self, setting: Setting) -> dict[str, str]:
        """Returns the edges at which values of a setting lie, beyond which the range could go."""
        found = {key: one.edge(setting[key]) for key, one in self.ranges.items()}
        return {
            key: edge
            for key, edge in found.items()
            if edge and self.ranges[key].shifted(edge, self.limits.get(key)) is not None
        }

    def extended(self, edges: Mapping[str, str]) -> "Space":
        """Returns the space whose ranges are shifted across some of their edges."""
        moved = {
            key: self.ranges[key].shifted(edge, self.limits.get(key)) for key, edge in edges.items()
        }
        known = {key: one for key, one in moved.items() if one is not None}
        return self._replace(ranges=self.ranges | known)

    def joined(self, other: "Space") -> "Space":
        """Returns the space from the lower to the upper end of both."""
        ranges = {
            key: Range(min(one.low, two.low), max(one.high, two.high), one.log)
            # both spaces have the same keys in the same order
            for (key, one), two in zip(self.ranges.items(), other.ranges.values(), strict=True)
        }
        return self._replace(ranges=ranges)

    @property
    def distributions(self) -> dict[str, dict[str, list[float]]]:
        """As files spell them: what results depend on, which is not the source."""
        return {key: one.plain for key, one in self.ranges.items()}

    @property
    def plain(self) -> dict[str, Any]:
        """As plain values, for the archive."""
        return {"source": self.source} | self.distributions


def read_spaces(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Reads a file of search spaces, by the lower-case name of a class.

    >>> read_spaces()["fedprox"]["mu"]
    {'log': [0.001, 1.0]}

    Raises:
        SpecError: not a table for each method.
    """
    source = Source.read(file)
    for name, entry in source.document.items():
        if not isinstance(entry, dict):
            raise source.error((name,), InvalidInput.of(name, entry, "a table of ranges"))
    return {name.lower(): entry for name, entry in source.document.items()}


def space_of(
    kind: type,
    learning_rate: Sequence[float],
    fixed: Mapping[str, Any],
    spaces: Mapping[str, Mapping[str, Any]],
) -> Space:
    """Returns the search space of a method on a task.

    Args:
        kind: the method's class.
        learning_rate: ends of the task's range.
        fixed: options that are not searched.
        spaces: declared ones, see `read_spaces`. Without an entry the ranges follow from the
            declared hyperparameters.

    >>> import fedax
    >>> space_of(fedax.Ditto, (0.01, 1.0), {}, {}).ranges["lam"]
    Range(low=0.01, high=1.0, log=True)

    Raises:
        UnknownName: a range of a hyperparameter that the method does not have.
        InvalidInput: a range that is none, or that goes beyond the declared limits.
    """
    known, entry = declared(kind), spaces.get(kind.__name__.lower())
    rate = {"learning_rate": Range(*learning_rate, log=True)}
    if entry is None:
        # without a declared space: a range for every real hyperparameter that is not fixed
        derived = {
            key: _derived(one)
            for key, one in known.items()
            if key not in fixed and not _is_static(kind, key)
        }
        ranges = {key: one for key, one in derived.items() if one is not None}
        return Space(rate | ranges, known, GENERAL if ranges else "no other hyperparameters")
    # options of the local solver are searched under the prefix `solver.`
    inner = {f"solver.{key}": one for key, one in declared(SGD).items()}
    for key in entry:
        if key in known and _is_static(kind, key):
            reason = "it is static: all settings run as one program, so they cannot differ in it"
            raise InvalidInput.because(f"{kind.__name__}.{key}", reason, "Leave out static=True.")
    ranges = {
        key: _parsed(f"{kind.__name__}.{key}", given, known | inner, key)
        for key, given in entry.items()
        if key not in (*fixed, "source")
    }
    return Space(rate | ranges, known | inner, str(entry.get("source", "declared")))


def _parsed(field: str, given: Any, known: Mapping[str, Hyper], key: str) -> Range:
    """Checks a range of a file against the hyperparameter's declaration."""
    if key not in known:
        raise UnknownName.among(field, key, known)
    allowed = "{log = [low, high]} or {linear = [low, high]} with low < high"
    # anything else than one list of two numbers gives no numbers, and is refused
    scale, ends = next(iter(given.items()), ("", [])) if isinstance(given, dict) else ("", [])
    numbers = [one for one in ends if type(one) in (int, float)] if isinstance(ends, list) else []
    if scale not in ("log", "linear") or len(given) != 1 or not len(numbers) == len(ends) == 2:
        raise InvalidInput.of(field, given, allowed)
    found = Range(float(numbers[0]), float(numbers[1]), scale == "log")
    if not found.low < found.high or (found.log and found.low <= 0):
        raise InvalidInput.of(field, given, allowed)
    # the ends themselves may be open, so points just inside are tried
    if known[key].counts or not all(known[key].allows(found.at(place)) for place in (0.001, 0.999)):
        raise InvalidInput.of(field, given, known[key].allowed)
    return found


def _is_static(kind: type, key: str) -> bool:
    """Returns whether a hyperparameter is part of the compiled program."""
    return next(
        field.metadata.get("static", False)
        for field in dataclasses.fields(kind)
        if field.name == key
    )


def _derived(one: Hyper) -> Range | None:
    """Returns the range of a real hyperparameter; None for what keeps its default."""
    is_real = isinstance(one.default, float) and one.choices is None
    if not is_real or not math.isfinite(one.default) or one.default == 0:
        return None
    # a bounded range is searched whole and linearly
    if math.isfinite(one.low) and math.isfinite(one.high):
        return Range(one.low, one.high)
    # without a declared range, a positive default stands for positive numbers
    if one.default < 0 or (math.isfinite(one.low) and one.low < 0):
        return None
    low = max(one.default / FACTOR, one.low)
    return Range(low, min(one.default * FACTOR, one.high), log=True)


def unit_points(dimensions: int, count: int, seed: int) -> np.ndarray:
    """Draws points of a scrambled Halton sequence, shape (count, dimensions).

    The first columns do not depend on how many follow: all methods try the same learning rates.

    >>> bool((unit_points(1, 4, 0)[:, 0] == unit_points(3, 4, 0)[:, 0]).all())
    True
    """
    generator = np.random.default_rng(seed)
    return scipy.stats.qmc.Halton(dimensions, scramble=True, seed=generator).random(count)
