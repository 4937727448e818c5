"""The command line, `fedax`: run, resume and check experiments, reproduce papers, look at results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import lazy_loader
import typer

import fedax
from fedax.cli import data, deploy
from fedax.cli.command import Command, Commands
from fedax.cli.questions import add_commands

if TYPE_CHECKING:
    from fedax.cli import work
else:
    work = lazy_loader.load("fedax.cli.work", suppress_warning=True)  # with the library, when there is something to do

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compare federated optimizers.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")

Out = Annotated[
    Path | None, typer.Option(help="Folder for the results, new or empty.  [default: below runs/]", show_default=False)
]


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"fedax {fedax.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def prepare(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Takes the options of `fedax` itself."""


@app.command(cls=Command)
def demo(
    out: Out = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time to spend.")] = 135.0,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of every task.", show_default="as many as fit into the time")
    ] = None,
) -> None:
    """Compare FedAvg, FedProx, FedDANE and FedBC on heterogeneous data.

    In about two minutes: Synthetic IID, Synthetic (1, 1) and digits split by label, with one seed and as many rounds as fit.

    The whole comparison, all synthetic data of the FedDANE paper with its 200 rounds and its grid of mu over ten draws, is
    `fedax reproduce feddane-study --scale paper`.
    """
    work.demo(out, seconds, rounds)


File = Annotated[Path, typer.Argument(help="Experiment file; `fedax new experiment` writes one.", metavar="FILE.toml")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A value in place of the file's, such as rounds=5, task.alpha=0.5 or algorithm.0.mu=1; may be repeated.",
        metavar="PATH=VALUE",
        show_default=False,
    ),
]

Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
OnHosts = Annotated[bool, typer.Option("--hosts", help="This is one of several hosts; see the guide to hosts.")]
Folder = Annotated[Path, typer.Argument(help="A run directory.", metavar="DIR")]


@app.command(cls=Command)
def run(
    file: File,
    settings: Settings = None,
    out: Out = None,
    jobs: Jobs = 1,
    engine: Annotated[str | None, typer.Option(help="Engine: {engines}.", show_default=False)] = None,
    hosts: OnHosts = False,
) -> None:
    """Run the experiment of a TOML file.

    With `--engine mpi` every rank is one client: `mpiexec -n 5 fedax run FILE --engine mpi`. With `--hosts` the simulation uses the
    devices of all hosts: `srun fedax run FILE --hosts`. Rank 0 shows and keeps the results.
    """
    work.run(file, settings or (), out, jobs, engine, hosts)


@app.command(name="resume", cls=Command)
def continue_(folder: Folder, jobs: Jobs = 1, hosts: OnHosts = False) -> None:
    """Continue a run directory that was interrupted or killed; results are bit-for-bit identical to an uninterrupted run.

    A run of MPI ranks is continued by as many: `mpiexec -n 5 fedax resume DIR`.
    """
    work.resume(folder, jobs, hosts)


@app.command(cls=Command)
def validate(file: File, settings: Settings = None) -> None:
    """Check a TOML file, with its data, and show it with every default written out; nothing is run."""
    work.validate(file, settings or ())


@app.command(cls=Command)
def doctor() -> None:
    """Say what this installation uses: versions, devices, and whether the native layers for the CPU are there."""
    work.doctor()


@app.command(name="schema", cls=Command)
def show_schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    work.schema()


_EXAMPLE = (
    "`fedax compare fedavg fedprox:mu=1 feddane:mu=0.01,cohorts=shared --task synthetic:alpha=1,beta=1 "
    "--schedule cohort=10,epochs=20,batch_size=10 --rounds 50 --seeds 0,1,2`"
)


