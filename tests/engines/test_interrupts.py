"""Ctrl-C in Python at any moment: the history has all rounds that are finished, and a run goes on
from there."""

import contextlib
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest

import fedax
from fedax.engine.driver import interrupts
from fedax.engine.driver.interrupts import GROWTH, CallLength

RATE = 2e-5
ROUNDS = 20_000
MOMENTS = 20


@pytest.fixture(autouse=True)
def python_handles_interrupts():
    """The handler of a plain Python process, which test runners may replace."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


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


def interrupted_after(seconds, **options):
    """A run that gets a SIGINT some seconds after its first observation; maybe None if it is over by
    then."""
    timers = []

    def hook(progress):
        if progress.round == 0:
            timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
            timers[0].start()

    history = None
    with contextlib.suppress(KeyboardInterrupt):  # of a signal that came after the run
        history = train(progress=hook, **options)
        for timer in timers:
            timer.cancel()
            timer.join()
    return history


@pytest.fixture
def interrupts_call(monkeypatch):
    """Sends SIGINT when a call of a program returns, by its number from 1."""

    def arrange(number):
        timed, counts = CallLength.measure, []

        @contextlib.contextmanager
        def interrupted(self, rounds):
            with timed(self, rounds):
                yield
            counts.append(rounds)
            if len(counts) == number:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(CallLength, "measure", interrupted)
        monkeypatch.setattr(interrupts, "CALL_SECONDS", 1e9)
        return lambda: monkeypatch.undo() or sum(counts)

    return arrange


@pytest.mark.slow
def test_ctrl_c_at_twenty_moments(monkeypatch):
    monkeypatch.setattr(interrupts, "CALL_SECONDS", 0.02)
    with jax.enable_x64(False):
        seen = []
        train(progress=lambda progress: seen.append(time.perf_counter()))
        done = []
        # from the first observation, through compilation, to the last rounds
        for moment in range(MOMENTS):
            history = interrupted_after(0.9 * (seen[-1] - seen[0]) * moment / MOMENTS)
            if history is None or history.outcome.ok:  # faster than the first run was
                continue
            done.append(len(history.bits.up))
            assert history.outcome.kind == "interrupted"
            assert history.outcome.round == done[-1] == len(history.bits.down)
            assert history.rounds[0] == 0
            assert history.params.dtype == np.float32
            np.testing.assert_allclose(
                history.params, 1.5 * (1 - (1 - RATE) ** done[-1]), rtol=2e-2, atol=1e-6
            )
        assert len(set(done)) > 3, "the moments are not different ones"


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedax.FedAvg(), fedax.SCAFFOLD()], ids=["FedAvg", "SCAFFOLD"])
def test_an_interrupted_run_goes_on_to_the_same_bits(method, interrupts_call):
    options = {"rounds": 200, "schedule": fedax.Schedule(cohort=2, batch_size="full")}
    with jax.enable_x64(False):
        straight = train(method, **options)
        done = interrupts_call(2)
        part = train(method, **options)
        assert len(part.bits.up) == done() == 1 + GROWTH
        whole = train(method, resume=part, **options)
    assert whole.outcome.ok
    assert whole.params == straight.params
    for name in ("up", "down"):
        np.testing.assert_array_equal(getattr(whole.bits, name), getattr(straight.bits, name))


def test_a_checkpoint_is_kept_at_ctrl_c(interrupts_call, tmp_path):
    options = {"rounds": 200, "checkpoint": tmp_path, "checkpoint_every": 200}
    done = interrupts_call(2)
    train(**options)
    (kept,) = tmp_path.glob("round-*")
    assert int(kept.name.removeprefix("round-")) == done() == 1 + GROWTH
    assert train(**options).params == train(rounds=200).params


def test_ctrl_c_in_a_hook_and_before_the_run():
    def hook(progress):
        os.kill(os.getpid(), signal.SIGINT)

    assert train(progress=hook, rounds=7).outcome.round == 0

    class Late(fedax.FedAvg):
        def init(self, fed, w):
            signal.raise_signal(signal.SIGINT)
            return super().init(fed, w)

    with pytest.raises(KeyboardInterrupt):
        train(Late())


def test_a_second_ctrl_c_is_not_delayed(capsys):
    """While an observation is made, the first one is delayed."""

    class Twice(fedax.observe.TrainLoss):
        def __call__(self, view):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return super().__call__(view)

    with pytest.raises(KeyboardInterrupt):
        train(observe=[Twice()])
    assert "press Ctrl-C again to stop at once" in capsys.readouterr().err


def test_calls_grow_from_one_round_to_the_affordable_number(monkeypatch):
    """By a clock that passes 0.1 s for each round: 20 rounds fit into 2 s."""
    clock, calls, counts = [0.0], CallLength(), []
    monkeypatch.setattr(interrupts.time, "perf_counter", lambda: clock[0])
    for _ in range(4):
        counts.append(calls.rounds)
        with calls.measure(calls.rounds):
            clock[0] += 0.1 * calls.rounds
    assert counts == [1, 20, 20, 20]
    with calls.measure(3):  # a slow one
        clock[0] += 30.0
    assert calls.rounds == 1
    for _ in range(2):  # fast ones, from which the growth is bounded
        with calls.measure(calls.rounds):
            clock[0] += 1e-6
    assert calls.rounds == GROWTH**2
    assert CallLength(bounded=False).rounds > 10**9


def test_the_length_of_calls_changes_no_bit(monkeypatch):
    """Also with notes, clients that are left out, and observations in between."""
    options = {
        "schedule": fedax.Schedule(cohort=2, epochs=2),
        "rounds": 13,
        "observe_every": 5,
        "method": fedax.FedNova(),
    }
    with jax.enable_x64(False):
        short, whole = [], []
        for seconds, found in ((1e-9, short), (1e9, whole)):
            monkeypatch.setattr(interrupts, "CALL_SECONDS", seconds)
            found.append(train(**options))
    (one,), (other,) = short, whole
    assert one.params == other.params
    assert one.rounds.tolist() == other.rounds.tolist() == [0, 5, 10, 13]
    for name, values in other.metrics.items():
        np.testing.assert_array_equal(one.metrics[name], values)
    np.testing.assert_array_equal(one.bits.up, other.bits.up)


def test_a_run_that_breaks_reports_its_first_bad_round(monkeypatch):
    """The loss overflows in some round between two observations, however long the calls are."""
    found = []
    for seconds in (1e-9, 1e9):
        monkeypatch.setattr(interrupts, "CALL_SECONDS", seconds)
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
