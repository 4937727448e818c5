"""Several run directories on one page."""

import shutil

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, merge
from samples import TINY, begin, put, record


def test_a_directory_that_is_given_twice_counts_once(tmp_path, monkeypatch):
    experiment = Experiment.parse(TINY)
    directory = RunDirectory(tmp_path / "a", "A")
    directory.make_folder()
    begin(directory, [experiment])
    put(directory, record("FedAvg", experiment.name, 0))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    spellings = ["a", "a/", "./link", str(tmp_path / "b" / ".." / "a")]
    (tmp_path / "b").mkdir()
    directories = [RunDirectory.load(type(tmp_path)(path)) for path in spellings]
    assert [(run.label, run.seed) for run in merge(directories).shown()] == [("FedAvg", 0)]
    other = RunDirectory.load(shutil.copytree(tmp_path / "a", tmp_path / "b" / "c"))
    both = merge([*directories, other])
    assert [run.label for run in both.shown()] == ["FedAvg (a)", "FedAvg (c)"]
    assert both.line().startswith("2 algorithms, 1 task, 2 runs")
