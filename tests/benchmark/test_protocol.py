"""The protocol on a tiny task: tuning, results, and methods that are wrong."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import call, succeed
from fedax.benchmark.command import Bench
from fedax.benchmark.run import Tuning, cost_to, has_diverged, make_data, run_settings
from fedax.benchmark.task import Target, families_of, load_tasks, parse_method
from fedax.core import InvalidInput, Outcome, SpecError
from fedax.results import Record

TINY = """
name = "Tiny"
rounds = 6
observe = ["train_loss", "client_accuracy"]
task = {name = "synthetic", alpha = 0.5, beta = 0.5, clients = 4}
schedule = {steps = 2, batch_size = 10}
algorithm = [{name = "fedavg", label = "FedAvg"}]
"""
TARGET = """
[tiny]
family = "convex"
tier = "quick"
metric = "train_loss"
value = 1.9
learning_rate = [0.01, 1.0]
quality = {final = "train_loss", mean = "client_accuracy_mean"}
"""
BUDGET = Tuning(settings=2, screening=(10,), deciding=(11,), reported=(0, 1, 2))
MINE = '''
import jax.numpy as jnp

from fedax.core import Algorithm, Citation, Client, Federation, Upload, Vector, hyper


class Wrong(Algorithm[Vector]):
    """Planted: steps the wrong way."""

    citation = Citation(paper="Nobody, 2026", read=())

    def round(self, fed: Federation, state: Vector) -> Vector:
        return 2 * state - fed.average(self.train, fed.sample(), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w))


class Copy(Wrong):
    """FedAvg, with numbers that do nothing."""

    momentum: float = hyper(0.5, low=0.0, high=1.0)
    fixed: float = hyper(0.5, static=True, low=0.0, high=1.0)

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(self.train, fed.sample(), state)
'''


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "tasks"
    place.mkdir()
    (place / "tiny.toml").write_text(TINY)
    (place / "targets.toml").write_text(TARGET)
    return place


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def bench_of(folder, out):
    return dataclasses.replace(Bench.open("quick", folder=folder, out=out), tuning=BUDGET)


@pytest.mark.slow
def test_the_protocol_from_tuning_to_the_verdict(folder, mine, tmp_path, capsys):
    bench = bench_of(folder, tmp_path / "out")
    # the reference runs without being named
    bench.run([f"{mine}:Wrong", f"{mine}:Copy"])
    results = bench.results()
    assert results.groupby("method").size().to_dict() == {"Copy": 3, "FedAvg": 3, "Wrong": 3}
    assert np.isinf(results.loc[results["method"] == "Wrong", "rounds"]).all()
    frame = bench.compare()["convex"]
    assert frame.at["Wrong", "area_rounds"] == 0.0
    assert frame.at["Wrong", "gain_rounds"] == pytest.approx(-math.log(4))
    assert frame.at["FedAvg", "area_rounds"] > 0.0
    # learning rates are the same for all methods, so FedAvg by another name has its costs
    ours, theirs = (results[results["method"] == m] for m in ("Copy", "FedAvg"))
    assert ours["rounds"].tolist() == theirs["rounds"].tolist()
    shown = capsys.readouterr().out
    assert "Copy searches learning_rate, momentum [0, 1]" in shown
    # three pairs of runs have no small p-value, and the reference has no gain
    assert shown.count("undecided: so few runs prove nothing\n") == 6
    # the task has no devices
    assert "hours" not in shown
    assert "p_hours" not in frame
    assert pd.read_csv(bench.out / "methods.csv")["method"].tolist() == list(frame.index)

    # what is there does not run again, a changed file does
    before = bench.table.stat().st_mtime_ns
    bench.run(["fedavg"])
    assert bench.table.stat().st_mtime_ns == before
    mine.write_text(MINE.replace("2 * state", "3 * state"))
    bench.run([f"{mine}:Wrong"])
    again = bench.results()
    keys = [set(each.loc[each["method"] == "Wrong", "key"]) for each in (results, again)]
    assert not keys[0] & keys[1]
    # so does another class of the file by the same title
    bench.run([f"{mine}:Copy:label=Wrong"])
    assert np.isfinite(bench.results()["rounds"]).all()


@pytest.mark.slow
def test_a_method_that_a_task_refuses_is_left_out(folder, tmp_path, capsys):
    server = "asynchronous = {concurrency = 3}, cohort = 2, steps = 2"
    clock = "clock = {speed = 100.0, down = 1e6, up = 1e6}\nalgorithm"
    (folder / "tiny.toml").write_text(TINY.replace("steps = 2", server).replace("algorithm", clock))
    bench = bench_of(folder, tmp_path / "out")
    bench.run(["feddane"])
    assert "FedDANE: left out" in capsys.readouterr().out
    assert (bench.results()["hours"] > 0).all()
    assert set(bench.results()["method"]) == {"FedAvg"}


def test_a_task_may_have_the_default_observers(folder):
    (folder / "tiny.toml").write_text(TINY.replace("observe", "# observe"))
    assert load_tasks(folder)["tiny"].selecting.sections["observe"] is None


def test_methods_fit_families(mine):
    assert parse_method("fedprox:mu=1").shown() == "FedProx mu=1"
    assert families_of(parse_method("dsgd")) == ("decentralised",)
    assert families_of(parse_method("ditto")) == ("personal",)
    assert "convex" in families_of(parse_method(f"{mine}:Copy"))
    tasks = load_tasks()
    assert tasks["digits-personal-dirichlet"].fits(parse_method("fedavg"))
    assert not tasks["digits-personal-dirichlet"].fits(parse_method("fedprox"))
    assert not tasks["digits-ring"].fits(parse_method("fedavg"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"convex"', '"other"'),
        ("final =", "last ="),
        ("[tiny]", "[other]"),
        ('name = "synthetic"', 'name = "synthetics"'),
    ],
)
def test_wrong_tasks_are_refused(folder, old, new):
    for file in folder.iterdir():
        file.write_text(file.read_text().replace(old, new))
    with pytest.raises((SpecError, InvalidInput)):
        load_tasks(folder)


def test_methods_that_cannot_be_compared_are_refused(folder, mine, tmp_path):
    bench = bench_of(folder, tmp_path / "out")
    mine.write_text(MINE.replace("class Copy", "class FedAvg"))
    # options that replace what is searched, and titles that stand for other results
    for text in (
        "fedavg:solver={momentum=0.9}",
        "fedavg:schedule={steps=3}",
        f"{mine}:FedAvg",
        "fedprox:label=FedAvg",
        "dsgd",
    ):
        with pytest.raises(InvalidInput):
            bench.run([text])
    with pytest.raises(InvalidInput):
        bench.run(["fedprox", "fedprox"])
    with pytest.raises(InvalidInput, match="spaces: got 'copi'"):
        dataclasses.replace(bench, spaces={"copi": {}}).run(["fedavg"])
    assert parse_method(f"{mine}:FedAvg:label=Mine").shown() == "Mine"
    found = call("bench", "fedavg", "--tasks", folder, "--tier", "slow")
    assert found.exit_code == 2
    assert not bench.out.exists()


def test_without_a_method_the_tasks_are_listed():
    found = succeed("bench")
    assert "digits-ring" in found.output


def test_a_hyperparameter_and_that_of_the_solver_may_have_one_name(folder, mine):
    task = load_tasks(folder)["tiny"]
    method = parse_method(f"{mine}:Copy:label=Mine")
    setting = {"learning_rate": 0.1, "momentum": 0.3, "solver.momentum": 0.7}
    plan = task.experiment_of(method, [setting, setting]).plan(make_data(task))
    solver = plan.arguments_of("0")["solver"]
    assert list(plan.algorithms) == ["0", "1"]
    assert plan.algorithms["0"].momentum == pytest.approx(0.3)
    assert (solver.learning_rate, solver.momentum) == pytest.approx((0.1, 0.7))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("fedavg", 1.0), ("gd", None)])
def test_gradients_are_those_of_all_clients_over_their_number(folder, name, expected):
    """2 of 4 clients take 2 steps; with GD every client takes one gradient of all its examples."""
    text = TINY.replace("steps = 2", "cohort = 2, steps = 2")
    (folder / "tiny.toml").write_text(text)
    task = load_tasks(folder)["tiny"]
    data = make_data(task)
    (run,) = run_settings(task, parse_method(name), [{"learning_rate": 0.1}], data, [0])
    expected = expected or np.mean(np.ceil(data.train.sizes / 10))
    np.testing.assert_allclose(run.gradients, expected * run.rounds)


def record(losses, accuracies, outcome=None):
    rounds = np.arange(len(losses))
    metrics = {"train_loss": np.array(losses), "test_accuracy": np.array(accuracies)}
    spent = {"gradients": 5.0 * rounds, "time": 3600.0 * rounds}
    return Record(
        "t", "m", 0, 0, rounds, 0.0 * rounds, 1e9 * rounds, metrics, outcome or Outcome(), **spent
    )


def target(metric, value):
    return Target(
        family="convex", tier="quick", metric=metric, value=value, learning_rate=[0.1, 1.0]
    )


def test_costs_are_read_at_the_first_value_as_good_as_the_target():
    run = record([3.0, 1.0, 4.0], [0.9, 0.5, 0.95])
    # what clients adapt before the first round does not count
    assert cost_to(run, target("test_accuracy", 0.6), "rounds") == 2
    assert cost_to(run, target("test_accuracy", 0.6), "gradients") == 10
    assert cost_to(run, target("test_accuracy", 0.6), "gigabits") == 2
    assert cost_to(run, target("test_accuracy", 0.6), "hours") == 2
    # the metric of the task says what diverged
    assert not has_diverged(run, "test_accuracy")
    assert cost_to(run, target("train_loss", 1.0), "rounds") == math.inf


@pytest.mark.parametrize(
    "run",
    [
        record([3.0, 1.0, 1.0], [0.6, 0.9, 0.5]),  # below its initial accuracy
        record([3.0, 1.0, 1.0], [0.6, 0.9, math.nan]),
        record([3.0, 1.0, 1.0], [0.1, 0.9, 0.9], Outcome("non-finite", 2)),
    ],
)
def test_a_run_that_diverged_costs_infinitely_much(run):
    assert has_diverged(run, "test_accuracy")
    assert cost_to(run, target("test_accuracy", 0.5), "rounds") == math.inf


def test_a_target_is_the_median_of_the_best_losses_in_half_of_the_rounds(folder, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "benchmark")
    import targets

    task = load_tasks(folder)["tiny"]
    runs = [record([3.0, best, 2.0, 2.0, 0.1], [0.0] * 5) for best in (1.23, 1.5001)]
    lost = record([3.0, 0.5, 4.0], [0.0] * 3)
    assert targets.target_of(task, [*runs, lost]) == 1.51
