"""Cores of processes that share a machine."""

import os

import pytest

from fedax.experiments.running import setup
from fedax.experiments.running.setup import cores, share_of_cores


@pytest.mark.parametrize(
    ("every", "processes", "shares"),
    [
        ([0, 1], 1, [[0, 1]]),
        ([0, 1], 2, [[0], [1]]),
        ([4, 5, 6, 7, 9], 2, [[4, 5], [6, 7]]),
    ],
)
def test_every_process_has_cores_of_its_own(monkeypatch, every, processes, shares):
    monkeypatch.setattr(setup, "cores", lambda: every)
    assert [share_of_cores(place, processes) for place in range(processes)] == shares
    # a process in the place of one that ended
    assert share_of_cores(processes, processes) == shares[0]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_cores_are_those_that_the_process_may_use():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
