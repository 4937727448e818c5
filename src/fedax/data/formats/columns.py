"""Columns of tables: which are read, what their cells stand for, and what is refused."""

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedax.core import DataError, InvalidInput, UnknownName
from fedax.data.client_forms import FILL, REGRESSION
from fedax.data.federated import Labelled


def normalize(text: str) -> str:
    """Returns a heading or a cell without spaces at its ends, with its accents in one form.

    >>> normalize(" cafe\u0301 ") == "caf\u00e9"
    True
    """
    # NFC joins letters and their accents, which may be written in two ways
    return unicodedata.normalize("NFC", text).strip()


class Columns:
    """Names of the features of the first table; later ones have the same, and take their order.

    Args:
        label: the column of labels.
        drop: columns that are left out.
        words: the texts of columns that are no numbers, by name.
        client: the column that names the client of each row, None where a table is one client's.
        only: the only columns that are read; None for all.
        is_file: whether tables are files: their headings are normalized, and messages name them.
    """

    def __init__(
        self,
        label: str = "y",
        drop: tuple[str, ...] = (),
        words: Mapping[str, Sequence[str]] | None = None,
        client: str | None = None,
        only: Collection[str] | None = None,
        is_file: bool = True,
    ) -> None:
        rename = normalize if is_file else str
        self.label = rename(label)
        self.drop = tuple(map(rename, drop))
        self.words = {rename(name): texts for name, texts in (words or {}).items()}
        self.client = None if client is None else rename(client)
        self.only = None if only is None else {rename(name) for name in only}
        self.is_file = is_file
        self.names: list[str] | None = None
        self.seen = set[str]()
        # the client of each row of the present table, for messages
        self.owners: Sequence[Any] | np.ndarray | None = None
        self._coarse = set[str]()

    @property
    def categories(self) -> dict[str, list[str]]:
        """The texts of columns by name; those of the labels are `"y"`, as in the data."""
        return {
            "y" if column == self.label else column: list(texts)
            for column, texts in self.words.items()
        }

    def check_names(self) -> None:
        """Refuses names to leave out, and names with texts, that no file has."""
        for option, names in (("drop", self.drop), ("categories", self.words)):
            for name in names:
                if name not in self.seen:
                    reason = f"none of the files has a column {name!r}"
                    raise InvalidInput.because(
                        f"client_files({option}=...)", reason, f"They have {sorted(self.seen)}."
                    )

    def headings(self, path: Path, names: Iterable[Any]) -> list[str]:
        """Returns the names of a table's columns as text; those of files are normalized.

        Raises:
            DataError: a name twice.
            UnknownName: no column of the clients.
        """
        headings = [normalize(str(name)) if self.is_file else str(name) for name in names]
        for name, count in Counter(headings).items():
            if count > 1:
                got = f"the heading {name!r} twice"
                raise DataError.found(path.name, got, "columns of different names")
        if self.client is not None and self.client not in headings:
            field = f"client_files(client=...), column of {path.name}"
            raise UnknownName.among(field, self.client, headings)
        return headings

    def select(self, columns: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Returns the columns that are not dropped, and remembers the names of all."""
        all_columns = list(columns)
        self.seen.update(name for name, _ in all_columns)
        wanted_names = self.seen if self.only is None else self.only
        return [
            (name, values)
            for name, values in all_columns
            if name in wanted_names and name not in self.drop
        ]

    def convert(self, path: Path, column: str, cells: Sequence[Any] | np.ndarray) -> Any:
        """Converts the cells of a column to finite numbers, but for the clients' names.

        Raises:
            DataError: names the first cell that is none.
        """
        if column == self.client:
            # an array would make text of numbers and missing cells beside text
            return cells
        if column in self.words:
            return self._to_codes(path, column, cells)
        try:
            values = np.array(cells, dtype=float)
        except (ValueError, TypeError, OverflowError):
            values = None
        is_odd = np.zeros(len(cells), bool)
        # an array of numbers holds no text
        if not isinstance(cells, np.ndarray):
            # NumPy takes underscores between digits, and digits of other scripts
            is_odd[:] = [isinstance(c, str) and ("_" in c or not c.isascii()) for c in cells]
        if values is not None and not is_odd.any() and np.isfinite(values).all():
            return values
        row = next(
            i
            for i, cell in enumerate(cells)
            if is_odd[i] or not _is_number(cell) or not np.isfinite(float(cell))
        )
        if _is_missing(cells[row]) or (not is_odd[row] and _is_number(cells[row])):
            hint = FILL
        elif column == self.label:
            examples = list(dict.fromkeys(str(text) for text in cells))[:5]
            hint = (
                f"Say which texts the labels are, labels={examples}, or name another column of "
                f"labels: label=... (it is {column!r})."
            )
        else:
            hint = (
                f"Leave the column out, drop=[{column!r}], name its categories, "
                f"categories={{{column!r}: [...]}}, "
                f"or say that it has the labels: label={column!r}."
            )
        raise self._refuse(path, column, row, cells[row], "numbers, such as 1000 or 1.5e-3", hint)

    def _to_codes(self, path: Path, column: str, cells: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Converts the cells of a column of texts to the places of these in `words`."""
        codes = {normalize(text): float(code) for code, text in enumerate(self.words[column])}
        texts = [normalize(str(cell)) for cell in cells]
        row = next((i for i, text in enumerate(texts) if text not in codes), None)
        if row is None:
            return np.array([codes[text] for text in texts], float)
        option = "labels" if column == self.label else f"categories[{column!r}]"
        allowed = f"the texts of {option}: {list(self.words[column])}"
        hint = FILL if _is_missing(cells[row]) else ""
        raise self._refuse(path, column, row, str(cells[row]).strip(), allowed, hint)

    def _refuse(
        self, path: Path, column: str, row: int, cell: Any, allowed: str, hint: str
    ) -> InvalidInput:
        """Returns the error about a cell of a table, with its row from 1 on."""
        # numbers of NumPy as those of Python
        cell = cell.item() if isinstance(cell, np.generic) else cell
        got = f"{cell!r} in row {row + 1} of the column {column!r}"
        if self.owners is not None and column != self.client and row < len(self.owners):
            got += f", client {str(self.owners[row])!r}"
        place = f"The file is {path}." if self.is_file else ""
        return DataError.found(path.name, got, allowed, " ".join(filter(None, (hint, place))))

    def __call__(self, path: Path, columns: dict[str, np.ndarray]) -> Labelled:
        labels = check_label(path, self.label, columns)[self.label]
        names = [column for column in columns if column != self.label]
        _check_names(path, names, columns)
        if not names:
            raise DataError.of(
                path.name, f"only the column {self.label!r}", "at least one column of features"
            )
        # the first table decides, and the others follow
        self.names = self.names or names
        if set(names) != set(self.names):
            raise DataError.of(
                path.name,
                f"the columns {names}",
                f"those of the first file: {self.names}",
                f"The file is {path}.",
            )
        # no float holds larger ones exactly
        is_whole = (np.abs(labels) < 2.0**53) & (labels == np.floor(labels))
        if not is_whole.all():
            row = int(np.argmin(is_whole))
            # of real labels, not of numbers that are too large
            hint = "" if labels[row] == np.floor(labels[row]) else REGRESSION
            allowed = "labels that are whole numbers"
            raise self._refuse(path, self.label, row, labels[row], allowed, hint)
        self._warn_of_rounding(path, columns)
        return {
            "x": np.column_stack([columns[name] for name in self.names]),
            "y": labels.astype(np.int64),
        }

    def _warn_of_rounding(self, path: Path, columns: Mapping[str, np.ndarray]) -> None:
        """Warns of features most of whose values coincide in the floats that programs use."""
        kind = np.dtype(jax.dtypes.canonicalize_dtype(float))
        for name in self.names or ():
            values = columns[name]
            if name in self._coarse or kind.itemsize >= values.dtype.itemsize:
                continue
            # what is too large for the type is refused elsewhere
            with np.errstate(over="ignore"):
                rounded = values.astype(kind)
            # as for whole numbers below 2**24
            if np.array_equal(rounded, values) or not np.isfinite(rounded).all():
                continue
            ordered = np.unique(values)
            # differences in the last digits of doubles are rounding, not data
            count = 1 + int((np.diff(ordered) > 1e-13 * np.abs(ordered).max()).sum())
            kept = len(np.unique(rounded))
            if 2 * kept > count:
                continue
            self._coarse.add(name)
            warnings.warn(
                f"{path.name}: {count} different values of the column {name!r}, up to "
                f"{np.abs(ordered).max():.10g}, become {kept} in {kind.name}. Subtract a constant, "
                f"such as the earliest time, or leave the column out: drop=[{name!r}].",
                stacklevel=2,
            )


def _is_missing(cell: Any) -> bool:
    """Returns whether a cell is empty, NaN or a mark of a missing value."""
    is_mark = cell is None or type(cell).__name__ in ("NAType", "NaTType")
    # NaN is not equal to itself
    return is_mark or not str(cell).strip() or str(cell).strip().lower() == "nan"


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def check_label(path: Path, label: str, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the columns of a file; refuses those without the label's."""
    if label not in columns:
        hint = f"Say which one has the labels: label=... The file is {path}."
        raise DataError.of(
            path.name, sorted(columns), f"the name {label!r} of the labels among them", hint
        )
    return columns


def _check_names(path: Path, names: Sequence[str], columns: Mapping[str, np.ndarray]) -> None:
    """Refuses columns that are no features but the saved index of a table."""
    for name in names:
        # names that pandas and Arrow give to an index that was saved
        unnamed = not name.strip() or re.fullmatch(r"Unnamed: [0-9]+|__index_level_[0-9]+__", name)
        counted = name.strip().lower() in ("index", "level_0") and _is_row_count(columns[name])
        numbered = _ROW_NUMBER.fullmatch(name.strip()) and _is_row_count(columns[name], step=1)
        if unnamed or counted or numbered:
            hint = (
                f"Write tables without their index (pandas: index=False), or pass drop=[{name!r}]."
            )
            raise DataError.of(
                path.name, f"the column {name!r}", "columns of features, each with a name", hint
            )


_ROW_NUMBER = re.compile(
    r"id|idx|index|no|nr|number|#|row|(?:row|sample|example|record)[_ "
    r"]?(?:id|idx|index|no|nr|number)",
    re.I,
)
"""Names of columns that number rows, where their values do so too."""


def _is_row_count(values: np.ndarray, step: int | None = None) -> bool:
    """Returns whether a column counts rows, by ones if the step says so."""
    steps = np.diff(values)
    rises = (steps > 0).all() if step is None else len(steps) > 0 and (steps == step).all()
    return bool(len(values) and np.array_equal(values, np.floor(values)) and rises)
