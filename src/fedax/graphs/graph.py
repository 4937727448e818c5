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
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.core.hyper import check_declared, hyper
from fedax.errors import InvalidInput, UnknownName
from fedax.examples import client_names
from fedax.examples.arrays import as_array
from fedax.examples.client_names import ClientNames
from fedax.numerics import links, mixing
from fedax.utils.random import Index

ATTEMPTS = 100
"""The most draws of a random graph until it is connected."""
MIXINGS: dict[str, Callable[[int, int, int], float]] = {
    "metropolis_hastings": lambda degree, other, most: 1 / (1 + max(degree, other)),
    "max_degree": lambda degree, other, most: 1 / (1 + most),
}
"""Weights of the links, from the degrees of both ends and the largest one."""


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
        drops, repair, fails, recovers: see `lossy`.

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
    fails: float = hyper(0.0, static=True, low=0.0, high=1.0, open_high=True)
    recovers: float = hyper(1.0, static=True, low=0.0, open_low=True, high=1.0)

    def __check_init__(self) -> None:
        check_declared(self)

    @classmethod
    def _of_rows(
        cls, steps: list[list[dict[int, float]]], name: str, nodes: Sequence[Any]
    ) -> "Graph":
        return cls(*mixing.tables(steps), name, client_names.names_of_nodes(nodes))

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
        heard = _senders(network, nodes)
        degrees = [len(senders) for senders in heard]
        rows: list[dict[int, float]] = []
        for i, senders in enumerate(heard):
            row = {j: MIXINGS[mixing](degrees[i], degrees[j], max(degrees)) for j in senders}
            rows.append({i: 1.0 - sum(row.values()), **row})
        if connected:
            check_connected([rows], name)
        return cls._of_rows([rows], name, nodes)

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
        # the own weight is listed even where it is 0, because `tables` looks it up
        rows: list[dict[int, float]] = []
        for i, row in enumerate(w.tolist()):
            rows.append({i: row[i], **{j: row[j] for j in np.flatnonzero(row).tolist()}})
        if connected:
            check_connected([rows], name)
        return cls(*mixing.tables([rows]), name, client_names.names_of_frame(matrix, field))

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
        steps = [graph._rows(t) for graph in graphs for t in range(graph.period)]
        check_connected(steps, field)
        return cls(*mixing.tables(steps), name, graphs[0].nodes)

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
        # other degrees have no simple regular graph
        if not (0 < degree < clients and clients * degree % 2 == 0):
            allowed = f"1 to {clients - 1}, with an even product of clients and degree"
            raise InvalidInput.of("Graph.random_regular(degree=...)", degree, allowed)
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
        heard = _senders(network, nodes)
        receivers = [network.out_degree(node) - network.has_edge(node, node) for node in nodes]
        rows: list[dict[int, float]] = []
        for i, senders in enumerate(heard):
            if stochastic == "column":
                rows.append({j: 1 / (1 + receivers[j]) for j in [i, *senders]})
            else:
                rows.append(dict.fromkeys([i, *senders], 1 / (1 + len(senders))))
        check_connected([rows], name)
        return cls._of_rows([rows], name, nodes)

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
        return self.drops > 0 or self.fails > 0

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
        neighbours, weights = np.asarray(self.neighbours), np.asarray(self.weights, float)
        w, t = np.zeros((self.clients, self.clients)), round % self.period
        # adds instead of assigning: padding repeats the client, and its 0 would overwrite the own
        # weight
        np.add.at(w, (np.arange(self.clients)[:, None], neighbours[t]), weights[t])
        return w

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

    @property
    def sums(self) -> str:
        """Which sums of the weights are 1 in every round: "both", those of each "row" or "column",
        or "none".
        """
        # who makes up for lost weights decides which sums stay 1
        repair = self.repair if self.is_random else "both"
        return mixing.unit_sums(
            np.asarray(self.neighbours), np.asarray(self.weights, float), repair
        )

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

    @property
    def spectral_gap(self) -> float:
        """1 - lam."""
        return 1 - self.lam

    def lossy(
        self,
        drops: float = 0.0,
        repair: str = "receiver",
        *,
        fails: float = 0.0,
        recovers: float = 1.0,
    ) -> "Graph":
        r"""Returns the graph with links that drop messages, drawn from the run's seed. Lost
        messages count as traffic.

        Losses are independent (`drops`), in bursts (`fails`, `recovers`), or both. In bursts, every
        link is a Markov chain of two states (Gilbert and Elliott), which changes between rounds. A
        link that has failed loses all messages of the round. The share of failed links is
        fails / (fails + recovers), and a burst has 1 / recovers rounds on average.

        Args:
            drops: the probability that a link which works loses a message, in [0, 1).
            repair: who makes up for a lost weight. "receiver": it takes its own vector instead, so
                that rows keep their sums; "sender": it learns of the loss and keeps the vector, so
                that columns keep theirs; "both": a link fails in both directions at once, and
                symmetric matrices stay so.
            fails: the probability that a link which works has failed in the next round, in [0, 1).
            recovers: the probability that a link which has failed works in the next round, in
                (0, 1].

        >>> import fedax
        >>> ring = fedax.Graph.ring(20).lossy(fails=0.05, recovers=0.2, repair="both")
        >>> ring.sums, ring.changes
        ('both', True)
        """
        graph = dataclasses.replace(
            self, drops=drops, repair=repair, fails=fails, recovers=recovers
        )
        if repair == "both" and not self._is_symmetric:
            allowed = "'receiver' or 'sender' for weights that are not symmetric"
            raise InvalidInput.of("Graph.lossy(repair=...)", repair, allowed)
        return graph

    def check_population(self, clients: int) -> None:
        """Refuses another number of clients."""
        if clients != self.clients:
            raise InvalidInput.of(
                "graph", self.clients, f"a graph of {clients} clients, as the task has"
            )

    def mix(self, rows: PyTree, round: Index) -> PyTree:
        r"""Computes $\sum_l w_{il} u_l$ for all clients i: a dense product, or a sum over neighbour
        lists if these are short.

        Args:
            rows: arrays with a first axis (clients,).
        """
        self.check_population(jax.tree.leaves(rows)[0].shape[0])
        return mixing.mixed(rows, *self.at(round))

    def at(
        self,
        round: Index,
        key: Key[Array, ""] | None = None,
        chain: Key[Array, ""] | None = None,
    ) -> tuple[Int[Array, "clients width"], Float[Array, "clients width"]]:
        """Returns the neighbours and weights of a round.

        Args:
            round: its number, from 0.
            key: draws which messages are lost by themselves; None for none.
            chain: draws which links have failed, the same key in all rounds; None for none.
        """
        neighbours = jnp.asarray(self.neighbours)[round % self.period]
        weights = jnp.asarray(self.weights)[round % self.period]
        if not self.is_random:
            return neighbours, weights
        is_bidirectional = self.repair == "both"
        # True where a message does not arrive
        lost = jnp.zeros(neighbours.shape, bool)
        if self.drops and key is not None:
            lost |= links.draw_uniforms(neighbours, key, is_bidirectional) < self.drops
        if self.fails and chain is not None:
            # by the round itself, not its place in the period: a burst goes on in the next period
            now = jnp.asarray(round, jnp.int32)
            lost |= links.lost_in_bursts(
                neighbours, chain, now, self.fails, self.recovers, is_bidirectional
            )
        return neighbours, links.weights_left(neighbours, weights, lost, self.repair)

    def renumbered(self, order: Sequence[int]) -> "Graph":
        """Returns the same graph where the client `order[i]` has become client i."""
        # new number of each client by its old one
        new_number = {old: i for i, old in enumerate(order)}
        if sorted(new_number) != list(range(self.clients)):
            raise InvalidInput.of(
                "Graph.renumbered(order=...)", list(order), f"an order of 0 to {self.clients - 1}"
            )
        steps: list[list[dict[int, float]]] = []
        for t in range(self.period):
            rows = self._rows(t)
            steps.append([{new_number[j]: w for j, w in rows[old].items()} for old in order])
        neighbours, weights = mixing.tables(steps)
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

    def _rows(self, t: int) -> list[dict[int, float]]:
        """Returns the weights of each client's neighbours in a round, its own first."""
        neighbours = np.asarray(self.neighbours)[t % self.period].tolist()
        weights = np.asarray(self.weights, float)[t % self.period].tolist()
        rows: list[dict[int, float]] = []
        for heard, shares in zip(neighbours, weights, strict=True):
            # padding repeats the client, whose weight comes first
            rows.append(dict(reversed(list(zip(heard, shares, strict=True)))))
        return rows

    @property
    def _is_symmetric(self) -> bool:
        return all(np.array_equal(w, w.T) for w in map(self.matrix, range(self.period)))


