"""How tables become arrays: columns by name, categories, labels, means and deviations."""

import dataclasses
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedax.errors import DataError
from fedax.examples.integer_ranges import find_wrong_label


def normalize(text: Any) -> str:
    r"""Returns a heading or a cell as text without outer spaces, its accents in one form.

    >>> normalize(" cafe\u0301 ") == "caf\u00e9"
    True
    """
    # NFC joins letters and their accents, which may be written in two ways
    return unicodedata.normalize("NFC", str(text)).strip()


def cell_text(cell: Any) -> str | None:
    """Returns the text of a cell; None for None, NaN, pandas' marks and an empty text.

    Whole numbers have no decimals, nor have texts of them: a cell that is empty makes a column of
    codes real numbers.

    Raises:
        DataError: an array or a list.

    >>> cell_text(" red"), cell_text(3.0), cell_text("3.0"), cell_text("TRUE"), cell_text("")
    ('red', '3', '3', 'True', None)
    """
    if hasattr(cell, "__len__") and not isinstance(cell, str):
        raise DataError.found(
            "table",
            f"a {type(cell).__name__} in a cell",
            "numbers, texts",
            "FederatedData.from_arrays takes arrays.",
        )
    text = re.sub(r"^(-?\d+)\.0+$", r"\1", normalize(cell))
    # pandas reads a column of these as truth values
    if re.fullmatch("(?i)true|false", text):
        return text.capitalize()
    return None if text in ("", "None", "nan", "<NA>", "NaT") else text


@dataclass(frozen=True)
class Encoding:
    """Rules by which the tables of all clients, test files and new tables become arrays.

    Columns are found by their names, whatever their order, and others are ignored.

    Args:
        columns: of the features x, in their order.
        categories: by column, its texts in the order of their features, which are 0 or 1. Other
            columns are numbers.
        means: by column of numbers, what is subtracted, and what a missing cell counts as.
        deviations: by column of numbers, what the difference is divided by. Columns without one
            stay as they are.
        y: the column of the labels, None if there are none.
        labels: the texts of the labels in the order of their classes, None if they are numbers.
        classes: how many, None for real labels.
        missing: `"mean"` puts the mean for a missing number, and no category for a missing text;
            otherwise missing cells are refused.
        missing_cells: by column that has some, how many the tables had that the data were made of.

    Example:
        >>> encoding = Encoding(["age", "sex"], {"sex": ["f", "m"]}, {"age": 40.0}, {"age": 10.0})
        >>> encoding.apply({"sex": ["m"], "age": [50]})
        {'x': array([[1., 0., 1.]])}
        >>> Encoding.from_json(encoding.to_json()) == encoding
        True
    """

    columns: Sequence[str]
    categories: Mapping[str, Sequence[str]]
    means: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    deviations: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    y: str | None = None
    labels: Sequence[str] | None = None
    classes: int | None = None
    missing: str | None = None
    missing_cells: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])

    @property
    def summary(self) -> dict[str, str]:
        """Returns what a short table says of the columns: their order as features, which of them
        are categories and of how many texts, and missing cells.

        A column of numbers among the categories has units or a text in it.
        """
        features = [
            f"{name} ({len(self.categories[name])} categories)" if name in self.categories else name
            for name in self.columns
        ]
        missing = [f"{name} ({count})" for name, count in self.missing_cells.items()]
        return {"features in order": ", ".join(features), "missing cells": ", ".join(missing)}

    def apply(self, table: Any) -> dict[str, np.ndarray]:
        """Returns the features x of a table, and the labels y if it has their column.

        Args:
            table: a frame of pandas, or a mapping of names to columns.

        Raises:
            DataError: a column is missing, or a cell does not fit its column.
        """
        arrays = {"x": self.features(table)}
        if self.y in [normalize(name) for name in table]:
            arrays["y"] = self.targets(table)
        return arrays

    def features(self, table: Any) -> np.ndarray:
        """Returns the features of a table, shape (rows, features); see `apply`."""
        features = []
        for name in self.columns:
            cells = find_column(table, name)
            if name in self.categories:
                texts = self.categories[name]
                codes = _read_codes(name, cells, texts, self.missing == "mean")
                features.append(codes[:, None] == np.arange(len(texts)))
                continue
            mean = self.means.get(name, 0.0)
            values = _read_numbers(name, cells, mean if self.missing == "mean" else np.nan)
            if name in self.deviations:
                values = (values - mean) / self.deviations[name]
            features.append(values[:, None])
        return np.concatenate(features, axis=1, dtype=float)

    def targets(self, table: Any) -> np.ndarray:
        """Returns the labels of a table, shape (rows,); see `apply`."""
        name = str(self.y)
        cells = find_column(table, name)
        if self.labels is not None:
            return _read_codes(name, cells, self.labels)
        values = _read_numbers(name, cells)
        if self.classes is None:
            return values
        wrong = find_wrong_label(values, self.classes)
        if wrong is not None:
            raise DataError.found(
                f"column {name!r}",
                f"{wrong:g}",
                f"whole numbers from 0 to {self.classes - 1}",
                "Real labels, of a regression, have classes=0.",
            )
        return values.astype(np.int32)

    def to_json(self) -> str:
        """Returns the encoding as JSON, which `from_json` reads."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Encoding":
        """Returns the encoding that `to_json` wrote."""
        return cls(**json.loads(text))


def find_column(table: Any, name: str) -> Any:
    keys = {normalize(key): key for key in table}
    if name not in keys:
        raise DataError.because(
            "table", f"the column {name!r} is missing", f"It has {', '.join(keys)}."
        )
    return table[keys[name]]


def _read_numbers(name: str, cells: Any, fill: float = np.nan) -> np.ndarray:
    """Returns cells as finite numbers, with `fill` for missing ones."""
    array = np.asarray(cells)
    if array.dtype.kind not in "fiub":
        array = [np.nan if cell_text(cell) is None else cell for cell in cells]
    try:
        values = np.array(array, float)
    except (TypeError, ValueError) as error:
        raise DataError.found(f"column {name!r}", str(error), "numbers") from error
    values[np.isnan(values)] = fill
    is_finite = np.isfinite(values)
    if not is_finite.all():
        row = is_finite.argmin()
        raise DataError.found(
            f"column {name!r}",
            f"{values[row]} in {_row_of(cells, row)}",
            "finite numbers",
            FILL,
        )
    return values


def _read_codes(
    name: str, cells: Any, texts: Sequence[str], allow_missing: bool = False
) -> np.ndarray:
    """Returns the place of each cell among some texts, -1 for a missing one."""
    places: dict[str | None, int] = {text: place for place, text in enumerate(texts)}
    if allow_missing:
        places[None] = -1
    found = [cell_text(cell) for cell in cells]
    for row, text in enumerate(found):
        if text not in places:
            raise DataError.found(
                f"column {name!r}",
                f"{text!r} in {_row_of(cells, row)}",
                f"the texts {list(texts)}",
                FILL if text is None else "",
            )
    return np.array([places[text] for text in found], np.int32)


def _row_of(cells: Any, row: Any) -> str:
    """Returns words for a row: by its label in a frame of pandas, or its place in other cells."""
    return f"row {cells.index[row] if hasattr(cells, 'iloc') else row}"


FILL = "Missing cells are filled by columns={'missing': 'mean'}, or their rows left out by 'drop'."
"""What to do about a missing cell."""
