"""The weight of each client in the global model."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.observe.base import Observer, View


def normalized_weights(
    default: Array, method_weights: Array | None = None
) -> Float[Array, "clients"]:
    """Normalises a method's own weights; the default ones where those are missing or zero."""
    weights = (
        default
        if method_weights is None
        else jnp.where(method_weights.sum() > 0, method_weights, default)
    )
    return weights / jnp.where(weights.sum() > 0, weights.sum(), 1)


class ClientWeights(Observer):
    r"""The shares of the clients in a mean over all of them.

    As if all took part in the next round.

    - `client_weight`, shape (clients,): $w_k / \sum_j w_j$ with the method's own weights where it
      remembers them (FedBC: its multipliers), else, and where those are all zero, with the
      objective's (see `Objective`).
    - `client_share`, shape (clients,): $n_k / \sum_j n_j$, of the training examples.
    - `client_weight_smallest`, `client_weight_largest`: the weights of the clients with the fewest
      and the most training examples (the first of several), not the lowest and highest weight.
    - `weight_raised`: of the clients with fewer examples than the mean, the part whose weight is
      above their share.
    - `weight_lowered`: of those with more examples than the mean, the part whose weight is below
      it. (0 where there are none.)

    Source: Bedi et al., FedBC (arXiv:2206.10815), Fig. 3 (c) and 7 (e).
    """

    def __call__(self, view: View) -> dict[str, Any]:
        sizes = jnp.asarray(view.task.train.sizes).astype(view.w.dtype)
        weight, share = normalized_weights(view.share, view.weights), normalized_weights(sizes)

        # share of a group with a change; 0 for an empty group, not NaN
        def share_changed(group: Array, changed: Array) -> Float[Array, ""]:
            count = group.sum(dtype=view.w.dtype)
            return (group & changed).sum(dtype=view.w.dtype) / jnp.where(count > 0, count, 1)

        return {
            "client_weight": weight,
            "client_share": share,
            "client_weight_smallest": weight[jnp.argmin(sizes)],
            "client_weight_largest": weight[jnp.argmax(sizes)],
            "weight_raised": share_changed(sizes < sizes.mean(), weight > share),
            "weight_lowered": share_changed(sizes > sizes.mean(), weight < share),
        }
