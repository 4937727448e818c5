"""`fedax figures`: figures of run directories as files for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Folders


def figures(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the files.",
            show_default="figures in the run directory; of several, in the working directory",
        ),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Of pdf, png and svg, separated by commas.")
    ] = "pdf,png",
    against: Annotated[
        str | None,
        typer.Option(
            help="Horizontal axis: rounds, bits, gradients, seconds, time, energy or cost.",
            show_default="the recipe's figures, or rounds",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Only the curves of this metric, any number observed; may be repeated.",
            show_default="those of reports",
        ),
    ] = None,
) -> None:
    """Draw run directories as files for a paper: the figures of their recipe, or the curves (needs
    the extra `paper`).

    Example: `fedax figures runs/study --metric client_accuracy_worst_tenth`
    """
    from fedax.experiments.results.figures import curves
    from fedax.experiments.results.joint import merge_records
    from fedax.experiments.results.store import RunDirectory
    from fedax.results.drawing.figures import save_charts, save_weights

    directories = [RunDirectory.load(folder) for folder in folders]
    records, names = merge_records(directories), [name.strip() for name in formats.split(",")]
    # figures of a recipe belong to one directory
    if len(directories) == 1:
        charts = directories[0].charts(against, metric)
    else:
        charts = curves(records, against=against or "rounds", metrics=metric)
    parent = folders[0] if len(folders) == 1 else Path()
    files = save_charts(charts, out := out or parent / "figures", names)
    # weights are drawn with the standard figures, not with chosen metrics
    for file in [*files, *([] if metric else save_weights(records, out, names))]:
        typer.echo(str(file))
