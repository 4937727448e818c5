"""A phase at its clients: `PhaseWork` is what runs at one of them, `PhaseResult` what comes back.

Messages pass stages, such as an attack, a codec or clipping (`fedax.engine.round.stages`): in order
at the client, before and after the work function, and in the opposite order at the server.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.channel import decode, is_vector
from fedax.core.client import Client
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.core.validation.misuse import explained
from fedax.core.validation.own_methods import as_upload
from fedax.errors import InvalidInput
from fedax.utils.random import Index

UPLOAD, MEMORY, STATE = 1, 2, 3
"""Codes of the part of a round that is not finite: a client's upload, its state, or the server's
state (0: none)."""

States: TypeAlias = dict[str, PyTree]
"""What is stored for one client, by name, as far as there is such: its `own` state of the
algorithm, the codec's (`lost`), its `model` state, its `solver`'s state, and what it `received`
from its neighbours."""


class Sending(NamedTuple):
    """An upload on its way through the stages at the client.

    Attributes:
        value: of the upload.
        reference: the vector that its first vector is near to; None for none.
        before: the client's states before the work.
        after: those after it.
    """

    value: Any
    reference: Float[Array, "dim"] | None
    before: States
    after: States

    def store(self, name: str, state: PyTree) -> "Sending":
        """Returns it with a new state of the client."""
        return self._replace(after=self.after | {name: state})


class Sent(eqx.Module):
    """An upload's value with the model's state after the work, in real numbers. It travels
    hidden from the algorithm.
    """

    value: Any
    state: PyTree


class PhaseResult(NamedTuple):
    """What the clients of a phase return, together.

    Attributes:
        upload: one client's upload as it is sent, messages not yet decoded. Only its form is read,
            so shapes are enough.
        sums: the weighted sum of the uploads and the sum of the weights, in a wide type. Where the
            algorithm gave its own weights, the same two with the cohort's weights follow. None if
            the uploads are gathered.
        rows: if they are gathered, the uploads, each leaf of shape (capacity, ...), and their
            weights, in the cohort's order; zero where a place does not count.
        client_states: the clients' states after the work, by name.
        broken: for each place of the cohort whether the client's result is finite, see
            `PhaseWork.broken_part`; 0 for padding.
        logged: what the backend logs, by name, such as the answers of deployed clients.
        sent: bits down and up, measured over all participants; None where they follow from the
            forms.
    """

    upload: Upload[Any]
    sums: Any
    rows: Any
    client_states: dict[str, ClientStates]
    broken: Int[Array, "capacity"]
    logged: dict[str, Any] = {}  # noqa: RUF012 (never written)
    sent: tuple[int, int] | None = None

    @property
    def form(self) -> PyTree:
        """Shapes and types of a decoded upload."""
        return jax.eval_shape(decode, self.upload.value)


class Stage(eqx.Module):
    """One thing that happens to the messages of a phase. By default nothing does.

    Attributes:
        gathers: whether the server's half needs the single uploads of a cohort.
    """

    gathers: ClassVar[bool] = False

    @property
    def beside(self) -> PyTree:
        """What the server sends down beside the message."""
        return None

    def at_slot(self, work: "PhaseWork", slot: Index) -> "PhaseWork":
        """Returns the work at one place of the cohort."""
        return work

    def receive(self, client: Client, states: States) -> States:
        """Acts at the client before the work; returns the states that the work sees."""
        return states

    def send(self, client: Client, sending: Sending) -> Sending:
        """Acts at the client after the work, on the upload as the stages before it leave it."""
        return sending

    def open(self, value: PyTree, down: PyTree) -> PyTree:
        """Acts at the server on one decoded upload, before it is added up.

        `down` is what the client received.
        """
        return value

    def combine(
        self, result: PhaseResult, cohort: Cohort, counts: Bool[Array, "capacity"]
    ) -> PhaseResult:
        """Acts at the server on the uploads of a cohort, which are gathered if the stage `gathers`.

        `counts` says which places of the cohort count.
        """
        return result

    def mean(
        self,
        result: PhaseResult,
        down: PyTree,
        key: Callable[[PyTree], Key[Array, ""]],
        bounds: Float[Array, "parts"] | None,
    ) -> tuple[PyTree, Float[Array, "parts"] | None, Float[Array, "some"] | None] | None:
        """Makes the mean of the uploads at the server; None leaves that to others.

        Args:
            result: of the phase.
            down: what the server sent.
            key: returns the key of noise on what is released.
            bounds: of adaptive clipping in this round; None where they do not change.

        Returns:
            The mean, the bounds after the phase, and the noisy shares of uploads within theirs.
        """
        return None

    def empty(self, client_states: dict[str, ClientStates]) -> PhaseResult | None:
        """Returns the result of a phase without clients; None if it abandons the round."""
        return None


class PhaseWork(eqx.Module):
    """One phase's work at a client: decodes, runs the work function, sends the upload.

    All traced values are fields, none comes by closure: `shard_map` over a mesh of devices sees
    arguments only.

    Attributes:
        work: the algorithm's work function.
        down: what the server sends, with messages where it is encoded.
        root, round, occurrence: name the clients' random streams.
        stages: that messages pass.
        receives: whether this is the receiving half of an exchange, which returns the new state
            and sends nothing.
    """

    work: Callable[..., Any]
    down: Any
    root: Key[Array, ""]
    round: Index
    occurrence: int = eqx.field(static=True)
    stages: tuple[Stage, ...] = ()
    receives: bool = eqx.field(static=True, default=False)

    def for_slot(self, slot: Index) -> "PhaseWork":
        """Returns the work at one place of the cohort, which with an asynchronous server has its
        own version.
        """
        work = self
        for stage in self.stages:
            work = stage.at_slot(work, slot)
        return work

    @property
    def sent_down(self) -> PyTree:
        """All that the server sends to a client, messages unopened."""
        return self.down, [stage.beside for stage in self.stages]

    @property
    def name(self) -> str:
        """Name of the work function."""
        return name_of(self.work)

    @property
    def received(self) -> PyTree:
        """What a client is sent, decoded."""
        return decode(self.down)

    def __call__(self, client: Client, states: States) -> tuple[Upload[Any], States]:
        """Runs the work of one client.

        Args:
            client: with its examples and its random streams.
            states: what is stored for the client.

        Returns:
            The upload, with messages not yet decoded, and the states after the work.
        """
        return self.send(client, self.run(client, self.inputs(client, states)), states)

    def inputs(self, client: Client, states: States) -> tuple[PyTree, ...]:
        """Returns what the work function gets beside the client."""
        for stage in self.stages:
            states = stage.receive(client, states)
        stored = (states[name] for name in ("own", "received") if name in states)
        return (*self.received, *stored)

    def run(self, client: Client, inputs: Sequence[PyTree]) -> Upload[Any]:
        """Runs the work function."""
        with explained(self.work):
            output = self.work(client, *inputs)
        upload = as_upload(self.work, output, self.receives)
        start = client.start_of(vectors(upload.value))
        # the server knows what it sent down, not what a client computed or stored
        is_known = any(start is sent for sent in vectors(inputs[: len(self.down)]))
        if upload.reference is not None or not is_known:
            return upload
        return Upload(upload.value, upload.weight, upload.state, start)

    def send(
        self, client: Client, upload: Upload[Any], before: States
    ) -> tuple[Upload[Any], States]:
        """Returns the upload as it is sent, and the client's states after the work."""
        sending = Sending(upload.value, upload.reference, before, {})
        if "own" in before:
            sending = sending.store("own", before["own"] if upload.state is None else upload.state)
        for stage in self.stages:
            sending = stage.send(client, sending)
        return Upload(sending.value, upload.weight), sending.after

    def open(self, value: PyTree) -> PyTree:
        """Returns a decoded upload as the server adds it up."""
        for stage in reversed(self.stages):
            value = stage.open(value, self.received)
        return value

    def broken_part(self, value: PyTree, before: States, after: States) -> Int[Array, ""]:
        """Returns `UPLOAD` or `MEMORY` if upload or states became non-finite, else 0.

        In the receiving half of an exchange the new state counts as the upload.
        """
        if self.receives:
            return jnp.where(is_finite(after["own"]), 0, UPLOAD)
        old_states = {name: before[name] for name in after}
        memory = jnp.where(became_non_finite(old_states, after), MEMORY, 0)
        return jnp.where(is_finite(value), memory, UPLOAD)


