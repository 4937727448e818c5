"""A phase at its clients: `PhaseWork` is what runs at one of them, `PhaseResult` what comes back.

Messages pass stages, such as an attack, a codec or clipping: in order at the client, before and
after the work function, and in the opposite order at the server. The stages of privacy are in
`fedax.engine.round.private`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.attacks import Attack, Collusion
from fedax.communication.channel import Channel, Codec, decode, encode, is_message, is_vector
from fedax.core.bound_model import state_from_mean, state_in_reals
from fedax.core.client import Client
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.core.scheduling.timeline import Versions
from fedax.core.validation.misuse import explained
from fedax.core.validation.own_methods import as_upload, check_state
from fedax.engine.round.timing import LateUploads
from fedax.errors import InvalidInput
from fedax.utils.random import Index

UPLOAD = 1
MEMORY = 2
STATE = 3
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


class ClientResult(NamedTuple):
    """What one client of a phase returns.

    Attributes:
        upload: as it is sent, messages not yet decoded.
        states: after the work.
        broken: the part that is not finite, see `PhaseWork.broken_part`.
    """

    upload: Upload[Any]
    states: States
    broken: Int[Array, ""] | int


class PhaseResult(NamedTuple):
    """What the clients of a phase return, together.

    Attributes:
        upload: one client's upload as it is sent, messages not yet decoded. Only its form is read,
            so shapes are enough. None while results are collected.
        sums: the weighted sum of the uploads and the sum of the weights, in a wide type. Where the
            algorithm gave its own weights, the same two with the cohort's weights follow. None if
            the uploads are gathered.
        rows: if they are gathered, the uploads, each leaf of shape (capacity, ...), and their
            weights, in the cohort's order; zero where a place does not count.
        client_states: the clients' states after the work, by name. From a backend, their rows in
            the cohort's order; those of places that do not count are not stored.
        broken: for each place of the cohort whether the client's result is finite, see
            `PhaseWork.broken_part`; 0 for padding.
        logged: what the backend logs, by name, such as the answers of deployed clients.
        sent: bits down and up, measured over all participants; None where they follow from the
            forms.
    """

    upload: Any
    sums: Any
    rows: Any
    client_states: dict[str, Any]
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

    def __call__(self, client: Client, states: States) -> ClientResult:
        """Runs the work of one client.

        Args:
            client: with its examples and its random streams.
            states: what is stored for the client.
        """
        output = self.run(client, self.inputs(client, states))
        upload, after = self.send(client, output, states)
        sent = decode(upload.value), upload.weight
        return ClientResult(upload, after, self.broken_part(sent, states, after))

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
            state = before["own"] if upload.state is None else upload.state
            check_state(self.work, before["own"], state)
            sending = sending.store("own", state)
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
    reals = filter(eqx.is_inexact_array, leaves)
    return jnp.array([jnp.isfinite(real).all() for real in reals], bool).all()


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


class Hostile(Stage):
    """Hostile clients send what an attack makes of their vectors.

    Attributes:
        attack: see `fedax.attacks`.
        members: numbers of the hostile clients, ascending.
    """

    attack: Attack
    members: Int[Array, "hostile"]

    def send(self, client: Client, sending: Sending) -> Sending:
        leaves, structure = jax.tree.flatten(sending.value, is_leaf=is_message)
        if any(map(is_message, leaves)):
            allowed = "None for methods that code their messages themselves"
            raise InvalidInput.of("Channel(attack=...)", self.attack, allowed)
        last = self.members.shape[0] - 1
        index = jnp.minimum(jnp.searchsorted(self.members, client.index), last)
        is_hostile = self.members[index] == client.index
        key = client.key("attack")
        near = sending.reference
        for i, leaf in enumerate(leaves):
            if is_vector(leaf):
                base = jnp.zeros_like(leaf) if near is None else near
                # hostility is traced: the attack is computed for every client, and then chosen
                corrupted = self.attack.corrupt(leaf, base, jax.random.fold_in(key, i))
                # the reference belongs to the first vector only
                leaves[i] = jnp.where(is_hostile, corrupted, leaf)
                near = None
        return sending._replace(value=jax.tree.unflatten(structure, leaves))


class Colluding(Hostile):
    """Hostile clients agree on what they send, which takes the uploads of the whole cohort. It is
    the last stage at the client.
    """

    attack: Collusion

    gathers: ClassVar[bool] = True

    def send(self, client: Client, sending: Sending) -> Sending:
        sending = super().send(client, sending)
        # they have to know what the first vector is a change of
        return sending._replace(value=(sending.value, sending.reference))

    def combine(
        self, result: PhaseResult, cohort: Cohort, counts: Bool[Array, "capacity"]
    ) -> PhaseResult:
        """Returns the result with the uploads of the hostile clients replaced."""
        (value, reference), weights = result.rows
        is_hostile = counts & jnp.isin(cohort.ids, self.members)
        message = value.value if isinstance(value, Sent) else value
        leaves, structure = jax.tree.flatten(message)
        is_known = counts & (is_hostile if self.attack.knows == "hostile" else ~is_hostile)
        clients, hostile = (flags.sum(dtype=jnp.int32) for flags in (counts, is_hostile))
        is_replaced = is_hostile & is_known.any()
        for i, rows in enumerate(leaves):
            if rows.ndim == 2 and jnp.issubdtype(rows.dtype, jnp.floating):
                base = jnp.zeros_like(rows) if reference is None else reference
                sent = self.attack.agree(rows - base, is_known, clients, hostile)
                # the reference belongs to the first vector only
                leaves[i] = jnp.where(is_replaced[:, None], base + sent[None], rows)
                reference = None
        replaced = jax.tree.unflatten(structure, leaves)
        if isinstance(value, Sent):
            replaced = Sent(replaced, value.state)
        upload = eqx.tree_at(lambda sent: sent.value, result.upload, result.upload.value[0])
        return result._replace(upload=upload, rows=(replaced, weights))


def message_stages(
    channel: Channel | None,
    clients: int,
    protection: tuple[Stage, ...] = (),
    states: Sequence[Stage] = (),
) -> tuple[Stage, ...]:
    """Returns the stages that messages pass, in order: attack, privacy, codec, states, collusion.

    Args:
        channel: of the run.
        clients: how many there are.
        protection: the stage of privacy, if there is one.
        states: those of the states of solver and model.
    """
    if channel is None:
        return (*protection, *states)
    coded = () if channel.up is None else (Coded(channel.up),)
    stages = (*protection, *coded, *states)
    attack = channel.attack
    members = [] if attack is None else attack.members(clients)
    if attack is None or not len(members):
        return stages
    if isinstance(attack, Collusion):
        return (*stages, Colluding(attack, jnp.asarray(members)))
    return (Hostile(attack, jnp.asarray(members)), *stages)


class Coded(Stage):
    """Vectors go up as messages of a codec, which may store something at the client (`lost`)."""

    codec: Codec

    def send(self, client: Client, sending: Sending) -> Sending:
        key = client.key("uplink")
        stored = sending.before.get("lost")
        value, lost = encode(sending.value, self.codec, key, sending.reference, stored)
        sending = sending._replace(value=value)
        return sending if stored is None else sending.store("lost", lost)


class SolverState(Stage):
    """The client stores its solver's state from round to round."""

    def receive(self, client: Client, states: States) -> States:
        client.solver_state = states["solver"]
        return states

    def send(self, client: Client, sending: Sending) -> Sending:
        return sending.store("solver", client.solver_state)


