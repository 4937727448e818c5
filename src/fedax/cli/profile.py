"""`fedax profile`: where the time of rounds goes, as a table and a picture."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedax.cli.tables import show
from fedax.engine.profiling.profile import Profile, profile
from fedax.experiments.config.experiment import Experiment
from fedax.utils.files import write, writing

COLORS = {"gradients": "#1f6feb", "steps": "#7cb0f5", "examples": "#c7defb", "aggregation": "#c2410c", "memory": "#15803d"}
OTHERS = {"cohort": "#7e22ce", "server": "#6b7280", "between devices": "#be185d"}


def show_profile(file: Path, settings: Sequence[str], rounds: int, picture: Path | None) -> None:
    """Profiles every algorithm of a file, and writes the picture."""
    plan, console = (experiment := Experiment.read(file, settings)).plan(), Console()
    names = ("solver", "schedule", "channel", "engine", "observe")
    options = {name: plan.arguments[name] for name in names if name in plan.arguments}
    found: dict[str, Profile] = {}
    for label, algorithm in plan.algorithms.items():
        found[label] = profile(algorithm, plan.task, seed=experiment.seeds[0], rounds=rounds, **options)
        show(table_of(label, found[label]), console)
    if (peak := _peak()) is not None:
        console.print(f"Most memory of this process: {peak:,.0f} MB.", highlight=False)
    if picture is not None:
        write_picture(found, picture)
        console.print(f"Picture: {picture}", markup=False, highlight=False, soft_wrap=True)


def table_of(label: str, found: Profile) -> Table:
    """The parts of a round with their milliseconds and shares."""
    table = Table(title=label, title_justify="left", box=None, header_style="dim", padding=(0, 3, 0, 0))
    for title, side in (("part", "left"), ("ms a round", "right"), ("share", "right")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for part, milliseconds in found.parts.items():
        table.add_row(part, f"{milliseconds:.3g}", f"{milliseconds / found.round_ms:.1%}")
    table.add_row("round", f"{found.round_ms:.3g}", f"on {found.devices} device{'s' * (found.devices > 1)}")
    table.add_row("one observation", f"{found.observe_ms:.3g}", "")
    table.add_row("compiling", f"{1e3 * found.compile_s:.3g}", "once")
    table.add_section()
    for part, rate, fraction in (
        ("products of the round", found.rate, found.fraction),
        ("products over gradients", found.gradients_rate, found.gradients_fraction),
    ):
        reached = ("cannot be counted", "") if rate is None or fraction is None else (_gigaflops(rate), f"{fraction:.1%}")
        table.add_row(part, *reached)
    table.add_row("peak of large products", _gigaflops(found.peak), "")
    return table


def _gigaflops(rate: float) -> str:
    return f"{rate:.3g} GFLOP/s"


def write_picture(found: Mapping[str, Profile], path: Path) -> None:
    """One bar for each algorithm, as a self-contained page."""
    import plotly.graph_objects as go

    figure = go.Figure()
    parts = dict.fromkeys(part for each in found.values() for part in each.parts)
    for part in sorted(parts, key=lambda part: ": " not in part):  # the clients' work first
        kind = part.split(": ")[-1]
        bars = [each.parts.get(part, 0.0) for each in found.values()]
        color = (COLORS | OTHERS).get(kind, "#9aa0a6")
        style = {"color": color, "line": {"color": "white", "width": 1}}
        hover = "%{y}<br>%{x:.3g} ms"
        figure.add_trace(go.Bar(y=list(found), x=bars, name=part, orientation="h", marker=style, hovertemplate=hover))
    figure.update_layout(
        template="plotly_white", barmode="stack", title="Where a round's time goes", legend_traceorder="normal"
    )
    figure.update_xaxes(title_text="milliseconds of a round")
    figure.update_yaxes(autorange="reversed", automargin=True)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, figure.to_html(include_plotlyjs=True))


def _peak() -> float | None:
    """The most memory that this process has had, in megabytes, where the system says it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most / 1e3
