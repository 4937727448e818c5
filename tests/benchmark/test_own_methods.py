"""Methods of users in the benchmark: what is searched, what is refused, and which results count."""

import dataclasses

import numpy as np
import pytest
from test_protocol import TINY, bench_folder, bench_of, quiet

from fedax.algorithms import algorithm_class
from fedax.benchmark import command, trials
from fedax.benchmark.archive import Archive, Entry
from fedax.benchmark.spaces import Range, space_of
from fedax.benchmark.standing import Standing
from fedax.benchmark.task import BenchTask, Method, load_tasks
from fedax.core import InvalidInput

MINE = '''
from typing import ClassVar

from fedax import Algorithm, Card, Client, Federation, Upload, Vector, hyper


class Mine(Algorithm[Vector]):
    """FedAvg with momentum by name only."""

    momentum: float = hyper(0.5, low=0.0, high=1.0)
    free: float = hyper(0.1)
    count: int = hyper(1, low=1)
    fixed: float = hyper(0.5, static=True, low=0.0, high=1.0)

    card: ClassVar[Card] = Card(paper="Nobody, 2026", read=())

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(self.train, fed.sample(), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w))
'''


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return f"{file}:Mine"


@pytest.fixture
def folder(tmp_path):
    return bench_folder(tmp_path)


def test_a_hyperparameter_and_that_of_the_solver_may_have_one_name(mine):
    task = BenchTask.parse(TINY, "tiny")
    setting = {"learning_rate": 0.1, "momentum": 0.3, "solver.momentum": 0.7}
    experiment = task.experiment_of(Method.parse(mine), [setting])
    plan = experiment.plan(trials.make_data(task))
    solver = plan.arguments_of("0")["solver"]
    assert plan.algorithms["0"].momentum == pytest.approx(0.3)
    assert (solver.learning_rate, solver.momentum) == pytest.approx((0.1, 0.7))


def test_what_can_vary_is_searched(mine):
    kind = algorithm_class(mine)
    ranges = space_of(kind, (0.01, 1.0), {}, {}).ranges
    assert set(ranges) == {"learning_rate", "momentum", "free"}
    # a positive default without a range: from a tenth to ten times
    assert ranges["free"] == Range(0.01, 1.0, log=True)
    with pytest.raises(InvalidInput, match=r"Mine\.fixed: it is static"):
        space_of(kind, (0.01, 1.0), {}, {"mine": {"fixed": {"linear": [0.0, 1.0]}}})


@pytest.mark.slow
def test_the_command_says_what_is_searched(mine, folder, tmp_path):
    bench, console = bench_of(folder, tmp_path / "out"), quiet()
    bench.run([mine], console, only_plan=True)
    shown = console.file.getvalue()
    assert "Mine searches learning_rate log [0.01, 1], momentum linear [0, 1]" in shown
    assert "Not searched: count, fixed." in shown


@pytest.mark.parametrize("option", ["solver={momentum=0.9}", "schedule={steps=3}"])
def test_options_that_the_benchmark_sets_are_refused(option):
    """They would replace what is searched, and be archived as the plain method."""
    with pytest.raises(InvalidInput, match="the benchmark tunes the local solver"):
        Method.parse(f"fedavg:{option}")


def test_a_learning_rate_of_the_method_is_refused(mine, tmp_path):
    file = tmp_path / "rate.py"
    file.write_text(MINE.replace("momentum: float", "learning_rate: float"))
    with pytest.raises(InvalidInput, match="Give the hyperparameter another name"):
        Method.parse(f"{file}:Mine")


def test_titles_of_built_in_methods_are_taken(tmp_path):
    """Results are found by their titles: another FedAvg would be the reference."""
    file = tmp_path / "own.py"
    file.write_text(MINE.replace("class Mine", "class FedAvg"))
    for text in (f"{file}:FedAvg", "fedprox:label=FedAvg"):
        with pytest.raises(InvalidInput, match="a built-in method has this title"):
            Method.parse(text)
    assert Method.parse(f"{file}:FedAvg:label=FedAvg of mine").label == "FedAvg of mine"


