"""Stepping by hand is what `run` does."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.communication.codecs import TopK
from marks import slow
from problems import regression, vector

SCHEDULE = fedax.Schedule(cohort=3, steps=3, batch_size=4)
SETTING = {"solver": fedax.SGD(0.05), "schedule": SCHEDULE, "seed": 3}
ENGINES = [
    pytest.param(fedax.Simulation(devices=1), id="sequential"),
    slow(fedax.Simulation(chunk=2, devices=2), id="chunked"),
    slow(fedax.Eager(), id="eager"),
]


def flat(session, params):
    return np.asarray(session._grid.layout.ravel(params))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_the_run(engine):
    """To the same bits: model, notes, bits and metrics, also with what a channel remembers."""
    setting = SETTING | {"engine": engine, "channel": fedax.Channel(up=TopK(0.5))}
    watch = fedax.observe.TrainLoss()
    history = fedax.run(
        fedax.FedAWARE(), regression(), rounds=3, observe=[watch], observe_every=3, **setting
    )
    session = fedax.start(fedax.FedAWARE(), regression(), **setting)
    state = session.init()
    reports = []
    for _ in range(3):
        state, report = session.step(state)
        reports.append(report)
    assert np.array_equal(flat(session, session.params(state)), vector(history))
    assert session.observe(state, watch)["train_loss"] == history.metrics["train_loss"][-1]
    assert [(r.round, r.down, r.up) for r in reports] == list(
        zip(range(3), history.bits.down, history.bits.up, strict=True)
    )
    assert [r.logged["gap"] for r in reports] == list(history.logged["gap"])
    assert all(report.outcome.ok for report in reports)


def test_a_report_names_the_client_that_is_not_finite():
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 * jnp.where(x > 1, jnp.nan, 1), [[1.0], [2.0]])
    session = fedax.start(fedax.FedAvg(), task)
    _, report = session.step(session.init())
    assert str(report.outcome) == "non-finite in round 1 from client 1"
