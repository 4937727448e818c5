"""Grids with their selection rule, and run directories that are taken up again."""

import csv

import numpy as np
import pytest

from fedax import papers
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import planned_runs, read_study
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.batches import batches_of, run_batch
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.papers.study import reproduce
from samples import OWN, TINY, ids, judge, record

GRID = TINY.replace("seeds = [0, 1]", "seeds = [0]") + (
    "[grid]\nseeds = [7, 8]\nfedprox.mu = [0.0, 1.0, 5.0]\n"
)


def ends(directory):
    return {(r.label, r.seed): r.metrics["train_loss"].tobytes() for r in directory.records}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_experiment(Experiment.parse(GRID), tmp_path_factory.mktemp("grid") / "a", Display())


LABELS = ["FedProx mu=1, mu=0.0", "FedProx mu=1, mu=1.0", "FedProx mu=1, mu=5.0"]


@pytest.mark.slow
def test_all_members_run_as_one_program_on_the_seeds_that_select_and_the_selected_one_on_the_others(
    finished,
):
    experiment = Experiment.parse(GRID)
    best = finished.selections()["Tiny <run>"]["FedProx mu=1"]
    ran = {(r.label, r.seed) for r in finished.records}
    assert ran == {
        ("FedAvg", 0),
        *((label, seed) for label in LABELS for seed in (7, 8)),
        (best, 0),
    }
    trial = batches_of(planned_runs([experiment]))
    assert [(batch.labels, batch.seeds) for batch in trial] == [(tuple(LABELS), (7, 8))]
    report = batches_of(planned_runs([experiment]), finished.selections())
    assert [(batch.labels, batch.seeds) for batch in report] == [
        (("FedAvg",), (0,)),
        ((best,), (0,)),
    ]
    plan = experiment.plan()
    kept = {(r.label, r.seed): r for r in finished.records}
    for run in ((LABELS[0], 8), (LABELS[2], 7), (best, 0)):
        (alone,) = run_batch(plan, [run[0]], [run[1]])
        np.testing.assert_allclose(
            kept[run].metrics["train_loss"], alone.metrics["train_loss"], rtol=1e-12
        )
    assert kept[best, 0].gradients.tolist() == [0.0, 3.0, 6.0]


@pytest.mark.slow
def test_some_draws_of_the_data_select_and_the_selected_member_runs_on_all(tmp_path):
    text = OWN.replace("draws = [0, 1]", "draws = [0, 1, 2]\nselect_draws = [1, 9]").replace(
        "[5]", "[1, 5]"
    )
    recipe = papers.Recipe.parse(text)
    assert [e.grid.selecting(e.seeds) for e in recipe.experiments("smoke")] == [[], [1], []]
    assert [e.grid.selecting(e.seeds) for e in recipe.experiments("paper")] == [[1], []]
    assert [
        Experiment.parse(e.toml()).grid.selecting(e.seeds) for e in recipe.experiments("smoke")
    ] == [[], [1], []]
    directory = reproduce(recipe, "smoke", tmp_path / "a", Display())
    best = directory.selections()["Only"]["Prox"]
    trial = {(label, 1, 1) for label in ("Prox, mu=0.0", "Prox, mu=10000.0")}
    report = [{(label, draw, 0) for draw in (0, 1, 2)} for label in ("Plain", best, "Prox")]
    labels = {(run.label, run.draw, run.seed) for run in directory.records}
    assert labels == trial | report[0] | report[1]
    shown = {(run.label, run.draw, run.seed) for run in directory.shown()}
    assert shown == report[0] | report[2]
    again = RunDirectory.load(tmp_path / "a")
    assert again.selections() == directory.selections()


@pytest.mark.slow
def test_the_table_of_the_grid_is_kept_and_the_report_shows_the_selected(finished):
    with (finished.path / "grid.csv").open() as stream:
        table = list(csv.DictReader(stream))
    best = finished.selections()["Tiny <run>"]["FedProx mu=1"].split(", ")[1]
    rows = [(row["algorithm"], row["mu"], row["runs"]) for row in table]
    trial = [("FedProx mu=1", mu, "2") for mu in ("0", "1", "5")]
    assert rows == [("FedAvg", "", "1"), *trial]
    chosen = {row["mu"] for row in table if row["selected"] == "1"}
    assert chosen == {"", best.removeprefix("mu=").removesuffix(".0")}
    page = (finished.path / "report.html").read_text()
    assert '<th scope="row">FedProx mu=1</th>' in page
    assert f"Selected for Tiny &lt;run&gt;: FedProx mu=1, {best}." in page
    assert [(r.label, r.seed) for r in finished.shown()] == [("FedAvg", 0), ("FedProx mu=1", 0)]
    assert "Grid: Tiny" in page
    kept = read_study(RunDirectory.load(finished.path))[0].resolved()
    assert kept.pop("data").keys() == {"examples"}
    assert kept == Experiment.parse(GRID).resolved()


