"""`fedax report`: run directories as a page, as a table for a paper, or as figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option, echo

from fedax.cli.command import next_step
from fedax.cli.options import Folders


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
    from fedax.experiments.results.store import is_archive

    work = {"--table": table, "--figures": figures, "--keep": keep}
    asked = [name for name, value in work.items() if value is not None]
    if len(asked) > 1:
        raise InvalidInput.because("report", f"{asked[0]} and {asked[1]} exclude each other")
    if (metric or against) and table is None and figures is None:
        raise InvalidInput.because("report", "--metric and --against need --table or --figures")
    if table is not None:
        _write_table(folders, table, metric, out)
    elif figures is not None:
        _draw_figures(folders, figures, metric, against, out)
    elif len(folders) == 1 and is_archive(folders[0]):
        if out is not None or keep is not None:
            reason = "is made by --keep, so --out and --keep do not apply"
            raise InvalidInput.because(str(folders[0]), reason)
        _renew_copy(folders[0])
    else:
        _write_page(folders, out, keep)


def _write_table(
    folders: Sequence[Path], form: str, metrics: Sequence[str] | None, out: Path | None
) -> None:
    from fedax.experiments.results.store import merge_records
    from fedax.papers.study import open_directory
    from fedax.results.compare import compare_runs
    from fedax.results.forms import format_tables
    from fedax.utils.files import write, writing

    directories = [open_directory(folder) for folder in folders]
    # reversed, so that the first directory with a task says how its curves are read
    reads = {
        task: read for directory in reversed(directories) for task, read in directory.reads.items()
    }
    text = format_tables(compare_runs(merge_records(directories), reads, metrics), form).rstrip(
        "\n"
    )
    if out is None:
        echo(text)
    else:
        with writing(out):
            write(out, text + "\n")
        echo(f"Table: {out}")
    next_step("draws the curves.", "report", *folders, "--figures", "pdf,png")


def _draw_figures(
    folders: Sequence[Path],
    formats: str,
    metrics: Sequence[str] | None,
    against: str | None,
    out: Path | None,
) -> None:
    from fedax.experiments.results.store import merge_records
    from fedax.papers.study import open_directory
    from fedax.results.drawing import save
    from fedax.results.figures import draw_curves

    directories = [open_directory(folder) for folder in folders]
    names = [name.strip() for name in formats.split(",")]
    # figures of a recipe belong to one directory
    if len(directories) == 1:
        pictures = directories[0].pictures(against, metrics)
        target = out or folders[0] / "figures"
    else:
        records = merge_records(directories)
        pictures = draw_curves(records, against or "rounds", metrics)
        target = out or Path("figures")
    for file in save(pictures, target, names):
        echo(str(file))
    next_step("prints BibTeX for what the runs used.", "cite", *folders)


def _renew_copy(folder: Path) -> None:
    from fedax.papers.study import open_directory
    from fedax.utils.files import writing

    with writing(folder):
        files = open_directory(folder).write_outputs()
    for file in files:
        echo(str(file))


def _write_page(folders: Sequence[Path], out: Path | None, keep: Path | None) -> None:
    from fedax.core import InvalidInput
    from fedax.experiments.results.store import comparison_page
    from fedax.papers.study import open_directory
    from fedax.results import render
    from fedax.utils.files import write

    if keep is not None and len(folders) > 1:
        raise InvalidInput.found("--keep", "several folders", "one run directory")
    directories = [open_directory(folder) for folder in folders]
    if len(directories) > 1:
        page = out or Path("comparison.html")
        write(page, render(comparison_page(directories)))
    else:
        (directory,) = directories
        directory.renew()
        for sentence in (directory.line(), *directory.doubts()):
            echo(sentence)
        page = directory.path / "report.html"
        if out is not None:
            write(out, page.read_text(encoding="utf-8"))
            page = out
        if keep is not None:
            directory.keep(keep)
    echo(f"Report: {page}")
    next_step("prints a table for a paper.", "report", *folders, "--table", "latex")
