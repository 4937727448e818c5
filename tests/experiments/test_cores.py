"""Cores of processes that share a machine."""

import os

import pytest

from fedax.experiments.running import setup
from fedax.experiments.running.setup import cores, share_of_cores


def test_every_process_has_cores_of_its_own(monkeypatch):
    monkeypatch.setattr(setup, "cores", lambda: [4, 5, 6, 7, 9])
    # the third in the place of one that ended
    assert [share_of_cores(place, 2) for place in range(3)] == [[4, 5], [6, 7], [4, 5]]
    # more processes than cores
    assert [share_of_cores(place, 6) for place in range(6)][4:] == [[9], [4]]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_cores_are_those_that_the_process_may_use():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
