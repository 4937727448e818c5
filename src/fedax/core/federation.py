"""The verbs of a round: all the communication there is."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.errors import InvalidInput
from fedax.utils.layout import Layout
from fedax.utils.random import Index

Value = TypeVar("Value")


class Upload(eqx.Module, Generic[Value]):
    """The result of a work function.

    Attributes:
        value: any pytree of real arrays, or of a codec's messages in their place; sent to the
            server or the neighbours.
        weight: its weight in the mean, at least 0; by default the weight of the cohort, which makes
            the mean an estimate of sum_k p_k. Sent to the server if given.
        state: the client's own state after the work, None for what it was; stays with the client.
        reference: a vector that the receiver has as well, near the first vector of `value`: a
            channel codes their difference, and privacy clips it. By default, where that vector is
            what `client.minimize` returned, the model received from which it started.
        is_change: whether the first vector of `value` is a change of the server's model or a
            direction, so that an asynchronous server may apply it to a newer model. With a
            `reference` its difference to it is.
    """

    value: Value
    weight: Float[Array, ""] | float | None = None
    state: PyTree = None
    reference: Float[Array, "dim"] | None = None
    is_change: bool = eqx.field(static=True, default=False)


class ClientStates(eqx.Module):
    """The clients' states, opaque to algorithms: only a work function sees one, its own."""

    _rows: PyTree

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        """Returns the states of some clients, with a first axis (some,); for engines."""
        return jax.tree.map(lambda rows: jnp.asarray(rows)[ids], self._rows)

    def of(self, client: Index) -> PyTree:
        """Returns one client's state; for engines."""
        return jax.tree.map(lambda rows: rows[0], self.take(jnp.asarray(client)[None]))

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> "ClientStates":
        """Returns a copy with the states of `ids` replaced; for engines.

        Out-of-range ids are ignored.
        """
        return self._with(
            jax.tree.map(
                lambda all_, new: jnp.asarray(all_).at[ids].set(new, mode="drop"), self._rows, rows
            )
        )

    def all(self) -> PyTree:
        """Returns all states, with a first axis (clients,); for engines and observers."""
        return jax.tree.map(jnp.asarray, self._rows)

    def each(self, function: Callable[[PyTree], PyTree]) -> "ClientStates":
        """Applies a pure function to each client's state; the result is opaque too."""
        return self._with(jax.vmap(function)(self._rows))

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        """Returns the clients that have rows (None for all), and the rows; for checkpoints."""
        return None, [np.asarray(rows) for rows in jax.tree.leaves(self._rows)]

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "ClientStates":
        """Returns a copy with the rows that `written` gave; for checkpoints.

        Out-of-range ids are ignored.
        """
        structure = jax.tree.structure(self._rows)
        restored_rows = jax.tree.unflatten(structure, map(jnp.asarray, rows))
        if ids is None:
            return self._with(restored_rows)
        return self.put(jnp.asarray(ids), restored_rows)

    def copied(self) -> "ClientStates":
        """Returns a copy that no program changes; for engines."""
        return self._with(jax.tree.map(jnp.array, self._rows))

    def mean(self, default: PyTree = None) -> PyTree:
        """Returns the mean over all clients, with equal weights; `default` in what a run with
        privacy publishes, which must not depend on what clients store.
        """
        return jax.tree.map(lambda rows: rows.mean(0), self.all())

    def _with(self, rows: PyTree) -> "ClientStates":
        return ClientStates(rows)


class HiddenStates(ClientStates):
    """The clients' states in what a run with privacy publishes: without rows; for engines."""

    _rows: PyTree = None

    def mean(self, default: PyTree = None) -> PyTree:
        if default is None:
            reason = "with privacy the global model must not depend on what clients store"
            hint = "Write states.mean(default=...), such as the initial values."
            raise InvalidInput.because("ClientStates.mean", reason, hint)
        return default

    def _with(self, rows: PyTree) -> ClientStates:
        return self