class ModelState(Stage):
    """The client trains in the model's state: stored, from the server, or its neighbours' mean.

    It stands after the codec: the state is sent as it is.

    Attributes:
        state: that the server sends beside the message; None if it sends none.
        sends: whether the state after the work goes up beside the upload, if the work trained.
        always: whether it goes up in any case. Methods on graphs may train in the receiving half,
            and send what they have then in the next round.
    """

    state: PyTree
    sends: bool = eqx.field(static=True)
    always: bool = eqx.field(static=True)

    @property
    def beside(self) -> PyTree:
        return self.state

    def receive(self, client: Client, states: States) -> States:
        # before the work: gradients read the model's state from the client
        if "model" in states:
            client.model_state = states["model"]
        elif self.state is not None:
            client.model_state = self.state
        received = states.get("received")
        if not isinstance(received, Sent):
            return states
        client.model_state = state_from_mean(received.state, client.model_state)
        return states | {"received": received.value}

    def send(self, client: Client, sending: Sending) -> Sending:
        if "model" in sending.before:
            sending = sending.store("model", client.model_state)
        if not self.sends or not (client.trained or self.always):
            return sending
        return sending._replace(value=Sent(sending.value, state_in_reals(client.model_state)))


class Late(Stage):
    """The server takes an upload that may have been made from an earlier version.

    Attributes:
        now: what the server would send down at present.
        staleness: server steps since the client received its version.
        factor: on the change.
        rule: what the server takes.
    """

    now: PyTree
    staleness: Index
    factor: Float[Array, ""]
    rule: LateUploads = eqx.field(static=True)

    def receive(self, client: Client, states: States) -> States:
        client.staleness = self.staleness
        return states

    def open(self, value: PyTree, down: PyTree) -> PyTree:
        """Returns an upload with its first vector as if it had been made from the present
        version.
        """
        leaves, structure = jax.tree.flatten(value)
        index = next(i for i, leaf in enumerate(leaves) if is_vector(leaf))
        v = leaves[index]
        factor = jnp.asarray(self.factor, v.dtype)
        if self.rule.near is None:
            late = factor * v
        else:
            current = vectors(decode(self.now))[self.rule.near]
            base = vectors(down)[self.rule.near] if self.rule.uploads == "changes" else current
            late = current + factor * (v - base)
        # selected, because now + (v - now) would round
        leaves[index] = jnp.where(jnp.asarray(self.staleness) == 0, v, late)
        return jax.tree.unflatten(structure, leaves)


class PastVersions(Stage):
    """Every client of a server step works on the version that it received.

    Attributes:
        downlinks: what was sent down with the versions in use, arrays with a first axis (slots,).
        versions: that the clients of the step received.
        rule: what the server takes.
    """

    downlinks: PyTree
    versions: Versions
    rule: LateUploads = eqx.field(static=True)

    @staticmethod
    def store(downlinks: PyTree, down: PyTree, versions: Versions) -> PyTree:
        """Returns stored downlinks with what this version sends down. Its clients work on that when
        they arrive, now or later.
        """
        put = lambda rows, new: rows.at[versions.stored].set(new)  # noqa: E731
        return jax.tree.map(put, downlinks, eqx.filter(down, is_array))

    def at_slot(self, work: PhaseWork, slot: Index) -> PhaseWork:
        versions = self.versions
        place = versions.slots[slot]
        version = versions.numbers[slot]
        # what is no array is the same in all versions
        static = eqx.filter(work.down, is_array, inverse=True)
        down = eqx.combine(jax.tree.map(lambda rows: rows[place], self.downlinks), static)
        staleness = work.round - version
        factor = versions.factors[slot]
        late = Late(work.down, staleness, factor, self.rule)
        stages = tuple(late if stage is self else stage for stage in work.stages)
        return dataclasses.replace(work, down=down, round=version, stages=stages)
