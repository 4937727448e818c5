"""What `run(progress=...)` shows: a bar in terminals and notebooks, or a curve in notebooks."""

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from fedax.engine.driver.options import Progress


def make_bars(console: Console | None = None) -> Bars:
    """Makes bars with rounds and a metric, which the tasks have as the field `value`."""
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[value]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )


def add_bar(
    bars: Bars, title: str, rounds: int | None = None, metric: str = "train_loss"
) -> Callable[[Progress], None]:
    """Adds the bar of a run; returns what moves it, for `run(progress=...)`.

    Args:
        bars: where it is shown.
        title: of the run.
        rounds: of the run; None until the first observation says it.
        metric: that is shown.
    """
    task = bars.add_task(title, total=rounds, value="")

    def move(progress: Progress) -> None:
        value = progress.metrics.get(metric)
        text = "" if value is None else f"{metric} {float(value):.4g}"
        bars.update(task, completed=progress.round, total=progress.rounds, value=text)

    return move


def draw_curve(title: str, metric: str = "train_loss") -> Callable[[Progress], None]:
    """Shows the curve of a run in a notebook; returns what draws it again."""
    from matplotlib.figure import Figure

    # notebooks have it, the package does not need it
    notebook = importlib.import_module("IPython.display")
    place = notebook.display(notebook.HTML(""), display_id=True)
    rounds = []
    values = []

    def draw(progress: Progress) -> None:
        rounds.append(progress.round)
        values.append(progress.metrics.get(metric))
        figure = Figure(figsize=(6, 3), layout="constrained")
        figure.add_subplot(title=title, xlabel="rounds", ylabel=metric).plot(rounds, values)
        svg = io.StringIO()
        figure.savefig(svg, format="svg")
        place.update(notebook.HTML(svg.getvalue()))

    return draw


@contextlib.contextmanager
def progress_hook(progress: Any, title: str) -> Iterator[Any]:
    """Yields the hook of a run: the given function, one that draws a curve for "plot", or one that
    moves a bar for what else is true; else None.
    """
    if callable(progress):
        yield progress
    elif progress == "plot":
        yield draw_curve(title)
    elif progress:
        with make_bars() as bars:
            yield add_bar(bars, title)
    else:
        yield None
