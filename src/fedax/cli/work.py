"""The work of the commands, which imports the library."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedax.algorithms import algorithm_classes
from fedax.cli.doctor import diagnosis
from fedax.cli.listing import described, panel
from fedax.core import UnknownName
from fedax.engine.backends.mpi import MPI
from fedax.engine.distributed.abort import INTERRUPTED
from fedax.engine.distributed.multihost import connect_hosts
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.experiments import recipes as shipped
from fedax.experiments.config import schema as schemas
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.shorthand import parse_numbers, parse_options, parse_section
from fedax.experiments.recipes.figures import curves
from fedax.experiments.results.archive import made_again
from fedax.experiments.results.coverage import refresh
from fedax.experiments.results.joint import compared, together
from fedax.experiments.results.store import RunDirectory, fresh, is_archive, slug
from fedax.experiments.running import runner
from fedax.experiments.running.demo import run_demo
from fedax.experiments.running.progress import display_for, show_comparison, summary_table
from fedax.experiments.running.ranks import team
from fedax.report import render
from fedax.report.drawing.figures import save_charts, save_weights
from fedax.report.record import by_task
from fedax.utils.files import write


def demo(out: Path | None, seconds: float, rounds: int | None) -> None:
    """Compares five methods on three tasks."""
    console = Console()
    path = out or fresh(Path("runs"), "demo")
    console.print("Five methods on three tasks, one seed. The first run also compiles.", style="dim")
    if rounds is None:
        console.print(f"As many rounds as fit into {seconds:g} s on this machine; --rounds fixes the number.", style="dim")
    close(run_demo(path, display_for(console), seconds=seconds, rounds=rounds), console)


def run(file: Path, settings: Sequence[str], out: Path | None, jobs: int, engine: str | None, hosts: bool) -> None:
    """Runs the experiment of a file, on this process or as one of several ranks."""
    if hosts:
        connect_hosts()
    if _follows(team()):
        return
    experiment = Experiment.read(file, [*settings, *([] if engine is None else [f'engine="{engine}"'])])
    if experiment.engine == "mpi" and _follows(MPI().process_group):  # of a launcher that is not known by its environment
        return
    console = Console()
    path = out or fresh(Path("runs"), slug(experiment.name))
    close(runner.run_experiment(experiment, path, display_for(console), jobs), console)


def _follows(ranks: ProcessGroup) -> bool:
    """Whether this is a rank other than 0; then it has worked along, and is done."""
    if ranks.rank == 0:
        return False
    runner.follow(ranks)
    return True


def resume(folder: Path, jobs: int, hosts: bool) -> None:
    """Continues a run directory."""
    if hosts:
        connect_hosts()
    if _follows(team()):
        return
    console = Console()
    close(runner.resume(folder, display_for(console), jobs), console)


def validate(file: Path, settings: Sequence[str]) -> None:
    """Prints a specification with its defaults, and what it would run."""
    experiment = Experiment.read(file, settings)
    plan = experiment.plan()
    typer.echo(experiment.toml())
    typer.echo(f"# {file} is valid: {runner.describe(experiment, plan)}", err=True)


def doctor() -> None:
    """Prints what the installation uses."""
    for line in diagnosis():
        typer.echo(line)


def schema() -> None:
    """Prints the JSON schema."""
    typer.echo(json.dumps(schemas.schema(), indent=2))


def compare(
    algorithms: Sequence[str],
    *,
    task: str,
    rounds: int,
    seeds: str,
    solver: str,
    schedule: str,
    observe: str,
    observe_every: int,
    name: str,
    out: Path | None,
) -> None:
    """Compares algorithms by words of the command line."""
    experiment = Experiment.of(
        name=name or _title(parse_section(task)),
        rounds=rounds,
        observe_every=observe_every,
        seeds=parse_numbers("--seeds", seeds),
        observe=[part.strip() for part in observe.split(",")] if observe else None,
        task=parse_section(task),
        solver=parse_section(solver),
        schedule=parse_options(schedule),
        algorithm=[parse_section(text) for text in algorithms],
    )
    console = Console()
    close(
        runner.run_experiment(experiment, out or fresh(Path("runs"), slug(experiment.name)), display_for(console)), console
    )


def _title(section: Mapping[str, Any]) -> str:
    """A task in words: `digits, clients = 10`."""
    return ", ".join([str(section["name"]), *(f"{key} = {value}" for key, value in section.items() if key != "name")])


def algorithms(names: Sequence[str], as_json: bool) -> None:
    """Prints algorithms, as panels or as JSON."""
    known = algorithm_classes()
    for name in names:
        if name.lower() not in known:
            raise UnknownName.among("algorithm", name, known)
    kinds = [known[name.lower()] for name in names] if names else list(known.values())
    if as_json:
        typer.echo(json.dumps([described(kind) for kind in kinds], indent=2))
        return
    console = Console()
    for kind in kinds:
        console.print(panel(kind))


def recipes(status: Path | None) -> None:
    """Prints the recipes, or brings the table of a folder of run directories up to date."""
    if status is not None:
        for file in refresh(status):
            typer.echo(str(file))
        return
    for name in shipped.recipe_files():
        recipe = shipped.load(name)
        typer.echo(f"{name}: {recipe.title}. {recipe.paper}, {recipe.shows}; {len(recipe.claim)} claims.")


def reproduce(
    name: str,
    scale: str,
    variants: Sequence[str],
    algorithms: Sequence[str],
    reuse: Sequence[Path],
    elsewhere: bool,
    out: Path | None,
    jobs: int,
) -> None:
    """Runs a recipe, and compares its results with the paper."""
    console, recipe = Console(), shipped.load(name).only(scale, variants, algorithms)
    path = out or fresh(Path("runs"), slug(f"{Path(name).stem} {scale}"))
    directory = runner.reproduce(recipe, scale, path, display_for(console), jobs, reuse, elsewhere)
    show_comparison(directory.comparison(directory.recipe or recipe), console)
    close(directory, console)


def report(folders: Sequence[Path], out: Path, keep: Path | None) -> None:
    """Writes the report of one run directory again, or a page of several."""
    only = folders[0] if len(folders) == 1 else None
    if only and not (only / "summary.json").exists() and (only / "runs.csv").exists():
        for file in RunDirectory.load(only).renew_archive() if is_archive(only) else made_again(only):
            typer.echo(str(file))
        return
    directories = [RunDirectory.load(folder) for folder in folders]
    if len(directories) == 1:
        directories[0].renew()
        if keep is not None:
            directories[0].keep(keep)
        typer.echo(f"Report: {directories[0].path / 'report.html'}")
        return
    write(out, render(compared(directories)))
    typer.echo(f"Report: {out}")


def figures(folders: Sequence[Path], out: Path, formats: str, against: str | None) -> None:
    """Writes the figures of run directories."""
    directories = [RunDirectory.load(folder) for folder in folders]
    records, names = together(directories), [name.strip() for name in formats.split(",")]
    alone = directories[0].charts(against) if len(directories) == 1 else curves(records, against=against or "rounds")
    for file in [*save_charts(alone, out, names), *save_weights(records, out, names)]:
        typer.echo(str(file))


def close(directory: RunDirectory, console: Console) -> None:
    """The terminal summary; leaves with the exit code of an interruption if there was one."""
    chosen, reads = directory.selections(), directory.reads
    for title, records in by_task(directory.shown()).items():
        console.print()
        console.print(summary_table(title, records, console.width >= 120, reads.get(title, "last")))
        for method, label in chosen.get(title, {}).items():
            if label != method:
                console.print(f"Selected from the grid of {method}: {label}", markup=False, highlight=False)
    console.print(f"\n{directory.line()}", markup=False, highlight=False)
    console.print(f"Report: {directory.path / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    if directory.status == "interrupted":
        message = f"Interrupted. {directory.path} holds the runs so far and is complete for them."
        message += f" `fedax resume {directory.path}` continues."
        console.print(message, style="yellow", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED)
