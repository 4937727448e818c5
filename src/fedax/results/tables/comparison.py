"""Tables that compare methods, with paired tests against the best: as text, CSV, Markdown and
LaTeX.
"""

import csv
import io
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedax.core import InvalidInput, UnknownName
from fedax.core.directions import Mode
from fedax.observe.modes import mode_of
from fedax.results.page import Sheet
from fedax.results.record import Record, by_label, by_task
from fedax.results.tables.numbers import (
    Results,
    Values,
    higher_is_better,
    quantity_of,
    stated_modes,
)
from fedax.results.tables.statistics import LEVEL, Effect, effect_of, holm, mean_text
from fedax.results.tables.summary import (
    column_of,
    columns_of,
    counted,
    lost_text,
    reduction_of,
    scale_of,
)

_EXPONENT = re.compile(r"e([+-]\d+)")


class Cell(NamedTuple):
    """A method's number in a column.

    Attributes:
        mean, deviation: over its runs, in the unit of `scale_of`; NaN for a deviation of one run,
            and where all runs are lost. Of several draws of the data each counts alike in the mean.
        runs, lost: how many there are, and how many of them have no number, because they were
            stopped or are not finite, and count as the worst.
        p: Holm's adjusted p-value of the paired difference to the best method, 1 for the best mean;
            NaN where nothing is tested, and for a method without any finite number.
        left_out: further runs of the method, which not all methods have.
        diverged: whether any run diverged; else the number of a lost one is not finite.
    """

    mean: float
    deviation: float
    runs: int
    lost: int
    p: float
    left_out: int = 0
    diverged: bool = True

    @property
    def is_top(self) -> bool:
        """Whether it is the best, or tested and not significantly worse.

        A method all of whose runs diverged is neither.
        """
        return self.p > LEVEL and self.lost < self.runs


class Difference(NamedTuple):
    """The paired difference of a method to the best one, positive where it is worse, with its
    adjusted p-value: NaN where fewer than two pairs leave nothing to test.
    """

    best: str
    effect: Effect
    p: float


class ComparedColumn(NamedTuple):
    """A column of a table.

    Attributes:
        title: with the unit.
        cells: by method.
        differences: to the best method, by method.
        common: the runs (draw of the data and seed) that all methods have, on which the column
            rests; None where there is only one method.
    """

    title: str
    cells: dict[str, Cell]
    differences: dict[str, Difference]
    common: int | None = None


