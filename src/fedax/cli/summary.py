"""What a command prints when its runs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Exit

from fedax.cli.command import next_step, shell

if TYPE_CHECKING:
    from rich.console import Console

    from fedax.experiments.results.store import RunDirectory


def print_summary(directory: RunDirectory, console: Console, reading: str = "") -> None:
    """Prints the table of finals of each task, how to read them, and the path of the report.

    Raises:
        Exit: with the exit code of an interruption, if the runs were interrupted.
    """
    from fedax.engine.distributed.abort import INTERRUPTED
    from fedax.experiments.running.progress import summary_table
    from fedax.results.record import by_task

    chosen, reads = directory.selections(), directory.reads
    for title, records in by_task(directory.shown()).items():
        console.print()
        wide = console.width >= 120
        console.print(summary_table(title, records, wide, reads.get(title, "last")))
        # of grids; a method without one is its own label
        for method, label in chosen.get(title, {}).items():
            if label != method:
                text = f"Selected from the grid of {method}: {label}"
                console.out(text, highlight=False)
    if reading:
        console.out(f"\n{reading}", highlight=False)
    console.out(f"\n{directory.line()}", highlight=False)
    for doubt in directory.doubts():
        console.out(f"Warning: {doubt}", style="yellow", highlight=False)
    page = directory.path / "report.html"
    console.out(f"Report: {page}", highlight=False)
    if directory.status == "interrupted":
        message = f"Interrupted. {directory.path} holds the runs so far and is complete for them."
        message += f" `{shell('resume', directory.path)}` continues."
        console.out(message, style="yellow", highlight=False)
        # after everything was printed: scripts see the interruption by the exit code
        raise Exit(INTERRUPTED)
    next_step("prints a table for a paper.", "report", directory.path, "--table", "latex")
