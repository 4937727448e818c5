"""`fedax schema`: the JSON schema of experiment files."""

import json

import typer


def schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    from fedax.experiments.config import schema as schemas

    typer.echo(json.dumps(schemas.schema(), indent=2))
