"""What engines share in an exchange with neighbours."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fedax.core.client import Client
from fedax.core.errors import InvalidInput
from fedax.core.federation import Upload


class Sending(eqx.Module):
    """The sending half as a phase's work: what a client keeps in hand is its memory, unless it says otherwise."""

    send: Callable[..., Upload[Any]]

    @property
    def __name__(self) -> str:
        return self.send.__name__

    def __call__(self, client: Client, own: PyTree) -> Upload[Any]:
        upload = self.send(client, own)
        if upload.weight is not None:
            raise InvalidInput.found("exchange(send=...)", "an Upload with a weight", "none: the graph has the weights")
        return upload if upload.memory is not None else Upload(upload.value, memory=own)


class Receiving(eqx.Module):
    """The receiving half as a phase's work; `received` holds everybody's share, of which a client sees its own."""

    receive: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return self.receive.__name__

    def __call__(self, client: Client, received: PyTree, in_hand: PyTree) -> Upload[Any]:
        mine = jax.tree.map(lambda rows: rows[client.index], received)
        return Upload((), memory=self.receive(client, in_hand, mine))


def finite_rows(rows: PyTree) -> Bool[Array, "clients"]:
    """Whose memory is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(rows) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    each = [jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(1) for leaf in leaves]
    return jnp.stack(each).all(0)
