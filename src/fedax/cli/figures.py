"""`fedax figures`: figures of run directories as files for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Folders


def figures(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    formats: Annotated[
        str, typer.Option("--format", help="Of {formats}, separated by commas.")
    ] = "pdf,png",
    against: Annotated[
        str | None,
        typer.Option(
            help="Horizontal axis of the curves: {axes}.",
            show_default="the recipe's figures, or rounds",
        ),
    ] = None,
) -> None:
    """Draw run directories as files for a paper: the figures of their recipe, or the curves (needs
    the extra `paper`).
    """
    from fedax.experiments.results.figures import curves
    from fedax.experiments.results.joint import merge_records
    from fedax.experiments.results.store import RunDirectory
    from fedax.report.drawing.figures import save_charts, save_weights

    directories = [RunDirectory.load(folder) for folder in folders]
    records, names = merge_records(directories), [name.strip() for name in formats.split(",")]
    if len(directories) == 1:
        charts = directories[0].charts(against)
    else:
        charts = curves(records, against=against or "rounds")
    for file in [*save_charts(charts, out, names), *save_weights(records, out, names)]:
        typer.echo(str(file))
