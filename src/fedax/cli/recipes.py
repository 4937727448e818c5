"""`fedax recipes`: lists the recipes of papers."""

from pathlib import Path
from typing import Annotated

import typer


def recipes(
    status: Annotated[
        Path | None,
        typer.Option(
            help="A folder of run directories: bring its table of the papers' numbers up to date."
        ),
    ] = None,
) -> None:
    """List the recipes: tables and figures of papers that `fedax reproduce` runs."""
    from fedax.papers import load, recipe_files
    from fedax.papers.coverage import refresh

    if status is not None:
        for file in refresh(status):
            typer.echo(str(file))
        return
    for name in recipe_files():
        recipe = load(name)
        claims = f"{len(recipe.claim)} claims"
        typer.echo(f"{name}: {recipe.title}. {recipe.paper}, {recipe.shows}; {claims}.")
