"""Colours, dashes and markers: a method looks the same in every figure and report."""

import re
from collections import Counter
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

_BLUE, _RED, _GREEN, _PINK, _OCHRE, _VIOLET, _GREY, _WINE = range(8)
_METHODS = {
    "FedAvg": _GREY,
    "FedProx": _OCHRE,
    "SCAFFOLD": _GREEN,
    "q-FedAvg": _PINK,
    "FedBC": _BLUE,
    "FedDANE": _RED,
    "FedYogi": _VIOLET,
    "FedNova": _WINE,
    # rarely in one figure with the first ones; where they are, these take a colour that is free
    "FedAvgM": _BLUE,
    "FedAWARE": _RED,
    "FedDyn": _PINK,
    "DFedAvgM": _GREEN,
    "DSGD": _OCHRE,
    "Per-FedAvg": _VIOLET,
    "pFedMe": _WINE,
    "FedMGDA+": _GREY,
}
_FORMS = ("as released", "as written")
"""Of a method, those that look the same also where the method itself is not in the figure."""


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
    """Returns the look of every label: a known method's own colour, with another dash for each of
    its forms.

    A label is a method's name, alone or followed by its form. Of two methods with one colour the
    second takes a free one, and other labels take, in their order, those that are left.

    >>> choose_looks(["FedAvg", "FedBC", "FedBC as released"])["FedBC as released"]
    Look(hue=0, form=1)
    >>> choose_looks(["Mine", "FedBC"])["FedBC"]
    Look(hue=0, form=0)
    """
    names = list(dict.fromkeys(labels))
    methods = {name: _find_method(name) for name in names}
    order = list(_METHODS)

    def rank(name: str) -> tuple[int, bool, int]:
        # known methods first, so that their colours are taken before others choose
        method = methods[name]
        return order.index(method) if method in order else len(order), name != method, _form(name)

    chosen: dict[str, Look] = {}
    colours: dict[str, int] = {}
    forms = Counter[int]()
    for name in sorted(names, key=rank):
        method = methods[name]
        if method not in colours:
            own = [_METHODS[method]] if method in _METHODS else []
            # the first of those that the fewest lines have
            colours[method] = min([*own, *range(len(COLOURS))], key=lambda colour: forms[colour])
        colour = colours[method]
        if name != method and _form(name) < len(_FORMS):
            forms[colour] = max(forms[colour], 1 + _form(name))
        chosen[name] = Look(colour, forms[colour])
        forms[colour] += 1
    return {name: chosen[name] for name in names}


def _form(name: str) -> int:
    """Returns which of `_FORMS` a label ends with; their number if none."""
    ends = [i for i, form in enumerate(_FORMS) if name.endswith(form)]
    return ends[0] if ends else len(_FORMS)


def _find_method(name: str) -> str:
    """Returns the known method that a label begins with, or the label."""
    fits = [method for method in _METHODS if re.match(rf"{re.escape(method)}(?![\w+-])", name)]
    return max(fits, key=len, default=name)
