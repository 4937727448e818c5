"""Interface between a round and a backend: dispatches one phase's work to the clients and returns
the aggregated uploads.

`PhaseWork` is what runs at a client, `PhaseResult` what comes back, and `Backend` what an engine
implements.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.attacks import Attack, Collusion
from fedax.communication.channel import Codec, apply_attack, decode, encode, is_vector
from fedax.communication.privacy import LocalNoise
from fedax.core.client import Client
from fedax.core.federation import Cohort, Memory, Upload
from fedax.core.scheduling.asynchronous import Arrivals
from fedax.core.validation.own_methods import call_work
from fedax.engine.round.aggregation import all_finite
from fedax.engine.round.client import Setup
from fedax.engine.round.model_state import Sent, state_from_mean, state_in_reals
from fedax.utils.random import Index

UPLOAD, MEMORY, STATE = 1, 2, 3
"""Codes of the part of a round that is not finite: a client's upload, its memory, or the server's
state (0: none)."""


def zeros(shapes: PyTree, *lead: int) -> PyTree:
    """Returns zeros for a pytree of shapes and types, with further axes in front."""
    return jax.tree.map(lambda shape: jnp.zeros((*lead, *shape.shape), shape.dtype), shapes)


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Returns whether all real numbers of a pytree are finite."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf)]
    return jnp.all(
        jnp.array([all_finite(x) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)], bool)
    )


def became_non_finite(before: PyTree, after: PyTree) -> Bool[Array, ""]:
    """Returns whether any previously finite array became non-finite.

    Initial infinities are allowed as sentinels.
    """
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return jnp.any(jnp.array([is_finite(old) & ~is_finite(new) for old, new in pairs], bool))


def vectors(down: PyTree) -> list[Any]:
    """Returns the vectors of a pytree, those that a channel codes."""
    return [leaf for leaf in jax.tree.leaves(down) if is_vector(leaf)]


def add_link_noise(received: PyTree, scale: Float[Array, ""], key: Key[Array, ""]) -> PyTree:
    """Adds Gaussian noise to all real arrays of a message that are not scalars."""
    leaves, structure = jax.tree.flatten(received)
    for index, leaf in enumerate(leaves):
        if jnp.ndim(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            noise = jax.random.normal(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
            leaves[index] = leaf + scale.astype(leaf.dtype) * noise
    return jax.tree.unflatten(structure, leaves)


class LateUpload(eqx.Module):
    """How the server takes an upload that may have been made from an earlier version.

    Attributes:
        now: what the server would send down at present.
        staleness: server steps since the client received its version.
        factor: on the change.
        near: number of the vector sent down whose change goes up; None if the upload is a change
            itself.
        uploads: see `Asynchronous`.
    """

    now: PyTree
    staleness: Index
    factor: Float[Array, ""]
    near: int | None = eqx.field(static=True)
    uploads: str = eqx.field(static=True)

    def apply(self, value: PyTree, received: PyTree) -> PyTree:
        """Returns a decoded upload with its first vector as if it had been made from the present
        version.
        """
        leaves, structure = jax.tree.flatten(value)
        index = next(i for i, leaf in enumerate(leaves) if is_vector(leaf))
        v = leaves[index]
        factor = jnp.asarray(self.factor, v.dtype)
        if self.near is None:
            late = factor * v
        else:
            current = vectors(decode(self.now)[0])[self.near]
            base = vectors(received)[self.near] if self.uploads == "changes" else current
            late = current + factor * (v - base)
        # selected, because now + (v - now) would round
        leaves[index] = jnp.where(jnp.asarray(self.staleness) == 0, v, late)
        return jax.tree.unflatten(structure, leaves)


class Disclosed(eqx.Module):
    """An upload's value beside the vector that its first vector is a change of, or None: what
    hostile clients have to know to agree on what they send.
    """

    value: Any
    reference: Float[Array, "dim"] | None


class PastVersions(eqx.Module):
    """Which version each client of a server step received.

    Attributes:
        downlinks: what was sent down with the versions in use, arrays with a first axis (slots,).
        arrivals: of the step.
        near, uploads: see `LateUpload`.
    """

    downlinks: PyTree
    arrivals: Arrivals
    near: int | None = eqx.field(static=True)
    uploads: str = eqx.field(static=True)

    def for_slot(self, work: "PhaseWork", slot: Index) -> "PhaseWork":
        """Returns the work of one place of the cohort, with the version that its client
        received.
        """
        downlink_slot, version = self.arrivals.slots[slot], self.arrivals.versions[slot]
        # what is no array is the same in all versions
        static = eqx.filter(work.down, eqx.is_array, inverse=True)
        down = eqx.combine(jax.tree.map(lambda rows: rows[downlink_slot], self.downlinks), static)
        late = LateUpload(
            work.down,
            work.round - version,
            self.arrivals.factors[slot],
            self.near,
            self.uploads,
        )
        return dataclasses.replace(work, down=down, round=version, past=None, late=late)


class PhaseWork(eqx.Module):
    """One phase's work at a client: decodes, runs the work function, encodes the upload.

    All traced values are fields, none comes by closure: `shard_map` over a mesh of devices sees
    arguments only.

    Attributes:
        work: the algorithm's work function.
        down: what the server sends, with messages where it is encoded.
        codec: for the vectors that go up, if the channel has one.
        root, round, occurrence: name the clients' random streams.
        attack: what hostile clients do, if the channel has an attack.
        hostile: numbers of the hostile clients, ascending.
        receives: whether this is the receiving half of an exchange, which returns the new memory
            and sends nothing.
        model_state: the model's state that the server sends beside `down`, None if it sends none.
        sends_state: whether the state after the work goes up beside the upload, where the work
            trained the model or `to_neighbours`.
        to_neighbours: whether the upload goes to neighbours. The state goes with all of these:
            methods may train in the receiving half, and send what they have then in the next round.
        local: clipping and noise at the client, for `Privacy(where="client")`.
        bounding: clipping of uploads at the server, for `Privacy(where="server")`.
        awake: which clients are awake, where some sleep: the work of the others is discarded.
        noise: deviation of the noise in what each client receives on a graph.
        past: with an asynchronous server, what its clients received; `for_slot` selects one.
        late: of one of these clients, how the server takes its upload.
    """

    work: Callable[..., Any]
    down: Any
    codec: Codec | None
    root: Key[Array, ""]
    round: Index
    occurrence: int = eqx.field(static=True)
    attack: Attack | None = None
    hostile: Int[Array, "hostile"] | None = None
    receives: bool = eqx.field(static=True, default=False)
    model_state: PyTree = None
    sends_state: bool = eqx.field(static=True, default=False)
    to_neighbours: bool = eqx.field(static=True, default=False)
    local: LocalNoise | None = None
    bounding: Callable[[PyTree, PyTree], PyTree] | None = None
    awake: Bool[Array, "clients"] | None = None
    noise: Float[Array, "clients"] | None = None
    past: PastVersions | None = None
    late: LateUpload | None = None

    def for_slot(self, slot: Index) -> "PhaseWork":
        """Returns the work at one place of the cohort, which with an asynchronous server has its
        own version.
        """
        return self if self.past is None else self.past.for_slot(self, slot)

    @property
    def colludes(self) -> bool:
        """Whether hostile clients agree on what they send, see `Collusion`."""
        return isinstance(self.attack, Collusion) and self.hostile is not None

    @property
    def name(self) -> str:
        """Name of the work function."""
        return getattr(self.work, "__name__", type(self.work).__name__)

    def __call__(
        self, client: Client, client_state: dict[str, PyTree]
    ) -> tuple[Upload[Any], dict[str, PyTree]]:
        """Runs the work of one client.

        Args:
            client: with its examples and its random streams.
            client_state: what is stored for the client, by name, as far as there is such: its
                `own` memory of the algorithm, what it `received` from its neighbours, the codec's
                memory (`lost`), its `model` state, its `solver`'s state.

        Returns:
            The upload, with messages not yet decoded, and the new client state, by the same names.
        """
        if self.late is not None:
            client.staleness = self.late.staleness
        initial_state = client_state
        # before the work: gradients read the model's state from the client
        client_state = self._set_model_state(client, client_state)
        client.solver_state = client_state.get("solver")
        if self.noise is not None:
            scale, key = self.noise[client.index], client.key("link noise")
            noisy = add_link_noise(client_state["received"], scale, key)
            client_state = client_state | {"received": noisy}
        inputs = (
            *decode(self.down)[0],
            *(client_state[name] for name in ("own", "received") if name in client_state),
        )
        output = call_work(self.work, client, inputs, self.receives)
        # the receiving half of an exchange returns a new memory alone
        upload = Upload((), memory=output) if self.receives else output
        value, lost = self._encode(client, upload, client_state.get("lost"))
        new_state = {"lost": lost} if self.codec is not None and "lost" in client_state else {}
        if "own" in client_state:
            new_state["own"] = client_state["own"] if upload.memory is None else upload.memory
        if "model" in client_state:
            new_state["model"] = client.model_state
        if "solver" in client_state:
            new_state["solver"] = client.solver_state
        if self.awake is not None:
            is_awake, updated = self.awake[client.index], new_state
            new_state = jax.tree.map(
                lambda after, before: jnp.where(is_awake, after, before),
                updated,
                {name: initial_state[name] for name in updated},
            )
        # after the codec: the model's state is sent as it is
        if self.sends_state and (client.trained or self.to_neighbours):
            value = Sent(value, state_in_reals(client.model_state))
        return Upload(value, upload.weight), new_state

    def _set_model_state(
        self, client: Client, client_state: dict[str, PyTree]
    ) -> dict[str, PyTree]:
        """Gives the client the model's state: stored, from the server, or its neighbours' mean."""
        client.model_state = client_state.get(
            "model", client.model_state if self.model_state is None else self.model_state
        )
        received = client_state.get("received")
        if not isinstance(received, Sent):
            return client_state
        client.model_state = state_from_mean(received.state, client.model_state)
        return client_state | {"received": received.value}

    def _encode(self, client: Client, upload: Upload[Any], lost: Any) -> tuple[PyTree, Any]:
        """Applies attack, local privacy and codec, in this order.

        Returns what is sent, and the codec's memory.
        """
        value = upload.value
        if self.attack is not None and self.hostile is not None:
            index = jnp.minimum(
                jnp.searchsorted(self.hostile, client.index), self.hostile.shape[0] - 1
            )
            is_hostile, key = self.hostile[index] == client.index, client.key("attack")
            value = apply_attack(value, self.attack, is_hostile, key, upload.reference)
        if self.colludes:
            value = Disclosed(value, upload.reference)
        if self.local is not None:
            value = self.local(value, upload.reference, client.key("privacy"))
        if self.codec is None:
            return value, None
        return encode(value, self.codec, client.key("uplink"), upload.reference, lost)

    def adjust_upload(self, value: PyTree) -> PyTree:
        """Returns a decoded upload as the server adds it up: clipped with privacy, as a change if
        it is late.
        """
        if self.late is not None:
            return self.late.apply(value, decode(self.down)[0])
        return value if self.bounding is None else self.bounding(value, decode(self.down)[0])

    def broken_part(
        self, value: PyTree, client_state: dict[str, PyTree], new_state: dict[str, PyTree]
    ) -> Int[Array, ""]:
        """Returns `UPLOAD` or `MEMORY` if upload or client state became non-finite, else 0.

        In the receiving half of an exchange the new memory counts as the upload.
        """
        if self.receives:
            return jnp.where(is_finite(new_state["own"]), 0, UPLOAD)
        old_state = {name: client_state[name] for name in new_state}
        return jnp.where(
            is_finite(value), jnp.where(became_non_finite(old_state, new_state), MEMORY, 0), UPLOAD
        )


class PhaseResult(NamedTuple):
    """What the clients of a phase return, together.

    Attributes:
        upload: one client's upload as it is sent, messages not yet decoded. Only its form is read,
            so shapes are enough.
        sums: the weighted sum of the uploads and the sum of the weights, in a wide type. Where the
            algorithm gave its own weights, the same two with the cohort's weights follow. None if
            the uploads are gathered.
        rows: if they are gathered, the uploads, each leaf of shape (capacity, ...), and their
            weights, in the cohort's order.
        client_states: the clients' memories after the work, by name.
        broken: for each place of the cohort whether the client's result is finite, see
            `PhaseWork.broken_part`; 0 for padding.
        clipped: how many entries codecs clipped, None if they cannot.
        notes: what the backend logs, by name.
        sent: bits down and up, measured over all participants; None where they follow from the
            forms.
    """

    upload: Upload[Any]
    sums: Any
    rows: Any
    client_states: dict[str, Memory]
    broken: Int[Array, "capacity"]
    clipped: Int[Array, ""] | None = None
    notes: dict[str, Any] = {}  # noqa: RUF012 (never written)
    sent: tuple[int, int] | None = None

    @property
    def form(self) -> PyTree:
        """Shapes and types of a decoded upload."""
        return jax.eval_shape(lambda value: decode(value)[0], self.upload.value)


class Backend(ABC):
    """Dispatches a phase's work to a cohort and returns the uploads, summed or gathered.

    Attributes:
        setup: of the round.
        padded: whether cohorts have a static capacity, with padding behind the clients that work.
    """

    setup: Setup

    padded: ClassVar[bool] = False

    def strip_padding(
        self, ids: Int[Array, "capacity"], count: Index
    ) -> tuple[Int[Array, "some"], Index]:
        """Returns drawn clients, without the padding if their number is concrete."""
        return (ids, count) if self.padded else (ids[: int(count)], int(count))

    def memory(self, initial: PyTree) -> Memory:
        """Makes a memory with one row for each client, see `Federation.memory`."""
        clients = self.setup.population.clients
        if callable(initial):
            return Memory(jax.vmap(initial)(jnp.arange(clients, dtype=jnp.int32)))
        return Memory(
            jax.tree.map(lambda x: jnp.broadcast_to(x, (clients, *jnp.shape(x))), initial)
        )

    def noise_key(self, key: Key[Array, ""], released: PyTree) -> Key[Array, ""]:
        """Returns the key of the noise on a sum.

        In a simulation it follows from the seed, so that a run can be repeated.

        Args:
            key: of the run's seed.
            released: the sum and its bounds, all that noise is scaled by and added to.
        """
        return key

    def cohort_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """Returns the key of a draw of clients. In a simulation it follows from the seed."""
        return key

    @abstractmethod
    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        """Runs the work at every client of a cohort.

        Args:
            phase_work: what each client does.
            cohort: the clients.
            client_states: memories that the work reads and updates, by name.
            gather: whether to return the single uploads rather than their sum.
        """

    @abstractmethod
    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        """Runs the work at every client, and returns the weighted sums of neighbours' uploads.

        Args:
            phase_work: what each client does.
            everyone: all clients.
            client_states: memories that the work reads and updates, by name.
            neighbours: shape (clients, width), for each client itself and its neighbours; itself
                again as padding.
            weights: of the same shape, 0 for padding.
        """
