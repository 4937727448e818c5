"""Every recipe of the package: whole, and its smoke runs; those that read files are skipped where the files are not."""

import pytest

from fedax.core import DataError
from fedax.data import MissingFile
from fedax.experiments import recipes
from fedax.experiments.display import Display
from fedax.experiments.runner import reproduce

NAMES = list(recipes.catalogue())


@pytest.mark.parametrize("name", NAMES)
def test_recipes_are_whole(name):
    recipe = recipes.load(name)
    assert recipe.chosen
    assert recipe.claim
    assert recipe.shows.startswith(("Table", "Figure", "Section"))
    for scale in recipes.SCALES:
        assert recipe.experiments(scale)


QUICK = ("local-gd-figure-1",)  # `make recipes` runs the others
RUNS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", RUNS)
def test_recipes_run_at_smoke(name, tmp_path):
    recipe = recipes.load(name)
    try:
        directory = reproduce(recipe, "smoke", tmp_path / "a", Display())
    except MissingFile as error:
        pytest.skip(f"no real data: {error}")
    assert directory.status == "finished"
    findings = directory.findings(recipe)
    assert [text for text, _ in findings.verdicts] == [claim.text for claim in recipe.claim]
    ran = {(record.task, findings.results.methods.get(record.label, record.label)) for record in directory.records}
    aimed = {(task, name) for task, numbers in recipe.targets.items() for name in numbers}
    assert {(row.task, row.algorithm) for row in findings.rows} == ran & aimed


@pytest.mark.parametrize("name", ["local-gd-figure-1"])
def test_missing_data_are_one_message_before_anything_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"no file at .*FEDAX_DATA"):
        reproduce(recipes.load(name), "smoke", tmp_path / "a", Display())
    assert not (tmp_path / "a").exists()
