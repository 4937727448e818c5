"""Selection without running anything: stages, the plan of a run, and its interruption."""

import io
import math

import numpy as np
import pytest
from rich.console import Console
from test_protocol import bench_folder, bench_of

from fedax.benchmark import command, plan, trials
from fedax.benchmark.archive import Archive
from fedax.benchmark.spaces import Range, Space
from fedax.benchmark.task import Method, load_tasks
from fedax.benchmark.trials import Tuning
from fedax.core import Outcome
from fedax.results import Record
from fedax.utils.lock import held


@pytest.fixture
def folder(tmp_path):
    return bench_folder(tmp_path)


ROUNDS = np.arange(0, 7)
METHODS = [Method.parse(name) for name in ("qfedavg", "fedavg", "krum", "scaffold")]


def run_of(setting, seed):
    """A loss that falls the faster, the nearer the learning rate is to 0.1; on seed 11 the best
    setting of seed 10 diverges."""
    speed = 1 / (1 + abs(math.log10(setting["learning_rate"] / 0.1)))
    losses = 2.3 * np.exp(-speed * ROUNDS)
    if seed == 11 and speed > 0.9:
        losses = losses[::-1]
    return Record(
        "t", "m", seed, 0, ROUNDS, 0.0 * ROUNDS, 1e9 * ROUNDS, {"train_loss": losses}, Outcome()
    )


@pytest.fixture
def calls(monkeypatch):
    made = []

    def instead(task, method, settings, data, seeds):
        made.append((task.experiment["observe"], len(settings), tuple(seeds)))
        return [run_of(setting, seed) for setting in settings for seed in seeds]

    monkeypatch.setattr(trials, "run_settings", instead)
    return made


@pytest.fixture
def data(folder):
    return trials.make_data(load_tasks(folder)["tiny"])


SPACE = Space({"learning_rate": Range(0.01, 1.0, log=True)}, {}, "")


def test_the_better_half_decides_on_further_seeds(calls, folder, data):
    task, budget = load_tasks(folder)["tiny"], Tuning(8, (10,), (11,), (0, 1), draw=3)
    score = trials.standing_score("train_loss", 0.5)
    tuned = trials.tune(task, METHODS[1], SPACE, data, budget, score)
    assert calls == [
        (["train_loss"], 8, (10,)),  # selection observes its metric only
        (["train_loss"], 8, (10,)),
        (["train_loss"], 8, (11,)),
        (["train_loss", "client_accuracy"], 1, (0, 1)),
    ]
    alone = [score([run_of(setting, 10)]) for setting in tuned.settings]
    best = sorted(range(16), key=alone.__getitem__)
    assert tuned.scores[best[0]][0] == 1.0  # lost on the second seed
    assert tuned.selected in best[1:8]
    assert [tuned.scores[i] for i in best[8:]] == [alone[i] for i in best[8:]]
    assert [run.seed for run in tuned.records] == [0, 1]


def test_the_reference_runs_all_settings_on_all_seeds(calls, folder, data):
    task = load_tasks(folder)["tiny"]
    trials.set_target(task, {}, data)
    assert [(count, len(seeds)) for _, count, seeds in calls] == [(8, 2), (8, 2), (1, 5)]


def test_a_source_does_not_change_what_a_result_depends_on(folder):
    task, method = load_tasks(folder)["tiny"], METHODS[1]
    key = trials.key_of(task, method, SPACE)
    assert key == trials.key_of(task, method, SPACE._replace(source="read again"))
    wider = SPACE._replace(ranges={"learning_rate": Range(0.01, 2.0, log=True)})
    assert key != trials.key_of(task, method, wider)


def test_waves_finish_families_of_the_first_methods_first():
    tasks = [task for task in load_tasks().values() if task.family == "convex"][:2]
    cells = plan.cells_of(tasks, METHODS)
    names = [(cell.task.name, cell.method.name) for cell in cells]
    first, second = (task.name for task in tasks)
    assert names[:4] == [
        (first, "fedavg"),
        (first, "scaffold"),
        (second, "fedavg"),
        (second, "scaffold"),
    ]
    assert names[4:] == [(first, "qfedavg"), (first, "krum"), (second, "qfedavg"), (second, "krum")]


def test_an_interrupted_run_goes_on_where_it_was(calls, folder, tmp_path, monkeypatch):
    bench, console = bench_of(folder, tmp_path / "out"), Console(file=io.StringIO(), width=200)
    cells, whole = plan.cells_of(bench.tasks, METHODS), command.run_method

    def once(task, method, *rest):
        if method.name == "qfedavg":
            raise KeyboardInterrupt
        return whole(task, method, *rest)

    monkeypatch.setattr(command, "run_method", once)
    with pytest.raises(KeyboardInterrupt):
        bench.results(cells, console)
    made = {file.name for file in (tmp_path / "out" / "tiny").iterdir()}
    assert made == {"FedAvg.tar.xz", "SCAFFOLD.tar.xz"}
    monkeypatch.setattr(command, "run_method", whole)
    before = len(calls)
    bench.results(cells, console)
    assert len(calls) - before == 4 * 2  # stages of the two that were missing
    assert "4/4" in console.file.getvalue()


def test_processes_share_an_archive(calls, folder, tmp_path):
    bench, console = bench_of(folder, tmp_path / "out"), Console(file=io.StringIO(), width=200)
    place = tmp_path / "out" / "tiny"
    place.mkdir(parents=True)
    with held(place, ".SCAFFOLD.lock"):
        bench.results(plan.cells_of(bench.tasks, METHODS[1:]), console)
    assert sorted(entry.method for entry in Archive([tmp_path / "out"]).entries("tiny")) == [
        "FedAvg",
        "Krum",
    ]
    assert "Another process works on 1 of them; run it again" in console.file.getvalue()
