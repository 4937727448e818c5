"""The stages that messages pass: attacks, a codec, lateness, the states of model and solver.

Those of privacy are in `fedax.engine.round.private`.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedax.communication.attacks import Attack, Collusion
from fedax.communication.channel import Channel, Codec, decode, encode, is_message, is_vector
from fedax.core.bound_model import state_from_mean, state_in_reals
from fedax.core.client import Client
from fedax.core.federation import Cohort
from fedax.core.scheduling.timeline import Versions
from fedax.engine.round.phase import (
    PhaseResult,
    PhaseWork,
    Sending,
    Sent,
    Stage,
    States,
    is_array,
    vectors,
)
from fedax.engine.round.timing import LateUploads
from fedax.errors import InvalidInput
from fedax.utils.random import Index


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
                leaves[i], near = jnp.where(is_hostile, corrupted, leaf), None
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
        upload = dataclasses.replace(result.upload, value=result.upload.value[0])
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
        # a version that no client received has a slot out of range
        put = lambda rows, new: rows.at[versions.stored].set(new, mode="drop")  # noqa: E731
        return jax.tree.map(put, downlinks, eqx.filter(down, is_array))

    def at_slot(self, work: PhaseWork, slot: Index) -> PhaseWork:
        versions = self.versions
        place, version = versions.slots[slot], versions.numbers[slot]
        # what is no array is the same in all versions
        static = eqx.filter(work.down, is_array, inverse=True)
        down = eqx.combine(jax.tree.map(lambda rows: rows[place], self.downlinks), static)
        staleness, factor = work.round - version, versions.factors[slot]
        late = Late(work.down, staleness, factor, self.rule)
        stages = tuple(late if stage is self else stage for stage in work.stages)
        return dataclasses.replace(work, down=down, round=version, stages=stages)
