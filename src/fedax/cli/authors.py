"""The commands `fedax cite` and `fedax new`."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import lazy_loader
import typer

from fedax.cli.command import Command

if TYPE_CHECKING:
    from fedax.cli import cite as citations
    from fedax.cli import new as skeletons
else:
    citations = lazy_loader.load("fedax.cli.cite", suppress_warning=True)
    skeletons = lazy_loader.load("fedax.cli.new", suppress_warning=True)

new = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Write the skeleton of an algorithm or an experiment."
)


def cite(
    runs: Annotated[list[Path], typer.Argument(help="Run directories or experiment files.", metavar="RUN...")],
) -> None:
    """Print BibTeX for what runs used: papers of the methods, data sets, the recipe's paper, and fedax.

    Example: `fedax cite runs/demo`
    """
    found = [citations.used(path) for path in runs]
    methods, tasks = (list(dict.fromkeys(name for each in found for name in each[i])) for i in (0, 1))
    typer.echo(citations.bibtex(methods, tasks, " ".join(paper for *_, paper in found)))


@new.command(cls=Command)
def algorithm(
    name: Annotated[str, typer.Argument(help="Of the class, such as FedHalf.", metavar="NAME")],
    family: Annotated[str, typer.Option(help="One of {families}.")] = "server",
    folder: Annotated[
        Path | None, typer.Option(help="For both files.", show_default="the checkout here, or this folder")
    ] = None,
) -> None:
    """Write an algorithm of 30 lines that runs, and its test.

    Example: `fedax new algorithm FedHalf`
    """
    source, test = skeletons.new_algorithm(name, family, folder)
    typer.echo(f"Algorithm: {source}\nTest: {test}")
    if importlib.util.find_spec("pytest") is None:
        typer.echo(f"Install pytest: {sys.executable} -m pip install pytest")
    typer.echo(f"Run it: {sys.executable} -m pytest {test}")
    if "src" in source.parts:
        typer.echo("Found and listed from now on; CONTRIBUTING.md says what else belongs to it.")


@new.command(cls=Command)
def experiment(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE.toml")] = Path("experiment.toml"),
) -> None:
    """Write an experiment file with comments.

    Example: `fedax new experiment mine.toml`
    """
    (written,) = skeletons.new_experiment(file)
    typer.echo(f"Experiment: {written}\nCheck it: fedax validate {written}\nRun it: fedax run {written}")