def compare_methods(records: Sequence[Record], metric: str, read: str = "last") -> ComparedColumn:
    """Compares the methods of one task in a metric: means, and paired tests of all others against
    the best mean.

    The means, the choice of the best and the tests rest on the same runs: those whose draw of the
    data and seed all methods have. Further runs are left out, and `Cell.left_out` counts them: with
    them, the method whose seeds happened to be easy would look better. If the methods have no run
    in common, the means are over each method's own runs, and nothing is compared.

    Runs are paired by their seed and the draw of the data; of several draws the means over their
    seeds are compared. The tests are Student's, or sign tests where a number is infinite, and Holm
    corrects for their number. Runs without a final value count as the worst of their task. A
    method all of whose runs diverged is not marked.

    Args:
        records: of one task.
        metric: a scalar metric.
        read: how a curve becomes a number, see `read_curve`.
    """
    read = reduction_of(metric, read)
    with_metric = [record for record in records if metric in record.scalars]
    title = _column_title(metric)
    if not with_metric:
        return ComparedColumn(title, {}, {})
    results, task = Results(with_metric), with_metric[0].task
    label_runs = by_label(with_metric)
    mode = _metric_mode(with_metric, metric)
    worst = None if _has_worst(with_metric, metric, read) else math.nan
    # by label, then by run: numbers in the unit of the table
    all_values = {label: results.of(task, label, metric, read, worst, mode) for label in label_runs}
    common = set.intersection(*(set(label_values) for label_values in all_values.values()))
    values = {
        label: {run: value for run, value in label_values.items() if not common or run in common}
        for label, label_values in all_values.items()
    }
    lost = {label: results.lost(task, label, metric, read, values[label])[0] for label in values}
    means = {label: _compute_mean(label_values) for label, label_values in values.items()}
    # the best has a finite number, and not all of its runs diverged
    ranked = [
        label
        for label, label_values in values.items()
        if lost[label] < len(label_values)
        and np.isfinite(list(label_values.values())).any()
        and not all(run.diverged for run in label_runs[label])
    ]
    differences: dict[str, Difference] = {}
    best = None
    if mode is not None and len(values) > 1 and common:
        # with the sign, smaller is better and a positive difference is worse
        sign = -1.0 if higher_is_better(metric, read, with_metric) else 1.0
        best = _find_best({label: values[label] for label in ranked}, means, sign)
        if best is not None:
            differences = _compute_differences(results, values, best, sign)
    cells = {}
    for label, label_values in values.items():
        numbers = np.array(list(label_values.values()))
        # the worst value of the task stands for a lost run in the tests, but it is no mean
        has_mean = lost[label] < len(numbers)
        deviation = (
            float(numbers.std(ddof=1))
            if has_mean and len(numbers) > 1 and np.isfinite(numbers).all()
            else math.nan
        )
        p = differences[label].p if label in differences else math.nan
        # equal means are all the best, also where nothing is tested
        if best is not None and (
            label == best or (math.isfinite(means[best]) and means[label] == means[best])
        ):
            p = 1.0
        cells[label] = Cell(
            means[label] if has_mean else math.nan,
            deviation,
            len(numbers),
            lost[label],
            p if label in ranked else math.nan,
            len(all_values[label]) - len(numbers),
            any(run.diverged for run in label_runs[label]),
        )
    return ComparedColumn(title, cells, differences, len(common) if len(values) > 1 else None)


def _has_worst(records: Sequence[Record], metric: str, read: str) -> bool:
    """Returns whether a run without a number can count as the worst: values of a metric without a
    direction have none.
    """
    return (
        "_to_" in read
        or read == "mean_change"
        or mode_of(metric, stated_modes(records)) is not None
    )


def _compute_mean(values: Values) -> float:
    """Returns the mean over runs, in which each draw of the data counts alike, as in the tests."""
    by_draw: dict[int, list[float]] = {}
    for run, value in values.items():
        by_draw.setdefault(run.draw, []).append(value)
    # infinite plus minus infinite is NaN
    with np.errstate(invalid="ignore"):
        if len({len(group) for group in by_draw.values()}) == 1:
            return float(np.mean(list(values.values())))
        return float(np.mean([np.mean(group) for group in by_draw.values()]))


def _find_best(values: Mapping[str, Values], means: Mapping[str, float], sign: float) -> str | None:
    """Returns the method with the best mean; of infinite means, that with most finite numbers."""

    def rank(label: str) -> tuple[float, int]:
        return sign * means[label], int((~np.isfinite(list(values[label].values()))).sum())

    labels = [label for label in values if not math.isnan(means[label])]
    return min(labels, key=rank) if labels else None


def _compute_differences(
    results: Results, values: Mapping[str, Values], best: str, sign: float
) -> dict[str, Difference]:
    effects = {
        label: _compute_effect(results, label_values, values[best], sign)
        for label, label_values in values.items()
        if label != best
    }
    # a single pair tests nothing, so it does not count in the correction either
    tested = [label for label, effect in effects.items() if effect.units > 1]
    # `ahead` is the p-value that the method is worse than the best
    adjusted = dict(zip(tested, holm([effects[label].ahead for label in tested]), strict=True))
    return {
        label: Difference(best, effect, adjusted.get(label, math.nan))
        for label, effect in effects.items()
    }