def zeros(shapes: PyTree, *lead: int) -> PyTree:
    """Returns zeros for a pytree of shapes and types, with further axes in front."""
    return jax.tree.map(lambda shape: jnp.zeros((*lead, *shape.shape), shape.dtype), shapes)


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is an array, or a number with a type, rather than one of Python."""
    return hasattr(leaf, "dtype")


def to_shapes(tree: PyTree) -> PyTree:
    """Replaces arrays by shapes and types; numbers of Python, such as a codec's, stay."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x, tree
    )


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Returns whether all real numbers of a pytree are finite."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf)]
    return jnp.all(
        jnp.array(
            [jnp.isfinite(x).all() for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)], bool
        )
    )


def became_non_finite(before: PyTree, after: PyTree) -> Bool[Array, ""]:
    """Returns whether any previously finite array became non-finite.

    Initial infinities are allowed as sentinels.
    """
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return jnp.any(jnp.array([is_finite(old) & ~is_finite(new) for old, new in pairs], bool))


def name_of(work: Callable[..., Any]) -> str:
    """Returns the name of a work function."""
    return getattr(work, "__name__", type(work).__name__)


def vectors(down: PyTree) -> list[Any]:
    """Returns the vectors of a pytree, those that a channel codes."""
    return [leaf for leaf in jax.tree.leaves(down) if is_vector(leaf)]


def refuse(field: str, reasons: Mapping[str, Any]) -> None:
    """Refuses for the first reason that holds.

    Raises:
        InvalidInput: names the field and the reason.
    """
    for reason, holds in reasons.items():
        if holds:
            raise InvalidInput.because(field, reason)
