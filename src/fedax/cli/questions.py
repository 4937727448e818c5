"""The commands beside runs: `fedax graph`, `audit`, `theory`, `profile`, `export`, `predict`, `cite` and `new`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import lazy_loader
import typer

from fedax.cli import authors
from fedax.cli.command import Command

if TYPE_CHECKING:
    from fedax.cli import audit as audits
    from fedax.cli import graph as graphs_of_clients
    from fedax.cli import models
    from fedax.cli import profile as profiles
    from fedax.cli import theory as theorems
else:
    audits = lazy_loader.load("fedax.cli.audit", suppress_warning=True)
    graphs_of_clients = lazy_loader.load("fedax.cli.graph", suppress_warning=True)
    models = lazy_loader.load("fedax.cli.models", suppress_warning=True)
    profiles = lazy_loader.load("fedax.cli.profile", suppress_warning=True)
    theorems = lazy_loader.load("fedax.cli.theory", suppress_warning=True)

Folder = Annotated[Path, typer.Argument(help="A run directory.", metavar="DIR")]
Number = Annotated[
    int | None,
    typer.Option("--run", help="Number of the run, as summary.json lists them.", show_default="the only run"),
]
Client = Annotated[
    int | None,
    typer.Option(help="The client whose own model it is; it takes keep_models = 'personal'.", show_default="none"),
]
Best = Annotated[bool, typer.Option("--best", help="The best model on validation examples, not the final one.")]


def graph(
    graphs: Annotated[
        list[str], typer.Argument(help="One or more of {topologies}; or drawn: {random}.", metavar="GRAPH...")
    ],
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 20,
    dim: Annotated[int, typer.Option(min=1, help="Numbers of the model, for the bits.")] = 199_210,
    codec: Annotated[
        list[str] | None, typer.Option(help="Codec for the bits, as name:key=value; may be repeated.", show_default=False)
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="HTML file for a picture of the first graph.")] = None,
) -> None:
    """Show graphs of clients: picture, degrees, lambda, bits per round.

    Example: `fedax graph ring torus random_regular:degree=4 --clients 20 --codec none --codec quantizer:b=8`
    """
    graphs_of_clients.show_graph(graphs, clients, dim, codec or ["none", "quantizer:b=8"], picture)


def audit(
    algorithms: Annotated[list[str], typer.Argument(help="One or more of name:key=value,...", metavar="ALGORITHM...")],
    task: Annotated[
        str, typer.Option(help="A classification task, as name:key=value,...")
    ] = "digits:partition=iid,model=mlp",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 20,
    every: Annotated[int, typer.Option(help="Rounds between attacks.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the split and the runs.")] = 0,
    solver: Annotated[str, typer.Option(help="Local solver, as name:key=value,...")] = "sgd:learning_rate=0.01,momentum=0.9",
    schedule: Annotated[str, typer.Option(help="Sampling and local work, as key=value,...")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for auc.csv and roc.html, new or empty.", show_default=False)
    ] = None,
) -> None:
    """Measure what models give away: membership inference on federated training.

    A target and a shadow model are trained on a quarter of the training examples each; an attack model learns on the shadow
    what members look like, and a second attack compares the losses of both. An AUC of 0.5 is guessing.
    """
    audits.audit(algorithms, every, out, task=task, rounds=rounds, seed=seed, solver=solver, schedule=schedule)


def theory(
    paper: Annotated[str, typer.Argument(help="One of {papers}.", metavar="PAPER")],
    file: Annotated[Path, typer.Argument(help="An experiment's TOML file.", metavar="FILE")],
    accuracy: Annotated[float, typer.Option(help="Epsilon of the theorems.")] = 1e-3,
    price: Annotated[
        list[float] | None, typer.Option(help="Gradients that a communication costs; may be repeated.", show_default=False)
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="Picture of the bounds: .html, or .svg, .pdf, .png (extra `paper`).", show_default=False),
    ] = None,
) -> None:
    """Show what a paper's theory says of a task: constants, step sizes, mu, bits, multipliers, rounds.

    Smoothness is a bound where it has a closed form. Other constants are measured at the start of the first seed, and at the
    optimum for local gradient descent, whose problems are convex. Those that this bounds from below are marked.

    Example: `fedax theory feddane experiment.toml`, with the file that `fedax new experiment` writes.
    """
    theorems.show_theory(paper, file, accuracy, price or [0.1, 1.0, 10.0, 100.0, 1000.0], figure)


def profile(
    file: Annotated[Path, typer.Argument(help="An experiment's TOML file.", metavar="FILE")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A value in place of the file's, as `fedax run` takes it.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each timed call.")] = 10,
    picture: Annotated[Path | None, typer.Option(help="HTML file for a picture.", show_default=False)] = None,
) -> None:
    """Show where the rounds of an experiment's algorithms spend their time.

    Gradients, examples and steps of each phase, memory, aggregation, server; seconds of compiling, milliseconds of an observation.
    Below them the rate of the clients' matrix products and convolutions, in GFLOP/s and as a part of this machine's peak.

    Example: `fedax profile experiment.toml --picture profile.html`
    """
    profiles.show_profile(file, settings or (), rounds, picture)


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File for the model.")],
    format: Annotated[
        str | None, typer.Option(help="One of {model_formats}.", show_default="the ending of the file")
    ] = None,
    number: Number = None,
    best: Best = False,
    client: Client = None,
) -> None:
    """Write the model of a run to a file: arrays by the names of the model's leaves.

    `fedax.load_params(FILE, like=task)` reads it.

    Example: `fedax export runs/digits --run 3 --out model.safetensors`
    """
    models.export(folder, out, format, number, best, client)


def predict(
    folder: Folder,
    data: Annotated[
        Path | None, typer.Option(help="Examples: .npz with the task's arrays, or .csv with a column for each feature.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Examples of the task: {splits}.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the table.", show_default="the terminal")] = None,
    number: Number = None,
    best: Best = False,
    client: Client = None,
) -> None:
    """Predict with the model of a run: a CSV table with one line for each example.

    Of a classifier it has the label with the largest probability and the probabilities of all classes; beside them the client
    and the true label, where they are known.

    Example: `fedax predict runs/digits --run 3 --split test --out predictions.csv`
    """
    models.predict(folder, data, split, out, number, best, client)


def add_commands(app: typer.Typer) -> None:
    """Adds them to the command line."""
    for work in (graph, audit, theory, profile, export, predict, authors.cite):
        app.command(cls=Command)(work)
    app.add_typer(authors.new, name="new")
