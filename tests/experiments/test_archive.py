"""Archives of a recipe's runs: its tables are rebuilt from the numbers."""

import dataclasses

import numpy as np
import pytest

from commands import call, succeed
from fedax import papers
from fedax.core import InvalidInput, Outcome, RunExists
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import PACKED, RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume
from fedax.papers.study import PaperDirectory, open_directory
from fedax.results.store import pack, unpack
from samples import OWN, TINY, begin, put, record

MORE = """
[[claim]]
text = "Prox gets there first"
check = "better"
a = "Prox"
b = "Plain"
read = "rounds_to_0.6"
[[claim]]
text = "Prox is more accurate in the end"
check = "better"
a = "Prox"
b = "Plain"
metric = "test_accuracy"
read = "mean_last_2_rounds"
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Made-up runs of a recipe with a grid on two draws of the data; one run diverges."""
    recipe = papers.Recipe.parse(OWN + MORE).model_copy(update={"ran": "small"})
    made = PaperDirectory(tmp_path_factory.mktemp("kept") / "a", "A", recipe=recipe)
    begin(made, recipe.experiments("small"))
    for run in made.planned:
        draw = run.draw
        label = run.label
        lost = Outcome("non-finite", 1, 0) if (draw, label) == (1, "Plain") else None
        if label == "Prox, mu=10000.0" and not run.selects:
            continue
        end = 0.5 + draw / 8 + (label == "Prox, mu=10000.0")
        accuracy = np.array([0.1, 0.5, 0.7 + draw / 7 + (label != "Plain") / 100])
        losses = (2.0, 1.0 / 3, end)
        put(made, record(label, "Only", run.seed, draw, losses, lost, test_accuracy=accuracy))
    made.close("finished")
    return made


def tables(folder):
    return {name: (folder / name).read_text() for name in ("results.csv", "claims.csv")}


@pytest.mark.slow
def test_a_copy_has_the_curves_for_its_tables_report_and_figures(directory, tmp_path):
    directory.keep(tmp_path / "b")
    before = tables(tmp_path / "b")
    for name in before:
        (tmp_path / "b" / name).unlink()
    done = succeed("report", str(tmp_path / "b"))
    assert tables(tmp_path / "b") == before
    assert "Prox, mu=0.0" in (tmp_path / "b" / "report.html").read_text()
    done = call(
        "report", str(tmp_path / "b"), "--figures", "png", "--out", str(tmp_path / "figures")
    )
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "figures").iterdir())
    again = open_directory(tmp_path / "b")
    assert (again.title, again.status, again.notes) == (
        directory.title,
        directory.status,
        directory.notes,
    )
    for mine, other in zip(again.records, directory.records, strict=True):
        assert mine.metrics.keys() == other.scalars.keys() != other.metrics.keys()
        assert (mine.outcome, mine.settings) == (other.outcome, other.settings)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_curves_come_back_to_the_bit_without_those_of_single_clients(kind):
    values = np.concatenate(
        [
            np.random.default_rng(0).lognormal(0, 30, 500),
            [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324],
        ]
    )
    with np.errstate(over="ignore"):
        values = values.astype(kind)
    run = dataclasses.replace(
        record("A", "T", 3, 1, (1.0, 0.5)),
        metrics={"train_loss": values, "client_accuracy": np.ones((2, 5))},
        gradients=np.array([0.0, 2.0]),
        settings={"seed": 3},
        versions={"jax": "0.1"},
    )
    runs = unpack(pack({"7f": run}))
    (again,) = runs.values()
    assert again.metrics.keys() == {"train_loss"}
    assert again.metrics["train_loss"].dtype == kind
    np.testing.assert_array_equal(again.metrics["train_loss"], values)
    assert again.gradients.tolist() == [0.0, 2.0]
    assert (again.settings, again.versions, list(runs)) == (run.settings, run.versions, ["7f"])


def test_damaged_curves_are_named(directory, tmp_path):
    directory.keep(tmp_path / "b")
    (tmp_path / "b" / PACKED).write_bytes((tmp_path / "b" / PACKED).read_bytes()[:100])
    with pytest.raises(InvalidInput, match=r"damaged files: not an lzma file"):
        RunDirectory.load(tmp_path / "b")


def test_a_directory_or_a_copy_with_other_runs_is_not_overwritten(directory, tmp_path):
    made = RunDirectory(tmp_path / "a", "A")
    begin(made, [Experiment.parse(TINY)])
    put(made, *(record("FedAvg", "Tiny <run>", seed, 0, (1.0, 0.5)) for seed in (0, 1)))
    made.keep(tmp_path / "b")
    before = (tmp_path / "b" / PACKED).read_bytes()
    del made.runs[made.planned[1].id]
    for name in "ab":
        with pytest.raises(InvalidInput, match=f"{name}: is no copy, or one with runs that"):
            made.keep(tmp_path / name)
    assert (tmp_path / "b" / PACKED).read_bytes() == before
    with pytest.raises(RunExists, match=r"cannot be continued in place"):
        resume(tmp_path / "b", Display())
