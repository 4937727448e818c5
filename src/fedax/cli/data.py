"""`fedax data`: lists, describes and prepares data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Typer, echo

from fedax.cli.command import Command, Commands, next_step, print_table

if TYPE_CHECKING:
    import numpy as np

    from fedax.data import FederatedData

app = Typer(cls=Commands, no_args_is_help=True, help="List, describe and prepare data sets.")

Named = Annotated[str, Argument(help="Data set, as name:key=value,...", metavar="NAME")]


@app.command(name="list", cls=Command)
def list_datasets() -> None:
    """List datasets and how to download them."""
    from fedax.data import data_folder
    from fedax.tasks.sources import DATASETS

    rows = []
    for name, entry in DATASETS.items():
        # where the files come from: fetched, the user's, or none because the data are made
        files = "your own" if entry.reads_folder or name in ("table", "stored") else "none"
        if entry.files:
            files = "fetched by prepare"
        rows.append({"name": name, "files": files, "what": entry.about})
    print_table(rows)
    echo(
        f"\nFiles are looked for in {data_folder()}; the variable FEDAX_DATA names another folder."
    )
    next_step("describes one of them.", "data", "describe", "NAME")


@app.command(cls=Command)
def describe(name: Named) -> None:
    """Describe a data set under a partition: clients, sizes, labels, and its options.

    Example: `fedax data describe mnist:partition=dirichlet,alpha=0.1,clients=100`
    """
    from fedax.data.options import json_schema
    from fedax.experiments.config.shorthand import parse_section
    from fedax.tasks.sources import load, task_options

    section = parse_section(name)
    _print_examples(load(**section))
    source = section.pop("name")
    rows = []
    # options of the task, of the data set and of the chosen partition
    for key, schema in json_schema(task_options(source, section)).items():
        value = section.get(key, schema.pop("default", ""))
        rows.append({"option": key, "value": value, "allowed": _describe_range(schema)})
    echo()
    print_table(rows)
    next_step("compares methods on it.", "compare", "fedavg", "scaffold", "--task", name)


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


@app.command(name="prepare", cls=Command)
def prepare_datasets(
    names: Annotated[list[str], Argument(help="Data sets.", metavar="NAME...")],
) -> None:
    """Fetch the files of data sets if they are missing, and verify their content.

    They go to the data folder, which `fedax data list` names.
    """
    from fedax.tasks.sources import dataset, prepare

    # all names first
    for name in names:
        dataset(name)
    for name in names:
        echo(f"{name}: {prepare(name)}")
    next_step("describes it.", "data", "describe", names[0])


def _print_examples(federated: FederatedData) -> None:
    """Prints counts, sizes and labels."""
    lines = federated.summary | {"train examples of a client": _format_spread(federated.sizes)}
    print_table([{federated.name: name, "": value} for name, value in lines.items()])
    if federated.classes is None:
        return
    # shape (clients, labels)
    counts = federated.label_counts
    echo(f"\nlabels that a client has: {_format_spread((counts > 0).sum(1))}\n")
    labels = [
        {"label": label, "training examples": f"{column.sum():,}", "clients": (column > 0).sum()}
        for label, column in enumerate(counts.T)
    ]
    print_table(labels, right=[*labels[0]])


def _format_spread(values: np.ndarray) -> str:
    import numpy as np

    return (
        f"{values.min():,} to {values.max():,}, median {np.median(values):,g}, mean "
        f"{values.mean():,.1f}"
    )
