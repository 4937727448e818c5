"""Sampling as an open class, and the spellings of schedules."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core.scheduling.sampling import SAMPLING, Poisson, Sampling
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import schedule_of
from problems import quadratic, random_quadratic, vector

TEXT = 'name = "a"\n[task]\nname = "digits"\n[[algorithm]]\nname = "fedavg"\n'


@pytest.fixture
def last():
    """A rule of one class: the clients with the highest numbers, all but some."""

    @dataclasses.dataclass(frozen=True)
    class LastOnes(Sampling):
        but: int = 0

        def draw(self, key, offsets, cohort):
            top = offsets.shape[0] - 1 - self.but
            return jnp.arange(top - cohort, top, dtype=jnp.int32), cohort

    yield LastOnes
    del SAMPLING["last_ones"]


def test_a_new_rule_is_one_class(last):
    """It runs: a cohort of the third and fourth of five clients moves the model to their mean."""
    a, b = random_quadratic(clients=5)
    a[:] = np.eye(3)
    schedule = fedax.Schedule(cohort=2, sampling=last(but=1), steps=1, batch_size="full")
    found = fedax.run(
        fedax.FedAvg(), quadratic(a, b), schedule=schedule, solver=fedax.SGD(1.0), rounds=1
    )
    np.testing.assert_allclose(vector(found), b[2:4].mean(0), atol=1e-14, rtol=0)


def test_experiment_files_have_it_by_name(last):
    table = Experiment.parse(
        TEXT + '[schedule]\ncohort = 2\nsampling = {name = "last_ones", but = 2}\n'
    )
    assert schedule_of(Experiment.parse(table.toml()).schedule).sampling == last(but=2)
    name = Experiment.parse(TEXT + '[schedule]\ncohort = 2\nsampling = "poisson"\n')
    assert name.resolved()["schedule"]["sampling"] == "poisson"
    assert schedule_of(name.schedule).sampling == Poisson()
