"""Mistakes in files of users: one line, or the frames of their own code."""

import pytest
from typer.testing import CliRunner

from commands import call
from fedax import cli

FILE = """
from fedax import Algorithm, Upload


class NoUpload(Algorithm):
    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        return w


class Wrong(NoUpload):
    def train(self, client, w):
        return w / self.lr
"""


@pytest.fixture(autouse=True)
def _files(tmp_path):
    (tmp_path / "half.py").write_text(FILE)


@pytest.mark.parametrize("options", ["compare --task synthetic:clients=3 --rounds 1", "check"])
def test_a_mistake_in_a_method_is_one_line(options):
    result = call(*options.split(), "half.py:NoUpload")
    assert result.exit_code == 2
    (message,) = result.stderr.splitlines()
    assert message.startswith("Error: NoUpload.train, its result: got an array f64[")


def test_an_error_in_a_method_is_shown_by_its_own_frames():
    assert call("check", "half.py:Wrong").stderr.count(", line ") == 2


def test_a_unit_in_a_column_of_numbers_shows_before_the_run(tmp_path):
    lines = [f"{'ab'[k % 2]},{k} kg,{k},{('no', 'yes')[k % 3 == 0]}" for k in range(8)]
    (tmp_path / "a.csv").write_text("\n".join(["ward,weight,age,ill", *lines]))
    (tmp_path / "a.toml").write_text(
        'name = "a"\nrounds = 1\n[[algorithm]]\nname = "fedavg"\n'
        '[task]\nname = "table"\ntable = "a.csv"\nclient = "ward"\ny = "ill"\n'
    )
    shown = call("validate", "a.toml").stderr
    assert "# features in order: weight (8 categories), age\n" in shown
    assert "# labels: no, yes\n" in shown


@pytest.mark.parametrize("words", [["comapre"], ["data", "lst"]])
def test_a_mistyped_command_has_one_hint(words):
    result = call(*words)
    assert (result.exit_code, result.output.count("Did you mean")) == (2, 1)


def test_a_shell_completes_methods():
    shell = {
        "_FEDAX_COMPLETE": "complete_bash",
        "COMP_WORDS": "fedax compare feda",
        "COMP_CWORD": "2",
    }
    shown = CliRunner().invoke(cli.app, [], prog_name="fedax", env=shell).stdout
    assert {"fedavg", "fedadam"} <= {*shown.split()}
    assert "scaffold" not in shown
