"""`fedax graph`: degrees, lambda and bits per round of graphs of clients."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax.cli.command import next_step
from fedax.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from fedax.graphs import Graph


def graph(
    graphs: Annotated[
        list[str],
        typer.Argument(
            help="Graphs, such as ring, torus or random_regular:degree=4.", metavar="GRAPH..."
        ),
    ],
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 20,
    dim: Annotated[int, typer.Option(min=1, help="Numbers of the model, for the bits.")] = 199_210,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            help="Codec for the bits, as name:key=value; may be repeated.", show_default=False
        ),
    ] = None,
) -> None:
    """Show degrees, lambda and bits per round of graphs.

    Example:
    `fedax graph ring torus random_regular:degree=4 --clients 20 --codec none --codec quantizer:b=8`
    """
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    # the terminal breaks long lines: no cell is cut
    console = Console(width=2_000)
    # all arguments are parsed before anything is printed
    parsed = [parse_graph(text, clients) for text in graphs]
    coders = {text: parse_codec(text) for text in codec or ["none", "quantizer:b=8"]}
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for title in (
        "graph",
        "clients",
        "rounds",
        "links",
        "degrees",
        "lambda",
        "1 - lambda",
        *(f"bits a round, {text}" for text in coders),
    ):
        table.add_column(title, justify="left" if title == "graph" else "right")
    for topology in parsed:
        # shape (rounds of the period, clients)
        degrees = np.asarray(topology.degrees)
        low, high = degrees.min(), degrees.max()
        links = np.mean([topology.network(t).number_of_edges() for t in range(topology.period)])
        # messages of a round, in the mean over the period
        messages = degrees.sum(1).mean()
        # lambda is that of doubly stochastic matrices only
        has_lambda = topology.sums == "both"
        table.add_row(
            topology.name,
            str(clients),
            str(topology.period),
            f"{links:g}",
            f"{low}" if low == high else f"{low}-{high}",
            f"{topology.lam:.5f}" if has_lambda else "-",
            f"{topology.spectral_gap:.5f}" if has_lambda else "-",
            *(f"{coder.bits(dim) * messages:,.0f}" for coder in coders.values()),
        )
    console.print(table)
    console.print(
        f"bits: a model of {dim:,} numbers, one message to every neighbour; links, bits: means "
        "over the rounds",
        style="dim",
        highlight=False,
    )
    method = f"dfedavgm:topology={parsed[0].name.partition('(')[0]}"
    next_step("trains on it.", "compare", method, "--task", f"synthetic:clients={clients}")


def constructors() -> dict[str, list[str]]:
    """Returns the graphs that a number of clients and options determine, with their options.

    >>> constructors()["erdos_renyi"]
    ['p', 'seed', 'options']
    """
    from fedax.graphs import Graph

    options_by_graph = {}
    for name, member in vars(Graph).items():
        if isinstance(member, classmethod) and not name.startswith("_"):
            # graphs from a matrix or edges do not begin with a number of clients
            first, *options = inspect.signature(getattr(Graph, name)).parameters
            if first == "clients":
                options_by_graph[name] = options
    return options_by_graph


def parse_graph(text: str, clients: int) -> Graph:
    """Parses `name:key=value,...` as a graph of some clients.

    >>> parse_graph("random_regular:degree=4", 10).name
    'random_regular(4)'

    Raises:
        InvalidInput: an unknown name or option, or a value out of range.
    """
    from fedax.experiments.config.shorthand import parse_section
    from fedax.graphs import Graph

    section = parse_section(text)
    name, options = section.pop("name"), section
    if name not in (graphs := constructors()):
        raise UnknownName.among("graph", name, tuple(graphs))
    parameters = inspect.signature(getattr(Graph, name)).parameters
    # `**options` of a graph stands for its mixing weights
    option_names = ["mixing" if key == "options" else key for key in graphs[name]]
    for key in options:
        if key not in option_names:
            raise UnknownName.among(f"option of graph {name!r}", key, option_names)
    # options without a default have to be given
    for key in option_names:
        if (
            key in parameters
            and parameters[key].default is inspect.Parameter.empty
            and key not in options
        ):
            raise InvalidInput.found(f"graph {name!r}", f"no {key}", f"{name}:{key}=...")
    return getattr(Graph, name)(clients, **options)


def parse_codec(text: str) -> Any:
    """Parses `name:key=value,...` as a codec, such as `quantizer:b=8`."""
    from fedax.experiments.config.sections import CodecSection
    from fedax.experiments.config.shorthand import parse_section

    return CodecSection.model_validate(parse_section(text)).make()
