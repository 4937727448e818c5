"""`fedax graph`: a graph's picture, degrees, lambda and bits per round."""

import inspect
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from rich.console import Console
from rich.table import Table

from fedax.cli.tables import show
from fedax.core import InvalidInput, UnknownName
from fedax.experiments.config.sections import CodecSection
from fedax.experiments.config.shorthand import parse_section
from fedax.graphs import TOPOLOGIES, Graph

RANDOM = ("random_regular", "erdos_renyi", "small_world")
"""Graphs that are drawn, by the names of their constructors."""
WIDTH, HEIGHT = 56, 22
"""Size of the picture in a terminal, in letters."""


def parse_graph(text: str, clients: int) -> Graph:
    """A graph from `name:key=value,...`.

    >>> parse_graph("random_regular:degree=4", 10).name
    'random_regular(4)'

    Raises:
        InvalidInput: an unknown name or option, or a value out of range.
    """
    section = parse_section(text)
    name, options = section.pop("name"), section
    if name not in (*TOPOLOGIES, *RANDOM):
        raise UnknownName.among("graph", name, (*TOPOLOGIES, *RANDOM))
    parameters = inspect.signature(getattr(Graph, name)).parameters
    known = [key for key in parameters if key not in ("clients", "options")] + ["mixing"] * ("options" in parameters)
    for key in options:
        if key not in known:
            raise UnknownName.among(f"option of graph {name!r}", key, known)
    for key in known:
        if key in parameters and parameters[key].default is inspect.Parameter.empty and key not in options:
            raise InvalidInput.found(f"graph {name!r}", f"no {key}", f"{name}:{key}=...")
    return getattr(Graph, name)(clients, **options)


def parse_codec(text: str) -> Any:
    """A codec from `name:key=value,...`, as `quantizer:b=8`."""
    return CodecSection.model_validate(parse_section(text)).make()


def show_graph(texts: list[str], clients: int, dim: int, codecs: list[str], picture: Path | None) -> None:
    """Prints what there is to know; writes the picture of the first graph as an image, if a file is given."""
    console = Console()
    graphs = [parse_graph(text, clients) for text in texts]
    coders = {text: parse_codec(text) for text in codecs}
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for title in (
        "graph",
        "clients",
        "links",
        "degrees",
        "lambda",
        "1 - lambda",
        *(f"bits a round, {text}" for text in coders),
    ):
        table.add_column(title, justify="left" if title == "graph" else "right")
    for graph in graphs:
        degrees = np.asarray(graph.degrees)[0]
        spread = str(degrees.min()) if degrees.min() == degrees.max() else f"{degrees.min()}-{degrees.max()}"
        bits = (f"{coder.bits(dim) * int(degrees.sum()):,}" for coder in coders.values())
        table.add_row(
            graph.name, str(clients), str(degrees.sum() // 2), spread, f"{graph.lam:.5f}", f"{graph.spectral_gap:.5f}", *bits
        )
    if len(graphs) == 1 and clients > 1:
        console.print(drawn(graphs[0]), markup=False, highlight=False)
    show(table, console)
    console.print(f"bits: a model of {dim:,} numbers, one message to every neighbour", style="dim", highlight=False)
    if picture is not None:
        write_picture(graphs[0], picture)
        console.print(f"Picture: {picture}", markup=False, highlight=False, soft_wrap=True)


def positions(graph: Graph) -> np.ndarray:
    """Places in the unit square, shape (clients, 2): rings and the like on a circle, others by springs."""
    network = graph.network()
    round_ = graph.name in ("ring", "exponential", "complete", "isolated") or graph.name.startswith("small_world")
    layout = nx.circular_layout(network) if round_ else nx.spring_layout(network, seed=0, iterations=200)
    places = np.array([layout[i] for i in range(graph.clients)])
    low, high = places.min(0), places.max(0)
    return (places - low) / np.where(high > low, high - low, 1)


def drawn(graph: Graph) -> str:
    """The picture as text: clients as numbers, links as dots."""
    places = positions(graph) * [WIDTH - 3, HEIGHT - 1]
    page = np.full((HEIGHT, WIDTH), " ")
    for i, j in graph.network().edges:
        steps = np.linspace(0, 1, 2 * int(np.abs(places[i] - places[j]).max()) + 2)[:, None]
        line = np.rint(places[i] + steps * (places[j] - places[i])).astype(int)
        page[line[:, 1], line[:, 0]] = "\N{MIDDLE DOT}"
    for i, (x, y) in enumerate(np.rint(places).astype(int)):
        for offset, letter in enumerate(str(i)[: WIDTH - x]):
            page[y, x + offset] = letter
    return "\n".join("".join(row).rstrip() for row in page)


def write_picture(graph: Graph, path: Path) -> None:
    """A self-contained HTML page with the graph."""
    import plotly.graph_objects as go

    places = positions(graph)
    ends = [np.array([places[i], places[j], [np.nan, np.nan]]) for i, j in graph.network().edges]
    lines = np.concatenate([*ends, np.zeros((0, 2))])
    numbers = [f"client {i}" for i in range(graph.clients)]
    figure = go.Figure(
        [
            go.Scatter(x=lines[:, 0], y=lines[:, 1], mode="lines", line={"width": 1, "color": "#9aa0a6"}, hoverinfo="skip"),
            go.Scatter(
                x=places[:, 0], y=places[:, 1], mode="markers", marker={"size": 12, "color": "#1f6feb"}, text=numbers
            ),
        ]
    )
    hidden = {"visible": False}
    title = f"{graph.name}, {graph.clients} clients, lambda = {graph.lam:.5f}"
    figure.update_layout(title=title, showlegend=False, xaxis=hidden, yaxis=hidden, template="plotly_white")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
