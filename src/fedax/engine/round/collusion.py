"""Collusion: hostile clients of a cohort replace their uploads by one on which they agree.

That takes the uploads of the whole cohort, so they are gathered, and added up afterwards where the
algorithm asks for a mean.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedax.communication.attacks import Collusion
from fedax.core.federation import Cohort
from fedax.engine.round.backend import Disclosed, PhaseResult, PhaseWork
from fedax.engine.round.model_state import Sent
from fedax.utils.layout import accumulator


def apply_collusion(
    phase_work: PhaseWork, result: PhaseResult, cohort: Cohort, gather: bool, drop: bool
) -> PhaseResult:
    """Returns the result of a phase with the uploads of the hostile clients replaced.

    Args:
        phase_work: the clients' work, with a collusion.
        result: with the gathered uploads, as their clients disclosed them.
        cohort: the clients.
        gather: whether the algorithm wants the single uploads, rather than their sum.
        drop: whether uploads that are not finite are left out.
    """
    assert isinstance(phase_work.attack, Collusion)
    assert phase_work.hostile is not None
    is_valid = cohort.works & (result.broken == 0) if drop else cohort.works
    is_hostile = is_valid & jnp.isin(cohort.ids, phase_work.hostile)
    values, weights = result.rows
    values = _replace_rows(phase_work.attack, values, is_valid, is_hostile)
    # its leaves may be shapes alone
    value = _split_reference(result.upload.value)[0]
    upload = eqx.tree_at(lambda upload: upload.value, result.upload, value)
    if gather:
        return result._replace(upload=upload, rows=(values, weights))
    sums = _weighted_sum(values, weights, is_valid)
    if upload.weight is not None:  # the cohort's weights count where all own ones are zero
        sums += _weighted_sum(values, cohort.weights, is_valid)
    return result._replace(upload=upload, rows=None, sums=sums)


def _split_reference(value: Any) -> tuple[Any, Any]:
    """Returns an upload as it is without collusion, and the vector that its first one is a change
    of.
    """
    if isinstance(value, Sent):
        inner, reference = _split_reference(value.value)
        return Sent(inner, value.state), reference
    assert isinstance(value, Disclosed)
    return value.value, value.reference


def _replace_rows(
    attack: Collusion,
    disclosed: Any,
    is_valid: Bool[Array, "capacity"],
    is_hostile: Bool[Array, "capacity"],
) -> PyTree:
    """Returns the cohort's uploads with the vectors of hostile clients replaced, one by one."""
    value, reference = _split_reference(disclosed)
    message = value.value if isinstance(value, Sent) else value
    leaves, structure = jax.tree.flatten(message)
    is_known = is_valid & (is_hostile if attack.knows == "hostile" else ~is_hostile)
    clients, hostile = (flags.sum(dtype=jnp.int32) for flags in (is_valid, is_hostile))
    is_replaced = is_hostile & is_known.any()
    for i, rows in enumerate(leaves):
        if rows.ndim == 2 and jnp.issubdtype(rows.dtype, jnp.floating):
            base = jnp.zeros_like(rows) if reference is None else reference
            sent = attack.agree(rows - base, is_known, clients, hostile)
            # the reference belongs to the first vector only
            leaves[i], reference = jnp.where(is_replaced[:, None], base + sent[None], rows), None
    replaced = jax.tree.unflatten(structure, leaves)
    return Sent(replaced, value.state) if isinstance(value, Sent) else replaced


def _weighted_sum(
    values: PyTree, weights: Float[Array, "capacity"], is_valid: Bool[Array, "capacity"]
) -> tuple[PyTree, Any]:
    """Returns the weighted sum of the rows that count, and the sum of their weights."""
    weights = jnp.where(is_valid, weights, 0)

    def sum_rows(rows: Array) -> Array:
        wide = accumulator(rows.dtype)
        return jnp.tensordot(weights.astype(wide), rows.astype(wide), 1)

    return jax.tree.map(sum_rows, values), weights.astype(accumulator(weights.dtype)).sum()
