"""`fedax graph`: graphs of clients as a picture, with degrees, lambda and bits per round."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    import numpy as np

    from fedax.graphs import Graph

WIDTH, HEIGHT = 56, 22
"""Size of the picture in a terminal, in characters."""


def graph(
    graphs: Annotated[
        list[str],
        typer.Argument(help="One or more of {graphs}.", metavar="GRAPH..."),
    ],
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 20,
    dim: Annotated[int, typer.Option(min=1, help="Numbers of the model, for the bits.")] = 199_210,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            help="Codec for the bits, as name:key=value; may be repeated.", show_default=False
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="HTML file for a picture of the first graph.")
    ] = None,
) -> None:
    """Show graphs of clients: picture, degrees, lambda, bits per round.

    Example:
    `fedax graph ring torus random_regular:degree=4 --clients 20 --codec none --codec quantizer:b=8`
    """
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from fedax.cli.tables import show

    console = Console()
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
    if len(parsed) == 1 and clients > 1:
        console.print(draw_text(parsed[0]), markup=False, highlight=False)
        if parsed[0].period > 1:
            console.print(f"round 0 of {parsed[0].period}", style="dim", highlight=False)
    show(table, console)
    console.print(
        f"bits: a model of {dim:,} numbers, one message to every neighbour; links, bits: means "
        "over the rounds",
        style="dim",
        highlight=False,
    )
    if picture is not None:
        write_picture(parsed[0], picture)
        console.print(f"Picture: {picture}", markup=False, highlight=False, soft_wrap=True)


def constructors() -> dict[str, list[str]]:
    """Returns the graphs that a number of clients and options determine, with their options.

    >>> constructors()["base_k"]
    ['k']
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


def usage(name: str) -> str:
    """Returns a graph as the command takes it, such as `random_regular:degree=...`."""
    from fedax.graphs import Graph

    parameters = inspect.signature(getattr(Graph, name)).parameters
    needed = [
        f"{key}=..."
        for key in constructors()[name]
        if key != "options" and parameters[key].default is inspect.Parameter.empty
    ]
    return f"{name}:{','.join(needed)}" if needed else name


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


def positions(graph: Graph) -> np.ndarray:
    """Returns positions in the unit square, shape (clients, 2).

    Clients of rings and similar graphs lie on a circle, others where a spring model puts them.
    """
    import networkx as nx
    import numpy as np

    network = graph.network()
    circular = graph.name in (
        "ring",
        "exponential",
        "one_peer_exponential",
        "complete",
        "isolated",
    ) or graph.name.startswith("small_world")
    layout = (
        nx.circular_layout(network)
        if circular
        else nx.spring_layout(network, seed=0, iterations=200)
    )
    # scaled to the unit square; a side without extent is divided by 1
    coordinates = np.array([layout[i] for i in range(graph.clients)])
    low, high = coordinates.min(0), coordinates.max(0)
    return (coordinates - low) / np.where(high > low, high - low, 1)


def draw_text(graph: Graph) -> str:
    """Draws a graph as text: clients as numbers, links as dots."""
    import numpy as np

    # columns and rows; three columns are left for the last client's number
    coordinates = positions(graph) * [WIDTH - 3, HEIGHT - 1]
    canvas = np.full((HEIGHT, WIDTH), " ")
    for i, j in graph.network().edges:
        # at least two points for each character that a link crosses
        steps = np.linspace(0, 1, 2 * int(np.abs(coordinates[i] - coordinates[j]).max()) + 2)[
            :, None
        ]
        line = np.rint(coordinates[i] + steps * (coordinates[j] - coordinates[i])).astype(int)
        canvas[line[:, 1], line[:, 0]] = "\N{MIDDLE DOT}"
    # numbers are written over the links
    for i, (x, y) in enumerate(np.rint(coordinates).astype(int)):
        for offset, letter in enumerate(str(i)[: WIDTH - x]):
            canvas[y, x + offset] = letter
    return "\n".join("".join(row).rstrip() for row in canvas)


def write_picture(graph: Graph, path: Path) -> None:
    """Writes a self-contained HTML page with the graph."""
    import numpy as np
    import plotly.graph_objects as go

    coordinates = positions(graph)
    # NaN between two links, so that no line joins them
    segments = [
        np.array([coordinates[i], coordinates[j], [np.nan, np.nan]])
        for i, j in graph.network().edges
    ]
    lines = np.concatenate([*segments, np.zeros((0, 2))])
    numbers = [f"client {i}" for i in range(graph.clients)]
    figure = go.Figure(
        [
            go.Scatter(
                x=lines[:, 0],
                y=lines[:, 1],
                mode="lines",
                line={"width": 1, "color": "#9aa0a6"},
                hoverinfo="skip",
            ),
            go.Scatter(
                x=coordinates[:, 0],
                y=coordinates[:, 1],
                mode="markers",
                marker={"size": 12, "color": "#1f6feb"},
                text=numbers,
            ),
        ]
    )
    hidden = {"visible": False}
    title = f"{graph.name}, {graph.clients} clients"
    if graph.sums == "both":  # lambda is that of doubly stochastic matrices only
        title += f", lambda = {graph.lam:.5f}"
    figure.update_layout(
        title=title, showlegend=False, xaxis=hidden, yaxis=hidden, template="plotly_white"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
