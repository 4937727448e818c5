"""The stages of attacks: hostile clients replace what they send, alone or by agreement."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedax.communication.attacks import Attack, Collusion
from fedax.communication.channel import is_message, is_vector
from fedax.core.client import Client
from fedax.core.federation import Cohort
from fedax.engine.round.phase import PhaseResult, Sending, Sent, Stage
from fedax.errors import InvalidInput
from fedax.utils.layout import accumulator


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


class Disclosed(eqx.Module):
    """An upload's value beside the vector that its first vector is a change of, or None: what
    hostile clients have to know to agree on what they send.
    """

    value: Any
    reference: Float[Array, "dim"] | None


class Colluding(Hostile):
    """Hostile clients agree on what they send.

    That takes the uploads of the whole cohort, so they are gathered, and added up afterwards where
    the algorithm asks for a mean.
    """

    attack: Collusion

    gathers: ClassVar[bool] = True

    def send(self, client: Client, sending: Sending) -> Sending:
        sending = super().send(client, sending)
        return sending._replace(value=Disclosed(sending.value, sending.reference))

    def combine(self, result: PhaseResult, cohort: Cohort, gather: bool, drop: bool) -> PhaseResult:
        """Returns the result with the uploads of the hostile clients replaced."""
        is_valid = cohort.works & (result.broken == 0) if drop else cohort.works
        is_hostile = is_valid & jnp.isin(cohort.ids, self.members)
        values, weights = result.rows
        values = self._replace_rows(values, is_valid, is_hostile)
        # its leaves may be shapes alone
        value = _split_reference(result.upload.value)[0]
        upload = eqx.tree_at(lambda upload: upload.value, result.upload, value)
        if gather:
            return result._replace(upload=upload, rows=(values, weights))
        sums = _weighted_sum(values, weights, is_valid)
        if upload.weight is not None:  # the cohort's weights count where all own ones are zero
            sums += _weighted_sum(values, cohort.weights, is_valid)
        return result._replace(upload=upload, rows=None, sums=sums)

    def _replace_rows(
        self,
        disclosed: Any,
        is_valid: Bool[Array, "capacity"],
        is_hostile: Bool[Array, "capacity"],
    ) -> PyTree:
        """Returns the cohort's uploads with the vectors of hostile clients replaced."""
        value, reference = _split_reference(disclosed)
        message = value.value if isinstance(value, Sent) else value
        leaves, structure = jax.tree.flatten(message)
        is_known = is_valid & (is_hostile if self.attack.knows == "hostile" else ~is_hostile)
        clients, hostile = (flags.sum(dtype=jnp.int32) for flags in (is_valid, is_hostile))
        is_replaced = is_hostile & is_known.any()
        for i, rows in enumerate(leaves):
            if rows.ndim == 2 and jnp.issubdtype(rows.dtype, jnp.floating):
                base = jnp.zeros_like(rows) if reference is None else reference
                sent = self.attack.agree(rows - base, is_known, clients, hostile)
                # the reference belongs to the first vector only
                leaves[i] = jnp.where(is_replaced[:, None], base + sent[None], rows)
                reference = None
        replaced = jax.tree.unflatten(structure, leaves)
        return Sent(replaced, value.state) if isinstance(value, Sent) else replaced


def _split_reference(value: Any) -> tuple[Any, Any]:
    """Returns an upload as it is without collusion, and the vector that its first one is a change
    of.
    """
    if isinstance(value, Sent):
        inner, reference = _split_reference(value.value)
        return Sent(inner, value.state), reference
    assert isinstance(value, Disclosed)
    return value.value, value.reference


def _weighted_sum(
    values: PyTree, weights: Float[Array, "capacity"], is_valid: Bool[Array, "capacity"]
) -> tuple[PyTree, Any]:
    """Returns the weighted sum of the rows that count, and the sum of their weights."""
    weights = jnp.where(is_valid, weights, 0)

    def sum_rows(rows: Array) -> Array:
        wide = accumulator(rows.dtype)
        return jnp.tensordot(weights.astype(wide), rows.astype(wide), 1)

    return jax.tree.map(sum_rows, values), weights.astype(accumulator(weights.dtype)).sum()
