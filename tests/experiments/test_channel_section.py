"""`[channel]` in experiment files."""

import tomllib

import pytest

import fedax
from fedax import codecs
from fedax.core import SpecError
from fedax.experiments.config.experiment import Experiment

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


def test_the_resolved_file_codes_the_same():
    experiment = Experiment.parse(TEXT)
    again = Experiment.parse(experiment.toml())
    assert again.channel == experiment.channel
    assert tomllib.loads(experiment.toml())["channel"]["up"] == {"name": "quantizer", "b": 8}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"quantizer", b', '"quantiser", b', "line 9: .*Did you mean 'quantizer'"),
        ("b = 8", "b = 0", r"line 9: .*b.*got 0; allowed: "),
        ("b = 8", "bits = 8", "line 9: option of codec 'quantizer': got 'bits'"),
        ("up = ", "upp = ", "line 9: .*Did you mean 'up'"),
        ('name = "none"', "b = 4", r"channel.down.name: missing"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(old, new, words):
    with pytest.raises(SpecError, match=words):
        Experiment.parse(TEXT.replace(old, new))
