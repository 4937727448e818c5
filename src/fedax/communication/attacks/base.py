"""What all attacks have in common."""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core import Task
from fedax.core.hyper import check_declared, hyper
from fedax.errors import InvalidInput
from fedax.utils.random import MOST_SEED
from fedax.utils.shares import whole_part


class Attack(eqx.Module):
    """A part of the clients does harm, the same in every round.

    See `fedax.attacks` for the known ways.

    A new attack overrides `corrupt`, or `poison`.

    Args:
        share: of all clients, rounded down; in [0, 1].
        seed: of the draw of these clients, which depends on nothing else.
    """

    share: float = hyper(
        0.2, static=True, low=0.0, high=1.0, doc="share of all clients that are hostile"
    )
    seed: int = hyper(0, low=0, high=MOST_SEED, doc="seed of the draw of the hostile clients")

    def __check_init__(self) -> None:
        check_declared(self)
        hooks = ("corrupt", "poison", "agree")
        own = [
            name for name in hooks if getattr(type(self), name, None) != getattr(Attack, name, None)
        ]
        if type(self) is not Attack and not own:
            reason = "it does nothing"
            raise InvalidInput.because(type(self).__name__, reason, "Write corrupt or poison.")

    def members(self, clients: int) -> np.ndarray:
        """Returns the numbers of the hostile ones among so many clients, ascending: the whole part
        of share times clients.

        >>> Attack(share=0.3).members(10).tolist()
        [2, 4, 6]
        """
        # the head of a permutation: with the same seed a larger share contains the smaller one
        count = whole_part(self.share, clients)
        return np.sort(np.random.default_rng(self.seed).permutation(clients)[:count]).astype(
            np.int32
        )

    def check_share(self, clients: int) -> None:
        """Refuses a share above 0 that is not even one client."""
        if self.share and not len(self.members(clients)):
            allowed = f"0, or at least {1 / clients:.3g}, which is one of {clients} clients"
            raise InvalidInput.of(f"{type(self).__name__}(share=...)", self.share, allowed)

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        """Returns the vector that a hostile client sends instead of v.

        `near` is the vector that v is a change of, 0 if there is none.
        """
        return v

    def poison(self, task: Task, first: int, clients: int) -> Task:
        """Returns the task with the training examples of hostile clients poisoned.

        Args:
            task: with the examples of client `first` on: everybody's, or one peer's.
            first: the number of its first client.
            clients: the size of the population.
        """
        return task
