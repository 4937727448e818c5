"""`fedax graph`."""

import pytest
from typer.testing import CliRunner

from fedax import cli
from fedax.cli.graph import graph_names
from fedax.graphs import Graph


@pytest.fixture(autouse=True)
def _no_global_settings(monkeypatch, tmp_path):
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda cpus=None: None)
    monkeypatch.chdir(tmp_path)


def call(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, list(arguments))


@pytest.mark.slow
def test_graph_shows_what_the_paper_counts():
    """Ring of 20: 20 links of degree 2, lambda 0.96737, 40 messages of 32 d and 32 + 8 d bits."""
    result = call("graph", "ring", "--clients", "20", "--dim", "1000")
    assert result.exit_code == 0, result.output
    for text in ("0.96737", "1,280,000", f"{40 * (32 + 8000):,}"):
        assert text in result.output


def test_graphs_are_compared():
    result = call(
        "graph",
        "ring",
        "torus",
        "random_regular:degree=3,seed=1",
        "--clients",
        "12",
        "--codec",
        "topk:fraction=1",
    )
    assert result.exit_code == 0, result.output
    assert f"{Graph.random_regular(12, 3, seed=1).lam:.5f}" in result.output
    assert "topk:fraction=1" in result.output


@pytest.mark.slow
def test_every_graph_of_a_number_of_clients_is_known():
    needs = {"random_regular": "degree=3", "erdos_renyi": "p=0.9"}
    texts = [f"{name}:{needs[name]}" if name in needs else name for name in graph_names()]
    result = call("graph", *texts, "--clients", "6", "--dim", "10", "--codec", "none")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    assert lines["ring"][:5] == ["6", "1", "6", "2", f"{Graph.ring(6).lam:.5f}"]


def test_numbers_are_whole_in_a_narrow_terminal():
    arguments = [
        "graph",
        "random_regular:degree=4",
        "erdos_renyi:p=0.5",
        "--clients",
        "20",
        "--codec",
        "none",
        "--codec",
        "quantizer:b=8",
    ]
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, arguments)
    assert f"{80 * 199_210 * 32:,}" in narrow.output
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("graph", "rung"), "Did you mean 'ring'"),
        (("graph", "random_regular:degree=3,degre=3"), "unexpected keyword argument 'degre'"),
        (("graph", "random_regular"), "missing 1 required positional argument: 'degree'"),
        (("graph", "ring:mixing=max_degre"), "Did you mean 'max_degree'"),
        (("graph", "ring", "--codec", "quantiser"), "Did you mean 'quantizer'"),
        (("graph", "ring", "--codec", "quantizer:b=0"), "whole numbers in [1, 32]"),
    ],
)
def test_refusals(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
