"""Means over many clients are means, in every precision; one value per client means one for each of
them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput, Ragged, Task
from fedax.data import FederatedData
from fedax.engine.round.aggregation import (
    add_compensated,
    finalize,
    no_terms,
    weighted_mean,
    weighted_sum,
)
from problems import regression


class Told(fedax.Algorithm):
    """The mean of a value that every client reads off its only example."""

    def round(self, fed, w):
        return fed.average(self.tell, fed.everyone)

    def tell(self, client):
        return fedax.Upload(-client.gradient(jnp.zeros(1, client.layout.dtype)))


def mean_of(values, dtype, method=None):
    """The mean over clients with one example each, whose loss is -value * w."""
    clients = len(values)
    offsets = np.arange(clients + 1, dtype=np.int32)
    train = Ragged({"x": values.astype(dtype)}, offsets, clients, 1)
    task = Task(
        start=lambda key: jnp.zeros(1, dtype),
        loss=lambda w, batch, key: -batch["x"] * w[0],
        data=FederatedData.from_arrays(train),
    )
    engine = fedax.Simulation(devices=1)
    return float(
        fedax.run(
            method or Told(), task, rounds=1, observe_every=1, observe=[], engine=engine
        ).params[0]
    )


@pytest.mark.parametrize("clients", [5_000, 100_000, 1_000_000])
def test_a_mean_in_single_precision_does_not_depend_on_how_many_clients_there_are(clients):
    """As exact as one rounding of the result, although a million terms are added one after the
    other."""
    with jax.enable_x64(False):
        values = np.random.default_rng(0).uniform(0, 1, clients).astype(np.float32)
        exact = values.astype(np.float64).mean()
        assert abs(mean_of(values, jnp.float32) - exact) <= 4 * np.finfo(np.float32).eps * exact


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("clients", [5_000, 100_000])
def test_a_mean_in_half_precision_is_rounded_once(dtype, clients):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        values = np.full(clients, 0.5, np.float32)
        assert mean_of(values, dtype) == pytest.approx(0.5, rel=float(jnp.finfo(dtype).eps))


def test_observers_means_are_exact_to_a_few_roundings():
    """Losses, gradients and their squares of a million clients, and the loss of a million test
    examples, in single precision."""
    with jax.enable_x64(False):
        values = np.random.default_rng(0).uniform(0, 1, 1_000_000).astype(np.float32)
        train = Ragged({"x": values}, np.arange(len(values) + 1, dtype=np.int32), len(values), 1)
        task = Task(
            start=lambda key: jnp.zeros(1),
            loss=_linear,
            data=FederatedData.from_arrays(train, central={"x": values}),
        )
        watch = [fedax.observe.TrainLoss(), fedax.observe.TestLoss(), fedax.observe.Dissimilarity()]
        seen = fedax.run(
            fedax.FedAvg(), task, rounds=0, observe=watch, engine=fedax.Simulation(devices=1)
        )
    exact = values.astype(np.float64)
    expected = {
        "train_loss": exact.mean(),
        "test_loss": exact.mean(),
        "gradient_norm": exact.mean(),
    }
    expected["dissimilarity"] = expected["gradient_diversity"] = (
        np.sqrt((exact**2).mean()) / exact.mean()
    )
    for name, value in expected.items():
        assert seen.last(name) == pytest.approx(value, rel=2e-6), name


def _linear(w, batch, key):
    return batch["x"] * (1 - w[0])


def test_a_methods_own_weights_add_up():
    """The weighted mean, with weights of the clients' own, of a million clients."""

    class Weighted(Told):
        def tell(self, client):
            value = -client.gradient(jnp.zeros(1, client.layout.dtype))
            return fedax.Upload(value, weight=value[0])

    with jax.enable_x64(False):
        values = np.random.default_rng(0).uniform(0, 1, 1_000_000).astype(np.float32)
        exact = (values.astype(np.float64) ** 2).sum() / values.astype(np.float64).sum()
        assert mean_of(values, jnp.float32, Weighted()) == pytest.approx(exact, rel=1e-6)


def test_a_weight_may_be_a_number_of_python():
    class Equal(Told):
        def tell(self, client):
            return fedax.Upload(super().tell(client).value, weight=1.0)

    assert mean_of(np.arange(4), float, Equal()) == 1.5


@pytest.mark.parametrize(
    "engine", [fedax.Simulation(devices=1), fedax.Eager()], ids=["simulation", "eager"]
)
def test_per_client_values_are_one_for_each_client(engine):
    with pytest.raises(InvalidInput, match="mu"):
        fedax.run(fedax.FedProx(mu=np.ones(9)), regression(), rounds=1, engine=engine)


def test_sums_stay_exact_over_many_terms():
    """A hundred thousand terms of which each is rounded away alone."""
    with jax.enable_x64(False):
        start = add_compensated(no_terms(jnp.zeros(9)), jnp.full(9, 1e6, jnp.float32))
        term = jnp.full((1, 9), 0.02, jnp.float32)
        weight = jnp.full(1, 0.5, jnp.float32)
        sums = jax.jit(
            lambda sums: jax.lax.fori_loop(
                0, 100_000, lambda i, s: add_compensated(s, weighted_sum(term, weight)), sums
            )
        )(start)
        np.testing.assert_allclose(finalize(sums), 1e6 + 100_000 * 0.01, rtol=1e-7)


@pytest.mark.parametrize(("weight", "mean"), [(0.5, 2.0), (0.0, 10.0)])
def test_weights_of_an_algorithm_count_however_small_unless_all_are_zero(weight, mean):
    given = (2.0 * weight, weight, 40.0, 4.0)
    form = jax.ShapeDtypeStruct((), jnp.float64)
    assert weighted_mean(tuple(map(jnp.asarray, given)), form) == mean
