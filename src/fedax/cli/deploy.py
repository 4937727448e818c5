"""`fedax deploy`: an experiment on real devices, over Flower."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option, Typer, echo

from fedax.cli.command import Command, next_step, shell
from fedax.cli.options import Settings

NO_SERVER, INTERRUPTED = 1, 130
"""Exit codes."""


class NeedsFlower(Command):
    """A command that says how Flower is installed where it is missing."""

    def invoke(self, ctx: Any) -> Any:
        from fedax.flower.protocol.quiet import need_flower

        need_flower()
        return super().invoke(ctx)


app = Typer(
    no_args_is_help=True,
    help="Deploy an experiment over Flower (needs the extra `flower`).",
)

Folder = Annotated[Path, Argument(help="The folder of the deployment.", metavar="FOLDER")]
Trial = Annotated[
    bool,
    Option(
        "--trial", help="Start the server and all clients on this machine, and end them afterwards."
    ),
]


@app.command(cls=NeedsFlower)
def init(
    folder: Folder,
    experiment: Annotated[Path, Option(help="The experiment, a TOML file.")],
    settings: Settings = None,
    clients: Annotated[
        int | None,
        Option(
            help="How many there are.  [default: those of the experiment's task]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, Option(help="The server's name or address, as clients reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="The server's port.")] = 9093,
    deadline: Annotated[float, Option(help="Seconds for the answers of a phase.")] = 600.0,
    minimum: Annotated[int, Option(help="The fewest uploads of a phase that count.")] = 1,
) -> None:
    """Write the folder of a deployment: settings, the Flower app, TLS certificates and keys for a
    trial.

    A client elsewhere needs a copy of the folder without the private files of others:
    `keys/server.key`, `keys/noise.key`, and `keys/client-K` of other clients.
    """
    from fedax.experiments.running.batches import count_runs
    from fedax.flower.deploy.trial import make

    options = {"host": host, "port": port, "deadline": float(deadline), "minimum": minimum}
    deployment = make(folder.absolute(), experiment, settings or [], clients, **options)
    echo(f"{folder} is ready for {deployment.clients} clients.")
    echo(count_runs(deployment.experiment("flower")))
    next_step("tries it on this machine.", "deploy", "run", folder, "--trial")


@app.command(cls=NeedsFlower)
def server(folder: Folder) -> None:
    """Run the server until it is interrupted: Flower's SuperLink with TLS and authentication of its
    clients.
    """
    from fedax.flower.deploy.settings import Deployment
    from fedax.flower.deploy.trial import serve_clients

    next_step("on each client's machine connects it.", "deploy", "client", folder, "NUMBER")
    serve_clients(Deployment.load(folder), echo)


@app.command(cls=NeedsFlower)
def client(
    folder: Folder,
    partition: Annotated[int, Argument(help="The client's number, from 0.")],
    data: Annotated[
        Path | None,
        Option(
            help="A file of Python with its own examples.  [default: its part of the task]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run one client until it is interrupted: Flower's SuperNode, and a process that does the work.

    The file of `--data` defines `examples(partition)`, which returns a dictionary of arrays, or a
    pair of training and test examples.
    """
    from fedax.flower.deploy.settings import Deployment
    from fedax.flower.deploy.trial import run_client

    next_step("at the server runs the experiment.", "deploy", "run", folder)
    run_client(Deployment.load(folder), partition, data, echo)


@app.command(cls=NeedsFlower)
def run(
    folder: Folder,
    out: Annotated[
        Path | None,
        Option(
            help="Folder for the results, new or empty.  [default: below FOLDER/runs/]",
            show_default=False,
        ),
    ] = None,
    trial: Trial = False,
) -> None:
    """Run the experiment on the clients, and keep its results in a run directory."""
    from fedax.core import RunExists
    from fedax.experiments.results.store import fresh
    from fedax.flower.deploy.check import check_experiment
    from fedax.flower.deploy.settings import Deployment

    deployment = Deployment.load(folder)
    path = (out or fresh(deployment.path("runs"), "run")).absolute()
    # before anything is sent to the server
    if path.exists() and any(path.iterdir()):
        command = shell("deploy", "resume", folder, path)
        raise RunExists(f"{path} is not empty; `{command}` continues it.")
    check_experiment(
        deployment.path("experiment.toml"), (), deployment, deployment.clients
    )  # both files may have been edited
    _follow(folder, path, trial, resume=False)


@app.command(name="resume", cls=NeedsFlower)
def continue_(
    folder: Folder,
    out: Annotated[Path, Argument(help="The run directory.", metavar="DIR")],
    trial: Trial = False,
) -> None:
    """Continue a run whose server was interrupted or killed, from its newest checkpoint; clients go
    on with their memories.
    """
    _follow(folder, out.absolute(), trial, resume=True)


