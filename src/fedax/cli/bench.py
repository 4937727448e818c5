"""`fedax bench`: the standing benchmark, and a method of yours among its methods."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from fedax.cli.command import next_step


def bench(
    methods: Annotated[
        list[str] | None,
        Argument(
            help="Methods as name:key=value,...; your own is path/to/file.py:Class. `all` are all "
            "built-in ones.",
            metavar="METHOD...",
            show_default=False,
        ),
    ] = None,
    *,
    tier: Annotated[str, Option(help="Tasks: quick, standard or full.")] = "quick",
    task: Annotated[
        list[str] | None,
        Option(help="Only this task; may be repeated.", show_default="those of the tier"),
    ] = None,
    out: Annotated[Path, Option(help="Folder for results, table and figures.")] = Path("bench"),
    spaces: Annotated[
        Path | None,
        Option(
            help="TOML file with ranges of hyperparameters, see the protocol.",
            show_default="the benchmark's",
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        Option(help="Folder with tasks of your own.", show_default="the benchmark's"),
    ] = None,
    targets: Annotated[
        bool, Option("--targets", help="Set the targets of the tasks by tuned references.")
    ] = False,
) -> None:
    """Place methods among the archived ones under equal tuning.

    Without a method it lists the tasks. Both write the page of all results.

    Example: `fedax bench my_method.py:Mine --tier quick`
    """
    from rich.console import Console

    from fedax.benchmark import command

    console = Console()
    bench = command.Bench.open(tier, task or (), tasks, spaces, out)
    if targets:
        bench.set_targets(console)
        next_step("runs a method.", "bench", "my_method.py:Mine")
        return
    if methods:
        bench.run(methods, console)
    else:
        bench.show_tasks(console)
    page = bench.write_page()
    echo(str(page))
    if methods:
        next_step(f"{page} shows the places of all methods; open it in a browser.")
    else:
        next_step("places a method of yours.", "bench", "my_method.py:Mine", "--tier", tier)
