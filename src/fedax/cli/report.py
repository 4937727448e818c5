"""`fedax report`: run directories as a page, as a table for a paper, or as figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, echo

from fedax.cli.command import next_step
from fedax.cli.options import Folders

if TYPE_CHECKING:
    from fedax.experiments.results.store import RunDirectory


def report(
    folders: Folders,
    table: Annotated[
        str | None,
        Option(help="Print a table: text, markdown, latex or csv.", metavar="FORM"),
    ] = None,
    figures: Annotated[
        str | None,
        Option(help="Draw files: pdf, png or svg, or several with commas.", metavar="FORMATS"),
    ] = None,
    metric: Annotated[
        list[str] | None,
        Option(help="Only this metric, in a table or figures; may be repeated."),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            help="Horizontal axis of figures: rounds, bits, gradients, seconds, time or energy.",
            show_default="the recipe's figures, or rounds",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="File for the page or the table, or folder for figures."),
    ] = None,
    keep: Annotated[
        Path | None,
        Option(help="Also copy settings, tables and the curves of all runs to this folder."),
    ] = None,
) -> None:
    """Write the page, a table or the figures of run directories.

    Several run directories go on one page, `comparison.html`, or into one table. In a folder that
    `--keep` has made, tables, pictures and the page are made again.

    Example: `fedax report runs/study --table latex --metric test_accuracy --out table.tex`
    """
    from fedax.core import InvalidInput
    from fedax.experiments.results.store import merge

    work = {"--table": table, "--figures": figures, "--keep": keep}
    asked = [name for name, value in work.items() if value is not None]
    if len(asked) > 1:
        raise InvalidInput.because("report", f"{asked[0]} and {asked[1]} exclude each other")
    if figures is None and (against or (metric and table is None)):
        reason = "--metric needs --table or --figures, and --against needs --figures"
        raise InvalidInput.because("report", reason)
    if keep is not None and len(folders) > 1:
        raise InvalidInput.found("--keep", "several folders", "one run directory")
    directory = merge([_open(folder) for folder in folders])
    for sentence in (directory.line(), *directory.doubts(), *directory.warnings()):
        echo(sentence, err=True)
    if table is not None:
        _write_table(directory, table, metric, out)
        next_step("draws the curves.", "report", *folders, "--figures", "pdf,png")
    elif figures is not None:
        from fedax.results.drawing import save

        target = out or directory.path / "figures"
        pictures = directory.pictures(against, metric)
        for file in save(pictures, target, [name.strip() for name in figures.split(",")]):
            echo(str(file))
        next_step("prints BibTeX for what the runs used.", "cite", *folders)
    else:
        from fedax.results.page import render
        from fedax.utils.files import write

        # several directories have no folder of their own
        page = Path("comparison.html")
        if len(folders) == 1:
            directory.renew()
            page = directory.path / "report.html"
        if out or len(folders) > 1:
            page = out or page
            write(page, render(directory.page()))
        if keep is not None:
            directory.keep(keep)
        echo(f"Report: {page}")
        next_step("prints a table for a paper.", "report", *folders, "--table", "latex")


def _open(folder: Path) -> RunDirectory:
    from fedax.experiments.results.store import RunDirectory

    if not (folder / "recipe.toml").exists():
        return RunDirectory.load(folder)
    # recipes take long to import
    from fedax.papers.study import open_directory

    return open_directory(folder)


def _write_table(
    directory: RunDirectory, form: str, metrics: Sequence[str] | None, out: Path | None
) -> None:
    from fedax.results.forms import format_tables
    from fedax.utils.files import write

    text = format_tables(directory.compare(metrics), form).rstrip("\n")
    if out is None:
        echo(text)
    else:
        write(out, text + "\n")
        echo(f"Table: {out}")
