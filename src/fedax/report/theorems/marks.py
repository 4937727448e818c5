"""Runs held to the papers' theorems: which assumption held in which rounds, and what was measured
against what was promised.
"""

import dataclasses
from collections.abc import Callable, Sequence

from fedax.report.drawing.charts import Chart, Panel
from fedax.report.record import Record, by_label, by_task
from fedax.report.theorems import theorems
from fedax.report.theorems.statements import Held, reasons, strip, unmarked

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
        for label, own in by_label(runs).items():
            # expectations are over seeds, on the same data
            own = [run for run in own if run.draw == own[0].draw]
            for look in PAPERS:
                found = look(own)
                if found is not None:
                    panels = [
                        strip(own[0].rounds, [unmarked(check) for check in found.checks]),
                        *_styled(found.panels),
                    ]
                    title, note = (
                        f"Theory of {found.paper}: {label}, {task}",
                        f"{NOTE} {reasons(found.checks)}".rstrip(),
                    )
                    charts.append(Chart(_name(title), title, panels, 2, note))
    return charts


def _name(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def _styled(panels: Sequence[Panel]) -> list[Panel]:
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
