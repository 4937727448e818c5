"""What a command prints when its runs have ended."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit

from fedax.cli.command import next_step, shell

if TYPE_CHECKING:
    from rich.console import Console

    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.config.sections import ClusterSection
    from fedax.experiments.results.store import RunDirectory


def run_and_print(
    experiment: Experiment, out: Path | None, jobs: int = 1, cluster: ClusterSection | None = None
) -> None:
    """Runs an experiment and prints its summary. By default its folder is a new one in `runs`."""
    from rich.console import Console

    from fedax.experiments.results.store import fresh, slug
    from fedax.experiments.running.progress import Display
    from fedax.experiments.running.runner import run_experiment

    console = Console()
    path = out or fresh(Path("runs"), slug(experiment.name))
    print_summary(run_experiment(experiment, path, Display(console), jobs, cluster), console)


def print_summary(directory: RunDirectory, console: Console, reading: str = "") -> None:
    """Prints the table of finals of each task, how to read them, and the path of the report.

    Raises:
        Exit: with the exit code of an interruption, if the runs were interrupted.
    """
    from fedax.engine.distributed.process_group import INTERRUPTED
    from fedax.results.compare import compare_runs
    from fedax.results.forms import format_tables
    from fedax.results.record import by_task
    from fedax.results.tables.summary import columns_of

    out = partial(console.out, highlight=False)
    for records in by_task(directory.shown()).values():
        is_wide = console.width >= 120
        metrics = [column.metric for column in columns_of(records) if is_wide or column.brief]
        comparison = compare_runs(records, directory.reads, metrics, directory.selections())
        out(f"\n{format_tables(comparison, 'text')}")
    if reading:
        out(f"\n{reading}")
    out(f"\n{directory.line()}")
    for doubt in directory.doubts():
        out(f"Warning: {doubt}", style="yellow")
    out(f"Report: {directory.path / 'report.html'}")
    if directory.status == "interrupted":
        out(
            f"Interrupted. {directory.path} holds the runs so far and is complete for them. "
            f"`{shell('resume', directory.path)}` continues (own code: --trust-code).",
            style="yellow",
        )
        # after everything was printed: scripts see the interruption by the exit code
        raise Exit(INTERRUPTED)
    next_step("prints a table for a paper.", "report", directory.path, "--table", "latex")