def is_states(node: object) -> bool:
    """Returns whether a node of a pytree is a `ClientStates`; for engines."""
    return isinstance(node, ClientStates)


def with_states(tree: PyTree, change: Callable[[ClientStates], ClientStates]) -> PyTree:
    """Returns a pytree with changed states of clients; for engines."""
    return jax.tree.map(lambda x: change(x) if is_states(x) else x, tree, is_leaf=is_states)


class Cohort(eqx.Module):
    r"""Clients that work together in a phase. Using the same cohort twice means the same devices.

    Attributes:
        ids: their numbers; those from `count` on are padding and do not work.
        count: how many work.
        weights: default weights of their uploads, for a mean that estimates $\sum_k p_k$.
        objective_weights: the $p_k$ of the objective (up to a common factor) of each client once: 0
            where it was drawn before.
        coverage: their part of the federation, the sum of `objective_weights` over the sum of
            everybody's; in (0, 1].
    """

    ids: Int[Array, "capacity"]
    count: Index
    weights: Float[Array, "capacity"]
    objective_weights: Float[Array, "capacity"]
    coverage: Float[Array, ""]

    @property
    def works(self) -> Bool[Array, "capacity"]:
        """Which places have a client that works; the others are padding."""
        return jnp.arange(self.ids.shape[0], dtype=jnp.int32) < self.count

    def padded(self, capacity: int) -> "Cohort":
        """Returns the cohort padded to a larger capacity."""
        missing = (0, capacity - self.ids.shape[0])
        return Cohort(
            jnp.pad(self.ids, missing),
            jnp.asarray(self.count, jnp.int32),
            jnp.pad(self.weights, missing),
            jnp.pad(self.objective_weights, missing),
            self.coverage,
        )

    @property
    def distinct(self) -> "Cohort":
        r"""The same devices, weighted by `objective_weights`.

        For methods that keep a sum $\sum_k p_k c_k$ over all clients' states. Of such a sum only
        the cohort's terms change, once each however often a client was drawn: it moves by
        `coverage` times the mean change that `average` gives for this cohort. The default weights
        do that for draws that know no sizes only.
        """
        return Cohort(
            self.ids, self.count, self.objective_weights, self.objective_weights, self.coverage
        )


class Gathered(eqx.Module, Generic[Value]):
    """All uploads of a cohort, stacked in its order.

    Attributes:
        value: the uploads, with a first axis over the rows.
        weights: of the rows, shape (capacity,).
        ids: the clients, shape (capacity,).
        valid: False for the rows from the cohort's count on, and of clients left out; those rows
            are zero.
    """

    value: Value
    weights: Float[Array, "capacity"]
    ids: Int[Array, "capacity"]
    valid: Bool[Array, "capacity"]

    def shares(self, weights: Float[Array, "capacity"] | None = None) -> Float[Array, "capacity"]:
        """Returns the weights of the rows, scaled to sum 1 over valid rows, and 0 elsewhere.

        Equal ones if all that count have weight 0.
        """
        masked = jnp.where(self.valid, self.weights if weights is None else weights, 0)
        equal = self.valid.astype(masked.dtype)
        # all weights may vanish, and the shares must not be 0/0
        masked = jnp.where(masked.sum() > 0, masked, equal)
        return masked / masked.sum()

    def mean(self) -> Value:
        """Returns the weighted mean of the uploads."""
        shares = self.shares()
        return jax.tree.map(
            lambda rows: jnp.tensordot(shares.astype(rows.dtype), rows, 1), self.value
        )


