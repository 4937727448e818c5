"""`fedax graph` and `fedax audit`."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from fedax import cli
from fedax.audit import Curve, Membership
from fedax.cli.audit import _make_table, verdict, write_picture
from fedax.cli.graph import constructors, draw_text, positions
from fedax.cli.names import fill_names
from fedax.core import History, Outcome
from fedax.core.traffic import Traffic
from fedax.graphs import Graph


@pytest.fixture(autouse=True)
def _no_global_settings(monkeypatch, tmp_path):
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda cpus=None: None)
    monkeypatch.chdir(tmp_path)


def call(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, list(arguments))


def test_graph_shows_what_the_paper_counts(tmp_path):
    """Ring of 20: 20 links of degree 2, lambda 0.96737, 40 messages of 32 d and 32 + 8 d bits."""
    result = call(
        "graph",
        "ring",
        "--clients",
        "20",
        "--dim",
        "1000",
        "--picture",
        str(tmp_path / "a" / "ring.html"),
    )
    assert result.exit_code == 0, result.output
    for text in ("0.96737", "1,280,000", f"{40 * (32 + 8000):,}"):
        assert text in result.output
    assert "plotly" in (tmp_path / "a" / "ring.html").read_text()


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
    """Also those that change and that are directed: means over their rounds."""
    needs = {"random_regular": "degree=3", "erdos_renyi": "p=0.9", "base_k": "k=1"}
    texts = [f"{name}:{needs[name]}" if name in needs else name for name in constructors()]
    assert {"ring", "base_k", "matchings", "random_out", "one_peer_exponential"} <= set(
        constructors()
    )
    assert all(hasattr(Graph, name) for name in constructors())
    result = call("graph", *texts, "--clients", "6", "--dim", "10", "--codec", "none")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    base = Graph.base_k(6, 1)
    messages = int(np.asarray(base.degrees).sum()) / base.period
    expected = ["6", "4", f"{messages / 2:g}", "0-1", f"{base.lam:.5f}"]
    assert lines["base_k(1)"][:5] == expected
    assert lines["base_k(1)"][-1] == f"{320 * messages:,.0f}"
    # directed: no lambda, and every client sends one message
    drawn = lines["random_out(1)"]
    assert (*drawn[:3], *drawn[4:6]) == ("6", "100", "6", "-", "-")
    assert "base_k:k=..., matchings" in fill_names("{graphs}")


def test_the_picture_of_a_directed_graph_has_no_lambda(tmp_path, monkeypatch):
    import plotly.graph_objects as go

    drawn = []
    monkeypatch.setattr(go.Figure, "write_html", lambda figure, *_, **__: drawn.append(figure))
    for text in ("random_out:degree=2", "ring"):
        arguments = ("--clients", "6", "--picture", str(tmp_path / "x.html"))
        result = call("graph", text, *arguments)
        assert result.exit_code == 0, result.output
    titles = [figure.layout.title.text for figure in drawn]
    assert titles == ["random_out(2), 6 clients", "ring, 6 clients, lambda = 0.66667"]


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


def test_picture_holds_every_client_and_only_links():
    picture = draw_text(Graph.star(7))
    assert sorted("".join(c for c in picture if c.isdigit())) == list("0123456")
    assert "\N{MIDDLE DOT}" in picture
    assert "\N{MIDDLE DOT}" not in draw_text(Graph.isolated(4))
    for graph in (Graph.grid(6), Graph.ring(1), Graph.ring(2)):
        places = positions(graph)
        assert places.min() >= 0
        assert places.max() <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("graph", "rung"), "Did you mean 'ring'"),
        (("graph", "random_regular:degre=3"), "Did you mean 'degree'"),
        (("graph", "random_regular"), "got no degree; allowed: random_regular:degree=..."),
        (("graph", "ring:mixing=max_degre"), "Did you mean 'max_degree'"),
        (("graph", "ring", "--codec", "quantiser"), "Did you mean 'quantizer'"),
        (("graph", "ring", "--codec", "quantizer:b=0"), "whole numbers in [1, 32]"),
        (("audit", "fedavg", "--every", "0"), "--every: got 0"),
        (("audit", "fedavg", "--task", "digits:clients=600"), "allowed: at least 4"),
    ],
)
def test_refusals(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_audit_writes_areas_and_curves(tmp_path):
    arguments = (
        "--task",
        "digits:partition=iid,clients=5",
        "--rounds",
        "2",
        "--every",
        "2",
        "--out",
        str(tmp_path / "a"),
    )
    result = call("audit", "dfedavgm", *arguments)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "a" / "auc.csv").read_text().splitlines()))
    assert [(row["algorithm"], row["round"], row["attack"]) for row in rows] == [
        ("DFedAvgM", "0", "shadow"),
        ("DFedAvgM", "2", "shadow"),
        ("DFedAvgM", "0", "calibrated"),
        ("DFedAvgM", "2", "calibrated"),
    ]
    assert all(np.isfinite(float(row["auc"])) for row in rows)
    assert "accuracy, members" in result.output
    assert "DFedAvgM: " in result.output
    picture = (tmp_path / "a" / "roc.html").read_text()
    assert "Membership inference" in picture
    again = call("audit", "dfedavgm", *arguments)
    assert again.exit_code == 2
    assert "is not empty" in again.output


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
        return audited(0.6)

    monkeypatch.setattr("fedax.audit.membership", record)
    monkeypatch.setattr("fedax.engine.profiling.profile.profile", record)
    for name in ("audit._make_table", "profile.table_of", "tables.show"):
        monkeypatch.setattr(f"fedax.cli.{name}", lambda *arguments: None)
    return made


def test_audit_runs_each_algorithm_with_its_own_solver_and_schedule(calls):
    algorithms = ("fedavg", "fedavg:label=b,solver={learning_rate=0.5}", "fedprox:label=c")
    result = call(
        "audit",
        *algorithms[:2],
        algorithms[2] + ",schedule={epochs=3}",
        *("--task", "digits:partition=iid,clients=4", "--solver", "sgd:learning_rate=0.25"),
    )
    assert isinstance(result.exception, Stop), result.output
    assert calls == [(0.25, 1), (0.5, 1), (0.25, 3)]


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


def audited(area, accuracy=(0.9, 0.8), calibrated=None, members=100, others=100):
    curve = Curve(np.array([0.0, 0.05, 1.0]), np.array([0.0, 0.2, 1.0]), area)
    none = Traffic(np.zeros(4, int), np.zeros(4, int))
    history = History("A", np.arange(2), {}, {}, None, none, Outcome(), np.zeros(2), np.zeros(2))
    return Membership(
        np.array([0, 4]),
        (curve,) * 2,
        (calibrated or curve,) * 2,
        np.zeros(2),
        history,
        np.array([accuracy] * 2),
        members,
        others,
    )


def test_areas_are_read_beside_what_guessing_has():
    """With m members and n others an area has the standard error sqrt((m + n + 1) / (12 m n)) under
    guessing: 0.0408 for 100 of each, and 0.0354 for 100 and 200."""
    assert (
        "no attack does better than guessing, which has an AUC of 0.5 ± 0.082 with 100 members "
        "and 100 others"
    ) in verdict(audited(0.58))
    told = verdict(audited(0.59))
    assert "members are told apart" in told
    assert "finds 20.0 % of the members" in told
    assert "+10.0 points" in told
    assert "0.5 ± 0.071" in verdict(audited(0.58, others=200))


def test_the_sentence_and_the_table_give_the_numbers_of_the_attack_that_they_name():
    """The shadow attack finds 20 % of the members at 5 % false alarms, the calibrated loss none."""
    useless = Curve(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.5)
    found = audited(0.8, calibrated=useless)
    assert "shadow attack has an AUC of 0.800" in verdict(found)
    assert "finds 20.0 % of the members" in verdict(found)
    columns = _make_table("A", found).columns
    named = {str(column.header): list(column.cells) for column in columns}
    title = "members found at 5 % false alarms, "
    assert named[title + "shadow attack"] == ["20.0 %", "20.0 %"]
    assert named[title + "calibrated loss"] == ["0.0 %", "0.0 %"]


def test_the_legend_has_one_entry_for_a_method_and_attack(tmp_path, monkeypatch):
    import plotly.graph_objects as go

    drawn = []
    monkeypatch.setattr(go.Figure, "write_html", lambda figure, *_, **__: drawn.append(figure))
    write_picture({"A": audited(0.6), "B": audited(0.7)}, tmp_path / "roc.html")
    named = [
        trace
        for trace in drawn[0].data
        if trace.showlegend is not False and trace.name != "guessing"
    ]
    assert len(named) == len({trace.name for trace in named}) == 4
    assert len({trace.line.color for trace in named}) == 2