def _compute_effect(
    results: Results, method_values: Values, best_values: Values, sign: float
) -> Effect:
    # pairs by draw and seed: runs that only one of the two has are left out
    common = [run for run in method_values if run in best_values]
    with np.errstate(invalid="ignore"):
        # infinite minus infinite is level
        paired = {run: sign * (method_values[run] - best_values[run]) for run in common}
    values, unit = results.units(
        {run: 0.0 if math.isnan(value) else value for run, value in paired.items()}
    )
    return effect_of(values, unit)


def _metric_mode(records: Sequence[Record], metric: str) -> Mode | None:
    return (
        None
        if metric in ("dissimilarity", "weight_gap")
        else mode_of(metric, stated_modes(records))
    )


def unit_of(metric: str) -> str:
    """Returns the unit in which tables show a metric, for their heads.

    >>> unit_of("test_accuracy"), unit_of("client_accuracy_variance"), unit_of("train_loss")
    ('%', 'squared points', '')
    """
    return {100.0: "%", 1e4: "squared points"}.get(scale_of(metric), "")


def _column_title(metric: str) -> str:
    name = column_of(metric).title
    return f"{name} ({unit_of(metric)})" if unit_of(metric) else name


class MethodTable(NamedTuple):
    """A table of methods.

    Attributes:
        title: of the task, or of the metric.
        methods: the labels of its rows.
        columns: of metrics, or of tasks.
        note: what its numbers are.
    """

    title: str
    methods: list[str]
    columns: list[ComparedColumn]
    note: str


def method_tables(
    records: Sequence[Record],
    reads: Mapping[str, str] | None = None,
    metrics: Sequence[str] | None = None,
) -> list[MethodTable]:
    """Returns a table of methods and metrics for each task; with one metric and several tasks, one
    table of methods and tasks.

    Args:
        records: the runs.
        reads: how curves become numbers, by task; their last values by default.
        metrics: which; by default those that reports show.

    Raises:
        InvalidInput: no runs.
        UnknownName: a metric that no run has.
    """
    if not records:
        raise InvalidInput.found("table", "no runs", "at least one")
    known_metrics = list(dict.fromkeys(name for record in records for name in record.scalars))
    for metric in metrics or ():
        if metric not in known_metrics:
            raise UnknownName.among("metric", metric, known_metrics)
    tasks, reads = by_task(records), reads or {}
    # one metric: tasks become the columns
    if metrics and len(metrics) == 1 and len(tasks) > 1:
        columns = [
            compare_methods(runs, metrics[0], reads.get(task, "last"))._replace(title=task)
            for task, runs in tasks.items()
        ]
        methods = list(by_label(records))
        return [MethodTable(_column_title(metrics[0]), methods, columns, _note(columns))]
    tables = []
    for task, runs in tasks.items():
        columns = [
            compare_methods(runs, metric, reads.get(task, "last"))
            for metric in metrics or [column.metric for column in columns_of(runs)]
        ]
        tables.append(MethodTable(task, list(by_label(runs)), columns, _note(columns)))
    return tables


def _note(columns: Sequence[ComparedColumn]) -> str:
    """Returns what the numbers of some columns are, what marks mean, and what was left out."""
    cells = [cell for column in columns for cell in column.cells.values()]
    counts = {cell.runs for cell in cells}
    fewest, most = min(counts, default=1), max(counts, default=1)
    runs = counted(most, "run") if fewest == most else f"{fewest} to {most} runs"
    sentences = [
        f"Means and sample standard deviations over {runs}." if most > 1 else "Single runs."
    ]
    units = {
        difference.effect.unit
        for column in columns
        for difference in column.differences.values()
        if not math.isnan(difference.p)
    }
    if units:
        unit = " or ".join(
            "draws of the data" if unit == "draws" else unit for unit in sorted(units)
        )
        sentences.append(
            f"Bold: the best mean, and those not significantly worse (paired by {unit}, t-test, "
            f"Holm, level {LEVEL:g})."
        )
    elif any(cell.is_top for cell in cells):
        sentences.append("Bold: the best.")
    if most < 2:
        sentences.append("Nothing is tested: that takes several seeds.")
    sentences += _describe_left_out(columns)
    if most > 1:
        sentences.append("Runs without a final value count as the worst of their task.")
    return " ".join(sentences)


