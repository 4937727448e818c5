"""The bar of `run(progress=True)` in terminals and notebooks."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from fedax.engine.driver.options import Progress


def make_bars(console: Console | None = None) -> Bars:
    """Makes bars with rounds, rounds per second and a metric, which the tasks have as the fields
    `rate` and `value`.
    """
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[value]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )


def rate_and_value(progress: Progress, begun: float, metric: str = "train_loss") -> tuple[str, str]:
    """Returns rounds per second, without the time of compiling, and the value of a metric, as
    texts.
    """
    value = progress.metrics.get(metric)
    speed = progress.round / max(time.perf_counter() - begun - progress.compiling, 1e-9)
    suffix = f" (first of {progress.runs} runs)" if progress.runs > 1 else ""
    return f"{speed:.3g} rounds/s", "" if value is None else (
        f"{word_for(metric)} {float(value):.4g}{suffix}"
    )


def word_for(metric: str) -> str:
    """Returns a metric's name for a line of progress.

    >>> word_for("train_loss"), word_for("validation_loss")
    ('loss', 'validation loss')
    """
    return "loss" if metric == "train_loss" else metric.replace("_", " ")


@contextlib.contextmanager
def progress_hook(progress: Any, title: str) -> Iterator[Callable[[Progress], bool | None] | None]:
    """Yields the hook of a run: one that moves a bar for `True`, else the given one; None for
    `False`.
    """
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    bars, begun = make_bars(), time.perf_counter()
    bar = bars.add_task(title, total=None, rate="compiling", value="")

    def update_bar(observation: Progress) -> None:
        rate, value = rate_and_value(observation, begun)
        rate = rate if observation.round else "compiling"
        bars.update(
            bar, completed=observation.round, total=observation.rounds, rate=rate, value=value
        )

    with bars:
        yield update_bar
