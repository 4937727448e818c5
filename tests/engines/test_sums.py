"""Means over many clients are means, in every precision; one value per client means one for each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput, Ragged, Task
from problems import regression


class Told(fedax.Algorithm):
    """The mean of a value that every client reads off its only example."""

    def round(self, fed, w):
        return fed.average(self.tell, fed.everyone)

    def tell(self, client):
        return fedax.Upload(-client.gradient(jnp.zeros(1, client.layout.dtype)))


def mean_of(values, dtype):
    """The mean over clients with one example each, whose loss is -value * w."""
    clients = len(values)
    offsets = np.arange(clients + 1, dtype=np.int32)
    train = Ragged({"x": values.astype(dtype)}, offsets, clients, 1)
    task = Task(start=lambda key: jnp.zeros(1, dtype), loss=lambda w, batch, key: -batch["x"] * w[0], train=train)
    engine = fedax.Simulation("sequential", devices=1)
    return float(fedax.run(Told(), task, rounds=1, observe_every=1, observe=[], engine=engine).params[0])


@pytest.mark.parametrize("clients", [5_000, 100_000, 1_000_000])
def test_a_mean_in_single_precision_does_not_depend_on_how_many_clients_there_are(clients):
    """As exact as one rounding of the result, although a million terms are added one after the other."""
    with jax.enable_x64(False):
        values = np.random.default_rng(0).uniform(0, 1, clients).astype(np.float32)
        exact = values.astype(np.float64).mean()
        assert abs(mean_of(values, jnp.float32) - exact) <= 4 * np.finfo(np.float32).eps * exact


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("clients", [5_000, 100_000])
def test_a_mean_in_half_precision_is_rounded_once(dtype, clients):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        values = np.full(clients, 0.5, np.float32)
        assert mean_of(values, dtype) == pytest.approx(0.5, rel=float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("engine", [fedax.Simulation(devices=1), fedax.Eager()], ids=["simulation", "eager"])
def test_per_client_values_are_one_for_each_client(count, engine):
    with pytest.raises(
        InvalidInput, match=rf"FedProx\(mu=...\): got {count} numbers; allowed: one number, or 5, one per cli"
    ):
        fedax.run(fedax.FedProx(mu=np.ones(count)), regression(), rounds=1, engine=engine)
