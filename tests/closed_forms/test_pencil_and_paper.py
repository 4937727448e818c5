"""Runs that can be checked by hand: a scalar parameter, a few numbers, the given order."""

import numpy as np
import pytest

import fedax

ONE = fedax.Simulation(devices=1)


def half_square(w, x):
    return (w - x) ** 2 / 2


def test_two_clients_by_hand():
    r"""lr 1/2, batches of one in the given order.

    Client 0 holds 1, 2: from 0 it goes to 0.5, then 1.25. Client 1 holds 4: from 0 to 2. Weights
    2/3 and 1/3: (2 * 1.25 + 2) / 3 = 1.5. Second round: 1.5 -> 1.25 -> 1.625 and 1.5 -> 2.75, mean
    (2 * 1.625 + 2.75) / 3 = 2."""
    task = fedax.Task(0.0, half_square, [[1.0, 2.0], [4.0]])
    schedule = fedax.Schedule(order="given", batch_size=1)
    observe = [fedax.observe.TrainLoss()]
    history = fedax.run(
        fedax.FedAvg(),
        task,
        solver=fedax.SGD(0.5),
        schedule=schedule,
        rounds=2,
        observe=observe,
        engine=ONE,
    )
    np.testing.assert_allclose(history.params, 2.0, rtol=1e-14)
    # train loss of w: ((w-1)^2 + (w-2)^2 + (w-4)^2) / 6
    np.testing.assert_allclose(
        history.metrics["train_loss"],
        [21 / 6, (0.25 + 0.25 + 6.25) / 6, (1 + 0 + 4) / 6],
        rtol=1e-12,
    )
    assert history.rounds.tolist() == [0, 1, 2]
    # one float64 number down and one up, two clients, two rounds
    assert history.bits.up.tolist() == [128, 128]
    assert history.bits.down.tolist() == [128, 128]
    assert history.bits.total == 512
    assert history.outcome.ok


@pytest.mark.slow
def test_short_last_batch_is_averaged_over_what_it_holds():
    """Batches of two over 1, 3, 8: a step towards 2, then one towards 8 alone. lr 1/2 from 0: 1,
    then 4.5."""
    task = fedax.Task(0.0, half_square, [[1.0, 3.0, 8.0]])
    schedule = fedax.Schedule(order="given", batch_size=2)
    history = fedax.run(
        fedax.FedAvg(), task, solver=fedax.SGD(0.5), schedule=schedule, rounds=1, engine=ONE
    )
    assert float(history.params) == 4.5


def test_steps_run_over_the_end_of_an_epoch():
    """Three steps of one over 2, 4 take 2, 4, 2: from 0 with lr 1/2: 1, 2.5, 2.25."""
    task = fedax.Task(0.0, half_square, [[2.0, 4.0]])
    schedule = fedax.Schedule(order="given", batch_size=1, steps=3)
    history = fedax.run(
        fedax.FedAvg(), task, solver=fedax.SGD(0.5), schedule=schedule, rounds=1, engine=ONE
    )
    assert float(history.params) == 2.25


def test_weight_decay_belongs_to_the_loss():
    """l2 = 1 on one example 4 with lr 1/4: w - (w - 4 + w) / 4 from 0 is 1, then 1.5."""
    task = fedax.Task(0.0, half_square, [[4.0]], l2=1.0)
    schedule = fedax.Schedule(order="given", batch_size=1, steps=2)
    history = fedax.run(
        fedax.FedAvg(), task, solver=fedax.SGD(0.25), schedule=schedule, rounds=1, engine=ONE
    )
    assert float(history.params) == 1.5