TOPOLOGIES = ("ring", "torus", "grid", "exponential", "star", "complete", "isolated")
"""Graphs that are known once the number of clients is."""


def _senders(network: nx.Graph, nodes: Sequence[Any]) -> list[list[int]]:
    """Returns whom each client hears, by number and without itself."""
    if not nodes:
        raise InvalidInput.found("Graph(network=...)", "0 nodes", "at least one node")
    number = {node: i for i, node in enumerate(nodes)}
    heard: list[set[int]] = [set() for _ in nodes]
    for sender, receiver in network.edges:
        heard[number[receiver]].add(number[sender])
        if not network.is_directed():
            heard[number[sender]].add(number[receiver])
    return [sorted(senders - {i}) for i, senders in enumerate(heard)]


def check_mixing_matrix(w: np.ndarray, field: str) -> None:
    """Raises `InvalidInput` for a matrix that mixes no models to their mean; `field` names it."""
    is_square = w.ndim == 2 and w.shape[0] == w.shape[1] > 0
    if not (is_square and np.isfinite(w).all()):
        allowed = "square matrices of finite numbers"
    elif np.abs(w - w.T).max() > mixing.TOLERANCE:
        allowed = "symmetric matrices"
    elif np.abs(w.sum(1) - 1).max() > mixing.TOLERANCE:
        allowed = "rows and columns that sum to 1"
    elif w.min() < 0:
        allowed = "entries >= 0"
    elif np.linalg.eigvalsh(w)[0] <= mixing.TOLERANCE - 1:
        allowed = "matrices without the eigenvalue -1, such as with weights on the diagonal"
    else:
        return
    raise InvalidInput.of(field, w, allowed)


def check_connected(steps: list[list[dict[int, float]]], field: str) -> None:
    """Raises `InvalidInput` for rounds whose links together leave some clients apart.

    What one round does not reach, a later one may.

    Args:
        steps: rows of each round of the period.
        field: for the message.
    """
    # from sender to receiver: row i lists the clients that i hears, itself among them
    union = nx.DiGraph([(j, i) for rows in steps for i, row in enumerate(rows) for j in row])
    parts = list(nx.strongly_connected_components(union))
    if len(parts) == 1:
        return
    smallest = sorted(min(parts, key=len))[:5]
    got = f"{len(parts)} parts that do not hear of each other, one of them the clients {smallest}"
    raise InvalidInput.found(field, got, "strongly connected graphs", "Add links.")


def _sides(clients: int) -> tuple[int, int]:
    """Returns the most square factors of a number."""
    shorter = next(k for k in range(int(clients**0.5), 0, -1) if clients % k == 0)
    return shorter, clients // shorter
