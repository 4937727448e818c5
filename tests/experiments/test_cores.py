"""Cores of processes that share a machine."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from fedax.experiments.running import setup
from fedax.experiments.running.pools import _set_up_worker
from fedax.experiments.running.setup import cores, share_of_cores

AFFINITY = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system pins no processes"
)


@pytest.mark.parametrize(
    ("every", "processes", "shares"),
    [
        ([0, 1], 1, [[0, 1]]),
        ([0, 1], 2, [[0], [1]]),
        ([4, 5, 6, 7, 9], 2, [[4, 5], [6, 7]]),
        ([3], 3, [[3], [3], [3]]),
        ([0, 1], 4, [[0], [1], [0], [1]]),
    ],
)
def test_every_process_has_cores_of_its_own(monkeypatch, every, processes, shares):
    monkeypatch.setattr(setup, "cores", lambda: every)
    assert [share_of_cores(place, processes) for place in range(processes)] == shares
    # a process in the place of one that ended
    assert share_of_cores(processes, processes) == shares[0]


@pytest.mark.slow
@AFFINITY
def test_processes_of_a_queue_stay_on_their_cores():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        2, context, initializer=_set_up_worker, initargs=(context.Value("i", 0), 2)
    ) as pool:
        both = [pool.submit(_cores_after, 1.0) for _ in range(2)]
        found = [future.result() for future in both]
    assert [len(own) for own in found] == [max(1, len(cores()) // 2)] * 2
    if len(cores()) > 1:
        assert set(found[0]).isdisjoint(found[1])


def _cores_after(seconds):
    import time

    time.sleep(seconds)  # so that each process takes one
    return cores()


@AFFINITY
def test_cores_are_those_that_the_process_may_use():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
