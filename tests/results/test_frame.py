"""Runs as data frames: a row for each observation."""

import numpy as np

import fedax
from fedax.results.frame import curves_frame
from fedax.results.record import Record


def records():
    """Runs of partial participation on unequal clients, one of which has a clock."""
    task = fedax.task("synthetic", clients=4)
    options = {"rounds": 4, "schedule": fedax.Schedule(cohort=2, steps=1)}
    plain = fedax.run(fedax.FedAvg(), task, seed=1, **options)
    timed = fedax.run(fedax.FedProx(mu=0.1), task, clock=fedax.Clock(), **options)
    return [
        Record.of(plain, task="T", label="FedAvg", seed=1, draw=3),
        Record.of(timed, task="T", label="FedProx", seed=0, gradients=2.0),
    ]


def test_a_row_for_each_observation():
    runs = records()
    frame = curves_frame(runs)
    assert len(frame) == sum(len(run.rounds) for run in runs)
    for position, run in enumerate(runs):
        rows = frame[frame["run"] == position]
        keys = rows[["method", "seed", "draw"]].to_numpy().tolist()
        assert keys == [[run.label, run.seed, run.draw]] * len(run.rounds)
        assert rows["round"].tolist() == run.rounds.tolist()
        assert rows["bits"].tolist() == run.bits.tolist()
        for name, values in run.scalars.items():
            np.testing.assert_array_equal(rows[name], values)
    first, second = (frame[frame["run"] == position] for position in range(2))
    assert first[["hours", "joules", "gradients"]].isna().all(axis=None)
    np.testing.assert_allclose(second["hours"] * 3600, runs[1].time)
    assert second["gradients"].tolist() == (2.0 * runs[1].rounds).tolist()
    assert list(curves_frame(runs, ["train_loss"]).columns[-1:]) == ["train_loss"]
    assert len(curves_frame([])) == 0