class Federation(ABC):
    """Clients and a server, during one round. Engines implement it; algorithms use nothing else.

    Attributes:
        round: the number of the round, from 0.
        clients: the size of the population.
        equal_weights: whether the schedule gives all clients the same weight in the objective.
        everyone: the cohort of all clients.
        layout: how the model's parameters lie in the flat vector.
    """

    round: Index
    clients: int
    equal_weights: bool
    layout: Layout

    @property
    @abstractmethod
    def everyone(self) -> Cohort: ...

    @property
    @abstractmethod
    def answered(self) -> Cohort:
        """The cohort of the last phase as far as its uploads count: without clients left out
        because theirs were not finite.

        Its `coverage` is what a sum over all clients' states moves by (see `Cohort.distinct`).
        """

    @abstractmethod
    def sample(self, weights: Float[Array, "clients"] | None = None) -> Cohort:
        """Draws a cohort as the schedule says; another call is an independent draw.

        With `weights`, at least 0, as many clients as the schedule's cohort has are drawn one after
        the other, without replacement, with probabilities proportional to them, whatever the
        schedule's sampling; clients of weight 0 only fill up, uniformly. The weights are those of a
        uniform draw.
        """

    @abstractmethod
    def key(self, purpose: str) -> Key[Array, ""]:
        """Returns the server's random stream of this round for one purpose."""

    @abstractmethod
    def client_states(self, initial: PyTree) -> ClientStates:
        """Makes states in which client k starts with `initial`, or `initial(k)`."""

    @overload
    def average(
        self, work: Callable[..., Upload[Value]], cohort: Cohort, *down: PyTree
    ) -> Value: ...
    @overload
    def average(
        self,
        work: Callable[..., Upload[Value]],
        cohort: Cohort,
        *down: PyTree,
        states: ClientStates,
    ) -> tuple[Value, ClientStates]: ...
    @abstractmethod
    def average(
        self,
        work: Callable[..., Upload[Value]],
        cohort: Cohort,
        *down: PyTree,
        states: ClientStates | None = None,
    ) -> Value | tuple[Value, ClientStates]:
        r"""Returns the weighted mean $\sum_k \omega_k u_k / \sum_k \omega_k$ of the uploads of a
        phase.

        Each client of the cohort runs `work(client, *down[, own state])`.

        Streamed: O(dim) memory whatever the cohort. If all given weights are zero, the cohort's
        default weights are used. A round in which a phase has no clients at all leaves the
        algorithm's state as it was. With `states`, returns the mean and the new state.
        """

    @overload
    def gather(
        self, work: Callable[..., Upload[Value]], cohort: Cohort, *down: PyTree
    ) -> Gathered[Value]: ...
    @overload
    def gather(
        self,
        work: Callable[..., Upload[Value]],
        cohort: Cohort,
        *down: PyTree,
        states: ClientStates,
    ) -> tuple[Gathered[Value], ClientStates]: ...
    @abstractmethod
    def gather(
        self,
        work: Callable[..., Upload[Value]],
        cohort: Cohort,
        *down: PyTree,
        states: ClientStates | None = None,
    ) -> Gathered[Value] | tuple[Gathered[Value], ClientStates]:
        """Returns all uploads stacked, for servers that need each of them.

        O(cohort x dim) memory.
        """

    @abstractmethod
    def exchange(
        self,
        graph: Any,
        send: Callable[..., Upload[Value]],
        receive: Callable[..., PyTree],
        states: ClientStates,
    ) -> ClientStates:
        r"""Exchanges uploads with the neighbours on a graph: all clients send, then all receive.

        `send(client, own)` returns an `Upload` without weight, whose value $u_i$ goes to every
        neighbour; its state, if given, is what the client keeps in hand until it receives,
        otherwise that is `own`. `receive(client, in_hand, received)` gets $\sum_l w_{il} u_l$, the
        client's own message included, and returns its new state. Two work functions, because the
        mean of neighbours exists only after all have sent; one state between them, because nothing
        else may be known to both.

        Args:
            graph: a `fedax.graphs.Graph` of as many clients as there are.
        """

    @abstractmethod
    def log(self, **values: Array | float) -> None:
        """Reports diagnostics of this round (see `History.logged`).

        The trajectory does not change.
        """
