"""Constructors of graphs."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from fedax.errors import InvalidInput, UnknownName
from fedax.examples import client_names
from fedax.examples.arrays import as_array
from fedax.graphs.weights import MixingWeights
from fedax.numerics.mixing import (
    MIXINGS,
    check_connected,
    check_connected_in_time,
    check_mixing_matrix,
    network_rows,
    sides,
    tables,
)
from fedax.utils.numbers import with_python_numbers

ATTEMPTS = 100
"""The most draws of a random graph until it is connected."""


class Graph(MixingWeights):
    r"""A graph of clients with its mixing matrix W: $x_i \leftarrow \sum_l w_{il} x_l$ is one
    exchange with the neighbours.

    W is symmetric and doubly stochastic with $\mathrm{null}(I - W) = \mathrm{span}(\mathbf 1)$ and
    $I \succeq W \succ -I$ (Def. 1 of the paper), unless it is directed or lossy; made by
    `Graph.of`, `Graph.given`, the named topologies, or `Graph.sequence` for a graph that changes
    from round to round.

    Attributes:
        neighbours: for each round of the period and each client, itself and its neighbours; itself
            again as padding.
        weights: their $w_{il}$; 0 for padding.
        name: for tables and messages.
        nodes: names of the nodes, None for numbers. A run puts them into the order of its task's
            clients.
        drops, repair, fails, recovers: see `lossy`.
        noise: see `noisy`.
        awake: see `sleeping`.

    >>> ring = Graph.ring(20)
    >>> round(ring.lam, 5), ring.degrees.tolist() == [[2] * 20]
    (0.96737, True)

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, Def. 1; Metropolis-Hastings
    and max-degree weights: Boyd, Diaconis and Xiao, Fastest mixing Markov chain on a graph, SIAM
    Review 46(4), 2004.
    """

    @classmethod
    def of(
        cls,
        network: Any,
        mixing: str = "metropolis_hastings",
        *,
        name: str = "graph",
        connected: bool = True,
        order: Iterable[Any] | None = None,
    ) -> "Graph":
        r"""Makes a graph of an undirected NetworkX graph, whose nodes are the clients.

        Nodes that are the numbers from 0 on are the clients of these numbers, in whatever order
        they were added.

        Args:
            network: a `networkx.Graph`; loops and attributes do not matter.
            mixing: "metropolis_hastings", $w_{il} = 1 / (1 + \max(d_i, d_l))$, or "max_degree",
                $w_{il} = 1 / (1 + \max_j d_j)$, on the links; the rest of each row stands on the
                diagonal.
            connected: False allows a graph in several parts, for the members of a sequence and for
                comparisons.
            order: all nodes in the order of the clients, such as `task.names`; nodes that are text
                need it, others are taken as they were added. In a run on clients with names, text
                means the client of that name.

        Raises:
            InvalidInput: a directed graph, one without nodes, or one that is not connected; another
                order than that of all nodes.

        >>> import networkx
        >>> friends = networkx.Graph([("berta", "anna"), ("berta", "carl")])
        >>> Graph.of(friends, order=["anna", "berta", "carl"]).degrees.tolist()
        [[1, 2, 1]]
        """
        if not isinstance(network, nx.Graph) or network.is_directed() or network.is_multigraph():
            raise InvalidInput.found(
                "Graph.of(network=...)", type(network).__name__, "undirected graphs of NetworkX"
            )
        if mixing not in MIXINGS:
            raise UnknownName.among("Graph.of(mixing=...)", mixing, MIXINGS)
        clients = len(network)
        if not clients:
            raise InvalidInput.found("Graph.of(network=...)", "0 nodes", "at least one node")
        nodes = client_names.ordered_nodes(network, order)
        # client number of each node of the network
        client_of = {node: i for i, node in enumerate(nodes)}
        # without loops: `network_rows` puts the rest of each row on the diagonal
        links: list[list[int]] = [
            sorted({client_of[v] for v in network[u]} - {client_of[u]}) for u in nodes
        ]
        rows = network_rows(links, mixing)
        check_connected(rows, name, connected)
        return cls(*tables([rows]), name, client_names.names_of_nodes(nodes))

    @classmethod
    def given(cls, matrix: Any, *, name: str = "given matrix", connected: bool = True) -> "Graph":
        """Makes a graph of a mixing matrix, shape (clients, clients); two clients are linked where
        it is not zero.

        A data frame with text as index names the clients; its columns have the same names in the
        same order.

        Raises:
            InvalidInput: a matrix that is not square, finite, symmetric, stochastic, connected, or
                has the eigenvalue -1.
        """
        field = "Graph.given(matrix=...)"
        w = as_array(matrix, field).astype(float)
        nodes = client_names.names_of_frame(matrix, field)
        check_mixing_matrix(w, field)
        rows = [
            # the own weight is listed even where it is 0, because `tables` looks it up
            {i: float(w[i, i]), **{int(j): float(w[i, j]) for j in np.flatnonzero(w[i]) if j != i}}
            for i in range(len(w))
        ]
        check_connected(rows, name, connected)
        return cls(*tables([rows]), name, nodes)

    @classmethod
    def sequence(cls, graphs: Sequence["Graph"], *, name: str = "sequence") -> "Graph":
        """Makes a graph that changes: round t uses `graphs[t % len(graphs)]`. Together they must be
        connected, strongly if they are directed.

        Raises:
            InvalidInput: no graph, different numbers of clients, parts that never meet, or clients
                that some others never hear of.
        """
        if not graphs or len({graph.clients for graph in graphs}) > 1:
            sizes = [graph.clients for graph in graphs]
            raise InvalidInput.of(
                "Graph.sequence(graphs=...)",
                sizes,
                "at least one graph, all with equally many clients",
            )
        if any(graph.is_random or graph.noise for graph in graphs):
            raise InvalidInput.found(
                "Graph.sequence(graphs=...)",
                "a graph with losses, noise or sleeping clients",
                "graphs without them",
                "Add them to the sequence.",
            )
        named_graphs = [graph for graph in graphs if graph.nodes is not None]
        if named_graphs and any(
            graph.nodes is None or list(graph.nodes) != list(named_graphs[0].nodes or ())
            for graph in graphs
        ):
            allowed = "graphs whose nodes have the same names in the same order"
            raise InvalidInput.found(
                "Graph.sequence(graphs=...)", "other names", allowed, "Give all the same order=..."
            )
        # a graph that changes itself contributes every round of its period
        rows = [graph._rows(t) for graph in graphs for t in range(graph.period)]
        check_connected_in_time(rows, "Graph.sequence(graphs=...)", "Add links.")
        return cls(*tables(rows), name, named_graphs[0].nodes if named_graphs else None)

    @classmethod
    @with_python_numbers
    def ring(cls, clients: int, **options: Any) -> "Graph":
        """Links every client with the next one and the one before."""
        return cls._make_circulant(clients, [1], "ring", options)

    @classmethod
    @with_python_numbers
    def exponential(cls, clients: int, **options: Any) -> "Graph":
        """Links every client with those 1, 2, 4, ... places away on the ring, up to half of it.

        The jumps are the powers of two that are at most clients / 2.
        """
        return cls._make_circulant(
            clients,
            # a link of more than half the ring is a shorter one the other way round: of 7 clients,
            # 4 places on is 3 back, which is no power of two and therefore no link
            [2**k for k in range(max(clients // 2, 1).bit_length())],
            "exponential",
            options,
        )

    @classmethod
    @with_python_numbers
    def complete(cls, clients: int, **options: Any) -> "Graph":
        """Links all clients: all weights are 1/clients, and one exchange is the mean."""
        return cls.of(nx.complete_graph(_check_count(clients)), name="complete", **options)

    @classmethod
    @with_python_numbers
    def star(cls, clients: int, **options: Any) -> "Graph":
        """Links client 0 with all others."""
        return cls.of(nx.star_graph(_check_count(clients) - 1), name="star", **options)

    @classmethod
    @with_python_numbers
    def grid(cls, clients: int, **options: Any) -> "Graph":
        """Makes a rectangle as square as `clients` allows; a client has up to four neighbours."""
        return cls.of(nx.grid_2d_graph(*sides(_check_count(clients))), name="grid", **options)

    @classmethod
    @with_python_numbers
    def torus(cls, clients: int, **options: Any) -> "Graph":
        """Makes a grid whose borders are joined."""
        return cls.of(
            nx.grid_2d_graph(*sides(_check_count(clients)), periodic=True),
            name="torus",
            **options,
        )

    @classmethod
    @with_python_numbers
    def isolated(cls, clients: int) -> "Graph":
        """Makes W = I: no client talks. For comparisons; it is not connected."""
        return cls.of(nx.empty_graph(_check_count(clients)), name="isolated", connected=False)

    @classmethod
    @with_python_numbers
    def random_regular(cls, clients: int, degree: int, seed: int = 0, **options: Any) -> "Graph":
        """Draws uniformly from the connected graphs in which each client has `degree` neighbours;
        `clients * degree` is even.
        """
        # other degrees have no simple regular graph
        if not (0 < degree < clients and clients * degree % 2 == 0):
            allowed = f"1 to {clients - 1}, with an even product of clients and degree"
            raise InvalidInput.of("Graph.random_regular(degree=...)", degree, allowed)
        return cls._draw_connected(
            lambda rng: nx.random_regular_graph(degree, clients, rng),
            "random_regular",
            degree,
            seed,
            options,
        )

    @classmethod
    @with_python_numbers
    def erdos_renyi(cls, clients: int, p: float, seed: int = 0, **options: Any) -> "Graph":
        """Draws every link with probability `p` in (0, 1], drawn again until the graph is
        connected.
        """
        if not 0 < p <= 1:
            raise InvalidInput.of("Graph.erdos_renyi(p=...)", p, "numbers in (0, 1]")
        return cls._draw_connected(
            lambda rng: nx.gnp_random_graph(_check_count(clients), p, rng),
            "erdos_renyi",
            p,
            seed,
            options,
        )

    @classmethod
    def directed(
        cls,
        network: Any,
        stochastic: str = "column",
        *,
        name: str = "directed",
        order: Iterable[Any] | None = None,
    ) -> "Graph":
        r"""Makes a graph of a directed NetworkX graph: an edge (u, v) carries messages from u to v.

        Args:
            network: a `networkx.DiGraph`; loops and attributes do not matter.
            stochastic: "column", $w_{il} = 1 / (1 + d_l)$ with $d_l$ the receivers of l: everybody
                divides what it has, as push-sum needs it; or "row", $w_{il} = 1 / (1 + d_i)$ with
                $d_i$ the senders to i: everybody averages what it hears.
            name, order: as in `Graph.of`.

        Raises:
            InvalidInput: an undirected graph, one without nodes, or one that is not strongly
                connected.

        >>> import networkx
        >>> cycle = Graph.directed(networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
        >>> cycle.matrix().round(2).tolist()
        [[0.33, 0.0, 0.5], [0.33, 0.5, 0.0], [0.33, 0.5, 0.5]]
        """
        if not isinstance(network, nx.DiGraph) or network.is_multigraph() or not len(network):
            raise InvalidInput.found(
                "Graph.directed(network=...)", type(network).__name__, "directed graphs with nodes"
            )
        if stochastic not in ("column", "row"):
            raise UnknownName.among("Graph.directed(stochastic=...)", stochastic, ("column", "row"))
        if not nx.is_strongly_connected(network):
            raise InvalidInput.found(
                name,
                "clients that some others never hear of",
                "strongly connected graphs",
                "Add links.",
            )
        nodes = client_names.ordered_nodes(network, order)
        # senders of each client by number, without loops
        senders = [
            sorted({nodes.index(v) for v in network.predecessors(u)} - {i})
            for i, u in enumerate(nodes)
        ]
        receivers = [sum(i in heard for heard in senders) for i in range(len(senders))]
        rows: list[dict[int, float]] = []
        for i, heard in enumerate(senders):
            if stochastic == "column":
                rows.append({j: 1 / (1 + receivers[j]) for j in [i, *heard]})
            else:
                rows.append(dict.fromkeys([i, *heard], 1 / (1 + len(heard))))
        return cls(*tables([rows]), name, client_names.names_of_nodes(nodes))

    @classmethod
    @with_python_numbers
    def named(cls, topology: str, clients: int) -> "Graph":
        """Makes a topology of `TOPOLOGIES`.

        Raises:
            UnknownName: no such topology.
        """
        if topology not in TOPOLOGIES:
            raise UnknownName.among("topology", topology, TOPOLOGIES)
        return getattr(cls, topology)(clients)

    @classmethod
    def _make_circulant(
        cls, clients: int, jumps: list[int], name: str, options: dict[str, Any]
    ) -> "Graph":
        return cls.of(nx.circulant_graph(_check_count(clients), jumps), name=name, **options)

    @classmethod
    def _draw_connected(
        cls,
        draw: Callable[[int], Any],
        name: str,
        parameter: float,
        seed: int,
        options: dict[str, Any],
    ) -> "Graph":
        for attempt in range(ATTEMPTS):
            # different seeds never share an attempt
            network = draw(seed * ATTEMPTS + attempt)
            if nx.is_connected(network):
                return cls.of(
                    network, name=f"{name}({parameter:g})", order=list(network), **options
                )
        allowed = "enough links for a connected graph"
        raise InvalidInput.found(
            f"Graph.{name}", f"{ATTEMPTS} draws with {parameter:g}, none of them connected", allowed
        )

    @with_python_numbers
    def network(self, round: int = 0) -> Any:
        """Returns the links of a round as a NetworkX graph; directed, from sender to receiver, if
        some go one way.
        """
        # as (sender, receiver): row i lists the clients that i hears
        links = {(j, i) for i, row in enumerate(self._rows(round)) for j in row if i != j}
        one_way = any((j, i) not in links for i, j in links)
        network = nx.empty_graph(self.clients, create_using=nx.DiGraph if one_way else nx.Graph)
        # an undirected graph has each link once, a directed one both directions
        network.add_edges_from(sorted(link for link in links if one_way or link[0] < link[1]))
        return network

    def renumbered(self, order: Sequence[int]) -> "Graph":
        """Returns the same graph where the client `order[i]` has become client i."""
        # new number of each client by its old one
        new_number = {old: i for i, old in enumerate(order)}
        if sorted(new_number) != list(range(self.clients)):
            raise InvalidInput.of(
                "Graph.renumbered(order=...)", list(order), f"an order of 0 to {self.clients - 1}"
            )
        steps = [self._rows(t) for t in range(self.period)]
        neighbours, weights = tables(
            [[{new_number[j]: w for j, w in rows[old].items()} for old in order] for rows in steps]
        )
        nodes = None if self.nodes is None else self.nodes.taken(order)
        return dataclasses.replace(self, neighbours=neighbours, weights=weights, nodes=nodes)

    def bound_to(self, names: Sequence[str] | None, clients: int) -> "Graph":
        """Returns the graph with its nodes in the order of the clients of these names.

        Args:
            names: of a task's clients; None if they have none.
            clients: how many there are.

        Raises:
            InvalidInput: nodes that have other names than the clients.
        """
        # without names on either side, node i is client i
        if self.nodes is None or names is None or list(self.nodes) == list(names):
            return self
        return self.renumbered(client_names.node_indices(names, self.nodes, "graph"))


TOPOLOGIES = ("ring", "torus", "grid", "exponential", "star", "complete", "isolated")
"""Graphs that are known once the number of clients is."""


def _check_count(number: int, field: str = "clients") -> int:
    if not isinstance(number, int) or number < 1:
        raise InvalidInput.of(f"Graph({field}=...)", number, "whole numbers >= 1")
    return number
