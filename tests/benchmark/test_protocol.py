"""The protocol on a tiny task: tuning, archive, standing, and a method that is wrong."""

import dataclasses
import io
import json
import lzma
import math
import re
import shutil
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedax.benchmark import command, trials
from fedax.benchmark.archive import Archive, Entry
from fedax.benchmark.page import render
from fedax.benchmark.standing import LEAST, describe_place
from fedax.benchmark.task import (
    BenchTask,
    Method,
    Target,
    choose_tasks,
    load_tasks,
    write_target,
)
from fedax.benchmark.trials import Tuning
from fedax.cli.main import app
from fedax.core import SpecError

TINY = """
title = "Tiny"
family = "convex"
tier = "quick"
metric = "train_loss"
learning_rate = [0.01, 1.0]
quality = {final = "train_loss", mean = "client_accuracy_mean"}

[experiment]
rounds = 6
observe = ["train_loss", "client_accuracy"]
task = {name = "synthetic", alpha = 0.5, beta = 0.5, clients = 4}
schedule = {steps = 2, batch_size = 10}
"""


def bench_folder(tmp_path):
    """Returns a folder with one task that has a target."""
    place = tmp_path / "tasks"
    place.mkdir()
    (place / "tiny.toml").write_text(TINY)
    told = {"reference": "FedAvg", "settings": {}, "seeds": [1], "values": [1.9], "fedax": "0"}
    task = load_tasks(place)["tiny"]
    write_target(place, "tiny", Target(value=1.9, task=task.fingerprint, **told))
    return place


@pytest.fixture
def folder(tmp_path):
    return bench_folder(tmp_path)


BUDGET = Tuning(settings=2, screening=(10,), deciding=(11,), reported=(0, 1, 2))
WRONG = '''
from typing import ClassVar

import jax.numpy as jnp

from fedax import Algorithm, Card, Client, Federation, Upload, Vector


class Wrong(Algorithm[Vector]):
    """Planted: steps the wrong way."""

    card: ClassVar[Card] = Card(paper="Nobody, 2026", read=())

    def round(self, fed: Federation, state: Vector) -> Vector:
        return 2 * state - fed.average(self.train, fed.sample(), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w))


class Biased(Wrong):
    """Planted: FedAvg with a bias, the same step of the server in every round."""

    def round(self, fed: Federation, state: Vector) -> Vector:
        bias = 0.3 * jnp.sin(jnp.arange(state.size))
        return fed.average(self.train, fed.sample(), state) + bias
'''


def bench_of(folder, out, budget=BUDGET):
    opened = command.Bench.open("quick", folder=folder, out=out)
    return dataclasses.replace(opened, archive=Archive([out]), tuning=budget)


def quiet():
    return Console(file=io.StringIO(), width=200)


