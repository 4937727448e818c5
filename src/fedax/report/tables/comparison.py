"""Tables that compare methods, with paired tests against the best: as text, CSV, Markdown and
LaTeX.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedax.core import InvalidInput, UnknownName
from fedax.core.directions import Mode
from fedax.observe.modes import mode_of
from fedax.report.drawing.charts import column_of
from fedax.report.page import Sheet
from fedax.report.record import Record, by_label, by_task
from fedax.report.tables.numbers import Results, Values, higher_is_better, quantity_of, stated_modes
from fedax.report.tables.statistics import LEVEL, Effect, digits, effect_of, holm
from fedax.report.tables.summary import columns_of, counted, scale_of


class Cell(NamedTuple):
    """A method's number in a column.

    Attributes:
        mean, deviation: over its runs, in the unit of `scale_of`; NaN for a deviation of one run.
        runs, lost: how many there are, and how many of them diverged and count as the worst.
        p: Holm's adjusted p-value of the paired difference to the best method, 1 for the best; NaN
            where nothing is tested.
    """

    mean: float
    deviation: float
    runs: int
    lost: int
    p: float

    @property
    def is_top(self) -> bool:
        """Whether it is the best, or not significantly worse: without a test it is neither."""
        return self.p > LEVEL


class Difference(NamedTuple):
    """The paired difference of a method to the best one, positive where it is worse, with its
    adjusted p-value.
    """

    best: str
    effect: Effect
    p: float


class ComparedColumn(NamedTuple):
    """A column of a table: its title with the unit, and the cells by method."""

    title: str
    cells: dict[str, Cell]
    differences: dict[str, Difference]


def compare_methods(records: Sequence[Record], metric: str, read: str = "last") -> ComparedColumn:
    """Compares the methods of one task in a metric: means, and paired tests of all others against
    the best mean.

    Runs are paired by their seed and the draw of the data; of several draws the means over their
    seeds are compared. The tests are Student's, or sign tests where a number is infinite, and Holm
    corrects for their number. Runs that diverged count as the worst of their task.

    Args:
        records: of one task.
        metric: a scalar metric.
        read: how a curve becomes a number, see `read_curve`.
    """
    with_metric = [record for record in records if metric in record.scalars]
    title = _column_title(metric)
    if not with_metric:
        return ComparedColumn(title, {}, {})
    results, task = Results(with_metric), with_metric[0].task
    # by label, then by run: numbers in the unit of the table
    values = {
        label: results.of(task, label, metric, read, mode=_metric_mode(with_metric, metric))
        for label in by_label(with_metric)
    }
    # means over runs, also where the tests are on means over seeds
    means = {
        label: float(np.mean(list(label_values.values()))) for label, label_values in values.items()
    }
    differences: dict[str, Difference] = {}
    best = None
    if _metric_mode(with_metric, metric) is not None and len(values) > 1:
        # with the sign, smaller is better and a positive difference is worse
        sign = -1.0 if higher_is_better(metric, read, with_metric) else 1.0
        finite = {label: mean for label, mean in means.items() if not math.isnan(mean)}
        best = min(finite, key=lambda label: sign * finite[label]) if finite else None
        tested = {
            label: _compute_effect(results, label_values, values[best], sign)
            for label, label_values in values.items()
            if best not in (None, label)
        }
        # `ahead` is the p-value that the method is worse than the best
        adjusted = holm([effect.ahead for effect in tested.values()])
        differences = {
            label: Difference(str(best), effect, p)
            for (label, effect), p in zip(tested.items(), adjusted, strict=True)
        }
    cells = {}
    for label, label_values in values.items():
        numbers, lost = (
            np.array(list(label_values.values())),
            results.lost(task, label, metric, read)[0],
        )
        deviation = (
            float(numbers.std(ddof=1))
            if len(numbers) > 1 and np.isfinite(numbers).all()
            else math.nan
        )
        p = 1.0 if label == best else differences[label].p if label in differences else math.nan
        cells[label] = Cell(means[label], deviation, len(numbers), lost, p)
    return ComparedColumn(title, cells, differences)


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
        return [
            MethodTable(_column_title(metrics[0]), list(by_label(records)), columns, _note(records))
        ]
    return [
        MethodTable(
            task,
            list(by_label(runs)),
            [
                compare_methods(runs, metric, reads.get(task, "last"))
                for metric in metrics or [c.metric for c in columns_of(runs)]
            ],
            _note(runs),
        )
        for task, runs in tasks.items()
    ]


def _note(records: Sequence[Record]) -> str:
    most = max(
        len(runs)
        for task_runs in by_task(records).values()
        for runs in by_label(task_runs).values()
    )
    draws = len({record.draw for record in records}) > 1
    text = (
        f"Means and sample standard deviations over {counted(most, 'run')}. "
        if most > 1
        else "Single runs. "
    )
    if most < 2:
        return text + "Nothing is tested: that takes several seeds."
    unit = "draws of the data" if draws else "seeds"
    text += (
        f"Bold: the best mean, and those not significantly worse (paired by {unit}, t-test, "
        f"Holm, level {LEVEL:g}). "
    )
    return text + "Runs that diverged count as the worst of their task."


def to_text(table: MethodTable) -> str:
    """Formats a table for terminals: the best and those level with it have a star."""
    # without the star two spaces keep the numbers below each other
    rows = _table_rows(
        table, lambda cell: _format_number(cell, " ± ") + (" *" if cell.is_top else "  ")
    )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *numbers in rows:
        cells = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(
        [table.title, *(line.rstrip() for line in lines), table.note.replace("Bold", "*")]
    )


def to_markdown(table: MethodTable) -> str:
    """Formats a table in Markdown."""
    head, *rows = _table_rows(
        table,
        lambda cell: (
            f"**{_format_number(cell, ' ± ')}**" if cell.is_top else _format_number(cell, " ± ")
        ),
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
        if not math.isfinite(cell.mean):
            return number
        return rf"$\mathbf{{{number}}}$" if cell.is_top else f"${number}$"

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
        ["table", "algorithm", "column (unit)", "runs", "diverged", "mean", "deviation", *tested]
    )
    for table in tables:
        for method in table.methods:
            for column in table.columns:
                if (cell := column.cells.get(method)) is None:
                    continue
                difference = column.differences.get(method)
                # the best itself, and untested methods, have empty cells
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
        "interval. p is that of a paired "
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


def _format_number(cell: Cell, sign: str) -> str:
    if not math.isfinite(cell.mean):
        return "diverged" if math.isnan(cell.mean) else "never"
    decimals = 2 if 1 <= abs(cell.mean) < 1000 or not cell.mean else 4
    # very small and very large numbers by significant digits
    is_extreme = not 1e-3 <= abs(cell.mean) < 1e6 and cell.mean
    mean, deviation = (
        digits(value) if is_extreme else f"{value:.{decimals}f}"
        for value in (cell.mean, cell.deviation)
    )
    return mean + (f"{sign}{deviation}" if math.isfinite(cell.deviation) else "")


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
