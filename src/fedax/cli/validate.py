"""`fedax validate`: checks an experiment file."""

import json
from typing import Annotated

from typer import Option, echo

from fedax.cli.command import next_step
from fedax.cli.options import OptionalFile, Settings


def validate(
    file: OptionalFile = None,
    settings: Settings = None,
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON schema of such files, for editors.")
    ] = False,
) -> None:
    """Check a TOML file with its data; nothing is run.

    It is shown with every default written out, and its examples in a few words: of a table, its
    columns in the order of the features, and how many categories those of texts have.
    """
    from fedax.errors import InvalidInput
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.running.batches import count_runs
    from fedax.experiments.running.runner import describe
    from fedax.experiments.running.trackers import check_installed

    if schema:
        echo(json.dumps(Experiment.model_json_schema(), indent=2))
        return
    if file is None:
        raise InvalidInput.found("validate", "no FILE.toml", "a file, or --schema")
    experiment = Experiment.read(file, settings or ())
    check_installed(experiment.trackers)
    plan = experiment.plan()
    # the file goes to the standard output, remarks to the error output
    echo(experiment.toml())
    for title, text in plan.task.data.summary.items():
        echo(f"# {title}: {text}", err=True)
    echo(f"# {file} is valid: {describe(experiment, plan)}\n# {count_runs(experiment)}", err=True)
    next_step("runs it.", "run", file, *(f"--set={change}" for change in settings or ()))
