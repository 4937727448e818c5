"""`fedax data`: lists, describes, draws and prepares data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax.cli.command import Command, next_step

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Group

    from fedax.data import FederatedData

app = typer.Typer(no_args_is_help=True, help="List, describe, plot and prepare data sets.")

Named = Annotated[str, typer.Argument(help="Data set, as name:key=value,...", metavar="NAME")]


@app.command(name="list", cls=Command)
def list_datasets() -> None:
    """List datasets and how to download them."""
    from rich.console import Console
    from rich.table import Table

    from fedax.data import data_folder
    from fedax.tasks.sources import DATASETS

    table = Table("name", "files", "what", box=None, header_style="bold", pad_edge=False)
    for name, entry in DATASETS.items():
        # where the files come from: fetched, the user's, or none because the data are made
        files = "your own" if entry.reads_folder or name in ("table", "stored") else "none"
        table.add_row(name, "fetched by prepare" if entry.files else files, entry.about)
    console = Console()
    console.print(table)
    console.print(
        f"\nFiles are looked for in {data_folder()}; the variable FEDAX_DATA names another folder.",
        soft_wrap=True,
    )
    next_step("describes one of them.", "data", "describe", "NAME")


@app.command(cls=Command)
def describe(name: Named) -> None:
    """Describe a data set under a partition: clients, sizes, labels, and its options.

    Example: `fedax data describe mnist:partition=dirichlet,alpha=0.1,clients=100`
    """
    from rich.console import Console
    from rich.table import Table

    from fedax.data.options import json_schema
    from fedax.experiments.config.shorthand import parse_section
    from fedax.tasks.sources import load, task_options

    section = parse_section(name)
    console = Console()
    console.print(_describe_examples(load(**section)))
    source = section.pop("name")
    # options of the task, of the data set and of the chosen partition
    schemas = json_schema(task_options(source, section))
    table = Table("option", "value", "allowed", box=None, header_style="bold", pad_edge=False)
    for key, schema in schemas.items():
        value = section.get(key, schema.pop("default", ""))
        table.add_row(key, str(value), _describe_range(schema))
    console.print("", table)
    next_step("draws the clients.", "data", "plot", name)


def _describe_range(schema: dict[str, Any]) -> str:
    """Returns a JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(map(_describe_range, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return ", ".join(f"{_WORDS.get(key, '')}{value}" for key, value in schema.items())


_WORDS = {
    "minimum": "at least ",
    "maximum": "at most ",
    "exclusiveMaximum": "below ",
    "exclusiveMinimum": "above ",
}


@app.command(cls=Command)
def plot(
    name: Named,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, .pdf, .png or .svg.  [default: NAME.png]", show_default=False
        ),
    ] = None,
) -> None:
    """Draw the clients' sizes and label histograms as one picture."""
    from fedax.errors import InvalidInput
    from fedax.experiments.config.shorthand import parse_section
    from fedax.results.drawing import FORMATS, Picture, label_counts, save_as
    from fedax.tasks.sources import load

    section = parse_section(name)
    path = out or Path(f"{section['name']}.png")
    if path.suffix.removeprefix(".") not in FORMATS:
        raise InvalidInput.of("--out", str(path), "a file that ends in .pdf, .png or .svg")
    data = load(**section)
    title = f"{data.name}: {data.clients} clients, {int(data.sizes.sum()):,} training examples"
    splits = {"train": data.sizes, "test": data.test_sizes}
    figure = label_counts(data.label_counts, {k: v for k, v in splits.items() if v.any()}, title)
    save_as(Picture(path.stem, figure), path)
    typer.echo(f"Picture: {path}")
    next_step("compares methods on it.", "compare", "fedavg", "scaffold", "--task", name)


@app.command(name="prepare", cls=Command)
def prepare_datasets(
    names: Annotated[list[str], typer.Argument(help="Data sets.", metavar="NAME...")],
) -> None:
    """Fetch the files of data sets if they are missing, and verify their content.

    They go to the data folder, which `fedax data list` names.
    """
    from fedax.tasks.sources import dataset, prepare

    # all names first
    for name in names:
        dataset(name)
    for name in names:
        typer.echo(f"{name}: {prepare(name)}")
    next_step("describes it.", "data", "describe", names[0])


def _describe_examples(federated: FederatedData) -> Group:
    """Returns counts, sizes and labels as text."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # of each client, the labels that occur
    labels_per_client = (federated.label_counts > 0).sum(axis=1)
    client_tests = int(federated.test_sizes.sum())
    central = 0 if federated.central is None else len(federated.central["y"])
    lines = {
        "clients": str(federated.clients),
        "training examples": f"{int(federated.sizes.sum()):,}",
        "test examples": f"{client_tests:,} with the clients, {central:,} central",
        "training examples of a client": _format_spread(federated.sizes),
        "labels of a client": _format_spread(labels_per_client),
        "arrays of an example": ", ".join(
            _format_array(key, values) for key, values in federated.train[0].items()
        ),
    }
    facts = Table(box=None, show_header=False, pad_edge=False)
    for key, value in lines.items():
        facts.add_row(key, value)
    labels = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("label", "training examples", "clients"):
        labels.add_column(column, justify="right")
    # label_counts has shape (clients, labels)
    for label, column in enumerate(federated.label_counts.T):
        labels.add_row(str(label), f"{column.sum():,}", str((column > 0).sum()))
    return Group(Text(federated.name, style="bold"), facts, Text(), labels)


def _format_spread(values: np.ndarray) -> str:
    import numpy as np

    return (
        f"{values.min():,} to {values.max():,}, median {np.median(values):,g}, mean "
        f"{values.mean():,.1f}"
    )


def _format_array(name: str, values: np.ndarray) -> str:
    return f"{name} {values.dtype}" + (f" {list(values.shape[1:])}" if values.ndim > 1 else "")
