"""The reference of the command line and of experiment files."""

import inspect

import typer.cli
from algorithms import TEMPLATES

from fedax import cli, codecs
from fedax.core import Schedule
from fedax.core.hyper import declared
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.observers import observers_of
from fedax.experiments.config.sections import SOLVERS
from fedax.tasks.sources import DATASETS, task, task_options


def pages() -> dict[str, str]:
    """Returns Markdown by address."""
    command = typer.main.get_command(cli.app)
    # help texts are Markdown, in which rich would take [cluster] for a mark of its own
    typer.cli.HAS_RICH = False
    usage = typer.cli.get_docs_for_click(obj=command, ctx=typer.Context(command), name="fedax")
    files = TEMPLATES.get_template("files.md.jinja").render(
        schema=Experiment.model_json_schema(),
        tasks={name: task_options(name) for name in DATASETS},
        schedule=Schedule(),
        solvers={name: declared(kind) for name, kind in SOLVERS.items()},
        codecs={name: declared(kind) for name, kind in codecs.CODECS.items()},
        observers=observers_of(task("digits")),
        needed=inspect.Parameter.empty,
    )
    return {
        "reference/command-line.md": "# Command line\n\n## " + usage.partition("\n## ")[2],
        "reference/files.md": files,
    }
