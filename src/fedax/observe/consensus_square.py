"""The distance of the clients' models in the form that theorems bound."""

from typing import Any

import jax.numpy as jnp

from fedax.observe.base import Observer, View


class ConsensusSquare(Observer):
    r"""`consensus_square`: the mean squared distance of the models to their mean.

    $\frac1m \sum_i \lVert x_i - \bar x \rVert^2$, as in DFedAvgM's eqs. (9) and (10); 0 with a
    server.

    The bounds are those of `fedax.theory.dfedavgm.consensus_bound`.
    """

    lower_is_better = ("consensus_square",)

    def __call__(self, view: View) -> dict[str, Any]:
        if view.nodes is None:
            return {"consensus_square": jnp.zeros((), view.w.dtype)}
        deviations = view.nodes - view.nodes.mean(0, keepdims=True)
        return {"consensus_square": (deviations**2).sum(1).mean()}
