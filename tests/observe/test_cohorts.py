"""The last cohort, as observers see it, on every engine: weighted draws, second draws, everyone,
nobody."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.observe.base import Observer
from marks import slow
from problems import regression

pytestmark = pytest.mark.slow

ENGINES = [
    pytest.param(lambda: fedax.Simulation(devices=1), id="simulation"),
    slow(fedax.Eager, id="eager"),
]
OPTIONS = {
    "solver": fedax.SGD(0.05),
    "schedule": fedax.Schedule(cohort=2, steps=1, batch_size=4),
    "rounds": 6,
    "seed": 3,
}


class Who(Observer):
    """The number of times that each client worked in the last phase."""

    def __call__(self, view):
        cohort = view.cohort()
        present = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        return {
            "who": jnp.zeros(view.task.train.clients, jnp.int32)
            .at[cohort.ids]
            .add(present.astype(jnp.int32))
        }


class Twice(fedax.Algorithm):
    """Two draws; only the clients of the second one train. They are noted."""

    def round(self, fed, state):
        first = fed.sample()
        second = fed.sample()
        fed.log(ids=second.ids)
        fed.average(self.look, first, state)
        return fed.average(self.train, second, state)

    def look(self, client, w):
        return fedax.Upload(client.gradient(w))

    def train(self, client, w):
        return fedax.Upload(client.minimize(start=w))


def who(algorithm, engine, **options):
    return fedax.run(algorithm, regression(), observe=[Who()], engine=engine(), **OPTIONS | options)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_second_draw(engine):
    history = who(Twice(), engine)
    expected = np.zeros((6, 5), int)
    for t, ids in enumerate(history.logged["ids"]):
        expected[t, ids] = 1
    assert history.metrics["who"].tolist() == [[0] * 5, *expected.tolist()]


@pytest.mark.parametrize("engine", ENGINES)
def test_feddane_trains_on_the_second_draw(engine):
    """Those are the clients that `cohorts="shared"` does not use again."""
    shared, own = (
        who(fedax.FedDANE(cohorts=kind), engine).metrics["who"][1:]
        for kind in ("shared", "independent")
    )
    once = who(fedax.FedAvg(), engine).metrics["who"][1:]
    assert np.array_equal(shared, once)
    assert (own.sum(1) == 2).all()
    assert not np.array_equal(own, shared)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_weighted_draw(engine, seed):
    """FedAWARE explores: nobody works twice before all have worked once."""
    told = who(fedax.FedAWARE(startup="explore"), engine, seed=seed, rounds=3).metrics["who"][1:]
    assert told[:2].sum(0).max() == 1
    assert (told.sum(0) >= 1).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_everyone_where_everyone_works(engine):
    """Whatever cohort the schedule has."""
    for algorithm in (fedax.LocalGD(), fedax.DSGD()):
        assert who(algorithm, engine, rounds=1).metrics["who"].tolist() == [[0] * 5, [1] * 5]


@pytest.mark.parametrize("engine", ENGINES)
def test_with_replacement_and_nobody(engine):
    drawn = fedax.Schedule(cohort=4, sampling="proportional", steps=1, batch_size=4)
    told = who(fedax.FedAvg(), engine, schedule=drawn).metrics["who"][1:]
    assert (told.sum(1) == 4).all()
    assert told.max() > 1
    perhaps = fedax.Schedule(cohort=1, sampling="poisson", steps=1, batch_size=4)
    history = who(fedax.FedAvg(), engine, schedule=perhaps, rounds=12, observe_every=1)
    told = history.metrics["who"][1:].sum(1)
    assert 0 < (told == 0).sum() < 12
    assert np.array_equal(told == 0, history.bits.up == 0)


def test_extremes_of_a_draw_with_replacement():
    """A client that was drawn twice has two draws' weight in the mean, and its share once."""
    with jax.enable_x64(False):
        task = regression((7, 20, 33, 4, 11))
        sizes = np.array([7, 20, 33, 4, 11])
        task = dataclasses.replace(
            task,
            data=fedax.FederatedData.from_arrays(task.data, test=[task.train[k] for k in range(5)]),
        )
        drawn = fedax.Schedule(cohort=4, sampling="proportional", steps=1, batch_size=4)
        metrics = fedax.run(
            fedax.FedAvg(),
            task,
            observe=[Who(), fedax.observe.Extremes("loss")],
            **OPTIONS | {"schedule": drawn},
        ).metrics
    repeats = 0
    for t, times in enumerate(metrics["who"][1:], 1):
        largest = int(np.argmax(np.where(times > 0, sizes, 0)))
        smallest = int(np.argmin(np.where(times > 0, sizes, 99)))
        repeats += times[largest] > 1
        for name, k in (("largest", largest), ("smallest", smallest)):
            assert metrics[f"weight_{name}"][t] == pytest.approx(times[k] / 4, rel=1e-6)
            share = sizes[k] / sizes[times > 0].sum()
            assert metrics[f"share_{name}"][t] == pytest.approx(share, rel=1e-6)
    assert repeats > 0
