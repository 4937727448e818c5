"""Comparisons of methods as text, Markdown, LaTeX and CSV."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from fedax.core import UnknownName
from fedax.results.tables.statistics import LEVEL, mean_text
from fedax.results.tables.summary import counted

Row = Mapping[Any, Any]
"""A row of a comparison by column."""
T = TypeVar("T")
_EXPONENT = re.compile(r"e([+-]\d+)")
CSV_HEADS = {
    "table": "table",
    "method": "algorithm",
    "column": "column (unit)",
    "runs": "runs",
    "lost": "diverged",
    "mean": "mean",
    "deviation": "deviation",
    "top": "best",
    "difference": "difference to best (worse is positive)",
    "low": "low (95 %)",
    "high": "high (95 %)",
    "p": "p (Holm)",
    "left_out": "left out",
    "selected": "selected",
}


def format_tables(comparison: pd.DataFrame, form: str) -> str:
    """Returns the tables of a comparison in one of `FORMS`.

    Args:
        comparison: a frame of `compare_runs`.
        form: its name.

    Raises:
        UnknownName: no such form.
    """
    if form not in FORMS:
        raise UnknownName.among("form", form, FORMS)
    if form == "csv":
        return to_csv(comparison)
    return "\n\n".join(_WRITERS[form](title, rows) for title, rows in tables_of(comparison).items())


def tables_of(comparison: pd.DataFrame) -> dict[str, list[Row]]:
    """Returns the rows of each table by its title."""
    tables: dict[str, list[Row]] = {}
    for row in comparison.to_dict("records"):
        tables.setdefault(row["table"], []).append(row)
    return tables


def note_of(table: Sequence[Row]) -> str:
    """Returns what the numbers of a table are, what marks mean, and what was left out."""
    rows = [row for row in table if row["runs"]]
    counts = [row["runs"] for row in rows] or [1]
    fewest = min(counts)
    most = max(counts)
    runs = counted(most, "run") if fewest == most else f"{fewest} to {most} runs"
    sentences = ["Single runs." if rows else "No run has a final value."]
    if most > 1:
        draws = max(row["units"] for row in rows)
        units = f"{counted(draws, 'draw')} of the data, of {runs}" if draws < most else runs
        sentences = [f"Means and sample standard deviations over {units}."]
    pairs = sorted({row["unit"] for row in rows if not math.isnan(row["p"])})
    is_marked = any(row["top"] for row in rows)
    if pairs and is_marked:
        unit = " or ".join(pairs).replace("draws", "draws of the data")
        sentences.append(
            f"Bold: the best mean, and those not significantly worse (paired by {unit}, t-test, "
            f"Holm, level {LEVEL:g})."
        )
    elif is_marked:
        sentences.append("Bold: the best.")
    if most < 2:
        sentences.append("Nothing is tested: that takes several seeds.")
    if any(row["own"] and row["metric"].startswith("test_") for row in rows):
        sentences.append(
            "Test scores are the global model's; a method without own models has them as theirs."
        )
    # by sentence the columns that it is about, because it is mostly the same for all of them
    about: dict[str, dict[str, None]] = {}
    for row in rows:
        sentence = (
            f"{row['left_out']} of {counted(row['left_out'] + row['runs'], 'run')} of "
            f"{row['method']} left out: other methods lack their seeds or draws of the data."
        )
        if row["common"] == 0:
            sentence = "Nothing is compared: the methods have no seed and draw in common."
        if row["left_out"] or row["common"] == 0:
            about.setdefault(sentence, {})[row["column"]] = None
    for sentence, columns in about.items():
        everywhere = len(columns) == len({row["column"] for row in rows})
        sentences.append(sentence if everywhere else f"{', '.join(columns)}: {sentence}")
    sentences += dict.fromkeys(
        f"{counted(row['interrupted'], 'interrupted run')} of {row['method']} left out."
        for row in table
        if row["interrupted"]
    )
    if most > 1:
        sentences.append("Runs without a final value count as the worst of their task.")
    selected: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["selected"] not in ("", row["method"]):
            selected.setdefault(row["task"], {})[row["selected"]] = None
    sentences += [f"Selected for {task}: {'; '.join(each)}." for task, each in selected.items()]
    return " ".join(sentences)


def number_text(row: Row, sign: str = " ± ") -> str:
    """Returns the mean of a row of a comparison with its deviation, or why there is none."""
    if math.isnan(row["mean"]):
        return _lost_text(row)
    if math.isinf(row["mean"]):
        return "never"
    return mean_text(row["mean"], row["deviation"], sign)


def cell_text(row: Row) -> str:
    """Returns the number of a row of a comparison, and how many of its runs have none."""
    return number_text(row) + _lost_note(row)


def _lost_note(row: Row) -> str:
    return f" ({_lost_text(row)})" if row["lost"] and not math.isnan(row["mean"]) else ""


def _lost_text(row: Row) -> str:
    word = "diverged" if row["diverged"] else "not finite"
    # of a metric without a direction, a mean without the lost runs would be too good
    return f"{row['lost']} of {row['runs']} {word}" if 0 < row["lost"] < row["runs"] else word


def grid_of(rows: Sequence[Row], cell: Callable[[Row], T], empty: T) -> list[list[str | T]]:
    """Returns the head and the rows of a table: the titles of columns and rows, and cells."""
    columns = dict.fromkeys(row["column"] for row in rows)
    texts: dict[str, dict[str, T]] = {}
    for row in rows:
        cells = texts.setdefault(row["method"], dict.fromkeys(columns, empty))
        if row["runs"]:
            cells[row["column"]] = cell(row)
    return [
        ["Algorithm", *columns],
        *([method, *cells.values()] for method, cells in texts.items()),
    ]


def to_text(title: str, table: Sequence[Row]) -> str:
    """Formats a table for terminals: the best and those level with it have a star."""
    # without the star two spaces keep the numbers below each other
    rows = grid_of(table, lambda row: cell_text(row) + (" *" if row["top"] else "  "), "-")
    width, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([first.ljust(width), *map(str.rjust, cells, widths)]).rstrip()
        for first, *cells in rows
    ]
    return "\n".join([title, *lines, note_of(table).replace("Bold", "*")])


def to_markdown(title: str, table: Sequence[Row]) -> str:
    """Formats a table in Markdown."""
    head, *rows = grid_of(
        table, lambda row: f"**{cell_text(row)}**" if row["top"] else cell_text(row), "-"
    )
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = [
        f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |"
        for row in (head, rule, *rows)
    ]
    return "\n".join([f"**{title}**", "", *lines, "", note_of(table)])


def to_latex(title: str, table: Sequence[Row]) -> str:
    """Formats a table for LaTeX with the package booktabs, and its note below it."""

    def cell(row: Row) -> str:
        number = number_text(row, r" \pm ")
        if math.isfinite(row["mean"]):
            # 3.1e-07 would be typeset as a product with the letter e
            number = _EXPONENT.sub(lambda m: rf" \times 10^{{{int(m[1])}}}", number)
            number = rf"$\mathbf{{{number}}}$" if row["top"] else f"${number}$"
        elif row["top"]:
            number = rf"\textbf{{{number}}}"
        return number + _lost_note(row)

    head, *rows = grid_of(table, cell, "-")
    style = pd.DataFrame(rows, columns=head).style.hide(axis="index")
    # the cells are LaTeX already
    style.format(_escape, subset=head[:1]).format_index(_escape, axis=1)
    text = style.to_latex(hrules=True, column_format="l" + "r" * (len(head) - 1))
    note = _escape(note_of(table))
    return f"% {title}\n{text}\\par\\smallskip\n{{\\footnotesize {note}\\par}}"


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _escape(text: str) -> str:
    """Returns a text with the signs that LaTeX reads otherwise as it prints them."""
    return re.sub(r"[\\#$%&_{}~^]", lambda sign: _LATEX.get(sign[0], f"\\{sign[0]}"), text)


def to_csv(comparison: pd.DataFrame) -> str:
    """Formats all tables as one CSV table, with a line for each method and column; heads name the
    units.
    """
    rows: Any = comparison.eval("left_out = left_out + interrupted")
    rows["top"] = rows["top"].astype(int)
    # by method, and of each the columns
    methods = rows.groupby(["table", "method"], sort=False)
    rows = pd.concat(part.query("runs + left_out > 0") for _, part in methods)
    heads = [name for name in CSV_HEADS if name != "selected" or rows["selected"].any()]
    return rows[heads].rename(columns=CSV_HEADS).to_csv(index=False, float_format="%.9g")


_WRITERS = {"text": to_text, "latex": to_latex, "markdown": to_markdown}
FORMS = (*_WRITERS, "csv")
"""Names of the forms of tables."""
