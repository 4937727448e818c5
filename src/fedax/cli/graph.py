"""`fedax graph`: degrees, lambda and bits per round of graphs of clients."""

from typing import Annotated, Any

from typer import Argument, Option, echo

from fedax.cli.command import next_step, print_table


def graph(
    graphs: Annotated[
        list[str],
        Argument(
            help="Graphs, such as ring, torus or random_regular:degree=4.", metavar="GRAPH..."
        ),
    ],
    clients: Annotated[int, Option(min=1, help="Number of clients.")] = 20,
    dim: Annotated[int, Option(min=1, help="Numbers of the model, for the bits.")] = 199_210,
    codec: Annotated[
        list[str] | None,
        Option(help="Codec for the bits, as name:key=value; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Show degrees, lambda and bits per round of graphs.

    Example:
    `fedax graph ring torus random_regular:degree=4 --clients 20 --codec none --codec quantizer:b=8`
    """
    import numpy as np

    from fedax.communication.codecs import make_codec
    from fedax.experiments.config.shorthand import parse_section

    # all arguments are parsed before anything is printed
    parsed = [parse_graph(text, clients) for text in graphs]
    coders = {
        text: make_codec(**parse_section(text)) for text in codec or ["none", "quantizer:b=8"]
    }
    rows = []
    for topology in parsed:
        # shape (rounds of the period, clients)
        degrees = np.asarray(topology.degrees)
        low = degrees.min()
        high = degrees.max()
        links = np.mean([topology.network(t).number_of_edges() for t in range(topology.period)])
        # messages of a round, in the mean over the period
        messages = degrees.sum(1).mean()
        row = {
            "graph": topology.name,
            "clients": clients,
            "rounds": topology.period,
            "links": f"{links:g}",
            "degrees": low if low == high else f"{low}-{high}",
            "lambda": "-",
        }
        # lambda is that of doubly stochastic matrices only
        if topology.sums == "both":
            row["lambda"] = f"{topology.lam:.5f}"
        for text, coder in coders.items():
            row[f"bits a round, {text}"] = f"{coder.bits(dim) * messages:,.0f}"
        rows.append(row)
    print_table(rows, right=[*rows[0]][1:])
    echo(
        f"bits: a model of {dim:,} numbers, one message to every neighbour; links, bits: means "
        "over the rounds"
    )
    task = f"synthetic:clients={clients}"
    next_step("trains on a graph.", "compare", "dfedavgm:topology=ring", "--task", task)


def parse_graph(text: str, clients: int) -> Any:
    """Parses `name:key=value,...` as a graph of some clients.

    >>> parse_graph("random_regular:degree=4", 10).name
    'random_regular(4)'

    Raises:
        InvalidInput: an unknown name or option, or a value out of range.
    """
    from networkx import NetworkXError

    from fedax.errors import InvalidInput, UnknownName
    from fedax.experiments.config.shorthand import parse_section
    from fedax.graphs import TOPOLOGIES, Graph

    options = parse_section(text)
    name = options.pop("name")
    # those that a number of clients and options determine
    names = (*TOPOLOGIES, "random_regular", "erdos_renyi")
    if name not in names:
        raise UnknownName.among("graph", name, names)
    try:
        return getattr(Graph, name)(clients, **options)
    except (TypeError, NetworkXError) as error:
        raise InvalidInput.because(f"graph {text!r}", str(error)) from error