@pytest.mark.slow
def test_processes_select_and_report_the_same(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    spread = run_experiment(Experiment.parse(GRID), tmp_path / "a", Display(), jobs=2)
    assert [(r.label, r.seed) for r in spread.records] == [
        (r.label, r.seed) for r in finished.records
    ]
    for one, other in zip(spread.records, finished.records, strict=True):
        np.testing.assert_allclose(
            one.metrics["train_loss"], other.metrics["train_loss"], rtol=1e-10
        )


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_grid_is_taken_up_again_in_both_stages(finished, tmp_path, at):
    """Killed in the program that selects, in the first one to report, and in the second."""
    with pytest.raises(RuntimeError, match="killed"):
        run_experiment(Experiment.parse(GRID), tmp_path / "a", Crash(at))
    again = Crash(0)
    directory = resume(tmp_path / "a", again)
    assert len(again.begun) == 4 - at
    assert ("selection seed 7, 8" in again.begun[0]) == (at == 1)
    assert directory.runs.keys() == finished.runs.keys()
    assert ends(directory) == ends(finished)


def selected(experiment, runs):
    judged = judge(experiment, runs)[0]
    return [*judged["label"][judged["selected"]]]


def test_a_diverged_run_counts_as_worst():
    text = GRID.replace("Tiny <run>", "T")
    experiment = Experiment.parse(text)
    labels = [member.label for member in experiment.members()][1:]
    finals = (0, 0.1), (0, np.nan), (1, 0.8), (1, 0.8), (2, 0.7), (2, 0.8)
    runs = [
        record(labels[member], "T", 7 + i % 2, losses=(2.0, final))
        for i, (member, final) in enumerate(finals)
    ]
    assert selected(experiment, runs) == [labels[2]]
    runs[-1] = record(labels[2], "T", 8, losses=(2.0, 3.0))  # ends above its start
    assert selected(experiment, runs) == [labels[1]]
    all_bad = [record(label, "T", losses=(1.0, 9.0 - i)) for i, label in enumerate(labels)]
    assert selected(experiment, all_bad) == [labels[2]]
    by_accuracy = Experiment.parse(text + 'select = "test_accuracy"\n')
    good = [
        record(label, "T", test_accuracy=np.array([0.0, 0.5, 0.5 + i / 10]))
        for i, label in enumerate(labels)
    ]
    rows = judge(by_accuracy, good)[0]
    np.testing.assert_allclose(rows["mean"], [50, 60, 70])
    assert list(rows["selected"]) == [False, False, True]


def test_grids_of_the_solver_run_together_and_those_of_the_schedule_apart():
    more = GRID + "solver.learning_rate = [0.1, 0.2]\nschedule.cohort = [1, 2]\n"
    batches = batches_of(planned_runs([Experiment.parse(more)]))
    assert [len(batch.labels) for batch in batches] == [2, 2, 6, 6]
    assert {batch.seeds for batch in batches} == {(7, 8)}
    names = [name for batch in batches for name in batch.ids]
    assert len(set(names)) == len(names) == 32
    plan = Experiment.parse(more).plan()
    label = "FedAvg, learning_rate=0.2, cohort=1"
    assert (
        plan.arguments_of(label)["solver"].learning_rate,
        plan.arguments_of(label)["schedule"].cohort,
    ) == (0.2, 1)


def test_an_algorithm_may_have_its_own_schedule_and_a_grid_has_the_last_word():
    experiment = Experiment.parse(TINY + "schedule.steps = 5\n")
    plan = experiment.plan()
    prox, plain = (plan.arguments_of(label)["schedule"] for label in ("FedProx mu=1", "FedAvg"))
    assert (prox.steps, prox.cohort, plain.steps) == (5, 2, 3)
    assert Experiment.parse(experiment.toml()).resolved() == experiment.resolved()
    tried = Experiment.parse(TINY + "schedule.steps = 5\n[grid]\nschedule.steps = [7]\n").members()
    assert [member.schedule["steps"] for member in tried] == [7, 7]


class Crash(Display):
    """Dies when the given run has done its first round."""

    def __init__(self, at):
        self.at = at
        self.begun = []

    def begin(self, title, rounds):
        self.begun.append(title)

    def observe(self, observation):
        if len(self.begun) == self.at and observation.round == 1:
            raise RuntimeError("killed")


APART = "seeds_together = false\n" + TINY


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return ends(
        run_experiment(
            Experiment.parse(APART), tmp_path_factory.mktemp("straight") / "a", Display()
        )
    )


@pytest.mark.slow
def test_resume_runs_what_is_missing_and_ends_in_the_same_bits(tmp_path, straight):
    out = tmp_path / "a"
    with pytest.raises(RuntimeError, match="killed"):
        run_experiment(Experiment.parse(APART), out, Crash(3))
    made = RunDirectory.load(out)
    assert list(ids(made)) == [("FedAvg", 0), ("FedAvg", 1)]
    curves = out / "runs" / ids(made)["FedAvg", 1] / "curves.npz"
    damaged = curves.read_bytes()
    curves.write_bytes(damaged[: len(damaged) // 2])
    again = Crash(0)
    directory = resume(out, again)
    assert [title.split(": ")[1] for title in again.begun] == [
        "FedAvg, seed 1",
        "FedProx mu=1, seed 0",
        "FedProx mu=1, seed 1",
    ]
    assert directory.status == "finished"
    assert ends(directory) == ends(RunDirectory.load(out)) == straight
    assert not (out / "checkpoints").exists()
    assert resume(out, Crash(1)).status == "finished"  # nothing is left to do


@pytest.mark.slow
def test_seeds_together_are_one_program_with_the_same_numbers(tmp_path, straight):
    display = Crash(0)
    directory = run_experiment(Experiment.parse(TINY), tmp_path / "a", display)
    titles = [title.split(": ")[1] for title in display.begun]
    assert titles == ["FedAvg, seed 0, 1", "FedProx mu=1, seed 0, 1"]
    for (run, losses), (other, apart) in zip(ends(directory).items(), straight.items()):
        assert run == other
        np.testing.assert_allclose(np.frombuffer(losses), np.frombuffer(apart), rtol=1e-10)
    assert Experiment.parse(APART).resolved()["seeds_together"] is False
    first = batches_of(planned_runs([Experiment.parse('trackers = ["tensorboard"]\n' + TINY)]), {})[
        0
    ]
    assert len(first.runs) == 1
