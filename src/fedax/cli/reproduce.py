"""`fedax reproduce`: runs a recipe and compares its results with the paper."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from fedax.cli.command import next_step, print_table
from fedax.cli.options import Jobs, Out


def reproduce(
    name: Annotated[
        str | None, Argument(help="The name of a recipe, or a file of your own.", metavar="RECIPE")
    ] = None,
    scale: Annotated[str, Option(help="smoke (does it run?), small, or paper.")] = "small",
    variant: Annotated[list[str] | None, Option(help="Only this one; may be repeated.")] = None,
    algorithm: Annotated[
        list[str] | None, Option(help="Only this one, by its label; may be repeated.")
    ] = None,
    out: Out = None,
    jobs: Jobs = 1,
) -> None:
    """Run a table or figure of a paper. Without a name it lists them.

    Results are compared with the paper, and each claim gets a verdict.

    Runs that are there already, below `runs/` of the folder, are not made again: with --algorithm
    or --variant a recipe can be run piece by piece into one folder. A later call also finishes what
    an earlier one began there.
    """
    from rich.console import Console

    from fedax.cli.summary import print_summary
    from fedax.experiments.results.store import fresh, slug
    from fedax.experiments.running.progress import Display
    from fedax.papers import load, recipe_files
    from fedax.papers.study import reproduce as run_recipe

    if name is None:
        for file in recipe_files():
            recipe = load(file)
            echo(f"{file}: {recipe.title}. {recipe.paper}, {recipe.shows}.")
        next_step("runs one of them.", "reproduce", "NAME")
        return
    console = Console()
    recipe = load(name).only(scale, variant or (), algorithm or ())
    path = out or fresh(Path("runs"), slug(f"{Path(name).stem} {scale}"))
    directory = run_recipe(recipe, scale, path, Display(console), jobs)
    comparison = directory.comparison()
    table = comparison.cell_sheet().table
    if len(table):
        print_table(table.to_dict("records"), right=list(table)[2:])
    echo(comparison.shorter)
    for text, evidence in comparison.verdicts:
        direction = f"; as claimed on {evidence.direction}" if evidence.direction else ""
        echo(f"{evidence.verdict.upper()}: {text} ({evidence.text}{direction})")
    print_summary(directory, console)
