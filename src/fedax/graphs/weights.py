"""Mixing weights of one round or several, and what happens to them on the way: losses, noise,
clients that sleep.
"""

import dataclasses
import functools
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.errors import InvalidInput, UnknownName
from fedax.examples.client_names import ClientNames
from fedax.numerics import links, mixing
from fedax.utils.numbers import python_number
from fedax.utils.random import Index

Weights = TypeVar("Weights", bound="MixingWeights")


def _later_field(default: Any) -> Any:
    """Declares a field that fingerprints leave out at its default."""
    return eqx.field(
        static=True,
        default=default,
        converter=python_number,
        metadata={"hyper": {"default": default, "later": True}},
    )


class MixingWeights(eqx.Module):
    """The part of `Graph` that a round uses: weights of all rounds, as lists of neighbours."""

    # in each row the client itself comes first, and again as padding up to the width
    neighbours: Int[Array, "period clients width"]
    weights: Float[Array | np.ndarray, "period clients width"]
    name: str = eqx.field(static=True, default="graph")
    nodes: ClientNames | None = eqx.field(static=True, default=None)
    drops: float = _later_field(0.0)
    repair: str = _later_field("receiver")
    fails: float = _later_field(0.0)
    recovers: float = _later_field(1.0)
    noise: float = _later_field(0.0)
    awake: float | None = _later_field(1.0)

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
        """Whether links are lost or clients sleep, so that the weights of a round are drawn."""
        return self.drops > 0 or self.fails > 0 or self.awake != 1

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

    @property
    def sums(self) -> str:
        """Which sums of the weights are 1 in every round: "both", those of each "row" or "column",
        or "none".
        """
        # who makes up for lost weights decides which sums stay 1
        repair = "both"
        # sleeping cuts both directions of a link, which keeps symmetric weights symmetric
        if self.drops or self.fails or (self.awake != 1 and not self._is_symmetric):
            repair = self.repair
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
                "graphs without losses and sleeping clients whose rows and columns sum to 1",
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
        self: Weights,
        drops: float = 0.0,
        repair: str = "receiver",
        *,
        fails: float = 0.0,
        recovers: float = 1.0,
    ) -> Weights:
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
        for field, value in (("drops", drops), ("fails", fails)):
            if not 0 <= value < 1:
                raise InvalidInput.of(f"Graph.lossy({field}=...)", value, "numbers in [0, 1)")
        if not 0 < recovers <= 1:
            raise InvalidInput.of("Graph.lossy(recovers=...)", recovers, "numbers in (0, 1]")
        if repair not in (repairs := ("receiver", "sender", "both")):
            raise UnknownName.among("Graph.lossy(repair=...)", repair, repairs)
        if repair == "both" and not self._is_symmetric:
            raise InvalidInput.of(
                "Graph.lossy(repair=...)",
                repair,
                "'receiver' or 'sender' for weights that are not symmetric",
            )
        return dataclasses.replace(self, drops=drops, repair=repair, fails=fails, recovers=recovers)

    def noisy(self: Weights, deviation: float) -> Weights:
        """Returns the graph with links that add Gaussian noise to the vectors that arrive.

        The noise is independent for every message and entry, drawn from the run's seed. Scalars
        beside the vectors, such as push-sum's, arrive as they were sent.

        Args:
            deviation: the noise's standard deviation, at least 0.
        """
        if not (deviation >= 0 and np.isfinite(deviation)):
            raise InvalidInput.of("Graph.noisy(deviation=...)", deviation, "finite numbers >= 0")
        return dataclasses.replace(self, noise=deviation)

    def sleeping(self: Weights, awake: float | None = None) -> Weights:
        """Returns the graph with clients that sleep in some rounds: they neither train nor mix.

        Links from and to a sleeping client carry nothing, as if both directions were lost, and its
        state stays as it was. The weights of these links are kept as `lossy` says, and by the
        sender where only columns sum to 1.

        Args:
            awake: the probability that a client is awake in a round, in (0, 1], drawn from the
                run's seed; None asks the rule of `Schedule(availability=...)`.
        """
        if awake is not None and not 0 < awake <= 1:
            raise InvalidInput.of("Graph.sleeping(awake=...)", awake, "numbers in (0, 1], or None")
        # a receiver that takes its own vector instead would break the sums of columns
        repair = "sender" if self.sums == "column" else self.repair
        return dataclasses.replace(self, awake=awake, repair=repair)

    def check_availability(self, rule: Any) -> None:
        """Refuses a schedule whose rule of availability the graph would ignore, and one without the
        rule that it asks.

        Raises:
            InvalidInput: it is one.

        >>> import fedax
        >>> fedax.Graph.ring(4).sleeping().check_availability(fedax.Daily(0.5))
        """
        if self.awake is None and rule is None:
            raise InvalidInput.because(
                "Graph.sleeping()",
                "a schedule without a rule of availability",
                "Give Graph.sleeping(awake=...) or Schedule(availability=...).",
            )
        if self.awake is not None and rule is not None:
            raise InvalidInput.found(
                "Schedule(availability=...)",
                f"a rule, which the graph {self.name} does not ask",
                "None, or graphs whose clients sleep by the rule",
                "Write Graph.sleeping(), as in graph=fedax.Graph.ring(20).sleeping().",
            )

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
        awake: Bool[Array, "clients"] | None = None,
    ) -> tuple[Int[Array, "clients width"], Float[Array, "clients width"]]:
        """Returns the neighbours and weights of a round.

        Args:
            round: its number, from 0.
            key: draws which messages are lost by themselves; None for none.
            chain: draws which links have failed, the same key in all rounds; None for none.
            awake: which clients are awake; None for all.
        """
        neighbours, weights = (
            jnp.asarray(self.neighbours)[round % self.period],
            jnp.asarray(self.weights)[round % self.period],
        )
        # masks of shape (clients, width), True where a message does not arrive
        is_bidirectional, masks = self.repair == "both", list[Array]()
        if self.drops and key is not None:
            masks.append(links.lost_alone(neighbours, key, self.drops, is_bidirectional))
        if self.fails and chain is not None:
            # by the round itself, not its place in the period: a burst goes on in the next period
            now = jnp.asarray(round, jnp.int32)
            masks.append(
                links.lost_in_bursts(
                    neighbours, chain, now, self.fails, self.recovers, is_bidirectional
                )
            )
        if awake is not None:
            masks.append(links.asleep(neighbours, awake))
        if masks:
            # a message is lost if anything takes it
            any_lost = functools.reduce(jnp.logical_or, masks)
            weights = links.weights_left(neighbours, weights, any_lost, self.repair)
        return neighbours, weights

    def _rows(self, t: int) -> list[dict[int, float]]:
        return mixing.rows(
            *(np.asarray(x)[t % self.period] for x in (self.neighbours, self.weights))
        )

    @property
    def _is_symmetric(self) -> bool:
        return all(np.array_equal(w, w.T) for w in map(self.matrix, range(self.period)))
