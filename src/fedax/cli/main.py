"""The command line, `fedax`: registers the commands and reports errors.

Command `x` is in `fedax/cli/x.py`, with its options and its work. These modules import the library
inside of their functions, so that help and complaints about options appear without loading JAX.
"""

from typing import Annotated

from typer import Exit, Option, Typer, echo

import fedax
from fedax.cli import (
    algorithms,
    bench,
    check,
    cite,
    compare,
    data,
    demo,
    deploy,
    doctor,
    export,
    graph,
    new,
    predict,
    report,
    reproduce,
    resume,
    run,
    theory,
    validate,
)
from fedax.cli.command import Command, Commands, OneDeviceCommand

app = Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compare, develop and deploy federated optimizers. Start with `fedax demo`.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        echo(f"fedax {fedax.__version__}")
        raise Exit
    return wanted


@app.callback()
def parse_global_options(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Takes the options of `fedax` itself."""


PANELS = {
    "Start": (demo.demo, compare.compare, doctor.doctor),
    "Experiments": (
        run.run,
        resume.resume,
        validate.validate,
        report.report,
        predict.predict,
        export.export,
        cite.cite,
    ),
    "Methods": (
        algorithms.algorithms,
        check.check,
        bench.bench,
        graph.graph,
        theory.theory,
        reproduce.reproduce,
    ),
}
"""Commands, in the order of the help."""
for panel, commands in PANELS.items():
    for command in commands:
        kind = OneDeviceCommand if command is bench.bench else Command
        app.command(cls=kind, rich_help_panel=panel)(command)
app.add_typer(data.app, name="data", rich_help_panel="Start")
app.add_typer(new.app, name="new", rich_help_panel="Start")
app.add_typer(deploy.app, name="deploy", rich_help_panel="Experiments")


def main() -> None:
    """Runs the command `fedax`."""
    app()
