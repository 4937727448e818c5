"""Formulas that divide by what may vanish: every algorithm stays finite, and does what its
documentation says."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import fedax
from fedax.algorithms import algorithm_classes
from problems import (
    CLASSIFIERS,
    is_preset,
    named,
    quadratic,
    random_quadratic,
    some_features,
    vector,
)

ONE = fedax.Simulation(devices=1)


def bowl_or_slope(w, x):
    """`curve` (w - at)^2 / 2 + `slope` w, in two dimensions: what a task is, is in its data, and
    one program serves all."""
    return x["curve"] * ((w[None, :] - x["at"]) ** 2).sum(1) / 2 + x["slope"] @ w


def task(curve, slopes, sizes=(1, 1, 1)):
    """Clients with the given slopes and centres at their number."""
    clients = [
        {
            "curve": np.full(n, curve),
            "at": np.full((n, 2), float(k)),
            "slope": np.tile(slopes[k], (n, 1)).astype(float),
        }
        for k, n in enumerate(sizes)
    ]
    return dataclasses.replace(fedax.Task(np.ones(2), bowl_or_slope, clients), owner=None)


SAME = [[1, 2]] * 3
OPPOSITE = [[1, 2], [-1, -2], [0, 0]]
CASES = {
    "one example each, one client a round": (1.0, np.zeros((3, 2))),
    "the same constant gradient": (0.0, SAME),
    "constant gradients that cancel": (0.0, OPPOSITE),
}


KINDS = [
    pytest.param(k, marks=pytest.mark.slow) if is_preset(k) else CLASSIFIERS.get(k, k)
    for k in algorithm_classes().values()
]


WHOLE = {
    "FedBN": {"norms": ()},
    "FedPer": {"head": "*"},
    "FedRep": {"head": "*"},
    "LGFedAvg": {"head": "*"},
}
WHOLE |= {"FedBABU": {"head": ()}, "FedRoD": {"head": "*"}, "MOON": {"features": some_features}}
"""Methods that part a model, for those of one leaf, and what others need on these tasks."""


def run(kind, task, schedule):
    history = fedax.run(
        kind(**WHOLE.get(kind.__name__, {})),
        task,
        solver=fedax.SGD(0.05),
        schedule=schedule,
        rounds=3,
        observe_every=3,
        engine=ONE,
    )
    assert history.outcome.ok
    state = [leaf for leaf in jax.tree.leaves(history.state) if eqx.is_inexact_array(leaf)]
    assert all(np.isfinite(leaf).all() for leaf in state)
    assert all(np.isfinite(note).all() for note in history.logged.values())
    return vector(history)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_single_examples_single_cohorts_and_constant_gradients(kind):
    """Three rounds with a cohort of one: most clients are new or never seen."""
    for problem in CASES.values():
        run(kind, task(*problem), fedax.Schedule(cohort=1, batch_size=4, order="given"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_a_single_client_with_a_single_example(kind):
    """All of a federation is one number: the method still moves against the gradient."""
    w = run(
        kind, task(1.0, np.zeros((1, 2)), sizes=(1,)), fedax.Schedule(batch_size=4, order="given")
    )
    assert np.all(w < 1)


@pytest.mark.slow
def test_fedbc_without_multipliers_is_fedavg():
    """All weights are zero in every round; the default weights count, not 0/0."""
    curvatures, centres = random_quadratic()
    options = {
        "solver": fedax.SGD(0.1),
        "schedule": fedax.Schedule(cohort=2, steps=3, batch_size="full"),
        "rounds": 4,
    }
    problem = quadratic(curvatures, centres, [1, 2, 3, 4])
    found, plain = (
        vector(fedax.run(method, problem, engine=ONE, **options))
        for method in (fedax.FedBC(dual_lr=0.0, lam=0.0, start="global"), fedax.FedAvg())
    )
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-13)


def test_fedmgda_stays_where_gradients_cancel():
    """Zero is a convex combination of unit updates in opposite directions, and of an update of
    zero."""
    w = run(
        fedax.FedMGDA,
        task(*CASES["constant gradients that cancel"]),
        fedax.Schedule(batch_size=4, order="given"),
    )
    moved = np.linalg.norm(w - 1)
    # the box of 0.1 around equal weights holds (1/3, 1/3, 1/3), where the two cancel
    assert moved < 1e-12


def test_fedaware_and_identical_updates():
    """Duplicates: whatever the weights, the combination is the common momentum, (1 - alpha^t) lr g
    after t visits."""
    schedule = fedax.Schedule(batch_size=4, order="given")
    w = run(fedax.FedAWARE, task(*CASES["the same constant gradient"]), schedule)
    g = 0.05 * np.array([1.0, 2.0])
    np.testing.assert_allclose(w, 1 - (0.5 + 0.75 + 0.875) * g, rtol=0, atol=1e-12)
