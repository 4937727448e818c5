"""A folder with a tiny task, which tests of the benchmark share."""

import pytest
from test_protocol import TINY

from fedax.benchmark.task import Target, load_tasks, write_target


@pytest.fixture
def folder(tmp_path):
    """A folder with one task that has a target."""
    place = tmp_path / "tasks"
    place.mkdir()
    (place / "tiny.toml").write_text(TINY)
    told = {"reference": "FedAvg", "settings": {}, "seeds": [1], "values": [1.9], "fedax": "0"}
    task = load_tasks(place)["tiny"]
    write_target(place, "tiny", Target(value=1.9, task=task.fingerprint, **told))
    return place
