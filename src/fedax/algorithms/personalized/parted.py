"""One model in two parts: leaves that the server averages, and leaves that stay at each client;
what such methods share.
"""

from typing import ClassVar, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Client,
    ClientStates,
    Federation,
    InvalidInput,
    Layout,
    Part,
    Personal,
    Task,
    Upload,
    Vector,
)

SharedVector: TypeAlias = Float[Array, "shared"]
PersonalVector: TypeAlias = Float[Array, "own"]


class Parts(eqx.Module):
    """The state: the shared leaves in full, and every client's own.

    Attributes:
        whole: the model of round 0, of which the shared leaves are kept up to date.
        clients: each client's own leaves.
        own: which they are.
    """

    whole: Vector
    clients: ClientStates
    own: Part = eqx.field(static=True)


class Parted(Algorithm[Parts]):
    """FedAvg of the shared leaves. A client trains its whole model, and uploads the shared leaves
    alone.

    A client uses its own leaves with the shared ones; the global model has the mean of everybody's
    own, with privacy the initial ones.

    Attributes:
        chooses: the hyperparameter that says which leaves.
    """

    chooses: ClassVar[str] = "head"

    @property
    def field(self) -> str:
        """The hyperparameter that says which leaves, for messages."""
        return f"{type(self).__name__}({self.chooses}=...)"

    def personal_leaves(self, layout: Layout) -> Part:
        """Returns the leaves that stay at each client."""
        return layout.part(getattr(self, self.chooses), self.field)

    def check_model(self, task: Task, layout: Layout) -> None:
        """Refuses a model of which all leaves, or none, would stay, unless that was asked for in so
        many words.
        """
        chosen = self.personal_leaves(layout).chosen
        which = getattr(self, self.chooses)
        # equal if all leaves stay, or none
        if any(chosen) == all(chosen) and which not in ((), "*", ("*",)):
            got = f"{which!r}, by which {'every' if all(chosen) else 'no'} leaf stays"
            allowed = f"some of the model's leaves {layout.names}, () for none or '*' for all"
            raise InvalidInput.found(self.field, got, allowed)

    def init(self, fed: Federation, w: Vector) -> Parts:
        leaves = self.personal_leaves(fed.layout)
        return Parts(w, fed.client_states(leaves.take(w)), leaves)

    def round(self, fed: Federation, state: Parts) -> Parts:
        shared_leaves = state.own.others
        down = shared_leaves.take(state.whole)
        mean, states = fed.average(self.train, fed.sample(), down, states=state.clients)
        return Parts(shared_leaves.put(state.whole, mean), states, state.own)

    def model(self, state: Parts) -> Vector:
        return state.own.put(state.whole, state.clients.mean(default=state.own.take(state.whole)))

    def personal(self, state: Parts) -> Personal:
        return Personal(self.join, (state.own.others.take(state.whole),), state.clients)

    def join(self, client: Client, shared: SharedVector, personal: PersonalVector) -> Vector:
        """Returns the client's model."""
        leaves = self.personal_leaves(client.layout)
        w = jnp.zeros(client.layout.dim, shared.dtype)
        return leaves.put(leaves.others.put(w, shared), personal)

    def train(
        self, client: Client, shared: SharedVector, personal: PersonalVector
    ) -> Upload[SharedVector]:
        leaves = self.personal_leaves(client.layout)
        w = self.train_locally(client, self.join(client, shared, personal))
        return Upload(leaves.others.take(w), reference=shared, state=leaves.take(w))

    def train_locally(self, client: Client, w: Vector) -> Vector:
        """Returns the client's model after its work."""
        return client.minimize(start=w)