@pytest.mark.slow
def test_the_protocol_from_tuning_to_the_page(folder, tmp_path):
    file, out = tmp_path / "wrong.py", tmp_path / "out"
    file.write_text(WRONG)
    bench, console = bench_of(folder, out), quiet()
    bench.run(["fedavg", "gd", f"{file}:Wrong", f"{file}:Biased"], console)
    shown = console.file.getvalue()
    standing = bench.standing()
    (task,) = standing.tasks
    assert list(standing.entries["tiny"]) == ["Biased", "FedAvg", "GD", "Wrong"]

    # the planted methods land where they should: one never arrives, a bias ends worse
    wrong = standing.numbers(task, "rounds", "Wrong")
    assert np.isinf(wrong).all()
    placed = {one.method: one for one in standing.placed("convex", "rounds")}
    assert placed["Wrong"].area == 0.0
    assert placed["FedAvg"].area > 0.0
    assert placed["Wrong"].worse == 1
    assert placed["Biased"].better == 0
    assert placed["Wrong"].area <= placed["Biased"].area <= placed["FedAvg"].area
    told = {name: standing.differences(task, "final")[name] for name in ("Biased", "Wrong")}
    assert told["Biased"].effect.high < 0, told
    assert "significantly worse" in shown
    assert f"no ranking with fewer than {LEAST} tasks" in shown
    assert placed["FedAvg"].rank is None

    # selection: from the seeds that are not reported, and by the protocol's order
    entry = standing.entries["tiny"]["FedAvg"]
    assert [run.seed for run in entry.records] == [0, 1, 2]
    assert len(entry.settings) == len(entry.scores) == 4
    assert entry.scores[entry.selected] == min(entry.scores)
    rates = [setting["learning_rate"] for setting in entry.settings[:2]]
    assert rates == [s["learning_rate"] for s in standing.entries["tiny"]["Wrong"].settings[:2]]

    # an independent recomputation from the archive's files
    assert recomputed(out / "tiny", 1.9) == {
        method: (pytest.approx(one.area), pytest.approx(one.low), pytest.approx(one.high))
        for method, one in placed.items()
    }

    # table, figure and page
    assert r"\begin{tabular}" in (out / "table.tex").read_text()
    assert {"profiles-rounds.pdf", "profiles-rounds.png"} <= {f.name for f in out.iterdir()}
    page = bench.write_page().read_text()
    rounds = re.search(r'<section data-axis="rounds">(.*?)</section>', page, re.DOTALL)[1]
    row = re.search(r"<tr><th[^>]*>Wrong</th>(.*?)</tr>", rounds, re.DOTALL)[1]
    assert '<td class="bad">never</td>' in row
    assert render(standing) == page

    # what is there does not run again
    before = {f: f.stat().st_mtime_ns for f in (out / "tiny").iterdir()}
    bench.run(["fedavg", "gd"], quiet())
    assert {f: f.stat().st_mtime_ns for f in (out / "tiny").iterdir()} == before

    # another target makes them again
    moved = task.model_copy(update={"target": task.target.model_copy(update={"value": 1.8})})
    other = dataclasses.replace(bench, tasks=[moved])
    assert other.standing().entries["tiny"] == {}
    assert bench.archive.find("tiny", "FedAvg", entry.key) is not None


