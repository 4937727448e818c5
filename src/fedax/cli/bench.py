"""`fedax bench`: the standing benchmark, and a method of yours among its methods."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="Methods as name:key=value,...; your own is path/to/file.py:Class. `all` are all "
            "built-in ones.",
            metavar="METHOD...",
            show_default=False,
        ),
    ] = None,
    *,
    tier: Annotated[str, typer.Option(help="Tasks: quick, standard or full.")] = "quick",
    task: Annotated[
        list[str] | None,
        typer.Option(help="Only this task; may be repeated.", show_default="those of the tier"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results, table and figures.")] = Path(
        "bench"
    ),
    spaces: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with ranges of hyperparameters, see the protocol.",
            show_default="the benchmark's",
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(help="Folder with tasks of your own.", show_default="the benchmark's"),
    ] = None,
    list_tasks: Annotated[bool, typer.Option("--list", help="List the tasks and end.")] = False,
    targets: Annotated[
        bool, typer.Option("--targets", help="Set the targets of the tasks by tuned references.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Write the page of the archived results.")
    ] = False,
) -> None:
    """Compare methods under equal tuning with all archived ones, and show their places.

    Example: `fedax bench my_method.py:Mine --tier quick`
    """
    from rich.console import Console

    from fedax.benchmark import command

    console = Console()
    bench = command.Bench.open(tier, task or (), tasks, spaces, out)
    # the first of these that is asked for is done; --page goes with each of them
    if list_tasks:
        bench.show_tasks(console)
    elif targets:
        bench.set_targets(console)
    elif methods:
        bench.run(methods, console)
    if page:
        typer.echo(str(bench.write_page()))
    if not (list_tasks or targets or methods or page):
        from fedax.errors import InvalidInput

        hint = "Such as fedax bench fedavg, or --list, --page."
        raise InvalidInput.because("bench", "no method is named", hint)
