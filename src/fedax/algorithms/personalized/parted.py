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
    Federation,
    InvalidInput,
    Layout,
    Memory,
    Part,
    Personal,
    Task,
    Upload,
    Vector,
)

Shared: TypeAlias = Float[Array, "shared"]
Own: TypeAlias = Float[Array, "own"]


class Parts(eqx.Module):
    """The state: the shared leaves in full, and every client's own.

    Attributes:
        whole: the model of round 0, of which the shared leaves are kept up to date.
        memory: each client's own leaves.
        own: which they are.
    """

    whole: Vector
    memory: Memory
    own: Part = eqx.field(static=True)


class Parted(Algorithm[Parts]):
    """FedAvg of the shared leaves. A client trains its whole model, and uploads the shared leaves
    alone.

    A client uses its own leaves with the shared ones; the global model has the mean of everybody's
    own.

    Attributes:
        chooses: the hyperparameter that says which leaves.
    """

    chooses: ClassVar[str] = "head"

    @property
    def field(self) -> str:
        """The hyperparameter that says which leaves, for messages."""
        return f"{type(self).__name__}({self.chooses}=...)"

    def own(self, layout: Layout) -> Part:
        """Returns the leaves that stay at each client."""
        return layout.part(getattr(self, self.chooses), self.field)

    def check_model(self, task: Task, layout: Layout) -> None:
        """Refuses a model of which all leaves, or none, would stay, unless that was asked for in so
        many words.
        """
        own, which = self.own(layout).chosen, getattr(self, self.chooses)
        # equal if all leaves stay, or none
        if any(own) == all(own) and which not in ((), "*", ("*",)):
            meant = (
                f"{'a predicate' if callable(which) else repr(which)}, by which "
                f"{'every leaf' if all(own) else 'no leaf'} stays"
            )
            allowed = "some of the model's leaves: " + (
                ", ".join(layout.names) or "it is one array"
            )
            raise InvalidInput.found(
                self.field, meant, allowed, "If that is meant, write () for none or '*' for all."
            )

    def init(self, fed: Federation, w: Vector) -> Parts:
        own = self.own(fed.layout)
        return Parts(w, fed.memory(own.take(w)), own)

    def round(self, fed: Federation, state: Parts) -> Parts:
        shared = state.own.others
        down = shared.take(state.whole)
        mean, memory = fed.average(self.train, fed.sample(), down, memory=state.memory)
        return Parts(shared.put(state.whole, mean), memory, state.own)

    def model(self, state: Parts) -> Vector:
        return state.own.put(state.whole, state.memory.mean())

    def personal(self, state: Parts) -> Personal:
        return Personal(self.joined, (state.own.others.take(state.whole),), state.memory)

    def joined(self, client: Client, shared: Shared, own: Own) -> Vector:
        """Returns the client's model."""
        part, w = self.own(client.layout), jnp.zeros(client.layout.dim, shared.dtype)
        return part.put(part.others.put(w, shared), own)

    def train(self, client: Client, shared: Shared, own: Own) -> Upload[Shared]:
        part, w = self.own(client.layout), self.local(client, self.joined(client, shared, own))
        return Upload(part.others.take(w), reference=shared, memory=part.take(w))

    def local(self, client: Client, w: Vector) -> Vector:
        """Returns the client's model after its work."""
        return client.minimize(start=w)
