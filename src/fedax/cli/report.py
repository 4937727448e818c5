"""`fedax report`: rebuilds the report of a run directory, or shows several on one page."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Folders


def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the page. Of one run directory, a copy of its report.html.",
            show_default="comparison.html for several",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Also copy settings, tables and the curves of all runs to this folder."),
    ] = None,
) -> None:
    """Rebuild the report, the table and the summary of a run directory; or show several on one
    page.

    In a folder that --keep has made, the tables are made again, and the report where it has curves.
    """
    from fedax.core import InvalidInput
    from fedax.experiments.results.joint import comparison_page
    from fedax.experiments.results.store import RunDirectory, is_archive
    from fedax.results import render
    from fedax.utils.files import write

    single = folders[0] if len(folders) == 1 else None
    # no run directory, but a folder that --keep has made
    is_copy = (
        single is not None
        and not (single / "summary.json").exists()
        and (single / "runs.csv").exists()
    )
    if keep is not None and (single is None or is_copy):
        arguments = (
            f"{keep} with {'a folder that --keep has made' if is_copy else 'several folders'}"
        )
        raise InvalidInput.found("--keep", arguments, "one run directory")
    if out is not None and is_copy:
        got = f"{out} with a folder that --keep has made, which gets its own pages"
        raise InvalidInput.found("--out", got, "run directories")
    if single is not None and is_copy:
        # with curves everything is made again; older copies have numbers for the tables only
        if is_archive(single):
            files = RunDirectory.load(single).renew_archive()
        else:
            from fedax.papers.study import rebuild

            files = rebuild(single)
        for file in files:
            typer.echo(str(file))
        return
    directories = [RunDirectory.load(folder) for folder in folders]
    if len(directories) == 1:
        directories[0].renew()
        page = directories[0].path / "report.html"
        if out is not None:
            write(out, page.read_text(encoding="utf-8"))
        if keep is not None:
            directories[0].keep(keep)
        typer.echo(f"Report: {page if out is None else out}")
        return
    out = out or Path("comparison.html")
    write(out, render(comparison_page(directories)))
    typer.echo(f"Report: {out}")
