"""Shares that become counts, and sets without examples."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax import data
from fedax.communication.attacks import SignFlip
from fedax.core import InvalidInput
from fedax.examples.overlap import train_size
from fedax.utils.shares import whole_part

ONE = fedax.Simulation(devices=1)
DECIMALS = st.integers(0, 999).map(lambda thousandths: Fraction(thousandths, 1000))


@given(DECIMALS, st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_whole_parts_are_those_of_the_decimals(share, count):
    exact = share * count
    assert whole_part(float(share), count) == exact.numerator // exact.denominator
    rest = (1 - share) * count
    assert whole_part(1 - float(share), count) == rest.numerator // rest.denominator
    assert train_size(max(count, 1), float(share)) == max(1, int((1 - share) * max(count, 1)))


@given(st.integers(1, 60), DECIMALS)
@settings(max_examples=100, deadline=None)
def test_attackers_are_the_whole_part_and_at_least_one(clients, share):
    exact = int(share * clients)
    if share and not exact:
        with pytest.raises(InvalidInput, match="at least"):
            SignFlip(share=float(share)).check_share(clients)
    else:
        assert len(SignFlip(share=float(share)).members(clients)) == exact


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "many", "cut"), [(0.2, 4, 1), (0.07, 100, 7), (0.001, 5, 1)])
def test_a_trimmed_mean_trims_at_least_its_share(beta, many, cut):
    """One step of size 1 on bowls ends at their centres; 1e6 is an outlier at either end."""
    centres = np.arange(many, dtype=float)
    centres[0] = -2e6
    centres[-1] = 1e6
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, centres[:, None])
    options = {
        "solver": fedax.SGD(1.0),
        "schedule": fedax.Schedule(batch_size="full"),
        "rounds": 1,
        "engine": ONE,
    }
    history = fedax.run(fedax.TrimmedMean(beta=beta), task, **options)
    np.testing.assert_allclose(history.params, np.sort(centres)[cut:-cut].mean(), rtol=1e-5)


def loss(w, x):
    return (w - x) ** 2


def test_some_clients_may_have_no_test_examples():
    task = fedax.Task(0.0, loss, fedax.FederatedData.from_arrays([[1.0], [2.0]], test=[[], [3.0]]))
    history = fedax.run(
        fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.TestLoss()], engine=ONE
    )
    assert history.last("test_loss") == 9


def test_runs_without_test_examples_say_so_where_they_are_needed():
    task = fedax.tasks.logistic(
        data.FederatedData.partitioned(
            np.eye(4),
            np.arange(4) % 2,
            [np.array([k]) for k in range(4)],
            classes=2,
            test_fraction=0.5,
        )
    )
    history = fedax.run(fedax.FedAvg(), task, rounds=1, engine=ONE)
    assert np.isfinite(history.last("train_loss"))
    assert task.test_set is None
    for observer in (
        fedax.observe.TestLoss(),
        fedax.observe.ClientAccuracy(),
        fedax.observe.AUC(split="test"),
    ):
        with pytest.raises(InvalidInput, match="without"):
            fedax.run(fedax.FedAvg(), task, rounds=0, observe=[observer], engine=ONE)
