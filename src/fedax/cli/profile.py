"""`fedax profile`: where the time of rounds goes, as a table of parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedax.cli.options import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from fedax.engine.profiling.profile import Profile


def profile(
    file: Annotated[Path, typer.Argument(help="An experiment's TOML file.", metavar="FILE")],
    settings: Settings = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each timed call.")] = 10,
) -> None:
    """Show where the rounds of an experiment's algorithms spend their time.

    Gradients, examples and steps of each phase, memory, aggregation, server; seconds of compiling,
    milliseconds of an observation. Below them the rate of the clients' matrix products and
    convolutions, in GFLOP/s and as a part of this machine's peak.

    Example: `fedax profile experiment.toml`
    """
    from rich.console import Console

    from fedax.engine.profiling.profile import profile as profile_rounds
    from fedax.experiments.config.experiment import Experiment

    plan, console = (experiment := Experiment.read(file, settings or ())).plan(), Console()
    # options that `profile` of the engine takes
    names = ("solver", "schedule", "channel", "engine", "observe")
    profiles: dict[str, Profile] = {}
    for label, algorithm in plan.algorithms.items():
        # an algorithm may have its own solver and schedule
        arguments = plan.arguments_of(label)
        options = {name: arguments[name] for name in names if name in arguments}
        profiles[label] = profile_rounds(
            algorithm, plan.task, seed=experiment.seeds[0], rounds=rounds, **options
        )
        console.print(table_of(label, profiles[label]))
    if (peak := _peak_memory()) is not None:
        console.print(f"Most memory of this process: {peak:,.0f} MB.", highlight=False)


def table_of(label: str, result: Profile) -> Table:
    """Returns the parts of a round with their milliseconds and shares."""
    from rich.table import Table

    table = Table(
        title=label, title_justify="left", box=None, header_style="dim", padding=(0, 3, 0, 0)
    )
    for title, side in (("part", "left"), ("ms a round", "right"), ("share", "right")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for part, milliseconds in result.parts.items():
        table.add_row(part, f"{milliseconds:.3g}", f"{milliseconds / result.round_ms:.1%}")
    table.add_row(
        "round", f"{result.round_ms:.3g}", f"on {result.devices} device{'s' * (result.devices > 1)}"
    )
    table.add_row("one observation", f"{result.observe_ms:.3g}", "")
    table.add_row("compiling", f"{1e3 * result.compile_s:.3g}", "once")
    table.add_section()
    # rates of matrix products; None where a program has operations that cannot be counted
    for part, rate, fraction in (
        ("products of the round", result.rate, result.fraction),
        ("products over gradients", result.gradients_rate, result.gradients_fraction),
    ):
        cells = (
            ("cannot be counted", "")
            if rate is None or fraction is None
            else (_format_rate(rate), f"{fraction:.1%}")
        )
        table.add_row(part, *cells)
    table.add_row("peak of large products", _format_rate(result.peak), "")
    return table


def _format_rate(rate: float) -> str:
    return f"{rate:.3g} GFLOP/s"


def _peak_memory() -> float | None:
    """Returns the peak memory of this process in MB, or None where the system does not report
    it.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # in bytes on macOS, in kilobytes elsewhere
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
