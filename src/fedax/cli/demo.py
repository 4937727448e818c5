"""`fedax demo`: a comparison of five methods in three to five minutes."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Out


def demo(
    out: Out = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time to spend.")] = 135.0,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds of every task.", show_default="as many as fit into the time"
        ),
    ] = None,
) -> None:
    """Compare FedAvg, FedProx, FedDANE in two forms, and FedBC on heterogeneous data.

    In three to five minutes: Synthetic IID, Synthetic (1, 1) and digits split by label, with one
    seed and as many rounds as fit.

    The whole comparison, all synthetic data of the FedDANE paper with its 200 rounds and its grid
    of mu over ten draws, is `fedax reproduce feddane-study --scale paper`.
    """
    from rich.console import Console

    from fedax.cli.summary import print_summary
    from fedax.experiments.results.store import fresh
    from fedax.experiments.running.demo import READING, run_demo
    from fedax.experiments.running.progress import display_for

    console = Console()
    path = out or fresh(Path("runs"), "demo")
    console.print(
        "Five methods on three tasks, one seed. The first run also compiles.", style="dim"
    )
    if rounds is None:
        limit = (
            f"As many rounds as fit into {seconds:g} s on this machine; --rounds fixes the number."
        )
        console.print(limit, style="dim")
    directory = run_demo(path, display_for(console), seconds=seconds, rounds=rounds)
    print_summary(directory, console, READING)
