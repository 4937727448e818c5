"""Progress of runs in a terminal or a log."""

import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from fedax.engine.driver.options import Progress as Observation
from fedax.engine.driver.progress_bar import add_bar, make_bars
from fedax.results.record import Record, describe_endings


class Display:
    """Shows runs, which begin, are observed and end in turn: a line for every run that has ended;
    meanwhile a bar in a terminal, elsewhere a line about every ten seconds.

    Args:
        console: where; by default nowhere.

    Attributes:
        every: seconds between two lines.
    """

    console = Console(quiet=True)
    every: float = 10.0

    def __init__(self, console: Console = console) -> None:
        self.console = console

    def __enter__(self) -> "Display":
        self.bars = make_bars(self.console)
        self.bars.disable = self.console.quiet or not self.console.is_terminal
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, title: str, rounds: int) -> None:
        """Shows that a run starts."""
        self.bar = add_bar(self.bars, title, rounds)
        self.shown = time.perf_counter()

    def observe(self, observation: Observation) -> None:
        """Shows the observation of a run."""
        self.bar(observation)
        if self.bars.disable and time.perf_counter() - self.shown > self.every:
            self.shown = time.perf_counter()
            (task,) = self.bars.tasks
            progress = f"{task.description}: round {observation.round}/{observation.rounds}"
            self._print(f"  {progress}, {task.fields['value']}")

    def end(self, title: str, records: Sequence[Record]) -> None:
        """Shows that a run, or several that went together, has ended."""
        for task in self.bars.task_ids:
            self.bars.remove_task(task)
        style = "" if describe_endings(records) == "ok" else "yellow"
        self._print(summary_line(title, records), style)

    def say(self, message: str) -> None:
        """Shows a remark."""
        self._print(message, "yellow")

    def _print(self, text: str, style: str = "") -> None:
        # soft_wrap: a line of a log stays one line
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def summary_line(title: str, records: Sequence[Record]) -> str:
    """Returns one line about runs that went together and have ended."""
    # each record has its part of the time
    seconds = sum(record.seconds[-1] for record in records)
    rounds = max(record.rounds[-1] for record in records)
    losses = [
        record.metrics["train_loss"][-1] for record in records if "train_loss" in record.metrics
    ]
    text = f"{title}: {rounds} rounds in {seconds:.1f} s"
    if losses:
        text += f", train_loss {np.mean(losses):.4g}"
    ending = describe_endings(records)
    return text if ending == "ok" else f"{text}, {ending}"
