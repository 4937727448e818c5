"""`[channel]` in experiment files."""

import tomllib

import pytest

import fedax
from fedax import codecs
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.shorthand import parse_section

TEXT = """name = "coded"
rounds = 2
[task]
name = "digits"
clients = 4
[[algorithm]]
name = "fedavg"
[channel]
up = { name = "quantizer", b = 8 }
down = { name = "none" }
"""


@pytest.mark.slow
def test_a_file_codes_what_is_sent():
    experiment = Experiment.parse(TEXT)
    plan = experiment.plan()
    assert plan.arguments["channel"] == fedax.Channel(
        up=codecs.Quantizer(b=8), down=codecs.Identity()
    )
    label, method = next(iter(plan.algorithms.items()))
    coded = fedax.run(method, plan.task, **plan.arguments_of(label))
    plain = fedax.run(method, plan.task, **plan.arguments_of(label) | {"channel": None})
    assert coded.bits.up[-1] < plain.bits.up[-1] / 3
    assert coded.bits.down[-1] == plain.bits.down[-1]


NESTED = TEXT.replace(
    '{ name = "quantizer", b = 8 }', '{ name = "ef21", codec = { name = "topk", fraction = 0.2 } }'
)


def test_a_codec_within_another():
    """As written, in the resolved file, and on the command line; no feedback unless asked for."""
    experiment = Experiment.parse(NESTED)
    expected = codecs.EF21(codecs.TopK(0.2, feedback=False))
    assert experiment.plan().arguments["channel"].up == expected
    assert Experiment.parse(experiment.toml()).channel == experiment.channel
    table = {"name": "ef21", "codec": {"name": "topk", "fraction": 0.2}}
    assert tomllib.loads(experiment.toml())["channel"]["up"] == table
    short = "ef21:codec={name='topk', fraction=0.2}"
    assert codecs.make_codec(**parse_section(short)) == expected


def test_the_resolved_file_codes_the_same():
    experiment = Experiment.parse(TEXT)
    again = Experiment.parse(experiment.toml())
    assert again.channel == experiment.channel
    assert tomllib.loads(experiment.toml())["channel"]["up"] == {"name": "quantizer", "b": 8}
