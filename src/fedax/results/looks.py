"""Colours, dashes and markers of lines."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

THEME = {
    "ground": ("#ffffff", "#14171b"),
    "panel": ("#f6f7f9", "#1d2127"),
    "ink": ("#1b1f24", "#e8ebef"),
    "quiet": ("#545d68", "#a6afba"),
    "line": ("#d5d9df", "#3a414a"),
    "accent": ("#0a5fb4", "#7db8f2"),
    "c0": ("#0072b2", "#56b4e9"),
    "c1": ("#d14900", "#ff8a4c"),
    "c2": ("#00805c", "#2fc79b"),
    "c3": ("#b0388f", "#ea86cd"),
    "c4": ("#8f6a00", "#e3b83c"),
    "c5": ("#5b4fd1", "#a99cff"),
    "c6": ("#646b73", "#b4bcc6"),
    "c7": ("#a11d33", "#ff7f8f"),
}
"""Colours on light and on dark ground, by their names in style sheets. Those of lines differ in hue
and lightness, also for people with colour blindness, and keep a contrast of 3:1.
"""
COLOURS = tuple(light for name, (light, _) in THEME.items() if re.fullmatch(r"c\d", name))
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Look(NamedTuple):
    """The look of a line.

    Attributes:
        hue: position in `COLOURS`.
        form: which of the lines of this colour: another dash and marker.
    """

    hue: int
    form: int

    @property
    def colour(self) -> str:
        return COLOURS[self.hue]

    @property
    def options(self) -> dict[str, Any]:
        """The look as Matplotlib's options."""
        return {
            "color": self.colour,
            "linestyle": DASHES[self.form % 4],
            "marker": MARKERS[(self.hue + 3 * self.form) % 8],
        }


def choose_looks(labels: Iterable[str]) -> dict[str, Look]:
    """Returns the look of every label, in their order: the next of the colours that the fewest
    have. A label that goes on after an earlier one, such as a form of a method, has the colour of
    that one with another dash.

    >>> looks = choose_looks(["FedBC", "FedAvg", "FedBC as released"])
    >>> looks["FedBC"], looks["FedBC as released"]
    (Look(hue=0, form=0), Look(hue=0, form=1))
    """
    looks: dict[str, Look] = {}
    forms = [0] * len(COLOURS)
    for label in dict.fromkeys(labels):
        known = (looks[name].hue for name in looks if re.match(rf"{re.escape(name)}\W", label))
        hue = next(known, forms.index(min(forms)))
        looks[label] = Look(hue, forms[hue])
        forms[hue] += 1
    return looks
