"""`fedax validate`: checks an experiment file."""

import typer

from fedax.cli.options import File, Settings


def validate(file: File, settings: Settings = None) -> None:
    """Check a TOML file, with its data, and show it with every default written out; nothing is
    run.
    """
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.running import runner

    experiment = Experiment.read(file, settings or ())
    plan = experiment.plan()
    typer.echo(experiment.toml())
    typer.echo(f"# {file} is valid: {runner.describe(experiment, plan)}", err=True)
