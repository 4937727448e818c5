"""Several run directories on one page."""

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, comparison_page, merge_records
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
    assert [(run.label, run.seed) for run in merge_records(directories)] == [("FedAvg", 0)]
    page = comparison_page(directories)
    assert page.summary == "1 run directory, 1 run."
    assert list(page.settings) == ["a/study.toml"]
