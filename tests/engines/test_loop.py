"""The loop: observations, stopping, interruption, resumption, clear refusals."""

import gc

import jax
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput, RunFailed, WorkError
from problems import regression

OBSERVE = [fedax.observe.TrainLoss()]


def line(lr=0.5, **options):
    """One client, one example at 1, from 0."""
    task = fedax.Task(0.0, half_square, [[1.0]])
    options = {
        "schedule": fedax.Schedule(batch_size="full"),
        "observe": OBSERVE,
        "rounds": 7,
        **options,
    }
    return fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(lr), **options)


def half_square(w, x):
    return (w - x) ** 2 / 2


def test_observations_are_at_the_cadence_and_at_both_ends():
    history = line(observe_every=3)
    assert history.rounds.tolist() == [0, 3, 6, 7]
    np.testing.assert_allclose(
        history.metrics["train_loss"], [0.25**t / 2 for t in (0, 3, 6, 7)], rtol=1e-12
    )
    assert len(history.bits.up) == 7
    assert history.bits.cumulative[history.rounds].tolist() == [0, 384, 768, 896]


def test_no_rounds_only_look():
    history = line(rounds=0)
    assert history.rounds.tolist() == [0]
    assert history.bits.total == 0
    assert float(history.params) == 0.0


def test_divergence_rule_of_fedprox():
    """lr 3 doubles the distance every round: f_t = 4^t / 2; f_t - f_(t-10) > 1 first at t = 10."""
    history = line(lr=3.0, rounds=50, stop=fedax.Divergence())
    assert (history.outcome.kind, history.outcome.round) == ("diverged", 9)
    assert history.rounds[-1] == 10
    assert line(rounds=20, stop=fedax.Divergence()).outcome.ok
    with pytest.raises(InvalidInput, match="train_loss"):
        line(stop=fedax.Divergence(), observe=[])


def test_progress_hears_and_may_stop():
    heard = []

    def hook(progress):
        heard.append((progress.round, progress.rounds, float(progress.metrics["train_loss"])))
        return progress.round == 4

    history = line(observe_every=2, progress=hook)
    assert [t for t, _, _ in heard] == [0, 2, 4]
    assert heard[-1][1] == 7
    assert (history.outcome.kind, history.rounds[-1]) == ("interrupted", 4)


def test_throw():
    task = fedax.Task(0.0, lambda w, x: half_square(w, x) * np.nan, [[1.0], [2.0]])
    with pytest.raises(RunFailed, match="FedAvg: non-finite in round 1 from client 0"):
        fedax.run(fedax.FedAvg(), task, rounds=3, throw=True)


class Broken(fedax.Algorithm):
    """Its work fails on client 3."""

    def round(self, fed, w):
        return fed.average(self.explode, fed.everyone, w)

    def explode(self, client, w):
        if client.index == 3:
            raise ZeroDivisionError("seven")
        return fedax.Upload(w)


def test_eager_says_where_work_failed():
    with pytest.raises(
        WorkError,
        match=r"Broken\.explode, round 0, client 3: "
        r"ZeroDivisionError: seven",
    ):
        fedax.run(Broken(), regression(), rounds=1, engine=fedax.Eager())


@pytest.mark.slow
def test_what_is_observed_takes_the_memory_of_its_numbers():
    """No buffer of the device stays for an observation or a round: each would keep kilobytes."""
    held = []

    def count(progress):
        gc.collect()
        held.append(len(jax.live_arrays()))
        return False

    watch = [fedax.observe.TrainLoss(), fedax.observe.Dissimilarity()]
    engine = fedax.Simulation(devices=1)
    history = fedax.run(
        fedax.FedMGDA(), regression(), rounds=12, observe=watch, progress=count, engine=engine
    )
    assert held[3] == held[-1]
    assert history.metrics["train_loss"].shape == (13,)
    assert history.logged["gap"].shape == (12,)
