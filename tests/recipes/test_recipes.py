"""Every recipe of the package: whole, and its smoke runs; those that read files are skipped where
the files are not."""

import itertools
import json
import shutil

import numpy as np
import pytest

from fedax import papers
from fedax.core import DataError
from fedax.data.folder import MissingFile
from fedax.experiments.results.planned import read_study
from fedax.experiments.running.progress import Display
from fedax.papers.numbers import Results
from fedax.papers.recipe import SCALES
from fedax.papers.study import reproduce
from fedax.results.tables.reductions import is_value_reduction
from fedax.results.tables.summary import scale_of
from samples import record

NAMES = list(papers.recipe_files())


@pytest.mark.parametrize("name", NAMES)
def test_recipes_are_whole(name):
    recipe = papers.load(name)
    assert recipe.chosen
    assert recipe.claim
    assert recipe.shows.startswith(("Table", "Figure", "Section"))
    for scale in SCALES:
        assert recipe.experiments(scale)


@pytest.mark.parametrize("name", NAMES)
def test_claims_hold_in_the_papers_own_cells(name):
    """A claim that the paper's numbers contradict is not the paper's."""
    recipe = papers.load(name)
    for claim in recipe.claim:
        if any(recipe.repeats.get(name) == claim.a for name in claim.b):
            # of two forms of one method, which have the same cells: a finding, not the paper's
            # claim
            continue
        metric = claim.metric or recipe.metric
        # cells are values of a metric: they say nothing about rounds or changes
        if claim.check == "rises" or not is_value_reduction(claim.read or recipe.read):
            continue
        scale = scale_of(metric)
        runs = [
            record(algorithm, task, **{metric: np.full(3, number[0] / scale)})
            for (measured, task, algorithm), number in recipe.cells.items()
            if measured == metric
        ]
        known = list(dict.fromkeys(run.task for run in runs))
        tasks = [task for task in claim.tasks or known if task in known]
        exact = claim.model_copy(update={"exact": True, "tasks": tasks})
        algorithms = [run.label for run in runs]
        rivals = [name for name in recipe.rivals(claim.a) if name in algorithms]
        evidence = exact.judge(Results(runs), metric, "last", algorithms=rivals)
        agree = evidence.parts.loc[evidence.parts["units"] > 0, "agrees"]
        assert agree.sum() >= (claim.at_least or len(agree)), claim.text


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_stand_twice_say_so(name):
    recipe = papers.load(name)
    for metric in {key[0] for key in recipe.cells}:
        tasks = {task: None for name, task, _ in recipe.cells if name == metric}
        rows = {
            label: [recipe.cells.get((metric, task, label)) for task in tasks]
            for label in recipe.algorithms
        }
        for one, other in itertools.combinations([label for label in rows if any(rows[label])], 2):
            # the rate is searched, so that all rates of a form stand for one number
            forms = [label.partition(", rate")[0] for label in (one, other)]
            again = len({recipe.repeats.get(form, form) for form in forms}) == 1
            pairs = [pair for pair in zip(rows[one], rows[other], strict=True) if all(pair)]
            assert again == all(a == b for a, b in pairs), (one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipes_run_at_smoke(name, tmp_path):
    recipe = papers.load(name)
    try:
        directory = reproduce(recipe, "smoke", tmp_path / "a", Display())
    except MissingFile as error:
        pytest.skip(f"no real data: {error}")
    assert directory.status == "finished"
    comparison = directory.comparison()
    assert [text for text, _ in comparison.verdicts] == [claim.text for claim in recipe.claim]
    ran = {(record.task, record.label) for record in comparison.results.records}
    aimed = {(task, name) for _, task, name in recipe.cells}
    cells = comparison.cells
    assert set(zip(cells["task"], cells["algorithm"], strict=True)) == ran & aimed


def test_missing_data_are_one_message_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"no file at .*FEDAX_DATA"):
        reproduce(papers.load("local-gd-figure-1"), "smoke", tmp_path / "a", Display())
    assert not (tmp_path / "a").exists()


REAL = ("femnist_letters", "sent140", "shakespeare")


@pytest.fixture
def leaf_folder(tmp_path, monkeypatch):
    """Two users of each of the data sets that a user brings, and the vectors of two words."""
    kinds = {
        "femnist_letters": ([[0.5] * 784] * 4, [0, 1, 2, 3]),
        "sent140": (["so good", "so what"] * 2, [1, 0, 1, 0]),
    }
    kinds["shakespeare"] = (["To be " * 13 + "or"] * 4, list("abcd"))
    for name in REAL:
        (tmp_path / "data" / name / "train").mkdir(parents=True)
        held = {user: {"x": kinds[name][0], "y": kinds[name][1]} for user in ("me", "you")}
        document = {"users": ["me", "you"], "num_samples": [4, 4], "user_data": held}
        for part in ("train", "test"):
            (tmp_path / "data" / name / part).mkdir(exist_ok=True)
            (tmp_path / "data" / name / part / "all.json").write_text(json.dumps(document))
    (tmp_path / "data" / "sent140" / "glove.6B.300d.txt").write_text("so 0.5 1\ngood -1 2\n")
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


BROUGHT = ["feddane-figure-1-real", "feddane-figure-3-real"]


@pytest.mark.slow
def test_a_recipe_on_data_that_a_user_brings_runs_where_they_are(leaf_folder, tmp_path):
    directory = reproduce(papers.load(BROUGHT[0]), "smoke", tmp_path / "a", Display())
    assert directory.status == "finished"
    assert {record.task for record in directory.shown()} == {"FEMNIST", "Sent140", "Shakespeare"}
    rates = {
        e.name: (e.solver.options["learning_rate"], e.algorithm[1].options["mu"])
        for e in read_study(directory)
    }
    assert rates == {"FEMNIST": (0.003, 1.0), "Sent140": (0.3, 0.01), "Shakespeare": (0.8, 0.001)}


@pytest.mark.parametrize("name", BROUGHT)
@pytest.mark.parametrize("missing", REAL)
def test_data_that_a_user_brings_are_missed_before_anything_is_run(
    missing, name, leaf_folder, tmp_path
):
    """Each of a recipe's data sets, not the first one only; the message says what prepares it."""
    shutil.rmtree(leaf_folder / missing / "train")
    recipe = papers.load(name)
    with pytest.raises(
        MissingFile,
        match=rf"no folder .*{missing}.*`fedax data prepare "
        rf"{missing}`",
    ):
        reproduce(recipe, "smoke", tmp_path / "a", Display())
    assert not (tmp_path / "a").exists()
