"""Several recipe folders on one page: the papers' numbers beside ours of each."""

import pytest

from fedax import papers
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.joint import comparison_page, merge_records
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.papers.study import reproduce
from fedax.results import render
from samples import OWN, TINY, put, record


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("joint")
    recipe = papers.Recipe.parse(OWN)
    first = reproduce(recipe, "smoke", place / "first", Display())
    return first, reproduce(
        recipe.only("smoke", (), ("Plain",)), "smoke", place / "second", Display()
    )


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_those_of_every_folder(folders):
    first = folders[0]
    page = comparison_page(folders)
    table = page.sheets[0]
    assert list(table.head) == ["Task", "Algorithm", "Paper", "first", "second"]
    rows = {row[1]: row for row in table.rows}
    assert set(rows) == {"Plain", "Prox"}
    ours = first.comparison().cells["ours_mean"][0]
    assert rows["Plain"][2] == "2.00 ± 0.50"
    assert rows["Plain"][3].startswith(f"{ours:.2f} ± ")
    assert rows["Plain"][3].endswith(f"({ours - 2:+.2f})")
    assert rows["Plain"][3] == rows["Plain"][4], "the same runs"
    assert rows["Prox"][4] == "-", "not in the second folder"
    assert {sheet.title for sheet in page.sheets[1:]} >= {
        "Claims: first",
        "The paper beside ours: second",
    }
    assert "The papers&#39; numbers" in render(page)


def test_a_directory_that_is_given_twice_counts_once(tmp_path, monkeypatch):
    experiment = Experiment.parse(TINY)
    directory = RunDirectory(tmp_path / "a", "A")
    directory.make_folder()
    directory.configure([experiment])
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
