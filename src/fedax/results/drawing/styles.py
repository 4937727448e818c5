"""Colours, dashes and markers: a method looks the same in every figure and report."""

import itertools
import re
from collections.abc import Iterable

COLOURS = ("#0072b2", "#d14900", "#00805c", "#b0388f", "#8f6a00", "#5b4fd1", "#646b73", "#a11d33")
"""Distinguishable for people with colour blindness. `style.css` has the same for light pages."""
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
TINT = 0.25
"""The part of white in the colour of the further forms of a method."""

_BLUE, _RED, _GREEN, _PINK, _OCHRE, _VIOLET, _GREY, _WINE = range(8)
# the same colours with other markers, for methods that are rarely in one figure with the first
# ones; where they are, these take a colour that is free
_SECOND = 32
_METHODS = {
    "FedAvg": _GREY,
    "FedProx": _OCHRE,
    "SCAFFOLD": _GREEN,
    "q-FedAvg": _PINK,
    "QFedAvg": _PINK,
    "FedBC": _BLUE,
    "FedDANE": _RED,
    "FedYogi": _VIOLET,
    "FedNova": _WINE,
    "FedAvgM": _BLUE + _SECOND,
    "FedAWARE": _RED + _SECOND,
    "FedDyn": _PINK + _SECOND,
    "DFedAvgM": _GREEN + _SECOND,
    "DSGD": _OCHRE + _SECOND,
    "Per-FedAvg": _VIOLET + _SECOND,
    "PerFedAvg": _VIOLET + _SECOND,
    "pFedMe": _WINE + _SECOND,
    "PFedMe": _WINE + _SECOND,
    "FedMGDA+": _GREY + _SECOND,
    "FedBC-FineTune": _BLUE + 8,
    "Per-FedBC": _BLUE + 16,
}
_FORMS = ("", "as released", "as written")
"""Of a method, those whose look is the same in every figure."""


def styles(labels: Iterable[str]) -> dict[str, int]:
    """Returns the number of the look of every label: a known method's own, with a further dash for
    each of its forms.

    A label is a method's name, alone or followed by its form. Of two methods with one colour the
    second takes a free one, and other labels take, in their order, those that are left.

    >>> styles(["FedAvg", "FedBC", "FedBC as released"]) == {
    ...     "FedAvg": 6,
    ...     "FedBC": 0,
    ...     "FedBC as released": 8,
    ... }
    True
    >>> styles(["Mine", "FedBC"])["FedBC"]
    0
    >>> styles(["FedAvgM"]), styles(["FedAvgM", "FedBC"])
    ({'FedAvgM': 32}, {'FedAvgM': 1, 'FedBC': 0})
    """
    names = list(dict.fromkeys(labels))
    style_numbers: dict[str, int] = {}
    taken, seen_methods = set[int](), set[str]()
    # known methods first, so that their colours are taken before others choose
    forms = sorted((name for name in names if _find_method(name)), key=_rank)
    numbers = _method_numbers(dict.fromkeys(_find_method(name) for name in forms))
    for name in forms:
        method = _find_method(name)
        form = name.removeprefix(method).strip(" ,")
        # a form has the method's colour with another dash, 8 looks further on
        if form in _FORMS:
            number = numbers[method] + 8 * _FORMS.index(form)
        else:  # settings make a further form only beside another label of the method
            number = numbers[method] + 8 * (len(_FORMS) if method in seen_methods else 0)
        seen_methods.add(method)
        style_numbers[name] = _find_free_style(number, taken)
        taken.add(style_numbers[name])
    used, number = {style % 8 for style in taken}, 0
    for name in (name for name in names if name not in style_numbers):
        # colours that no known method has, as long as there are any
        while len(used) < 8 and number % 8 in used:
            number += 1
        style_numbers[name] = _find_free_style(number, taken, 1)
        taken.add(style_numbers[name])
        used.add(style_numbers[name] % 8)
        number = style_numbers[name] + 1
    return {name: style_numbers[name] for name in names}


def _method_numbers(methods: Iterable[str]) -> dict[str, int]:
    """Returns the looks of methods that are in one figure: each one's own, or, where its colour is
    taken, a colour that is free.
    """
    # those of the first looks keep them
    ordered = sorted(methods, key=lambda method: _METHODS[method] >= _SECOND)
    numbers: dict[str, int] = {}
    for method in ordered:
        number, taken = _METHODS[method], {other % 8 for other in numbers.values()}
        free = [colour for colour in range(8) if (number + colour) % 8 not in taken]
        if number >= _SECOND and number % 8 in taken and free:
            number = (number + free[0]) % 8
        numbers[method] = number
    return numbers


def known_style(label: str) -> int | None:
    """Returns the look of a known method by itself, None of other labels.

    >>> known_style("FedAvg"), known_style("FedAvgM"), known_style("Mine")
    (6, 32, None)
    """
    return styles([label])[label] if _find_method(label) else None


def colour_of(style: int) -> str:
    """Returns the colour of a look as hexadecimal digits; lighter for the further forms of a
    method.
    """
    colour = COLOURS[style % 8]
    if not is_form(style):
        return colour
    mixed = [round(int(colour[i : i + 2], 16) * (1 - TINT) + 255 * TINT) for i in (1, 3, 5)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def is_form(style: int) -> bool:
    """Returns whether a look is one of a further form: dashed and lighter."""
    return style // 8 % 4 != 0


def dash_of(style: int) -> str:
    """Returns the dash as Matplotlib calls it; methods have solid lines."""
    return DASHES[style // 8 % 4]


def marker_of(style: int) -> str:
    """Returns the marker as Matplotlib calls it."""
    return MARKERS[(style + 3 * (style // 8)) % 8]


def _rank(name: str) -> bool:
    """Returns the sort key that puts forms with a fixed look before those that take a free one."""
    form = name.removeprefix(_find_method(name)).strip(" ,")
    return form not in _FORMS


def _find_method(name: str) -> str:
    """Returns the known method that a label begins with, or nothing."""
    fits = [method for method in _METHODS if re.match(rf"{re.escape(method)}(?![\w+-])", name)]
    return max(fits, key=len, default="")


def _find_free_style(number: int, taken: set[int], step: int = 8) -> int:
    """Returns the first look from a number on that differs from all that are taken: in steps, then
    of any colour.

    There are 64 different looks. Beyond them looks repeat, with other numbers.
    """
    taken_looks = {(style % 8, dash_of(style), marker_of(style)) for style in taken}
    candidates = [*(number + k * step for k in range(8)), *(number + k for k in range(64))]
    for candidate in candidates:
        if (candidate % 8, dash_of(candidate), marker_of(candidate)) not in taken_looks:
            return candidate
    return next(number + 64 * k for k in itertools.count(1) if number + 64 * k not in taken)
