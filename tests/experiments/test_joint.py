"""Several recipe folders on one page: the papers' numbers beside ours of each."""

import numpy as np
import pytest

from fedax import papers
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.joint import comparison_page, merge_records
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.papers.study import reproduce
from fedax.results import render
from samples import OWN, TINY, record


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
    table, (chart,) = page.sheets[0], page.charts
    assert list(table.head) == ["Task", "Algorithm", "Paper", "first", "second"]
    rows = {row[1]: row for row in table.rows}
    assert set(rows) == {"Plain", "Prox"}
    ours = first.study.comparison(first.shown(), first.experiments).cells["ours_mean"][0]
    assert rows["Plain"][2] == "2.00 ± 0.50"
    assert rows["Plain"][3].startswith(f"{ours:.2f} ± ")
    assert rows["Plain"][3].endswith(f"({ours - 2:+.2f})")
    assert rows["Plain"][3] == rows["Plain"][4], "the same runs"
    assert rows["Prox"][4] == "-", "not in the second folder"
    panel = chart.panels[0]
    paper, *each = panel.series
    np.testing.assert_allclose(paper.x, [2.0, 1.0])
    assert [series.label for series in each[:2]] == ["first", "second"]
    assert [series.style for series in each[:2]] == [0, 1]
    assert each[0].x[0] == pytest.approx(ours)
    assert np.isnan(each[1].x[1])
    assert {sheet.title for sheet in page.sheets[1:]} >= {
        "Claims: first",
        "The paper beside ours: second",
    }
    assert "The papers&#x27; numbers" in render(page) or "The papers' numbers" in render(page)


@pytest.mark.slow
def test_one_recipe_alone_has_no_such_table(folders):
    page = comparison_page(folders[:1])
    assert not page.charts
    assert page.sheets[0].title == "Claims: first"


def test_a_directory_that_is_given_twice_counts_once(tmp_path, monkeypatch):
    experiment = Experiment.parse(TINY)
    directory = RunDirectory.create(tmp_path / "a", "A")
    directory.configure([experiment])
    directory.add(record("FedAvg", experiment.name, 0))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    spellings = ["a", "a/", "./link", str(tmp_path / "b" / ".." / "a")]
    (tmp_path / "b").mkdir()
    directories = [RunDirectory.load(type(tmp_path)(path)) for path in spellings]
    assert [(run.label, run.seed) for run in merge_records(directories)] == [("FedAvg", 0)]
    page = comparison_page(directories)
    assert page.summary == "1 run directory, 1 run."
    assert list(page.settings) == ["a/config.toml"]
