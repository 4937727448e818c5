"""How many rounds a call of a program makes, which changes no bit, and Ctrl-C, which keeps them."""

import signal

import jax
import numpy as np
import pytest

import fedax
from fedax.engine.driver import call_length
from fedax.engine.driver.call_length import GROWTH, next_length

RATE = 2e-5
ROUNDS = 20_000


def half_square(w, x):
    return (w - x) ** 2 / 2


TASK = fedax.Task(0.0, half_square, [[2.0], [0.0, 0.0], [4.0]])
"""Each round w moves towards the mean of the examples, 1.5, by `RATE`: w_t = 1.5 (1 - (1 -
RATE)^t)."""


def train(method=None, rounds=ROUNDS, **options):
    options = {"schedule": fedax.Schedule(batch_size="full"), "observe_every": rounds, **options}
    return fedax.run(
        method or fedax.FedAvg(), TASK, solver=fedax.SGD(RATE), rounds=rounds, **options
    )


def test_calls_grow_from_one_round_to_the_affordable_number():
    """Of rounds that take 0.1 s, 20 fit into 2 s."""
    counts = [1]
    for _ in range(3):
        counts.append(next_length(counts[-1], counts[-1], 0.1 * counts[-1]))
    assert counts == [1, 20, 20, 20]
    assert next_length(20, rounds=3, seconds=30.0) == 1
    # the growth of fast ones is bounded
    assert next_length(1, rounds=1, seconds=1e-6) == GROWTH


def test_the_length_of_calls_changes_no_bit(monkeypatch):
    """Also with notes, clients that are left out, and observations in between."""
    with jax.enable_x64(False):
        short = []
        whole = []
        for seconds, found in ((1e-9, short), (1e9, whole)):
            monkeypatch.setattr(call_length, "CALL_SECONDS", seconds)
            found.append(
                train(
                    schedule=fedax.Schedule(cohort=2, epochs=2),
                    rounds=13,
                    observe_every=5,
                    method=fedax.FedNova(),
                )
            )
    (one,) = short
    (other,) = whole
    assert one.params == other.params
    assert one.rounds.tolist() == other.rounds.tolist() == [0, 5, 10, 13]
    for name, values in other.metrics.items():
        np.testing.assert_array_equal(one.metrics[name], values)
    np.testing.assert_array_equal(one.bits.up, other.bits.up)


def test_a_run_that_breaks_reports_its_first_bad_round(monkeypatch):
    """The loss overflows in some round between two observations, however long the calls are."""
    found = []
    for seconds in (1e-9, 1e9):
        monkeypatch.setattr(call_length, "CALL_SECONDS", seconds)
        with jax.enable_x64(False):
            history = fedax.run(
                fedax.FedAvg(),
                TASK,
                solver=fedax.SGD(1e6),
                schedule=fedax.Schedule(steps=1),
                rounds=30,
                observe_every=10,
            )
        found.append((str(history.outcome), len(history.bits.up), history.rounds.tolist()))
    assert found[0] == found[1]
    assert found[0][0].startswith("non-finite in round")


@pytest.mark.parametrize("method", [fedax.FedAvg(), fedax.SCAFFOLD()], ids=["FedAvg", "SCAFFOLD"])
def test_ctrl_c_keeps_finished_rounds_and_the_run_goes_on_to_the_same_bits(method, tmp_path):
    options = {"rounds": 9, "schedule": fedax.Schedule(cohort=2), "observe_every": 2}

    def hook(progress):
        if progress.round == 4:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    part = train(method, progress=hook, checkpoint=tmp_path, checkpoint_every=8, **options)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert (part.outcome.kind, part.outcome.round, len(part.bits.up)) == ("interrupted", 4, 4)
    straight = train(method, **options)
    for again in (
        train(method, resume=part, **options),
        train(method, checkpoint=tmp_path, **options),
    ):
        assert again.outcome.ok
        np.testing.assert_array_equal(again.params, straight.params)
        np.testing.assert_array_equal(again.metrics["train_loss"], straight.metrics["train_loss"])
