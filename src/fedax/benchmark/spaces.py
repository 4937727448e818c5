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
from fedax.experiments.config.toml import read_toml

FILE = Path(__file__).parent / "spaces.toml"
"""Declared search spaces by the name of a method's class."""
EDGE = 0.125
"""Outer part of a range in which a selected value is at the edge."""
SHIFT = 0.25
"""Part of a range that a shifted one covers on each side of the edge."""
FACTOR = 10.0
"""A derived range goes from the default over this number to the default times it."""

Setting = dict[str, float]


class Range(NamedTuple):
    """An interval of a hyperparameter, on a linear or a logarithmic scale.

    Attributes:
        low, high: its ends.
        log: whether the scale is logarithmic.
        limits: the declared range.
    """

    low: float
    high: float
    log: bool = False
    limits: Hyper = Hyper("", 0.0)

    def value(self, place: float) -> float:
        """Returns the value at a place: 0 is the lower end, 1 the upper one."""
        if self.log:
            low = math.log(self.low)
            high = math.log(self.high)
            return math.exp(low + (high - low) * place)
        return self.low + (self.high - self.low) * place

    def place(self, value: float) -> float:
        """Returns the place of a value."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def draw(self, place: float) -> float:
        """Returns the value at a place to four digits, because powers differ between systems.

        >>> Range(0.01, 1.0, log=True).draw(0.5)
        0.1
        """
        value = float(f"{self.value(place):.4g}")
        if self.limits.allows(value):
            return value
        # rounding put it onto an open limit
        return float(f"{self.value(min(max(place, 0.001), 0.999)):.4g}")

    def shifted(self, value: float) -> "Range":
        """Returns the range around the edge at which a value is, within the declared limits; the
        range itself if the value is at no edge, or nothing lies beyond it.
        """
        edge = self.edge(value)
        if not edge:
            return self
        end = 0.0 if edge == "low" else 1.0
        low = max(self.value(end - SHIFT), self.limits.low)
        return self._replace(low=low, high=min(self.value(end + SHIFT), self.limits.top))

    def edge(self, value: float) -> str:
        """Returns `low` or `high` if a value lies in that outer part of the range, and values
        beyond are allowed; else nothing.
        """
        if self.place(value) < EDGE and self.low > self.limits.low:
            return "low"
        return "high" if self.place(value) > 1 - EDGE and self.high < self.limits.top else ""


Space = dict[str, Range]
"""The ranges of a method on a task, the local learning rate first."""


def read_spaces(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Reads a file of search spaces, by the lower-case name of a class.

    >>> read_spaces()["fedprox"]["mu"]
    {'log': [0.001, 1.0]}
    """
    return {name.lower(): entry for name, entry in read_toml(file).items()}


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
        spaces: declared ones, see `read_spaces`. Without an entry every real hyperparameter that
            compiled programs share has a range: its declared one, or a tenth to ten times a
            positive default.

    >>> import fedax
    >>> space_of(fedax.Ditto, (0.01, 1.0), {}, {})["lam"][:3]
    (0.01, 1.0, True)

    Raises:
        UnknownName: a range of a hyperparameter that the method does not have, or that is part of
            its program.
        InvalidInput: a range that is none.
    """
    known = declared(kind)
    found = {"learning_rate": Range(*learning_rate, log=True)}
    statics = {field.name for field in dataclasses.fields(kind) if field.metadata.get("static")}
    searched = {key: one for key, one in known.items() if key not in statics}
    entry = spaces.get(kind.__name__.lower())
    if entry is None:
        derived = {key: _derive(one) for key, one in searched.items() if key not in fixed}
        return found | {key: one for key, one in derived.items() if one is not None}
    # options of the local solver are searched under the prefix `solver.`
    searched |= {f"solver.{key}": one for key, one in declared(SGD).items()}
    for key, given in entry.items():
        if key in (*fixed, "source"):
            continue
        if key not in searched:
            raise UnknownName.among(f"{kind.__name__}.{key}", key, searched)
        try:
            ((scale, (low, high)),) = given.items()
            one = Range(float(low), float(high), {"log": True, "linear": False}[scale])
            is_range = low < high and one.value(0.5) < high
        except (AttributeError, KeyError, TypeError, ValueError):
            is_range = False
        if not is_range:
            allowed = "{log = [low, high]} or {linear = [low, high]} with low < high"
            raise InvalidInput.of(f"{kind.__name__}.{key}", given, allowed)
        found[key] = one._replace(limits=searched[key])
    return found


def _derive(one: Hyper) -> Range | None:
    """Returns the range of a real hyperparameter; None for what keeps its default."""
    is_real = isinstance(one.default, float) and one.choices is None
    if not is_real or not math.isfinite(one.default) or one.default == 0:
        return None
    # a bounded range is searched whole and linearly
    if math.isfinite(one.low) and math.isfinite(one.high):
        return Range(one.low, one.high, limits=one)
    # without a declared range, a positive default stands for positive numbers
    if one.default < 0 or (math.isfinite(one.low) and one.low < 0):
        return None
    low = max(one.default / FACTOR, one.low)
    return Range(low, min(one.default * FACTOR, one.high), log=True, limits=one)


def draw_settings(space: Space, points: np.ndarray) -> list[Setting]:
    """Returns the settings at points of the unit cube, shape (settings, hyperparameters)."""
    return [
        {key: one.draw(place) for (key, one), place in zip(space.items(), point, strict=True)}
        for point in points.tolist()
    ]


def unit_points(dimensions: int, count: int, seed: int) -> np.ndarray:
    """Draws points of a scrambled Halton sequence, shape (count, dimensions).

    The first columns do not depend on how many follow: all methods try the same learning rates.

    >>> bool((unit_points(1, 4, 0)[:, 0] == unit_points(3, 4, 0)[:, 0]).all())
    True
    """
    generator = np.random.default_rng(seed)
    return scipy.stats.qmc.Halton(dimensions, scramble=True, seed=generator).random(count)
