"""`fedax table`: the methods of run directories as a table for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Folders


def table(
    folders: Folders,
    latex: Annotated[bool, typer.Option("--latex", help="For LaTeX, with booktabs.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="As CSV, with differences and p-values.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="In Markdown.")] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this metric; may be repeated. One metric of several tasks is one table.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the table.", show_default="the terminal")
    ] = None,
) -> None:
    """Show the methods of run directories as a table: means, deviations, and who is not
    significantly worse than the best.

    Example: `fedax table runs/study --metric test_accuracy --latex --out table.tex`
    """
    from fedax.errors import InvalidInput
    from fedax.experiments.results.joint import merge_records
    from fedax.experiments.results.store import RunDirectory
    from fedax.results.tables.comparison import FORMS, method_tables
    from fedax.utils.files import write, writing

    forms = [
        name for name, wanted in (("latex", latex), ("csv", csv), ("markdown", markdown)) if wanted
    ]
    if len(forms) > 1:
        raise InvalidInput.because("table", f"--{forms[0]} and --{forms[1]} exclude each other")
    directories = [RunDirectory.load(folder) for folder in folders]
    # reversed, so that the first directory with a task says how its curves are read
    reads = {
        task: read for directory in reversed(directories) for task, read in directory.reads.items()
    }
    text = FORMS[forms[0] if forms else "text"](
        method_tables(merge_records(directories), reads, metric)
    ).rstrip("\n")
    if out is None:
        typer.echo(text)
        return
    with writing(out):
        write(out, text + "\n")
    typer.echo(f"Table: {out}")