def test_a_label_names_the_method_and_not_its_settings(mine):
    task = BenchTask.parse(TINY, "tiny")
    method = Method.parse(f"{mine}:label=Version 2")
    settings = [{"learning_rate": rate} for rate in (0.1, 0.2)]
    plan = task.experiment_of(method, settings).plan(trials.make_data(task))
    assert list(plan.algorithms) == ["0", "1"]
    assert method.label == "Version 2"


def test_methods_of_one_title_are_refused(mine, folder, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(MINE)
    bench = bench_of(folder, tmp_path / "out")
    with pytest.raises(InvalidInput, match="2 of the methods have this title"):
        bench.run([mine, f"{other}:Mine"], quiet())


def entry_of(task, method, key):
    """A result without runs: only its key matters here."""
    return Entry(task.name, method, key, trials.judged_by(task), {}, refused="none")


def test_results_of_an_older_file_do_not_count(mine, folder, tmp_path):
    bench = command.Bench.open("quick", folder=folder, out=tmp_path / "out")
    (task,), method = bench.tasks, Method.parse(mine)
    bench.archive.add(entry_of(task, "Mine", "older"))
    keys = bench._keys([method])
    assert "Mine" in Standing.of(bench.tasks, bench.archive).refused["tiny"]
    assert "Mine" not in Standing.of(bench.tasks, bench.archive, keys=keys).refused["tiny"]
    bench.archive.add(entry_of(task, "Mine", keys["tiny", "Mine"]))
    assert "Mine" in Standing.of(bench.tasks, bench.archive, keys=keys).refused["tiny"]


def test_a_method_with_other_spaces_does_not_stand_for_the_shipped_one(folder, tmp_path):
    """Without --spaces, the result of the second folder counts."""
    shipped = Archive([tmp_path / "shipped"])
    bench = command.Bench.open("quick", folder=folder, out=tmp_path / "out")
    (task,) = bench.tasks
    key = bench._keys()["tiny", "FedAvg"]
    shipped.add(entry_of(task, "FedAvg", key))
    bench.archive.add(entry_of(task, "FedAvg", "of other spaces"))
    both = dataclasses.replace(bench, archive=Archive([bench.out, *shipped.folders]))
    found = both.archive.entries("tiny", keys=both._keys())
    assert [entry.key for entry in found] == [key]


def test_a_file_that_changes_while_it_runs_gives_no_result(mine, folder, tmp_path, monkeypatch):
    task, file = load_tasks(folder)["tiny"], tmp_path / "mine.py"
    method = Method.parse(mine)

    def tune(*_):
        file.write_text(MINE.replace("hyper(0.5", "hyper(0.4", 1))
        return trials.Tuned([], [], 0, [], [])

    monkeypatch.setattr(trials, "tune", tune)
    space = trials.search_space(task, method, {})
    with pytest.raises(InvalidInput, match="its file changed while it ran"):
        trials.run_method(task, method, space, trials.make_data(task))


def test_gradients_are_those_of_all_clients_over_their_number():
    """2 of 4 clients take 2 steps; with GD every client takes one gradient of all its examples."""
    task = BenchTask.parse(TINY.replace("steps = 2", "cohort = 2, steps = 2"), "tiny")
    data = trials.make_data(task)
    epoch = np.mean(np.ceil(data.train.sizes / 10))
    for name, expected in (("fedavg", 2 * 2 / 4), ("gd", epoch)):
        plan = task.experiment_of(Method.parse(name), [{"learning_rate": 0.1}]).plan(data)
        assert trials.gradients_per_client(plan, "0") == pytest.approx(expected)
    (run,) = trials.run_settings(task, Method.parse("fedavg"), [{"learning_rate": 0.1}], data, [0])
    np.testing.assert_allclose(run.gradients, run.rounds)
