"""Federated averaging with another rule in place of the mean: what the robust methods share."""

from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.core import Algorithm, Client, Federation, Gathered, Upload, Vector


class Aggregation(Algorithm[Vector]):
    """The clients' models come to the server one by one, and a rule makes the new model of them."""

    def round(self, fed: Federation, state: Vector) -> Vector:
        return self.combine(fed.gather(self.train, fed.sample(), state), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w), reference=w)

    @abstractmethod
    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        """Returns the new model, from those of the cohort and the one that they started from."""


def sort_uploads(uploads: Gathered[Vector]) -> tuple[Float[Array, "capacity dim"], Int[Array, ""]]:
    """Returns the uploads sorted in every coordinate, and how many count; the rows from there on
    are infinite.
    """
    values = jnp.where(uploads.valid[:, None], uploads.value, jnp.inf)
    return jnp.sort(values, axis=0), uploads.valid.sum(dtype=jnp.int32)
