"""The stages of attacks: hostile clients replace what they send, alone or by agreement."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedax.communication.attacks import Attack, Collusion
from fedax.communication.channel import is_message, is_vector
from fedax.core.client import Client
from fedax.core.federation import Cohort
from fedax.engine.round.phase import PhaseResult, Sending, Sent, Stage
from fedax.errors import InvalidInput


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
