"""Mistakes in files of users: one line, without a traceback."""

import pytest
from typer.testing import CliRunner

from fedax import cli

FILE = """
from fedax import Algorithm, Upload


class NoUpload(Algorithm):
    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        return w
"""


@pytest.fixture(autouse=True)
def _no_global_settings(monkeypatch, tmp_path):
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda cpus=None: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.py").write_text(FILE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoUpload", "NoUpload.train, its result: got an array f64[610]; allowed: an Upload."),
    ],
)
def test_a_mistake_in_a_method_is_one_line(name, message):
    task = "synthetic:clients=3"
    arguments = ["compare", f"half.py:{name}", "--task", task, "--rounds", "1"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert "Traceback" not in result.output
