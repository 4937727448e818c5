"""`fedax theory`: the papers' theorems applied to the task of an experiment file."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.command import next_step


def theory(
    paper: Annotated[
        str, typer.Argument(help="local-gd, feddane, dfedavgm, fedaware or fedbc.", metavar="PAPER")
    ],
    file: Annotated[Path, typer.Argument(help="An experiment's TOML file.", metavar="FILE")],
    accuracy: Annotated[float, typer.Option(help="Epsilon of the theorems.")] = 1e-3,
    price: Annotated[
        list[float] | None,
        typer.Option(
            help="Gradients that a communication costs; may be repeated.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what a paper's theory says of a task.

    That is constants, step sizes, mu, bits, multipliers and rounds. Smoothness is a bound where it
    has a closed form. Other constants are measured at the start of the first seed, and at the
    optimum for local gradient descent, whose problems are convex. Those that this bounds from below
    are marked.

    Example: `fedax theory feddane experiment.toml`, with the file that `fedax new experiment`
    writes.
    """
    from rich.console import Console
    from rich.table import Table

    from fedax.cli.theory_papers import suggestions
    from fedax.experiments.config.experiment import Experiment

    experiment = Experiment.read(file, ())
    # the terminal breaks long lines: no cell is cut
    console = Console(width=2_000)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    prices = price or [0.1, 1.0, 10.0, 100.0, 1000.0]
    rows = suggestions(paper, experiment.plan(), accuracy, prices, experiment.seeds[0])
    for row in rows:
        table.add_row(row.quantity, _format(row.value), row.source)
    console.print(table)
    next_step("runs the experiment.", "run", file)


def _format(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) else value
