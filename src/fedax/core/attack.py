"""Hostile clients: the vectors that they send in place of their own, and the examples that they learn from."""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core.arguments import checked_arguments
from fedax.core.counts import whole_part
from fedax.core.errors import InvalidInput
from fedax.core.hyper import check_declared, hyper
from fedax.core.keys import MOST_SEED
from fedax.core.task import Task


@checked_arguments
class Attack(eqx.Module):
    """A part of the clients does harm, the same in every round; see `fedax.attacks` for the known ways.

    A new attack overrides `sent`, or `poisoned`.

    Args:
        share: of all clients, rounded down; in [0, 1].
        seed: of the draw of these clients, which depends on nothing else.
    """

    share: float = hyper(0.2, static=True, low=0.0, high=1.0, doc="share of all clients that are hostile")
    seed: int = hyper(0, low=0, high=MOST_SEED, doc="seed of the draw of the hostile clients")

    def __check_init__(self) -> None:
        check_declared(self)

    def members(self, clients: int) -> np.ndarray:
        """Returns the numbers of the hostile ones among so many clients, ascending: the whole part of share times clients.

        >>> Attack(share=0.3).members(10).tolist()
        [2, 4, 6]
        """
        count = whole_part(self.share, clients)
        return np.sort(np.random.default_rng(self.seed).permutation(clients)[:count]).astype(np.int32)

    def check_share(self, clients: int) -> None:
        """Refuses a share above 0 that is not even one client."""
        if self.share and not len(self.members(clients)):
            allowed = f"0, or at least {1 / clients:.3g}, which is one of {clients} clients"
            raise InvalidInput.of(f"{type(self).__name__}(share=...)", self.share, allowed)

    def sent(self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]) -> Float[Array, "dim"]:
        """The vector that a hostile client sends in place of v; `near` is the vector that v is a change of, 0 if there is none."""
        return v

    def poisoned(self, task: Task, first: int, clients: int) -> Task:
        """The task with the hostile clients' training examples as they have them.

        Args:
            task: with the examples of client `first` on: everybody's, or one peer's.
            first: the number of its first client.
            clients: the size of the population.
        """
        return task
