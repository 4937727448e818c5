"""Several run directories on one page."""

import shutil

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, merge
from fedax.results.forms import format_tables
from samples import TINY, begin, put, record


def test_a_directory_that_is_given_twice_counts_once(tmp_path, monkeypatch):
    experiment = Experiment.parse(TINY)
    directory = RunDirectory(tmp_path / "a", "A")
    begin(directory, [experiment])
    put(directory, record("FedAvg", experiment.name, 0))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    spellings = ["a", "a/", "./link", str(tmp_path / "b" / ".." / "a")]
    (tmp_path / "b").mkdir()
    directories = [RunDirectory.load(type(tmp_path)(path)) for path in spellings]
    assert [(run.label, run.seed) for run in merge(directories).shown()] == [("FedAvg", 0)]
    other = RunDirectory.load(shutil.copytree(tmp_path / "a", tmp_path / "b" / "c"))
    # the same run with other versions, for example
    put(other, record("FedAvg", experiment.name, 0, losses=(2.0, 0.25)))
    both = merge([*directories, other])
    rows = both.compare(["train_loss"])[["method", "mean"]].values.tolist()
    assert rows == [["FedAvg (a)", 0.5], ["FedAvg (c)", 0.25]]
    assert " c: 1 algorithm, 1 task, 1 run; all ended well. Still running." in both.line()


def test_runs_on_other_data_are_no_pairs_of_equal_seeds(tmp_path):
    """The title and the seed of a task stay where its other options change."""
    directories = [RunDirectory(tmp_path / name, name) for name in "ab"]
    for directory in directories:
        data = {"data": {"examples": directory.title}}
        begin(directory, [Experiment.parse(TINY).model_copy(update=data)])
        put(directory, record("FedAvg", "Tiny <run>"))
    assert "Nothing is compared" in format_tables(merge(directories).compare(), "text")


def test_folders_on_several_draws_are_rows_of_their_methods(tmp_path):
    """Each draw is one unit of the test, by the mean over its seeds; each folder selects."""
    directories = [RunDirectory(tmp_path / name, name) for name in "ab"]
    for draw, directory in enumerate(directories):
        text = TINY.replace("clients", f"seed = {draw}\nclients")
        begin(directory, [Experiment.parse(f"{text}[grid]\nfedprox.mu = [0.5, 5.0]\n")])
        for run in directory.planned:
            losses = (2.0, 0.5 if run.label.endswith(("mu=0.5", "mu=5.0")[draw]) else 1.0)
            put(directory, record(run.label, run.task, run.seed, draw, losses=losses))
    both = merge(directories)
    rows = both.compare(["train_loss"])[["method", "mean", "runs", "pairs"]]
    assert rows.values.tolist() == [
        ["FedAvg", 1.0, 4, 2],
        ["FedProx mu=1", 0.5, 4, 0],
    ]
    assert [sheet.title[-1] for sheet in both.sheets()] == ["a", "b"]
    assert "b: FedProx mu=1: mu = 5.0 is the largest" in both.warnings()[1]


def test_a_method_that_is_tuned_on_two_tasks_is_one_row(tmp_path):
    """What the grids selected stands in the note and in a column of the CSV file."""
    directory = RunDirectory(tmp_path / "a", "A")
    text = TINY.replace("seeds = [0, 1]", "seeds = [0]") + "[grid]\nfedprox.mu = [0.0, 5.0]\n"
    names = {"T": "mu=0.0", "U": "mu=5.0"}
    texts = [
        text.replace("Tiny <run>", name).replace("alpha = 1.0", f"alpha = {place}")
        for place, name in enumerate(names)
    ]
    begin(directory, [Experiment.parse(text) for text in texts])
    for task, best in names.items():
        for label in ("FedProx mu=1, mu=0.0", "FedProx mu=1, mu=5.0"):
            losses = (2.0, 0.5 if label.endswith(best) else 1.0)
            put(directory, record(label, task, 1, losses=losses))
        put(directory, record(f"FedProx mu=1, {best}", task, 0, losses=(2.0, 0.6)))
        put(directory, record("FedAvg", task, 0, losses=(2.0, 0.7)))
    compared = directory.compare(["train_loss"])
    lines = format_tables(compared, "markdown").splitlines()
    assert lines[2:6] == [
        "| Algorithm | T | U |",
        "| --- | ---: | ---: |",
        "| FedAvg | 0.700 | 0.700 |",
        "| FedProx mu=1 | **0.600** | **0.600** |",
    ]
    selected = "Selected for T: FedProx mu=1, mu=0.0. Selected for U: FedProx mu=1, mu=5.0."
    assert lines[-1].endswith(selected)
    head, *rows = format_tables(compared, "csv").splitlines()
    assert head.endswith(",selected")
    assert rows[-1].endswith('"FedProx mu=1, mu=5.0"')
