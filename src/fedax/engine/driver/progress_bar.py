"""The bar of `run(progress=True)` in terminals and notebooks."""

import contextlib
from collections.abc import Iterator
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


def value_text(progress: Progress, metric: str = "train_loss") -> str:
    """Returns the value of a metric with its name; nothing if it was not observed."""
    value = progress.metrics.get(metric)
    suffix = f" (first of {progress.runs} runs)" if progress.runs > 1 else ""
    return "" if value is None else f"{word_for(metric)} {float(value):.4g}{suffix}"


def word_for(metric: str) -> str:
    """Returns a metric's name for a line of progress.

    >>> word_for("train_loss"), word_for("validation_loss")
    ('loss', 'validation loss')
    """
    return "loss" if metric == "train_loss" else metric.replace("_", " ")


class Bar:
    """The bar of a run, moved by its observations; for `run(progress=...)`.

    Args:
        bars: where it is shown.
        title: of the run.
        rounds: of the run; None until the first observation says it.
        metric: that is shown.
    """

    def __init__(
        self, bars: Bars, title: str, rounds: int | None = None, metric: str = "train_loss"
    ) -> None:
        self.bars = bars
        self.metric = metric
        self.first: Progress | None = None
        self.task = bars.add_task(title, total=rounds, rate="compiling", value="")

    def __call__(self, observation: Progress) -> None:
        self.bars.update(
            self.task,
            completed=observation.round,
            total=observation.rounds,
            rate=self.rate(observation),
            value=value_text(observation, self.metric),
        )

    def rate(self, progress: Progress) -> str:
        """Returns rounds per second since the first observation, which is that of round 0, or of
        the rounds that a resumed run has already; without the time of compiling, as a text.

        "compiling" at the first observation, after which the rounds are compiled.
        """
        if self.first is None:
            self.first = progress
        compiling = progress.compiling - self.first.compiling
        seconds = progress.seconds - self.first.seconds - compiling
        # both clocks are read one after the other
        if seconds < 1e-4:
            return "compiling"
        return f"{(progress.round - self.first.round) / seconds:.3g} rounds/s"


@contextlib.contextmanager
def progress_hook(progress: Any, title: str) -> Iterator[Any]:
    """Yields the hook of a run: the given function, or one that moves a bar if `progress` is true;
    else None.
    """
    if callable(progress):
        yield progress
    elif progress:
        with make_bars() as bars:
            yield Bar(bars, title)
    else:
        yield None
