"""Methods against straight NumPy transcriptions of their pseudocode, written without the library's
code."""

import numpy as np
import pytest

import fedax
from problems import regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, P, World


def run(algorithm, momentum=0.0):
    solver = fedax.SGD(LR, momentum=momentum)
    return vector(
        fedax.run(
            algorithm, regression(), solver=solver, schedule=SCHEDULE, rounds=ROUNDS, seed=SEED
        )
    )


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold(option):
    world = World()
    lr = 0.7
    x = world.start
    c = np.zeros(4)
    own = np.zeros((5, 4))
    for cohort in world.cohorts():
        moves = []
        changes = []
        for k in cohort:
            y, steps = world.sgd(k, x, lambda _, k=k, c=c: c - own[k])
            new = world.gradient(k, x) if option == "I" else own[k] - c + (x - y) / (steps * LR)
            moves.append(y - x)
            changes.append(new - own[k])
            own[k] = new
        x = x + lr * np.average(moves, axis=0, weights=P[cohort])
        c = c + P[cohort] @ np.array(changes)
    np.testing.assert_allclose(run(fedax.SCAFFOLD(lr=lr, option=option)), x, rtol=0, atol=1e-12)


def test_feddyn():
    world = World()
    alpha = 0.3
    w = world.start
    h = np.zeros(4)
    own = np.zeros((5, 4))
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            mine, _ = world.sgd(k, w, lambda v, k=k, w=w: -own[k] + alpha * (v - w))
            own[k] = own[k] - alpha * (mine - w)
            models.append(mine)
        h = h - alpha * P[cohort] @ (np.array(models) - w)
        w = np.average(models, axis=0, weights=P[cohort]) - h / alpha
    np.testing.assert_allclose(run(fedax.FedDyn(alpha=alpha)), w, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["as_written", "as_released"])
@pytest.mark.parametrize("q", [0.5, 2.0])
def test_qfedavg(q, form):
    world = World()
    w = world.start
    for cohort in world.cohorts():
        top = np.zeros(4)
        bottom = 0.0
        for k in cohort:
            g = (w - world.sgd(k, w)[0]) / LR
            f = world.loss(k, w) + 1e-10
            top = top + P[k] * f**q * g
            length = g @ g if form == "as_written" else LR**2 * (g @ g)
            bottom += P[k] * (q * f ** (q - 1) * length + f**q / LR)
        w = w - top / bottom
    np.testing.assert_allclose(run(fedax.QFedAvg(q=q, form=form)), w, rtol=0, atol=1e-12)


def test_fednova():
    """The weights of the gradients are added up step by step here, not by their closed form."""
    world = World()
    momentum = 0.6
    w = world.start
    for cohort in world.cohorts():
        directions = []
        sums = []
        for k in cohort:
            mine, steps = world.sgd(k, w, momentum=momentum)
            counter = 0.0
            total = 0.0
            for _ in range(steps):
                counter = momentum * counter + 1
                total += counter
            directions.append((w - mine) / total)
            sums.append(total)
        effective = np.average(sums, weights=P[cohort])
        w = w - effective * np.average(directions, axis=0, weights=P[cohort])
    np.testing.assert_allclose(run(fedax.FedNova(), momentum), w, rtol=0, atol=1e-12)


def test_spread_of_client_losses_falls_as_q_grows():
    spreads = []
    for q in (0.0, 5.0):
        options = {
            "solver": fedax.SGD(0.05),
            "schedule": fedax.Schedule(steps=5, batch_size="full"),
            "rounds": 400,
        }
        w = vector(fedax.run(fedax.QFedAvg(q=q), regression(), observe_every=400, **options))
        spreads.append(np.std([World().loss(k, w) for k in range(5)]))
    assert spreads[0] > spreads[1]
