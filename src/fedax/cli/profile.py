"""`fedax profile`: where the time of rounds goes, as a table and a picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedax.cli.options import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from fedax.engine.profiling.profile import Profile

COLORS = {
    "gradients": "#1f6feb",
    "steps": "#7cb0f5",
    "examples": "#c7defb",
    "aggregation": "#c2410c",
    "memory": "#15803d",
}
OTHERS = {"cohort": "#7e22ce", "server": "#6b7280", "between devices": "#be185d"}


def profile(
    file: Annotated[Path, typer.Argument(help="An experiment's TOML file.", metavar="FILE")],
    settings: Settings = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each timed call.")] = 10,
    picture: Annotated[
        Path | None, typer.Option(help="HTML file for a picture.", show_default=False)
    ] = None,
) -> None:
    """Show where the rounds of an experiment's algorithms spend their time.

    Gradients, examples and steps of each phase, memory, aggregation, server; seconds of compiling,
    milliseconds of an observation. Below them the rate of the clients' matrix products and
    convolutions, in GFLOP/s and as a part of this machine's peak.

    Example: `fedax profile experiment.toml --picture profile.html`
    """
    from rich.console import Console

    from fedax.cli.tables import show
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
        show(table_of(label, profiles[label]), console)
    if (peak := _peak_memory()) is not None:
        console.print(f"Most memory of this process: {peak:,.0f} MB.", highlight=False)
    if picture is not None:
        write_picture(profiles, picture)
        console.print(f"Picture: {picture}", markup=False, highlight=False, soft_wrap=True)


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


def write_picture(profiles: Mapping[str, Profile], path: Path) -> None:
    """Writes one bar for each algorithm as a self-contained page."""
    import plotly.graph_objects as go

    from fedax.utils.files import write, writing

    figure = go.Figure()
    parts = dict.fromkeys(part for result in profiles.values() for part in result.parts)
    # a name such as "train: gradients" is work of clients in a phase
    for part in sorted(parts, key=lambda part: ": " not in part):  # the clients' work first
        kind = part.split(": ")[-1]
        # one number for each algorithm, 0 where it has no such part
        bars = [result.parts.get(part, 0.0) for result in profiles.values()]
        color = (COLORS | OTHERS).get(kind, "#9aa0a6")
        style = {"color": color, "line": {"color": "white", "width": 1}}
        hover = "%{y}<br>%{x:.3g} ms"
        figure.add_trace(
            go.Bar(
                y=list(profiles),
                x=bars,
                name=part,
                orientation="h",
                marker=style,
                hovertemplate=hover,
            )
        )
    figure.update_layout(
        template="plotly_white",
        barmode="stack",
        title="Where a round's time goes",
        legend_traceorder="normal",
    )
    figure.update_xaxes(title_text="milliseconds of a round")
    figure.update_yaxes(autorange="reversed", automargin=True)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, figure.to_html(include_plotlyjs=True))


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
