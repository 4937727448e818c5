"""The commands `fedax data list`, `describe`, `plot` and `prepare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import lazy_loader
import typer

from fedax.cli.command import Command

if TYPE_CHECKING:
    from fedax.cli import described
else:
    described = lazy_loader.load("fedax.cli.described", suppress_warning=True)

app = typer.Typer(no_args_is_help=True, help="List, describe, plot and prepare data sets.")

Named = Annotated[str, typer.Argument(help="Data set, as name:key=value,...", metavar="NAME")]


@app.command(name="list", cls=Command)
def list_all() -> None:
    """List datasets and how to download them."""
    described.show_all()


@app.command(cls=Command)
def describe(name: Named) -> None:
    """Describe a data set under a partition: clients, sizes, labels, and its options.

    Example: `fedax data describe mnist:partition=dirichlet,alpha=0.1,clients=100`
    """
    described.show(name)


@app.command(cls=Command)
def plot(
    name: Named,
    out: Annotated[
        Path | None, typer.Option(help="File to write, .html or .png.  [default: NAME.html]", show_default=False)
    ] = None,
) -> None:
    """Draw the clients' sizes and label histograms as one picture."""
    described.picture(name, out)


@app.command(name="prepare", cls=Command)
def prepare_all(
    names: Annotated[list[str], typer.Argument(help="Data sets.", metavar="NAME...")],
    folder: Annotated[
        Path | None, typer.Option(help="Data folder.  [default: see fedax data list]", show_default=False)
    ] = None,
) -> None:
    """Fetch the files of data sets if they are missing, and verify their content."""
    described.prepare_all(names, folder)
