"""`fedax theory`: the papers' theorems applied to the task of an experiment file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedax.cli.command import next_step, print_table

if TYPE_CHECKING:
    from fedax.experiments.config.plan import Plan
    from fedax.theory.advice import Method


def theory(
    paper: Annotated[
        str, Argument(help="local-gd, feddane, dfedavgm, fedaware or fedbc.", metavar="PAPER")
    ],
    file: Annotated[Path, Argument(help="An experiment's TOML file.", metavar="FILE")],
    accuracy: Annotated[float, Option(help="Epsilon of the theorems.")] = 1e-3,
    price: Annotated[
        list[float] | None,
        Option(help="Gradients that a communication costs; may be repeated.", show_default=False),
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
    from fedax.experiments.config.experiment import Experiment
    from fedax.theory.advice import suggestions

    experiment = Experiment.read(file)
    prices = price or [0.1, 1.0, 10.0, 100.0, 1000.0]
    plan = experiment.plan()
    rows = suggestions(paper, plan.task, methods_of(plan), accuracy, prices, experiment.seeds[0])
    print_table([row._asdict() | {"value": _format(row.value)} for row in rows], right=["value"])
    next_step("runs the experiment.", "run", file)


def methods_of(plan: Plan) -> dict[str, Method]:
    """Returns the methods of a plan by label, and with the label `""` its solver and schedule."""
    from fedax.theory.advice import Method

    methods = dict[str, Method]()
    for label in ("", *plan.algorithms):
        arguments = plan.arguments_of(label)
        algorithm = plan.algorithms.get(label)
        methods[label] = Method(algorithm, arguments["solver"], arguments["schedule"])
    return methods


def _format(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) else value
