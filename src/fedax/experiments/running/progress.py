"""Progress of runs on the screen: bars in a terminal, plain lines elsewhere."""

import re
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedax.engine.driver.progress_bar import Pace, make_bars, value_text, word_for
from fedax.engine.driver.run import Progress as Observation
from fedax.results.record import Record
from fedax.results.tables.summary import best, columns_of, format_row_value, summarize


class Display:
    """Shows nothing; the base of the others. Runs are announced, observed and finished in turn.

    Attributes:
        metric: that is shown, the one by which runs of a grid are selected.
    """

    metric: str = "train_loss"

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def begin(self, title: str, rounds: int) -> None:
        """Shows that a run starts."""

    def observe(self, observation: Observation) -> None:
        """Shows the observation of a run."""

    def end(self, title: str, records: Sequence[Record]) -> None:
        """Shows that a run, or several that went together, has ended."""

    def say(self, message: str) -> None:
        """Shows a remark."""


class Bars(Display):
    """A live bar for the current run."""

    def __init__(self, console: Console) -> None:
        self.bars = make_bars(console)
        self.bar: Any = None
        self.pace = Pace()

    def __enter__(self) -> "Bars":
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def begin(self, title: str, rounds: int) -> None:
        self._clear()
        self.bar = self.bars.add_task(title, total=rounds, rate="compiling", value="")
        self.pace = Pace()

    def observe(self, observation: Observation) -> None:
        self.bars.update(
            self.bar,
            completed=observation.round,
            total=observation.rounds,
            rate=self.pace.rate(observation),
            value=value_text(observation, self.metric),
        )

    def end(self, title: str, records: Sequence[Record]) -> None:
        self._clear()
        all_ok = all(record.ending == "ok" for record in records)
        self.bars.console.print(
            Text.assemble(
                ("✓ ", "green") if all_ok else ("! ", "yellow"),
                summary_line(title, records, self.metric),
            )
        )

    def say(self, message: str) -> None:
        self.bars.console.print(message, markup=False, style="yellow")

    def _clear(self) -> None:
        if self.bar is not None:
            self.bars.remove_task(self.bar)
            self.bar = None


class Lines(Display):
    """A line for every run, and one about every ten seconds in between."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        self.console, self.every, self.title, self.pace = console, every, "", Pace()
        self.last = time.perf_counter()

    def begin(self, title: str, rounds: int) -> None:
        self.title, self.pace, self.last = title, Pace(), time.perf_counter()

    def observe(self, observation: Observation) -> None:
        rate, value = self.pace.rate(observation), value_text(observation, self.metric)
        if time.perf_counter() - self.last > self.every:
            self.last = time.perf_counter()
            self._print_line(
                f"  {self.title}: round {observation.round}/{observation.rounds}, {rate}, {value}"
            )

    def end(self, title: str, records: Sequence[Record]) -> None:
        self._print_line(summary_line(title, records, self.metric))

    def say(self, message: str) -> None:
        self._print_line(message)

    def _print_line(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def display_for(console: Console) -> Display:
    """Returns bars for a terminal, else lines."""
    return Bars(console) if console.is_terminal else Lines(console)


def summary_line(title: str, records: Sequence[Record], metric: str = "train_loss") -> str:
    """Returns one line about runs that went together and have ended, with the last values of a
    metric.
    """
    values = [record.metrics[metric][-1] for record in records if metric in record.metrics]
    # each record has its part of the time
    seconds = sum(record.seconds[-1] for record in records)
    compiled = sum(record.compiling[-1] for record in records if record.compiling is not None)
    phrases = [f"{max(int(record.rounds[-1]) for record in records)} rounds in {seconds:.1f} s"]
    phrases += [f"{compiled:.1f} s of them compiling"] if compiled >= 0.1 else []
    finite = [value for value in values if np.isfinite(value)]
    phrases += [f"{word_for(metric)} {_format_range(finite or values)}"] if values else []
    endings = [record.ending for record in records if record.ending != "ok"]
    of_all = f" ({len(endings)} of {len(records)} runs)" if len(records) > 1 else ""
    phrases += [f"{ending}{of_all}" for ending in endings[:1]]
    return f"{title}: {', '.join(phrases)}"


def _format_range(values: Any) -> str:
    """Returns a number, or the smallest and the largest of several."""
    low, high = np.min(values), np.max(values)
    return f"{low:.4g} to {high:.4g}" if low < high else f"{low:.4g}"


class Label:
    """An algorithm's label, which a narrow column breaks after a space, `=` or `_`.

    >>> from rich.console import Console
    >>> Console(width=12).print(Label("FedAvg, learning_rate=0.8"))
    FedAvg,
    learning_
    rate=0.8

    Args:
        text: the label.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, re.split("[ =_]", self.text))) + 1, len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width, lines = options.max_width, [""]
        for word in self.text.split(" "):
            # a word that fits is not broken
            pieces = [word] if len(word) <= width else re.findall("[^=_]*[=_]|[^=_]+", word)
            for i, piece in enumerate(pieces):
                added = f" {piece}" if i == 0 and lines[-1] else piece
                if lines[-1] and len(lines[-1] + added) > width:
                    lines.append(piece)
                else:
                    lines[-1] += added
        yield Text("\n".join(lines))


def summary_table(
    title: str, records: list[Record], wide: bool = True, read: str = "last"
) -> Table:
    """Returns the values of one task as a table for the terminal, with fewer columns unless it is
    wide; best values are bold.
    """
    columns, rows = (
        [column for column in columns_of(records) if wide or column.brief],
        summarize(records, read),
    )
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        header_style="dim",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("algorithm", overflow="fold")
    table.add_column("rounds", justify="right")
    for column in columns:
        table.add_column(column.title.lower(), justify="right")
    table.add_column("outcome")
    # labels of the best rows, by metric
    winners = {column.metric: best(column, rows) for column in columns}
    for row in rows:
        cells = [
            Text(format_row_value(row, c), style="bold" if row.label in winners[c.metric] else "")
            for c in columns
        ]
        table.add_row(
            Label(row.label),
            str(row.rounds),
            *cells,
            Text(row.outcome, style="" if row.ok else "bold red"),
        )
    return table
