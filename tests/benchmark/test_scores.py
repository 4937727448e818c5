"""Profiles, areas and differences against plain recomputations and cases that are known."""

import math

import numpy as np
import pytest

from fedax.benchmark.measures import best_value, cost_to, quality_of
from fedax.benchmark.scores import area, interval, profile, ratios, speed_gains, typical
from fedax.core import Outcome
from fedax.results import Record


def record(losses, accuracies, outcome=None, time=None):
    n = len(losses)
    spent = np.arange(n)
    return Record(
        "t",
        "m",
        0,
        0,
        spent * 2,
        np.zeros(n),
        spent * 5e8,
        {"train_loss": np.array(losses), "test_accuracy": np.array(accuracies)},
        outcome or Outcome(),
        gradients=spent * 3.0,
        time=time,
    )


def test_costs_are_read_at_the_first_observation_at_the_target():
    run = record([3.0, 2.0, 1.0, 1.5], [0.1, 0.5, 0.6, 0.4], time=np.arange(4) * 1800.0)
    assert cost_to(run, "test_accuracy", 0.5, "rounds") == 2
    assert cost_to(run, "train_loss", 1.0, "rounds") == 4
    assert cost_to(run, "train_loss", 1.0, "gigabits") == 1.0
    assert cost_to(run, "train_loss", 1.0, "gradients") == 6.0
    assert cost_to(run, "train_loss", 1.0, "hours") == 1.0
    assert cost_to(run, "train_loss", 0.9, "rounds") == math.inf
    assert math.isnan(cost_to(record([1.0, 0.5], [0, 0]), "train_loss", 0.5, "hours"))
    assert best_value(run, "test_accuracy", 3) == 0.5


def test_a_target_costs_at_least_a_round():
    """Clients that adapt the initial model may be at the target without a message."""
    run = record([3.0, 2.0, 1.0], [0.6, 0.4, 0.8])
    assert cost_to(run, "test_accuracy", 0.5, "rounds") == 4
    assert cost_to(run, "test_accuracy", 0.4, "rounds") == 2


@pytest.mark.parametrize(
    "run",
    [
        record([3.0, 1.0, 1.0], [0.6, 0.9, 0.5]),  # below its initial accuracy
        record([3.0, 1.0, 1.0], [0.6, 0.9, math.nan]),
        record([3.0, 1.0, 1.0], [0.1, 0.9, 0.9], Outcome("non-finite", 2)),
    ],
)
def test_a_run_that_diverged_costs_infinitely_much(run):
    assert cost_to(run, "test_accuracy", 0.5, "rounds") == math.inf
    assert math.isnan(quality_of(run, "train_loss", "test_accuracy"))
    assert math.isnan(best_value(run, "test_accuracy", 10))


def test_the_metric_of_the_task_says_what_diverged():
    """A loss that rises may go with accuracies that rise."""
    run = record([3.0, 1.0, 4.0], [0.1, 0.5, 0.9])
    assert cost_to(run, "test_accuracy", 0.5, "rounds") == 2
    assert quality_of(run, "test_accuracy", "test_accuracy") == 0.9
    assert cost_to(run, "train_loss", 1.0, "rounds") == math.inf
    assert math.isnan(quality_of(run, "test_accuracy", "train_loss"))


def test_profiles_areas_and_intervals_are_those_of_loops():
    random = np.random.default_rng(3)
    costs = random.uniform(1, 9, (5, 7))
    costs[random.random((5, 7)) < 0.2] = np.inf
    costs[:, 6] = np.inf  # a task that nobody solves
    found, factors = ratios(costs), np.linspace(1, 5, 9)
    for m in range(5):
        expected = [
            math.inf if math.isinf(costs[m, t]) else costs[m, t] / min(costs[:, t])
            for t in range(7)
        ]
        np.testing.assert_allclose(found[m], expected)
        shares = [sum(r <= f for r in expected) / 7 for f in factors]
        np.testing.assert_array_equal(profile(found, factors)[m], shares)
        # by quadrature
        fine = np.linspace(1, 4, 30001)
        steps = profile(found[m : m + 1], fine)[0]
        assert abs(area(found)[m] - steps[:-1].mean()) < 1e-3
    low, high = interval(found)
    assert (low <= area(found)).all()
    assert (area(found) <= high).all()
    assert (high < 1).all()
    assert area(found[:, 6:]).tolist() == [0.0] * 5


def test_the_interval_is_that_of_all_samples_of_two_tasks():
    found = np.array([[1.0, 4.0]])  # areas 1, 0.5, 0.5, 0 with equal chances
    low, high = interval(found)
    assert (low[0], high[0]) == (0.0, 1.0)


def test_typical_costs_and_gains():
    assert typical(np.array([4.0, math.inf, 2.0, math.inf, 8.0])) == 8.0
    assert typical(np.array([4.0, math.inf, math.inf])) == math.inf
    assert typical(np.array([1.0, 3.0])) == 2.0
    never = np.full(2, math.inf)
    assert speed_gains(np.array([5.0, 10.0]), never).tolist() == pytest.approx([4 / 3, 2 / 3])
    assert speed_gains(never, never).tolist() == [0.0, 0.0]
