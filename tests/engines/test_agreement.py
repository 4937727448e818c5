"""The same seed gives the same result, wherever clients are placed."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine.round.client import CompiledClient, Setup
from fedax.engine.round.single_client import single_client_task
from problems import regression, vector

ENGINES = {
    "sequential, 2 devices": lambda: fedax.Simulation(devices=2),
    "chunked, 1 device": lambda: fedax.Simulation(chunk=2, devices=1),
    "chunked, 2 devices": lambda: fedax.Simulation(chunk=3, devices=2),
    "eager": fedax.Eager,
}
SCHEDULE = fedax.Schedule(cohort=3, steps=3, batch_size=4)


def twenty_rounds(engine):
    # the reference compiles nothing and is slow
    return fedax.run(
        fedax.FedBC(dual_lr=0.1),
        regression(),
        engine=engine,
        solver=fedax.SGD(0.05, momentum=0.5),
        schedule=fedax.Schedule(cohort=2, steps=2, batch_size=4),
        rounds=20,
        seed=11,
        observe_every=20,
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_float64_to_1e_12_after_20_rounds(engine):
    one, other = map(twenty_rounds, (fedax.Simulation(devices=1), ENGINES[engine]()))
    np.testing.assert_allclose(vector(other), vector(one), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "method"),
    [
        ("proportional", fedax.FedBC(dual_lr=0.2, lam=0.1)),
        ("proportional", fedax.SCAFFOLD()),
        ("proportional_without_replacement", fedax.FedBC(dual_lr=0.2, lam=0.1)),
        ("poisson", fedax.FedBC(dual_lr=0.2, lam=0.1)),
    ],
    ids=lambda v: getattr(type(v), "__name__", v),
)
def test_other_cohorts_agree_with_eager(sampling, method):
    """A device drawn twice works once and counts twice; both engines read its memory as it was
    before the phase."""
    schedule = fedax.Schedule(cohort=4, sampling=sampling, steps=2, batch_size=4)
    one, *others = [
        fedax.run(
            method,
            regression(),
            engine=engine,
            solver=fedax.SGD(0.05),
            schedule=schedule,
            rounds=4,
            seed=1,
            observe_every=4,
        )
        for engine in (
            fedax.Eager(),
            fedax.Simulation(chunk=2, devices=2),
            fedax.Simulation(devices=1),
        )
    ]
    for other in others:
        np.testing.assert_allclose(vector(other), vector(one), rtol=1e-12, atol=1e-12)
        assert np.array_equal(other.bits.up, one.bits.up)


@pytest.mark.slow
def test_microbatches_are_one_batch():
    """Batches of 16 in pieces of 3, and full gradients in pieces of 3, change only the rounding."""
    whole, pieces = (
        fedax.run(
            fedax.FedDANE(mu=0.1),
            regression(),
            engine=fedax.Simulation(devices=1, microbatch=size),
            solver=fedax.SGD(0.05),
            schedule=fedax.Schedule(batch_size=16, epochs=2),
            rounds=3,
            seed=2,
        )
        for size in (256, 3)
    )
    np.testing.assert_allclose(vector(whole), vector(pieces), rtol=1e-12, atol=1e-12)


class Rows(fedax.Algorithm):
    """Uploads each client's number and size; the server keeps what it gathered."""

    def round(self, fed, w):
        got = fed.gather(self.work, fed.sample(), w)
        fed.log(ids=got.ids, values=got.value, weights=got.weights, valid=got.valid)
        return w + 1

    def work(self, client, w):
        return fedax.Upload(client.share * 70 + 0 * w.sum())


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*ENGINES.values(), lambda: fedax.Simulation(devices=1)])
def test_gather_keeps_uploads_with_their_clients(engine):
    history = fedax.run(Rows(), regression(), schedule=SCHEDULE, rounds=3, seed=4, engine=engine())
    sizes = np.asarray(regression().train.sizes)
    shares = sizes / sizes.sum()
    for ids, values, weights, valid in zip(
        *(history.logged[k] for k in ("ids", "values", "weights", "valid")), strict=True
    ):
        assert len(set(ids.tolist())) == 3
        assert valid.all()
        np.testing.assert_allclose(values, shares[ids] * 70, rtol=1e-12)
        np.testing.assert_allclose(weights, shares[ids], rtol=1e-12)


def test_a_client_by_itself_has_its_own_examples():
    """As MPI ranks and Flower's devices run it: the gradient of mean (w - x)^2 / 2 is w - mean x."""
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 3.0], [5.0], [-2.0, 0.0, 8.0]])
    setup = Setup.of(fedax.FedAvg(), task, fedax.Schedule(), fedax.SGD(0.1))
    setup = dataclasses.replace(setup, task=single_client_task(task, 2), first=2)
    client = CompiledClient(setup, 2)
    assert int(client.size) == 3
    np.testing.assert_allclose(client.gradient(jnp.array([0.5])), [0.5 - 2.0], rtol=1e-12)
