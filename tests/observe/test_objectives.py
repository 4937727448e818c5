"""Which objective is observed: shares by size, or all clients alike."""

import jax
import numpy as np
import pytest

import fedax
from fedax.observe import ClientWeights, Dissimilarity, Extremes, Objective, TrainLoss

pytestmark = pytest.mark.slow

ENGINES = [fedax.Simulation, fedax.Eager]
WATCHED = [TrainLoss(), Objective(), Dissimilarity(), ClientWeights(), Extremes("loss")]


def halves():
    """(w - 0)^2 / 2 on one example, (w - 1)^2 / 2 on nine; from w = 0."""
    data = [[0.0], [1.0] * 9]
    return fedax.Task(
        0.0, lambda w, x: (w - x) ** 2 / 2, fedax.FederatedData.from_arrays(data, test=data)
    )


def observed(algorithm, engine, weights="equal", **options):
    schedule = fedax.Schedule(steps=1, batch_size="full", weights=weights)
    options = {
        "solver": fedax.SGD(1.0),
        "schedule": schedule,
        "rounds": 1,
        "observe": WATCHED,
        "engine": engine(),
    } | options
    return fedax.run(algorithm, halves(), **options)


def told(history, t, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(
            history.metrics[name][t], value, rtol=1e-12, atol=1e-12, err_msg=f"{name} at {t}"
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_minimum_of_equal_clients_has_no_gradient(engine):
    """One full step of size 1 from anywhere ends at the mean of the centres, 1/2, where the mean
    loss is 1/8."""
    history = observed(fedax.LocalGD(), engine)
    np.testing.assert_allclose(float(history.params), 0.5, rtol=1e-15)
    told(
        history,
        0,
        train_loss=0.45,
        objective=0.25,
        gradient_norm=0.5,
        dissimilarity=np.sqrt(0.5) / 0.5,
    )
    told(
        history, 0, gradient_variance=0.25, gradient_diversity=np.sqrt(2), gradient_diversity_2023=1
    )
    told(history, 1, train_loss=0.125, objective=0.125, gradient_norm=0.0)
    told(
        history,
        1,
        weight_smallest=0.5,
        weight_gap=0.0,
        share_smallest=0.1,
        client_weight=[0.5, 0.5],
        client_share=[0.1, 0.9],
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_minimum_by_size_has_no_gradient_either(engine):
    history = observed(fedax.LocalGD(), engine, "size")
    np.testing.assert_allclose(float(history.params), 0.9, rtol=1e-15)
    told(
        history,
        0,
        train_loss=0.45,
        objective=0.45,
        gradient_norm=0.9,
        dissimilarity=np.sqrt(0.9) / 0.9,
    )
    told(history, 1, gradient_norm=0.0, weight_smallest=0.1, client_weight=[0.1, 0.9])
    assert history.metrics["objective"][1] == history.metrics["train_loss"][1]


@pytest.mark.parametrize("channel", [None, fedax.Channel(up=fedax.codecs.Identity())])
@pytest.mark.parametrize("method", [fedax.DSGD, fedax.DGD, fedax.DFedAvgM, fedax.QuantizedDFedAvgM])
def test_without_a_server_clients_count_alike(method, channel):
    """Whatever the schedule's weights are."""
    history = observed(method(topology="complete"), fedax.Simulation, "size", channel=channel)
    told(history, 0, train_loss=0.45, objective=0.25, gradient_norm=0.5)
    assert not fedax.FedAvg().equal_weights


def test_in_single_precision():
    """At the minimum of equal clients, the gap to it is zero to rounding."""
    with jax.enable_x64(False):
        history = observed(
            fedax.LocalGD(), fedax.Simulation, observe=[Objective(minimum=0.125), Dissimilarity()]
        )
    assert history.metrics["gradient_norm"].dtype == np.float32
    told(history, 1, objective_gap=0.0, gradient_norm=0.0)