@app.command(epilog="{sections}\n\n### Example\n\n" + _EXAMPLE, cls=Command)
def compare(
    algorithms: Annotated[list[str], typer.Argument(help="One or more of name:key=value,...", metavar="ALGORITHM...")],
    *,
    task: Annotated[str, typer.Option(help="Task, as name:key=value,...")] = "synthetic:alpha=1,beta=1",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 50,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    solver: Annotated[str, typer.Option(help="Local solver, as name:key=value,...")] = "sgd:learning_rate=0.01",
    schedule: Annotated[str, typer.Option(help="Sampling and local work, as key=value,...")] = "",
    observe: Annotated[str, typer.Option(help="Observers: {observers}.", show_default="those that fit the task")] = "",
    observe_every: Annotated[int, typer.Option(help="Rounds between observations.")] = 1,
    name: Annotated[str, typer.Option(help="Title of the comparison.", show_default="from the task")] = "",
    out: Out = None,
) -> None:
    """Compare algorithms on one task, with one or several seeds."""
    work.compare(
        algorithms,
        task=task,
        rounds=rounds,
        seeds=seeds,
        solver=solver,
        schedule=schedule,
        observe=observe,
        observe_every=observe_every,
        name=name,
        out=out,
    )


@app.command(name="algorithms", cls=Command)
def list_algorithms(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.", metavar="[NAME]...", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the algorithms: paper, hyperparameters with defaults and ranges, traffic, memory, special cases."""
    work.algorithms(names or (), as_json)


@app.command(name="recipes", cls=Command)
def list_recipes(
    status: Annotated[
        Path | None, typer.Option(help="A folder of run directories: bring its table of the papers' numbers up to date.")
    ] = None,
) -> None:
    """List the recipes: tables and figures of papers that `fedax reproduce` runs."""
    work.recipes(status)


@app.command(name="reproduce", cls=Command)
def reproduce_recipe(
    name: Annotated[str, typer.Argument(help="A name that `fedax recipes` lists, or a file of your own.", metavar="RECIPE")],
    scale: Annotated[str, typer.Option(help="smoke (does it run?), small, or paper.")] = "small",
    variant: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="Only this one, by its label; may be repeated.")] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(help="A run directory, or a copy of fedax report --keep, whose runs need not be made again."),
    ] = None,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere", help="Reuse runs made with other versions or on another machine too; the tables say so."
        ),
    ] = False,
    out: Out = None,
    jobs: Jobs = 1,
) -> None:
    """Run a table or figure of a paper: results compared with the paper, and a verdict on each claim.

    A recipe that was begun elsewhere: fedax reproduce NAME --scale paper --reuse docs/reproduction/NAME --elsewhere
    """
    work.reproduce(name, scale, variant or (), algorithm or (), reuse or (), elsewhere, out, jobs)


Folders = Annotated[list[Path], typer.Argument(help="One or more run directories.", metavar="DIR...")]


@app.command(cls=Command)
def report(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="Page for several.")] = Path("comparison.html"),
    keep: Annotated[
        Path | None, typer.Option(help="Also copy settings, tables and the curves of all runs to this folder.")
    ] = None,
) -> None:
    """Rebuild the report, the table and the summary of a run directory; or show several on one page.

    In a folder that --keep has made, the tables are made again, and the report where it has curves.
    """
    work.report(folders, out, keep)


@app.command(cls=Command)
def figures(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    formats: Annotated[str, typer.Option("--format", help="Of {formats}, separated by commas.")] = "pdf,png",
    against: Annotated[
        str | None,
        typer.Option(help="Horizontal axis of the curves: {axes}.", show_default="the recipe's figures, or rounds"),
    ] = None,
) -> None:
    """Draw run directories as files for a paper: the figures of their recipe, or the curves (needs the extra `paper`)."""
    work.figures(folders, out, formats, against)


add_commands(app)


def main() -> None:
    """The entry point of the command `fedax`."""
    try:
        app()
    except Exception as error:
        from fedax.engine.distributed import abort

        if (here := abort.current_rank()) is None:
            raise
        abort.abort_with(error, here)
        raise