def _follow(folder: Path, out: Path, trial: bool, resume: bool) -> None:
    from fedax.core import FedaxError
    from fedax.flower.deploy.app import mark_run
    from fedax.flower.deploy.processes import connection_failure, run_log
    from fedax.flower.deploy.settings import Deployment
    from fedax.flower.deploy.trial import ServerLost, follow, run_all_processes, submit

    deployment = Deployment.load(folder)
    # the command that continues this run, for messages
    command = shell("deploy", "resume", folder, out) + (" --trial" if trial else "")
    start_server = shell("deploy", "server", folder)

    # without a server there is nothing to submit to
    if not trial and (failure := connection_failure(deployment)) is not None:
        hint = f"`{start_server}` starts it; --trial starts it with all clients on this machine"
        raise FedaxError(f"no server at {deployment.address}: {failure}. {hint}.")
    # a trial starts the server and all clients, and ends them after the run
    processes = run_all_processes(deployment, echo) if trial else contextlib.nullcontext()
    with processes:
        # from here on the run goes on at the server, even if this command ends
        number = submit(deployment, out, resume)
        try:
            result = follow(deployment, number, echo)
        except ServerLost as error:
            start = "" if trial else f"Start it again with `{start_server}`. "
            log = f"The server's log is {deployment.path('logs', 'server.log')}."
            raise FedaxError(
                f"{error} {start}`{command}` continues the run from its newest checkpoint. {log}"
            ) from None
        except KeyboardInterrupt:
            # in a trial the server ends with this command, otherwise the run goes on without it
            if trial:
                echo(f"Interrupted. `{command}` continues the run from its newest checkpoint.")
            else:
                echo(f"Run {number} goes on at the server, and its results go to {out}.")
                echo(
                    f"Its output goes to {run_log(deployment, number)}. "
                    f"`{shell('deploy', 'status', folder)}` shows it, "
                    f"`{shell('deploy', 'stop', folder)}` stops it."
                )
            raise Exit(INTERRUPTED) from None
        if not result.complete:
            details = result.details.rstrip(".")
            # a run that was stopped on purpose is no failure
            mark_run(out, "interrupted" if details.startswith("stopped") else "failed", details)
            # without a summary nothing was kept, and there is nothing to continue
            so_far = f" Its results so far are in {out}. `{command}` continues it."
            raise FedaxError(
                f"run {result.number} did not complete: {details}."
                + (so_far if (out / "summary.json").exists() else "")
            )
        echo(f"Results: {out}")
        next_step("prints a table for a paper.", "report", out, "--table", "latex")


@app.command(cls=NeedsFlower)
def stop(folder: Folder) -> None:
    """Stop the run that the server works on; `fedax deploy resume` continues it."""
    from fedax.flower.deploy.settings import Deployment
    from fedax.flower.deploy.trial import stop_runs

    numbers = stop_runs(Deployment.load(folder).require_server())
    for number in numbers:
        echo(f"Run {number} is stopped.")
    if not numbers:
        echo("No run is going.")
    next_step("continues a run from its newest checkpoint.", "deploy", "resume", folder, "DIR")


@app.command(cls=NeedsFlower)
def renew(
    folder: Folder,
    client: Annotated[
        int | None,
        Option(
            help="Make a new key pair for this client.  [default: new certificates]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make new certificates and a new signature of the app, or new keys of a client.

    The server takes them when it is started again.
    """
    from fedax.flower.deploy.settings import Deployment
    from fedax.flower.deploy.trial import renew as make_new

    files = make_new(Deployment.load(folder), client)
    recipients = "every client" if client is None else f"client {client}"
    echo(f"{recipients[:1].upper()}{recipients[1:]} needs {' and '.join(files)} of {folder}.")
    next_step("starts the server with them.", "deploy", "server", folder)


@app.command(cls=NeedsFlower)
def status(folder: Folder) -> None:
    """Show the server, its clients with their nodes, its runs, and the newest run directory.

    The exit code is 0 if the server answers, 1 if it does not, and 2 if the folder cannot be read.
    """
    from fedax.flower.deploy.processes import connection_failure
    from fedax.flower.deploy.settings import Deployment
    from fedax.flower.deploy.trial import status_lines

    deployment = Deployment.load(folder).require_server()
    if (failure := connection_failure(deployment)) is not None:
        echo(f"No server at {deployment.address}: {failure}.")
        next_step("starts it.", "deploy", "server", folder)
        raise Exit(NO_SERVER)
    for line in status_lines(deployment):
        echo(line)
    next_step("runs the experiment.", "deploy", "run", folder)
