"""`fedax graph` and `fedax profile`."""

import pytest
from typer.testing import CliRunner

from fedax import cli
from fedax.cli.graph import constructors
from fedax.graphs import Graph


@pytest.fixture(autouse=True)
def _no_global_settings(monkeypatch, tmp_path):
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda cpus=None: None)
    monkeypatch.chdir(tmp_path)


def call(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, list(arguments))


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


def test_every_graph_of_a_number_of_clients_is_known():
    needs = {"random_regular": "degree=3", "erdos_renyi": "p=0.9"}
    texts = [f"{name}:{needs[name]}" if name in needs else name for name in constructors()]
    assert {"ring", "random_regular"} <= set(constructors())
    assert all(hasattr(Graph, name) for name in constructors())
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
        (("graph", "random_regular:degre=3"), "Did you mean 'degree'"),
        (("graph", "random_regular"), "got no degree; allowed: random_regular:degree=..."),
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


class Stop(Exception):
    """Ends a command once it is known with what it would run."""


@pytest.fixture
def calls(monkeypatch):
    """The solver's learning rate and the schedule's epochs with which algorithms are run."""
    made = []

    def record(algorithm, task, *, solver, schedule, **options):
        made.append((float(solver.learning_rate), int(schedule.epochs)))
        if len(made) == 3:
            raise Stop

    monkeypatch.setattr("fedax.engine.profiling.profile.profile", record)
    monkeypatch.setattr("fedax.cli.profile.table_of", lambda *arguments: None)
    return made


def test_profile_runs_each_algorithm_and_grid_value_with_its_own_settings(calls, tmp_path):
    (tmp_path / "a.toml").write_text(
        """name = "a"
rounds = 2
[task]
name = "digits"
clients = 4
[solver]
learning_rate = 0.25
[[algorithm]]
name = "fedavg"
schedule = {epochs = 3}
[[algorithm]]
name = "fedprox"
[grid.solver]
learning_rate = [0.125, 0.5]
"""
    )
    result = call("profile", "a.toml")
    assert isinstance(result.exception, Stop), result.output
    assert calls == [(0.125, 3), (0.5, 3), (0.125, 1)]
