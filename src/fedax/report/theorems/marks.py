"""Runs held to the papers' theorems: which assumption held in which rounds, and what was measured
against what was promised.
"""

import dataclasses
from collections.abc import Callable, Sequence

from fedax.report.drawing.charts import Chart, Panel
from fedax.report.record import Record, by_label, by_task
from fedax.report.theorems import theorems
from fedax.report.theorems.statements import Held, checks_panel, reasons, without_marks

NOTE = (
    "Curves are those of the first run. Constants are the largest that were measured along the "
    "runs: the true ones may be larger. "
    "A statement has no mark in rounds of which it says nothing. What holds in expectation is "
    "marked by the mean over seeds, where "
    "its 95 % interval decides."
)


def theory_charts(records: Sequence[Record]) -> list[Chart]:
    """Returns a chart for each algorithm and paper whose observers watched: a row of marks for each
    statement, and the curves.

    A statement is marked only for runs that satisfy all of its premises; the note says which one is
    missing. See `docs/theory.md` for the observers.
    """
    charts = []
    for task, runs in by_task(records).items():
        for label, label_runs in by_label(runs).items():
            # expectations are over seeds, on the same data
            label_runs = [run for run in label_runs if run.draw == label_runs[0].draw]
            for check_theorems in PAPERS:
                statements = check_theorems(label_runs)
                if statements is not None:
                    panels = [
                        checks_panel(
                            label_runs[0].rounds,
                            [without_marks(check) for check in statements.checks],
                        ),
                        *_assign_styles(statements.panels),
                    ]
                    title, note = (
                        f"Theory of {statements.paper}: {label}, {task}",
                        f"{NOTE} {reasons(statements.checks)}".rstrip(),
                    )
                    charts.append(Chart(_file_name(title), title, panels, 2, note))
    return charts


def _file_name(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def _assign_styles(panels: Sequence[Panel]) -> list[Panel]:
    """Returns those that show something, with a style for each label of all."""
    labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series))
    return [
        dataclasses.replace(
            panel,
            series=[dataclasses.replace(s, style=labels.index(s.label)) for s in panel.series],
        )
        for panel in panels
        if panel.series
    ]


PAPERS: tuple[Callable[[Sequence[Record]], Held | None], ...] = (
    theorems.local_gd_of,
    theorems.feddane_of,
    theorems.dfedavgm_of,
    theorems.fedaware_of,
    theorems.fedbc_of,
)
"""The papers, each a function of an algorithm's runs that is None where their observers do not
watch what it speaks of."""
