"""Graphs of clients with their mixing matrices, and what happens to messages on the way."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.hyper import check_declared, hyper
from fedax.errors import InvalidInput, UnknownName
from fedax.examples import client_names
from fedax.examples.arrays import as_array
from fedax.examples.client_names import ClientNames
from fedax.numerics import links
from fedax.utils.random import Index

ATTEMPTS = 100
"""The most draws of a random graph until it is connected."""
TOLERANCE = 1e-9
"""The tolerance on sums and symmetry of a given matrix."""
MIXINGS = ("metropolis_hastings", "max_degree")
"""Rules for the weights of links, from the degrees of both ends or from the largest one."""


class Graph(eqx.Module):
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
        drops, repair: see `lossy`.

    >>> ring = Graph.ring(20)
    >>> round(ring.lam, 5), ring.degrees.tolist() == [[2] * 20]
    (0.96737, True)

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, Def. 1; Metropolis-Hastings
    and max-degree weights: Boyd, Diaconis and Xiao, Fastest mixing Markov chain on a graph, SIAM
    Review 46(4), 2004.
    """

    # in each row the client itself comes first, and again as padding up to the width
    neighbours: Int[Array, "period clients width"]
    weights: Float[Array | np.ndarray, "period clients width"]
    name: str = eqx.field(static=True, default="graph")
    nodes: ClientNames | None = eqx.field(static=True, default=None)
    drops: float = hyper(0.0, static=True, low=0.0, high=1.0, open_high=True)
    repair: str = hyper("receiver", choices=("receiver", "sender", "both"))

    def __check_init__(self) -> None:
        check_declared(self)

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
        if not isinstance(network, nx.Graph) or network.is_directed():
            got = type(network).__name__
            raise InvalidInput.found("Graph.of(network=...)", got, "undirected graphs of NetworkX")
        if mixing not in MIXINGS:
            raise UnknownName.among("Graph.of(mixing=...)", mixing, MIXINGS)
        nodes = client_names.ordered_nodes(network, order)
        links = _links(network, nodes)
        degrees = links.sum(1)
        receivers, senders = links.nonzero()
        larger = np.maximum(degrees[receivers], degrees[senders])
        if mixing == "max_degree":
            larger = np.full_like(larger, degrees.max())
        w = scipy.sparse.csr_array((1 / (1 + larger), (receivers, senders)), links.shape)
        own_weights = [1.0 - sum(row) for row in scipy.sparse.lil_array(w).data]
        w = w + scipy.sparse.diags_array(own_weights)
        if connected:
            check_connected([w], name)
        return cls(*tables([w]), name, client_names.names_of_nodes(nodes))

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
        check_mixing_matrix(w, field)
        if connected:
            check_connected([w], name)
        return cls(*tables([w]), name, client_names.names_of_frame(matrix, field))

    @classmethod
    def sequence(cls, graphs: Sequence["Graph"], *, name: str = "sequence") -> "Graph":
        """Makes a graph that changes: round t uses `graphs[t % len(graphs)]`. Together they must be
        connected, strongly if they are directed.

        Raises:
            InvalidInput: no graph, different numbers of clients, parts that never meet, or clients
                that some others never hear of.
        """
        field = "Graph.sequence(graphs=...)"
        sizes = [graph.clients for graph in graphs]
        if len(set(sizes)) != 1:
            allowed = "at least one graph, all with equally many clients"
            raise InvalidInput.of(field, sizes, allowed)
        if any(graph.is_random for graph in graphs):
            got = "a graph with losses"
            hint = "Add them to the sequence."
            raise InvalidInput.found(field, got, "graphs without them", hint)
        names = {None if graph.nodes is None else tuple(graph.nodes) for graph in graphs}
        if len(names) > 1:
            allowed = "graphs whose nodes have the same names in the same order"
            raise InvalidInput.found(field, "other names", allowed, "Give all the same order=...")
        # a graph that changes itself contributes every round of its period
        matrices = [graph._sparse(t) for graph in graphs for t in range(graph.period)]
        check_connected(matrices, field)
        return cls(*tables(matrices), name, graphs[0].nodes)

    @classmethod
    def ring(cls, clients: int, **options: Any) -> "Graph":
        """Links every client with the next one and the one before."""
        return cls.of(nx.circulant_graph(clients, [1]), name="ring", **options)

    @classmethod
    def exponential(cls, clients: int, **options: Any) -> "Graph":
        """Links every client with those 1, 2, 4, ... places away on the ring, up to half of it.

        The jumps are the powers of two that are at most clients / 2.
        """
        # a link of more than half the ring is a shorter one the other way round: of 7 clients,
        # 4 places on is 3 back, which is no power of two and therefore no link
        jumps = [2**k for k in range(max(clients // 2, 1).bit_length())]
        return cls.of(nx.circulant_graph(clients, jumps), name="exponential", **options)

    @classmethod
    def complete(cls, clients: int, **options: Any) -> "Graph":
        """Links all clients: all weights are 1/clients, and one exchange is the mean."""
        return cls.of(nx.complete_graph(clients), name="complete", **options)

    @classmethod
    def star(cls, clients: int, **options: Any) -> "Graph":
        """Links client 0 with all others."""
        return cls.of(nx.star_graph(clients - 1), name="star", **options)

    @classmethod
    def grid(cls, clients: int, **options: Any) -> "Graph":
        """Makes a rectangle as square as `clients` allows; a client has up to four neighbours."""
        return cls.of(nx.grid_2d_graph(*_sides(clients)), name="grid", **options)

    @classmethod
    def torus(cls, clients: int, **options: Any) -> "Graph":
        """Makes a grid whose borders are joined."""
        return cls.of(
            nx.grid_2d_graph(*_sides(clients), periodic=True),
            name="torus",
            **options,
        )

    @classmethod
    def isolated(cls, clients: int) -> "Graph":
        """Makes W = I: no client talks. For comparisons; it is not connected."""
        return cls.of(nx.empty_graph(clients), name="isolated", connected=False)

    @classmethod
    def random_regular(cls, clients: int, degree: int, seed: int = 0, **options: Any) -> "Graph":
        """Draws uniformly from the connected graphs in which each client has `degree` neighbours;
        `clients * degree` is even.
        """
        draw = functools.partial(nx.random_regular_graph, degree, clients)
        return cls._draw_connected(draw, f"random_regular({degree:g})", seed, options)

    @classmethod
    def erdos_renyi(cls, clients: int, p: float, seed: int = 0, **options: Any) -> "Graph":
        """Draws every link with probability `p` in (0, 1], drawn again until the graph is
        connected.
        """
        if not 0 < p <= 1:
            raise InvalidInput.of("Graph.erdos_renyi(p=...)", p, "numbers in (0, 1]")
        draw = functools.partial(nx.gnp_random_graph, clients, p)
        return cls._draw_connected(draw, f"erdos_renyi({p:g})", seed, options)

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
        if not isinstance(network, nx.DiGraph):
            got = type(network).__name__
            raise InvalidInput.found("Graph.directed(network=...)", got, "directed graphs")
        if stochastic not in ("column", "row"):
            raise UnknownName.among("Graph.directed(stochastic=...)", stochastic, ("column", "row"))
        nodes = client_names.ordered_nodes(network, order)
        links = _links(network, nodes)
        links = links + scipy.sparse.eye_array(len(nodes))
        shares = scipy.sparse.diags_array(1 / links.sum(0 if stochastic == "column" else 1))
        w = links @ shares if stochastic == "column" else shares @ links
        check_connected([w], name)
        return cls(*tables([w]), name, client_names.names_of_nodes(nodes))

    @classmethod
    def named(cls, topology: str, clients: int) -> "Graph":
        """Makes a topology of `TOPOLOGIES`.

        Raises:
            UnknownName: no such topology.
        """
        if topology not in TOPOLOGIES:
            raise UnknownName.among("topology", topology, TOPOLOGIES)
        return getattr(cls, topology)(clients)

    @classmethod
    def _draw_connected(
        cls, draw: Callable[[int], nx.Graph], name: str, seed: int, options: dict[str, Any]
    ) -> "Graph":
        for attempt in range(ATTEMPTS):
            # different seeds never share an attempt
            network = draw(int(seed) * ATTEMPTS + attempt)
            if nx.is_connected(network):
                return cls.of(network, name=name, order=list(network), **options)
        got = f"{ATTEMPTS} draws, none of them connected"
        raise InvalidInput.found(f"Graph.{name}", got, "enough links for a connected graph")

    @property
    def clients(self) -> int:
        return self.neighbours.shape[1]

    @property
    def period(self) -> int:
        """After how many rounds the graph is the same again; 1 if it does not change."""
        return self.neighbours.shape[0]

    @property
    def changes(self) -> bool:
        """Whether the weights differ from round to round."""
        return self.period > 1 or self.is_random

    @property
    def is_random(self) -> bool:
        """Whether links are lost, so that the weights of a round are drawn."""
        return self.drops > 0

    @property
    def linked(self) -> Bool[Array, "period clients width"]:
        """Which entries of `neighbours` are links to others."""
        return self.neighbours != self.neighbours[:, :, :1]

    @property
    def degrees(self) -> Int[Array, "period clients"]:
        """The degree of every node."""
        return self.linked.sum(2, dtype=jnp.int32)

    def matrix(self, round: int = 0) -> Float[np.ndarray, "clients clients"]:
        """Returns W in a round."""
        return self._sparse(round).toarray()

    def network(self, round: int = 0) -> Any:
        """Returns the links of a round as a NetworkX graph; directed, from sender to receiver, if
        some go one way.
        """
        t = round % self.period
        receivers, places = np.nonzero(np.asarray(self.linked)[t])
        senders = np.asarray(self.neighbours)[t, receivers, places]
        network = nx.empty_graph(self.clients, create_using=nx.DiGraph)
        network.add_edges_from(sorted(zip(senders.tolist(), receivers.tolist(), strict=True)))
        goes_one_way = any(not network.has_edge(j, i) for i, j in network.edges)
        return network if goes_one_way else network.to_undirected()

    @property
    def sums(self) -> str:
        """Which sums of the weights are 1 in every round: "both", those of each "row" or "column",
        or "none".
        """
        # who makes up for lost weights decides which sums stay 1
        kept = self.repair if self.is_random else "both"
        matrices = [self._sparse(t) for t in range(self.period)]
        rows, columns = (
            all(np.abs(w.sum(axis) - 1).max() <= TOLERANCE for w in matrices) for axis in (1, 0)
        )
        if rows and columns and kept == "both":
            return "both"
        if rows and kept != "sender":
            return "row"
        return "column" if columns and kept != "receiver" else "none"

    @property
    def lam(self) -> float:
        r"""$\lambda = \max(|\lambda_2|, |\lambda_m|)$: by this factor disagreement shrinks at least
        in a round.

        Of a sequence, the geometric mean over a period,
        $\lVert W_T \cdots W_1 - \frac1m \mathbf 1 \mathbf 1^\top \rVert_2^{1/T}$.
        """
        if self.is_random or self.sums != "both":
            raise InvalidInput.found(
                "Graph.lam",
                self.name,
                "graphs without losses whose rows and columns sum to 1",
            )
        # W_T ... W_1: later rounds multiply from the left
        product = functools.reduce(
            lambda done, t: self.matrix(t) @ done, range(self.period), np.eye(self.clients)
        )
        return float(np.linalg.norm(product - 1 / self.clients, 2) ** (1 / self.period))

    def lossy(
        self,
        drops: float = 0.0,
        repair: str = "receiver",
    ) -> "Graph":
        """Returns the graph with links that drop messages, drawn from the run's seed. Lost
        messages count as traffic.

        Args:
            drops: the probability that a message is lost, independently of others, in [0, 1).
            repair: who makes up for a lost weight. "receiver": it takes its own vector instead, so
                that rows keep their sums; "sender": it learns of the loss and keeps the vector, so
                that columns keep theirs; "both": a link fails in both directions at once, and
                symmetric matrices stay so.

        >>> import fedax
        >>> ring = fedax.Graph.ring(20).lossy(0.1, repair="both")
        >>> ring.sums, ring.changes
        ('both', True)
        """
        graph = dataclasses.replace(self, drops=drops, repair=repair)
        matrices = map(self.matrix, range(self.period))
        if repair == "both" and not all(np.array_equal(w, w.T) for w in matrices):
            allowed = "'receiver' or 'sender' for weights that are not symmetric"
            raise InvalidInput.of("Graph.lossy(repair=...)", repair, allowed)
        return graph

    def check_population(self, clients: int) -> None:
        """Refuses another number of clients."""
        if clients != self.clients:
            raise InvalidInput.of(
                "graph", self.clients, f"a graph of {clients} clients, as the task has"
            )

    def at(
        self,
        round: Index,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Int[Array, "clients width"], Float[Array, "clients width"]]:
        """Returns the neighbours and weights of a round.

        Args:
            round: its number, from 0.
            key: draws which messages are lost; None for none.
        """
        neighbours = jnp.asarray(self.neighbours)[round % self.period]
        weights = jnp.asarray(self.weights)[round % self.period]
        if not self.is_random or key is None:
            return neighbours, weights
        return neighbours, links.drop(neighbours, weights, key, self.drops, self.repair)

    def renumbered(self, order: Sequence[int]) -> "Graph":
        """Returns the same graph where the client `order[i]` has become client i."""
        order = list(order)
        if sorted(order) != list(range(self.clients)):
            raise InvalidInput.of(
                "Graph.renumbered(order=...)", order, f"an order of 0 to {self.clients - 1}"
            )
        matrices = [self._sparse(t)[order][:, order] for t in range(self.period)]
        neighbours, weights = tables(matrices)
        nodes = self.nodes and self.nodes.taken(order)
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

    def _sparse(self, t: int) -> scipy.sparse.csr_array:
        """Returns W in a round."""
        neighbours = np.asarray(self.neighbours)[t % self.period]
        weights = np.asarray(self.weights, float)[t % self.period]
        clients = np.broadcast_to(np.arange(self.clients)[:, None], neighbours.shape)
        # the zeros of padding are added to the client's own weight
        entries = (weights.ravel(), (clients.ravel(), neighbours.ravel()))
        return scipy.sparse.csr_array(entries, (self.clients, self.clients))


TOPOLOGIES = ("ring", "torus", "grid", "exponential", "star", "complete", "isolated")
"""Graphs that are known once the number of clients is."""


def _links(network: nx.Graph, nodes: Sequence[Any]) -> scipy.sparse.csr_array:
    """Returns a matrix whose entry (i, l) is 1 where client i hears client l."""
    if not nodes:
        raise InvalidInput.found("Graph(network=...)", "0 nodes", "at least one node")
    links = nx.to_scipy_sparse_array(network, nodelist=nodes, weight=None, dtype=float)  # pyright: ignore[reportArgumentType]
    links = links.T - scipy.sparse.diags_array(links.diagonal())
    return scipy.sparse.csr_array(links > 0).astype(float)


def tables(matrices: Sequence[Any]) -> tuple[Array, np.ndarray]:
    """Returns neighbours and weights of mixing matrices, padded to the most neighbours; each
    client's first neighbour is itself.
    """
    rounds = list[list[dict[int, float]]]()
    for w in map(scipy.sparse.lil_array, matrices):
        rows = enumerate(zip(w.rows, w.data, strict=True))
        # the client itself comes first, also where it has no weight
        rounds.append([{i: 0.0} | dict(zip(*row, strict=True)) for i, row in rows])
    clients = np.arange(len(rounds[0]), dtype=np.int32)
    width = max(len(row) for rows in rounds for row in rows)
    neighbours = np.tile(clients[:, None], (len(rounds), 1, width))
    weights = np.zeros(neighbours.shape)
    for t, rows in enumerate(rounds):
        for i, row in enumerate(rows):
            neighbours[t, i, : len(row)] = [*row]
            weights[t, i, : len(row)] = [*row.values()]
    with jax.ensure_compile_time_eval():  # an algorithm may make its graph inside a round
        return jnp.asarray(neighbours), weights


def check_mixing_matrix(w: np.ndarray, field: str) -> None:
    """Raises `InvalidInput` for a matrix that mixes no models to their mean; `field` names it."""
    is_square = w.ndim == 2 and w.shape[0] == w.shape[1] > 0
    if not (is_square and np.isfinite(w).all()):
        allowed = "square matrices of finite numbers"
    elif np.abs(w - w.T).max() > TOLERANCE:
        allowed = "symmetric matrices"
    elif np.abs(w.sum(1) - 1).max() > TOLERANCE:
        allowed = "rows and columns that sum to 1"
    elif w.min() < 0:
        allowed = "entries >= 0"
    elif np.linalg.eigvalsh(w)[0] <= TOLERANCE - 1:
        allowed = "matrices without the eigenvalue -1, such as with weights on the diagonal"
    else:
        return
    raise InvalidInput.of(field, w, allowed)


def check_connected(matrices: Sequence[Any], field: str) -> None:
    """Raises `InvalidInput` for rounds whose links together leave some clients apart.

    What one round does not reach, a later one may.

    Args:
        matrices: of each round of the period.
        field: for the message.
    """
    union = scipy.sparse.csr_array(sum(matrices[1:], matrices[0]))
    count, part_of = scipy.sparse.csgraph.connected_components(union, connection="strong")
    if count == 1:
        return
    smallest = np.flatnonzero(part_of == np.bincount(part_of).argmin())[:5].tolist()
    got = f"{count} parts that do not hear of each other, one of them the clients {smallest}"
    raise InvalidInput.found(field, got, "strongly connected graphs", "Add links.")


def _sides(clients: int) -> tuple[int, int]:
    """Returns the most square factors of a number."""
    shorter = next(k for k in range(int(clients**0.5), 0, -1) if clients % k == 0)
    return shorter, clients // shorter