def recomputed(folder, target, limit=4.0):
    """Areas with intervals, from the files alone and in loops."""
    medians = {}
    for file in folder.iterdir():
        about, *runs = map(json.loads, lzma.decompress(file.read_bytes()).decode().splitlines())
        costs = []
        for run in runs:
            losses = run["curves"]["metrics/train_loss"][1]
            rounds = run["curves"]["rounds"][1]
            ended = run["outcome"]["kind"] in ("diverged", "non-finite")
            hits = [r for r, loss in zip(rounds, losses, strict=True) if loss <= target]
            lost = ended or not losses[-1] <= losses[0] or not hits
            costs.append(math.inf if lost else hits[0])
        medians[about["method"]] = sorted(costs)[len(costs) // 2]
    best = min(medians.values())
    parts = {
        method: 0.0 if math.isinf(cost) else max(0.0, (limit - cost / best) / (limit - 1))
        for method, cost in medians.items()
    }
    return {method: (part, part, part) for method, part in parts.items()}  # of one task


@pytest.mark.slow
def test_two_processes_give_the_same_table_to_the_bit(tmp_path):
    """Some tasks with a small budget; the second process has one core."""
    names = ("digits-ring", "digits-softmax", "mushrooms", "synthetic-one")
    code = """
        import dataclasses, sys
        from pathlib import Path
        from fedax.experiments.running.setup import set_up_jax
        set_up_jax(1)  # as the command does
        sys.path.insert(0, sys.argv[1])
        from test_protocol import BUDGET, quiet
        from fedax.benchmark import command
        from fedax.benchmark.archive import Archive
        out = Path(sys.argv[2])
        bench = command.Bench.open("quick", sys.argv[3:], out=out)
        bench = dataclasses.replace(bench, archive=Archive([out]), tuning=BUDGET)
        bench.run(["fedavg"], quiet())
        from fedax.benchmark.page import render
        from fedax.results.forms import format_tables
        print(format_tables(bench.standing().table("rounds"), "latex"), render(bench.standing()))
    """
    where, core = str(Path(__file__).parent), ["taskset", "-c", "0"]
    texts = [
        subprocess.run(
            [
                *(core if name == "two" and shutil.which("taskset") else []),
                *(sys.executable, "-c", textwrap.dedent(code), where, str(tmp_path / name), *names),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in ("one", "two")
    ]
    assert texts[0] == texts[1]
    assert "FedAvg" in texts[0]
    files = [sorted((tmp_path / name).glob("*/*.xz")) for name in ("one", "two")]
    assert len(files[0]) == sum(
        task.fits(Method.parse("fedavg")) for task in choose_tasks(load_tasks(), "quick", names)
    )
    for one, two in zip(*files, strict=True):
        first, second = (Entry.from_bytes(f.read_bytes()) for f in (one, two))
        assert first.scores == second.scores
        for run, again in zip(first.records, second.records, strict=True):
            assert all((run.metrics[name] == again.metrics[name]).all() for name in run.metrics)


@pytest.mark.slow
def test_a_target_is_what_the_reference_reaches_in_half_of_the_rounds(folder):
    budget = Tuning(settings=2, screening=(20,), deciding=(), reported=(21, 22, 23))
    task = load_tasks(folder)["tiny"]
    target = trials.set_target(task, {}, trials.make_data(task), budget)
    assert target.reference == "FedAvg"
    assert target.seeds == [21, 22, 23]
    median = sorted(target.values)[1]
    assert median <= target.value <= median * 1.01
    write_target(folder, "tiny", target)
    assert load_tasks(folder)["tiny"].target == target
    # a changed task has no target
    (folder / "tiny.toml").write_text(TINY.replace("rounds = 6", "rounds = 7"))
    assert load_tasks(folder)["tiny"].target is None


@pytest.mark.parametrize(("higher", "reached"), [(True, 0.5), (False, 0.9)])
def test_a_reference_that_diverged_sets_no_target_out_of_reach(
    folder, monkeypatch, higher, reached
):
    """A run without a number counts as the worst: of 0.5, 0.9 and NaN the median is 0.5 where
    higher is better, else 0.9."""
    values = iter([0.5, 0.9, math.nan])
    first = types.SimpleNamespace(scalars={"m": [0.0 if higher else 2.0]})
    tuned = types.SimpleNamespace(records=[first] * 3, settings=[{}], selected=0)
    monkeypatch.setattr(trials, "tune", lambda *_: tuned)
    monkeypatch.setattr(trials, "search_space", lambda *_: None)
    monkeypatch.setattr(trials, "is_higher", lambda *_: higher)
    monkeypatch.setattr(trials, "best_value", lambda *_: next(values))
    task = load_tasks(folder)["tiny"].model_copy(update={"metric": "m"})
    assert (
        trials.set_target(task, {}, trials.make_data(load_tasks(folder)["tiny"])).value == reached
    )


@pytest.mark.slow
def test_a_refusal_is_kept_with_its_reason(tmp_path):
    place = tmp_path / "tasks"
    place.mkdir()
    server = "asynchronous = {concurrency = 3}, cohort = 2, steps = 2"
    text = TINY.replace("steps = 2", server).replace('"convex"', '"asynchronous"')
    (place / "late.toml").write_text(text)
    task = load_tasks(place)["late"]
    told = {"reference": "FedAvg", "settings": {}, "seeds": [1], "values": [1.9], "fedax": "0"}
    write_target(place, "late", Target(value=1.9, task=task.fingerprint, **told))
    bench, console = bench_of(place, tmp_path / "out"), quiet()
    bench.run(["feddane", "fedavg"], console)
    assert "refused" in console.file.getvalue()
    standing = bench.standing()
    assert list(standing.entries["late"]) == ["FedAvg"]
    assert "FedDANE" in standing.refused["late"]
    hours = standing.numbers(standing.tasks[0], "hours", "FedAvg")
    assert (hours > 0).all()
    assert any("refused" in line for line in describe_place(standing, "FedDANE"))


def test_the_tasks_are_whole():
    tasks = load_tasks()
    assert len(tasks) >= 12
    families = {task.family for task in tasks.values()}
    assert families == {
        "convex",
        "networks",
        "text",
        "asynchronous",
        "personal",
        "decentralised",
    }
    quick = choose_tasks(tasks, "quick")
    assert {task.family for task in quick} == families - {"text"}
    for task in quick:
        assert task.experiment["task"]["name"] in ("synthetic", "digits")
    assert len(choose_tasks(tasks, "full")) == len(tasks)
    for task in tasks.values():
        assert task.target is None or task.target.task == task.fingerprint


def test_methods_fit_families():
    assert Method.parse("fedprox:mu=1").label == "FedProx mu=1"
    assert Method.parse("dsgd").families == ("decentralised",)
    assert Method.parse("ditto").families == ("personal",)
    tasks = load_tasks()
    assert tasks["digits-personal-dirichlet"].fits(Method.parse("fedavg"))
    assert not tasks["digits-personal-dirichlet"].fits(Method.parse("fedprox"))
    assert not tasks["digits-ring"].fits(Method.parse("fedavg"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({'"convex"': '"other"'}, "family"),
        ({'"quick"': '"fast"'}, "tier"),
        ({"[0.01, 1.0]": "[1.0, 0.1]"}, "learning_rate"),
        ({"final =": "last ="}, "quality"),
        ({"rounds = 6": "rounds = -1"}, "rounds"),
        ({'name = "synthetic"': 'name = "synthetics"'}, "Did you mean"),
        ({"title": "titel"}, "titel"),
    ],
)
def test_wrong_tasks_are_refused(change, text):
    ((old, new),) = change.items()
    with pytest.raises(SpecError, match=text):
        BenchTask.parse(TINY.replace(old, new), "tiny")


def refused(*arguments):
    found = CliRunner().invoke(app, ["bench", *arguments])
    assert found.exit_code == 2, found.output
    return " ".join((found.output + (found.stderr or "")).split())


def test_the_command_refuses_what_there_is_not(folder, tmp_path):
    own = ["--tasks", str(folder), "--out", str(tmp_path / "out")]
    assert "quick" in refused("fedavg", "--tier", "slow", *own)
    assert "tiny" in refused("fedavg", "--task", "tinny", *own)
    assert "FedAvg" in refused("fedavgg", *own) or "fedavg" in refused("fedavgg", *own)
    assert "fits tasks of decentralised" in refused("dsgd", *own)
    assert "mu" in refused("fedprox:nu=1", *own)
    spaces = tmp_path / "spaces.toml"
    spaces.write_text("[FedProx]\nmu = {log = [0.0, 1.0]}")
    assert "FedProx.mu" in refused("fedprox", "--spaces", str(spaces), *own)
    (folder / "targets.toml").unlink()
    assert "fedax bench --targets" in refused("fedavg", *own)
    assert not (tmp_path / "out").exists()


def test_the_page_follows_from_nothing_too(folder, tmp_path):
    bench = bench_of(folder, tmp_path / "out")
    assert bench.standing().placed("convex", "rounds") == []
    assert "<table" not in render(bench.standing())


def test_without_a_method_the_tasks_are_listed(folder, tmp_path):
    found = CliRunner().invoke(app, ["bench", "--tasks", str(folder), "--out", str(tmp_path)])
    assert found.exit_code == 0
    assert (tmp_path / "index.html").exists()
    assert found.output.splitlines()[1] == "tiny  convex  quick  Tiny   train_loss  1.9"


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "FedAvg.tar.xz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"FedAvg.tar.xz is damaged"):
        list(Archive([tmp_path]).entries("tiny", ""))
