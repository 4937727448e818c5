"""Backend of a phase's work to its clients: all that an engine has of its own in a round."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fedax.communication.attacks import Attack
from fedax.communication.channel import Codec, apply_attack, decode, encode
from fedax.communication.privacy import LocalNoise
from fedax.core.client import Client
from fedax.core.federation import Cohort, Memory, Upload
from fedax.engine.round.aggregation import all_finite
from fedax.engine.round.client import Setup
from fedax.engine.round.model_state import Sent, state_from_mean, state_in_reals
from fedax.utils.random import Index

UPLOAD, MEMORY, STATE = 1, 2, 3
"""The part of a round that is not finite: a client's upload, its memory, or the server's state."""


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all real numbers are."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf)]
    return jnp.all(jnp.array([all_finite(x) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)], bool))


def became_non_finite(before: PyTree, after: PyTree) -> Bool[Array, ""]:
    """Whether an array that was finite is so no longer; an infinity from the start on may be a method's own mark."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return jnp.any(jnp.array([is_finite(old) & ~is_finite(new) for old, new in pairs], bool))


class PhaseWork(eqx.Module):
    """A phase's work at a client: opens what came down, works, codes what goes up.

    Everything traced is an argument of it, nothing comes by closure: a mesh of devices sees arguments only.

    Attributes:
        work: the work function.
        down: what the server sends, with messages where it is coded.
        codec: of the vectors that go up, if a channel has one.
        root, round, occurrence: of the clients' random streams.
        attack, hostile: an attack, if a channel has one, and the numbers of the clients that take part in it, ascending.
        receives: whether it is the receiving half of an exchange, which returns the new memory and sends nothing.
        model_state: the model's state that the server sends beside it, None if it sends none.
        sends_state: whether the state after the work goes up beside the upload, where the work trained the model.
        local: clipping and noise at the client, where the channel has such privacy.
        bounding: clipping where uploads arrive, where it has the other one.
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
    local: LocalNoise | None = None
    bounding: Callable[[PyTree, PyTree], PyTree] | None = None

    @property
    def name(self) -> str:
        """Of the work function."""
        return getattr(self.work, "__name__", type(self.work).__name__)

    def __call__(self, client: Client, held: dict[str, PyTree]) -> tuple[Upload[Any], dict[str, PyTree]]:
        """The client's upload, messages unopened, and the memories that it keeps.

        `held` has its `own` memory, what it `received` from its neighbours, what its last message `lost`, its `model`'s state, as
        far as there is such; the same names, without `received`, are kept.
        """
        client.model_state = held.get("model", client.model_state if self.model_state is None else self.model_state)
        if isinstance(held.get("received"), Sent):
            sent = held["received"]
            client.model_state, held = (
                state_from_mean(sent.state, held.get("model", client.model_state)),
                held | {"received": sent.value},
            )
        inputs = *decode(self.down)[0], *(held[name] for name in ("own", "received") if name in held)
        done = self.work(client, *inputs)
        upload = Upload((), memory=done) if self.receives else done
        value, kept = upload.value, {}
        if self.attack is not None and self.hostile is not None:
            place = jnp.minimum(jnp.searchsorted(self.hostile, client.index), self.hostile.shape[0] - 1)
            wrong, key = self.hostile[place] == client.index, client.key("attack")
            value = apply_attack(value, self.attack, wrong, key, upload.reference)
        if self.local is not None:
            value = self.local(value, upload.reference, client.key("privacy"))
        if self.codec is not None:
            value, lost = encode(value, self.codec, client.key("uplink"), upload.reference, held.get("lost"))
            kept = {"lost": lost} if "lost" in held else {}
        if "own" in held:
            kept["own"] = held["own"] if upload.memory is None else upload.memory
        if "model" in held:
            kept["model"] = client.model_state
        if self.sends_state and client.trained:
            value = Sent(value, state_in_reals(client.model_state))
        return Upload(value, upload.weight), kept

    def bounded(self, value: PyTree) -> PyTree:
        """An upload's value, opened, as it may be added up: clipped, if the channel says so."""
        return value if self.bounding is None else self.bounding(value, decode(self.down)[0])

    def broken(self, value: PyTree, held: dict[str, PyTree], kept: dict[str, PyTree]) -> Int[Array, ""]:
        """`UPLOAD` if what a client sends is not finite, `MEMORY` if what it keeps is so no longer, else 0.

        Where it only receives, its new memory is what counts.
        """
        if self.receives:
            return jnp.where(is_finite(kept["own"]), 0, UPLOAD)
        before = {name: held[name] for name in kept}
        return jnp.where(is_finite(value), jnp.where(became_non_finite(before, kept), MEMORY, 0), UPLOAD)


class PhaseResult(NamedTuple):
    """The clients' result to a phase.

    Attributes:
        upload: one client's upload as it is sent, messages unopened; for its form alone, so shapes do.
        sums: the weighted sum of the uploads and the sum of the weights, in a wide type; if the uploads have weights of their
            own, the same with the cohort's after it. None if the uploads are gathered.
        rows: the uploads and their weights in the cohort's order, if they are gathered.
        held: the clients' memories afterwards.
        broken: for each place of the cohort whether the client's result is finite, see `PhaseWork.broken`; 0 for padding.
        clipped: how many entries codecs clipped, None if they cannot.
        notes: the backend's own.
        sent: bits down and up, measured over all participants; by default they are counted from the forms.
    """

    upload: Upload[Any]
    sums: Any
    rows: Any
    held: dict[str, Memory]
    broken: Int[Array, "capacity"]
    clipped: Int[Array, ""] | None = None
    notes: dict[str, Any] = {}  # noqa: RUF012 (never written)
    sent: tuple[int, int] | None = None

    @property
    def form(self) -> PyTree:
        """The shapes of an upload's value, messages opened."""
        return jax.eval_shape(lambda value: decode(value)[0], self.upload.value)


class Backend(ABC):
    """Carries a phase's work to the clients of a cohort and their uploads back."""

    setup: Setup

    padded: ClassVar[bool] = False

    def present(self, ids: Int[Array, "capacity"], count: Index) -> tuple[Int[Array, "some"], Index]:
        """The clients drawn, of which `count` work; where the number is known, the others are left out."""
        return (ids, count) if self.padded else (ids[: int(count)], int(count))

    def memory(self, initial: PyTree) -> Memory:
        """See `Federation.memory`."""
        clients = self.setup.population.clients
        if callable(initial):
            return Memory(jax.vmap(initial)(jnp.arange(clients, dtype=jnp.int32)))
        return Memory(jax.tree.map(lambda x: jnp.broadcast_to(x, (clients, *jnp.shape(x))), initial))

    def noise_key(self, key: Key[Array, ""], released: PyTree) -> Key[Array, ""]:
        """Returns the key of the noise on a sum. In a simulation it follows from the seed, so that a run can be repeated.

        Args:
            key: of the run's seed.
            released: the sum and its bounds, all that noise is scaled by and added to.
        """
        return key

    def cohort_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """Returns the key of a draw of clients. In a simulation it follows from the seed."""
        return key

    @abstractmethod
    def work(self, phase_work: PhaseWork, cohort: Cohort, held: dict[str, Memory], gather: bool) -> PhaseResult:
        """Runs the work at every client of a cohort."""

    @abstractmethod
    def exchange(
        self, phase_work: PhaseWork, everyone: Cohort, held: dict[str, Memory], neighbours: Array, weights: Array
    ) -> tuple[PhaseResult, Memory]:
        """Runs the work at every client, and brings each the weighted sum of its neighbours' uploads."""