def _describe_left_out(columns: Sequence[ComparedColumn]) -> list[str]:
    """Returns sentences about runs that not all methods have."""
    # by sentence the columns that it is about, because it is mostly the same for all of them
    titles: dict[str, list[str]] = {}
    for column in columns:
        sentences = [
            f"{cell.left_out} of {counted(cell.left_out + cell.runs, 'run')} of {method} left out: "
            "other methods lack their seeds or draws of the data."
            for method, cell in column.cells.items()
            if cell.left_out
        ]
        if column.common == 0:
            sentences = ["Nothing is compared: the methods have no seed and draw in common."]
        for sentence in sentences:
            titles.setdefault(sentence, []).append(column.title)
    return [
        sentence if len(about) == len(columns) else f"{', '.join(about)}: {sentence}"
        for sentence, about in titles.items()
    ]


def to_text(table: MethodTable) -> str:
    """Formats a table for terminals: the best and those level with it have a star."""
    # without the star two spaces keep the numbers below each other
    rows = _table_rows(table, lambda cell: _format_cell(cell) + (" *" if cell.is_top else "  "))
    widths = [max(map(_columns_on_screen, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pads = [" " * (w - _columns_on_screen(t)) for t, w in zip(row, widths, strict=True)]
        cells = [pad + text for text, pad in zip(row[1:], pads[1:], strict=True)]
        lines.append("  ".join([row[0] + pads[0], *cells]))
    return "\n".join(
        [table.title, *(line.rstrip() for line in lines), table.note.replace("Bold", "*")]
    )


def _columns_on_screen(text: str) -> int:
    """Returns the width of a text in a terminal, where some letters take two columns or none."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )


def to_markdown(table: MethodTable) -> str:
    """Formats a table in Markdown."""
    head, *rows = _table_rows(
        table,
        lambda cell: f"**{_format_cell(cell)}**" if cell.is_top else _format_cell(cell),
    )
    rule = ["---", *["---:"] * len(table.columns)]
    lines = [
        f"| {' | '.join(_escape_markdown(text) for text in row)} |" for row in (head, rule, *rows)
    ]
    return "\n".join([f"**{table.title}**", "", *lines, "", table.note])


def to_latex(table: MethodTable) -> str:
    """Formats a table for LaTeX with the package booktabs."""

    def format_cell(cell: Cell) -> str:
        number = _format_number(cell, r" \pm ")
        if math.isfinite(cell.mean):
            # 3.1e-07 would be typeset as a product with the letter e
            number = _EXPONENT.sub(lambda m: rf" \times 10^{{{int(m[1])}}}", number)
            number = rf"$\mathbf{{{number}}}$" if cell.is_top else f"${number}$"
        elif cell.is_top:
            number = rf"\textbf{{{number}}}"
        return number + _describe_lost(cell)

    head, *rows = _table_rows(table, format_cell, escape=_escape_latex)
    lines = [
        f"% {table.title}: {table.note}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    lines += [
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
    ]
    return "\n".join([*lines, r"\end{tabular}"])


def to_csv(tables: Sequence[MethodTable]) -> str:
    """Formats tables as one CSV table, with a line for each method and column; heads name the
    units.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    tested = ["best", "difference to best (worse is positive)", "low", "high", "p (Holm)"]
    writer.writerow(
        [
            "table",
            "algorithm",
            "column (unit)",
            "runs",
            "diverged",
            "mean",
            "deviation",
            *tested,
            "left out",
        ]
    )
    for table in tables:
        for method in table.methods:
            for column in table.columns:
                if (cell := column.cells.get(method)) is None:
                    continue
                difference = column.differences.get(method)
                # the best itself has empty cells, an untested difference an empty p
                test_cells = (
                    ["", "", "", ""]
                    if difference is None
                    else [
                        difference.effect.mean,
                        difference.effect.low,
                        difference.effect.high,
                        difference.p,
                    ]
                )
                numbers = [_format_plain(value) for value in (cell.mean, cell.deviation)]
                # 1 also for methods that are not significantly worse
                best = int(cell.is_top)
                row = [
                    table.title,
                    method,
                    column.title,
                    cell.runs,
                    cell.lost,
                    *numbers,
                    best,
                    *map(_format_plain, test_cells),
                    cell.left_out,
                ]
                writer.writerow(row)
    return buffer.getvalue()


FORMS: dict[str, Callable[[Sequence[MethodTable]], str]] = {
    "text": lambda tables: "\n\n".join(map(to_text, tables)),
    "latex": lambda tables: "\n\n".join(map(to_latex, tables)),
    "markdown": lambda tables: "\n\n".join(map(to_markdown, tables)),
    "csv": to_csv,
}
"""Forms of tables by name."""


def differences_sheet(records: Sequence[Record], reads: Mapping[str, str]) -> list[Sheet]:
    """Returns the paired differences of every method to the best one, for reports; nothing without
    several seeds or methods.
    """
    rows = []
    for task, runs in by_task(records).items():
        read = reads.get(task, "last")
        for column in columns_of(runs):
            if not column.brief:
                continue
            for method, (best, effect, p) in compare_methods(
                runs, column.metric, read
            ).differences.items():
                # a single pair decides nothing
                if effect.units > 1:
                    verdict = "worse" if p <= LEVEL else "not distinguishable"
                    quantity = quantity_of(column.metric, read)
                    rows.append(
                        [
                            task,
                            method,
                            best,
                            f"{effect.text} {quantity}",
                            str(effect.units),
                            f"{p:.2g}",
                            verdict,
                        ]
                    )
    head = ["Task", "Algorithm", "Best", "Difference", "Pairs", "p", "Verdict"]
    note = (
        "Mean difference to the best, positive where the algorithm is worse, with its 95 % "
        "interval, over the seeds and draws that all algorithms have. p is that of a paired "
        f"t-test, corrected by Holm over the algorithms of a task and metric; at most {LEVEL:g} "
        "counts as a difference."
    )
    return [Sheet("Paired differences", head, rows, note)] if rows else []


def _table_rows(
    table: MethodTable, format_cell: Callable[[Cell], str], escape: Callable[[str], str] = str
) -> list[list[str]]:
    rows = [["Algorithm", *(escape(column.title) for column in table.columns)]]
    for method in table.methods:
        cells = [column.cells.get(method) for column in table.columns]
        rows.append(
            [escape(method), *("-" if cell is None else format_cell(cell) for cell in cells)]
        )
    return rows


def _format_cell(cell: Cell) -> str:
    return _format_number(cell, " ± ") + _describe_lost(cell)


def _format_number(cell: Cell, sign: str) -> str:
    if math.isnan(cell.mean):
        return lost_text(cell.lost, cell.runs, cell.diverged)
    return mean_text(cell.mean, cell.deviation, sign) if math.isfinite(cell.mean) else "never"


def _describe_lost(cell: Cell) -> str:
    """Returns how many runs of a mean have no number, in brackets; nothing if all have one, or
    there is no mean.
    """
    has_lost = cell.lost and not math.isnan(cell.mean)
    return f" ({lost_text(cell.lost, cell.runs, cell.diverged)})" if has_lost else ""


def _format_plain(value: float | str) -> str:
    return (
        value
        if isinstance(value, str)
        else f"{value:.9g}"
        if math.isfinite(value)
        else ""
        if math.isnan(value)
        else str(value)
    )


def _escape_markdown(text: str) -> str:
    return text.replace("|", r"\|")


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(
        special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text
    )
