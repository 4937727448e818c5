"""Interface between a round and a backend, which dispatches a phase's work to the clients and
returns the uploads, summed or gathered.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from fedax.core.federation import ClientStates, Cohort
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import PhaseResult, PhaseWork
from fedax.graphs import mixed
from fedax.utils.random import Index


class Backend(ABC):
    """Dispatches a phase's work to a cohort and returns the uploads, summed or gathered.

    Attributes:
        setup: of the round.
        padded: whether cohorts have a static capacity, with padding behind the clients that work.
    """

    setup: Setup

    padded: ClassVar[bool] = False

    def strip_padding(
        self, ids: Int[Array, "capacity"], count: Index
    ) -> tuple[Int[Array, "some"], Index]:
        """Returns drawn clients, without the padding if their number is concrete."""
        return (ids, count) if self.padded else (ids[: int(count)], int(count))

    def client_states(self, initial: PyTree) -> ClientStates:
        """Makes states with one row for each client, see `Federation.client_states`."""
        clients = self.setup.population.clients
        initial_row = initial if callable(initial) else lambda k: initial
        return ClientStates(jax.vmap(initial_row)(jnp.arange(clients, dtype=jnp.int32)))

    def noise_key(self, key: Key[Array, ""], released: PyTree) -> Key[Array, ""]:
        """Returns the key of the noise on a sum.

        In a simulation it follows from the seed, so that a run can be repeated.

        Args:
            key: of the run's seed.
            released: the sum and its bounds, all that noise is scaled by and added to.
        """
        return key

    def cohort_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """Returns the key of a draw of clients. In a simulation it follows from the seed."""
        return key

    @abstractmethod
    def work(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates], gather: bool
    ) -> PhaseResult:
        """Runs the work at every client of a cohort.

        Args:
            phase_work: what each client does.
            cohort: the clients.
            states: memories that the work reads and updates, by name.
            gather: whether to return the single uploads rather than their sum.
        """

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        states: dict[str, ClientStates],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, ClientStates]:
        """Runs the work at every client, and returns the weighted sums of neighbours' uploads.

        Args:
            phase_work: what each client does.
            everyone: all clients.
            states: memories that the work reads and updates, by name.
            neighbours: shape (clients, width), for each client itself and its neighbours; itself
                again as padding.
            weights: of the same shape, 0 for padding.
        """
        result = self.work(phase_work, everyone, states, True)
        return result, ClientStates(mixed(result.rows[0], neighbours, weights))
