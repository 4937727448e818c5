"""`[simulation]` in experiment files."""

import fedax
from fedax.experiments.config.experiment import Experiment

TEXT = """name = "s"
rounds = 2
[task]
name = "synthetic"
clients = 4
[[algorithm]]
name = "scaffold"
[simulation]
"""


def engine_of(options):
    return Experiment.parse(TEXT + options).plan().arguments["engine"]


def test_options_reach_the_engine():
    engine = engine_of('chunk = 3\ndevices = 1\nmicrobatch = 7\ndata = "host"\nmemory = "disk"')
    assert isinstance(engine, fedax.Simulation)
    assert (engine.chunk, engine.devices, engine.microbatch) == (3, 1, 7)
    assert (engine.data, engine.memory) == ("host", "disk")
