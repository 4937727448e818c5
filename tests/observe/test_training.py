"""The loss that clients see while they train, against plain NumPy."""

import numpy as np
import pytest

import fedax
from problems import SIZES, regression
from transcription import LR, SCHEDULE, World

pytestmark = pytest.mark.slow


def run(rounds, engine=None, **options):
    settings = {
        "solver": fedax.SGD(LR),
        "schedule": SCHEDULE,
        "seed": 7,
        "observe_every": 1,
    } | options
    engine = engine or fedax.Simulation(devices=1)
    return fedax.run(
        fedax.FedAvg(),
        regression(),
        rounds=rounds,
        engine=engine,
        observe=[fedax.observe.TrainingLoss()],
        **settings,
    )


def expected(w, cohort):
    """Every minibatch counts alike, before its step; the batches of a client are in the given
    order."""
    world = World()
    losses = []
    for k in cohort:
        v = w
        for _ in range(2):
            for begin in range(0, SIZES[k], 4):
                rows = slice(begin, begin + 4)
                x = world.x[k][rows]
                y = world.y[k][rows]
                losses.append(np.mean((x @ v - y) ** 2) / 2 + 0.005 * v @ v)
                v = v - LR * world.gradient(k, v, rows)
    return np.mean(losses)


@pytest.mark.parametrize("engine", [None, fedax.Eager()])
def test_every_minibatch_of_the_last_cohort_counts_alike(engine):
    world = World()
    history = run(3, engine)
    w = world.start
    seen = [np.nan]
    for cohort in world.cohorts()[:3]:
        w = np.average(
            [world.sgd(k, w)[0] for k in cohort], axis=0, weights=[SIZES[k] for k in cohort]
        )
        seen.append(expected(w, cohort))
    np.testing.assert_allclose(history.metrics["training_loss"], seen, rtol=1e-9)


def test_it_is_lower_than_the_loss_of_the_global_model_where_clients_differ():
    data = [np.eye(5)[[k] * 8] for k in range(5)]
    task = fedax.Task(np.zeros(5), lambda w, x: ((w[None] - x) ** 2).sum(1) / 2, data)
    watched = [fedax.observe.TrainingLoss(), fedax.observe.TrainLoss()]
    schedule = fedax.Schedule(cohort=3, epochs=4, batch_size=2)
    found = fedax.run(
        fedax.FedAvg(), task, solver=fedax.SGD(0.3), schedule=schedule, rounds=4, observe=watched
    ).metrics
    assert np.all(found["training_loss"][1:] < 0.5 * found["train_loss"][1:])
