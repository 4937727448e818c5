"""`fedax demo`: a comparison of five methods in at most three minutes."""

from pathlib import Path
from typing import Annotated

from typer import Option

from fedax.cli.options import Out


def demo(
    out: Out = None,
    rounds: Annotated[
        int | None,
        Option(min=1, help="Rounds of every task.", show_default="60 or 100"),
    ] = None,
) -> None:
    """Compare five methods on heterogeneous data, in at most three minutes.

    FedAvg, FedProx, FedDANE in two forms, and FedBC run on Synthetic IID, Synthetic (1, 1) and
    digits split by label, with one seed, in at most three minutes on two cores.

    The whole comparison, all synthetic data of the FedDANE paper with its 200 rounds and its grid
    of mu over ten draws, is `fedax reproduce feddane-study --scale paper`.
    """
    from rich.console import Console

    from fedax.cli.summary import print_summary
    from fedax.experiments.results.store import fresh
    from fedax.experiments.running.demo import READING, TITLE, experiments
    from fedax.experiments.running.progress import Display
    from fedax.experiments.running.runner import run_experiments

    console = Console()
    directory = run_experiments(
        experiments(rounds), out or fresh(Path("runs"), "demo"), TITLE, Display(console)
    )
    print_summary(directory, console, READING)
