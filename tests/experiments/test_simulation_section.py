"""`[simulation]` in experiment files."""

import json

import pytest

import fedax
from fedax.core import SpecError
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.schema import schema

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
    engine = engine_of(
        'placement = "chunked"\nchunk = 3\ndevices = 1\nmicrobatch = 7\ndata = '
        '"host"\nmemory = "disk"'
    )
    assert isinstance(engine, fedax.Simulation)
    assert (engine.placement, engine.chunk, engine.devices, engine.microbatch) == (
        "chunked",
        3,
        1,
        7,
    )
    assert (engine.data, engine.memory) == ("host", "disk")


def test_without_options_the_file_is_as_it_was():
    without = Experiment.parse(TEXT.removesuffix("[simulation]\n"))
    assert "simulation" not in without.toml()
    usual, given = (vars(engine) for engine in (without.plan().arguments["engine"], engine_of("")))
    assert {name: usual[name] for name in usual if name != "process_group"} == {
        name: given[name] for name in given if name != "process_group"
    }


def test_a_file_written_again_has_them():
    experiment = Experiment.parse(TEXT + 'memory = "host"')
    again = Experiment.parse(experiment.toml())
    assert again.plan().arguments["engine"].memory == "host"
    assert experiment.toml() == again.toml()


def test_other_engines_have_none():
    with pytest.raises(SpecError, match="line 9: engine: got 'eager'"):
        Experiment.parse('engine = "eager"\n' + TEXT).plan()


def test_editors_know_them():
    assert '"disk"' in json.dumps(schema())
