"""`fedax bench`: the standing benchmark, and a method of yours among its methods."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

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
    out: Annotated[Path, Option(help="Folder for the tables of results.")] = Path("bench"),
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
) -> None:
    """Place methods among the archived ones under equal tuning.

    Without a method it lists the tasks.

    Example: `fedax bench my_method.py:Mine --tier quick`
    """
    from fedax.benchmark.command import Bench

    bench = Bench.open(tier, task or (), tasks, spaces, out)
    if methods:
        bench.run(methods)
    else:
        bench.show_tasks()
        next_step("places a method of yours.", "bench", "my_method.py:Mine", "--tier", tier)
