"""`fedax deploy`: an experiment as a Flower app."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer, echo

from fedax.cli.command import Command, Commands, next_step
from fedax.cli.options import Settings


class NeedsFlower(Command):
    """A command that says how Flower is installed where it is missing."""

    def invoke(self, ctx: Any) -> Any:
        from fedax.flower.protocol.quiet import need_flower

        need_flower()
        return super().invoke(ctx)


app = Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Deploy an experiment as a Flower app (needs the extra `flower`).",
)

Folder = Annotated[
    Path, Argument(help="The folder of the deployment.", metavar="FOLDER", exists=True)
]


@app.command(cls=NeedsFlower)
def init(
    experiment: Annotated[Path, Argument(help="The experiment, a TOML file.", metavar="FILE")],
    out: Annotated[
        Path | None,
        Option(help="The folder, new or empty.", show_default="the file's name without .toml"),
    ] = None,
    settings: Settings = None,
    clients: Annotated[
        int | None,
        Option(help="How many there are.", show_default="those of the experiment's task"),
    ] = None,
    host: Annotated[
        str, Option(help="The server's name or address, as clients reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="The server's port.")] = 9093,
    secure: Annotated[
        float, Option(help="The largest entry of uploads under masks; 0 for no masks.", min=0.0)
    ] = 0.0,
) -> None:
    """Write a Flower app that runs an experiment, with certificates and scripts of its server."""
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.running.batches import count_runs
    from fedax.flower.deploy.folder import make

    folder = (out or Path(experiment.stem)).resolve()
    clients = make(experiment, folder, settings or [], clients, host, port, secure)
    echo(f"{folder} is ready for {clients} clients; its README.md has the next commands.")
    echo(count_runs(Experiment.read(folder / "experiment.toml")))
    next_step("writes what client 0 needs.", "deploy", "pack", folder, 0)


@app.command(cls=NeedsFlower)
def pack(
    folder: Folder,
    site: Annotated[int, Argument(help="The client's number, from 0.", metavar="SITE")],
    data: Annotated[
        str,
        Option(
            help="A Python file with the client's examples: its path there, or name in its folder.",
            show_default="its part of the task",
        ),
    ] = "",
) -> None:
    """Write what a client needs: a key pair, the server's certificate, settings and experiment.

    The server that runs in the folder accepts the new key within seconds.
    """
    from fedax.flower.deploy.folder import pack as write_site

    place = write_site(folder.absolute(), site, data)
    echo(f"{place} is ready. Move it to the machine of client {site}, and run client.sh there.")


@app.command(cls=NeedsFlower)
def status(folder: Folder) -> None:
    """Show the runs of a folder: their status, and their newest checkpoint."""
    from fedax.flower.deploy.folder import status_lines

    for line in status_lines(folder) or ["No run has begun."]:
        echo(line)
