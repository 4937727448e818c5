"""`fedax recipes`: lists the recipes of papers."""

from typer import echo

from fedax.cli.command import next_step


def recipes() -> None:
    """List the tables and figures of papers that `fedax reproduce` runs."""
    from fedax.papers import load, recipe_files

    for name in recipe_files():
        recipe = load(name)
        claims = f"{len(recipe.claim)} claims"
        echo(f"{name}: {recipe.title}. {recipe.paper}, {recipe.shows}; {claims}.")
    next_step("runs one of them.", "reproduce", "NAME")
