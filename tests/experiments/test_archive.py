"""Archives of a recipe's runs: its tables are rebuilt from the numbers."""

import csv
import dataclasses
import io
import math
import re

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedax import cli, papers
from fedax.cli.summary import print_summary
from fedax.core import InvalidInput, Outcome
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.archive import parse_runs_csv
from fedax.experiments.results.curves import NAME, packed, unpacked
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.batches import data_seed, list_run_ids
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume
from fedax.papers.comparison import show_comparison
from fedax.papers.study import PaperStudy
from fedax.results.tables.numbers import Results
from samples import OWN, TINY, record

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
    made = RunDirectory.create(tmp_path_factory.mktemp("kept") / "a", "A")
    made.study = PaperStudy(recipe)
    (made.path / "recipe.toml").write_text(recipe.text)
    made.configure(recipe.experiments("small"))
    for slot in list_run_ids(made.experiments):
        draw, label = data_seed(made.experiments[slot.experiment]), slot.member.label
        lost = Outcome("non-finite", 1, 0) if (draw, label) == (1, "Plain") else None
        if label == "Prox, mu=10000.0" and not slot.selecting:
            continue
        end = 0.5 + draw / 8 + (label == "Prox, mu=10000.0")
        accuracy = np.array([0.1, 0.5, 0.7 + draw / 7 + (label != "Plain") / 100])
        made.add(
            record(
                label, "Only", slot.seed, draw, (2.0, 1.0 / 3, end), lost, test_accuracy=accuracy
            ),
            slot.number,
        )
    made.close("finished")
    return made


def tables(folder):
    return {
        name: (folder / name).read_text() for name in ("README.md", "results.csv", "claims.csv")
    }


def plain(texts):
    """Tables of a copy as they are without its pictures."""
    lines = [part for part in texts["README.md"].split("\n\n") if not part.startswith(("![", "*"))]
    return texts | {"README.md": "\n\n".join(lines)}


@pytest.mark.slow
def test_a_copy_begins_with_its_conclusion_and_its_pictures(directory, tmp_path):
    directory.keep(tmp_path / "b")
    (tmp_path / "b" / "conclusion.md").write_text("Prox is ahead of Plain.\n")
    directory.keep(tmp_path / "b")  # what is written by hand stays
    kept, shown = tables(tmp_path / "b")["README.md"], [each.name for each in directory.pictures()]
    assert shown
    assert kept.split("\n\n")[2] == "Prox is ahead of Plain."
    pictures = re.findall(r"^!\[(.+)\]\((.+)\.png\)$", kept, re.MULTILINE)
    assert sorted(name for _, name in pictures) == sorted(shown)
    assert all(f"\n\n*{caption}*\n" in kept for caption, _ in pictures)
    for _, name in pictures:
        assert (tmp_path / "b" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert kept.index(f"({name}.png)") < kept.index("## Claims")
    (tmp_path / "b" / NAME).unlink()  # without curves the pictures that are there are shown
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    again = tables(tmp_path / "b")["README.md"]
    assert sorted(re.findall(r"\]\(([^()]+)\.png\)", again)) == sorted(shown)
    assert again.split("\n\n")[2] == "Prox is ahead of Plain."


@pytest.mark.slow
def test_the_tables_are_made_again_from_the_numbers_of_the_runs(directory, tmp_path):
    directory.keep(tmp_path / "b")
    (tmp_path / "b" / NAME).unlink()  # as copies of earlier versions
    before = tables(tmp_path / "b")
    assert plain(before) == tables(directory.path)
    assert not (tmp_path / "b" / "runs").exists()
    for name in before:
        (tmp_path / "b" / name).unlink()
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    again = tables(tmp_path / "b")
    assert plain(again) == plain(before)
    assert "| Prox gets there first |" in again["README.md"]
    assert "(1 diverged)" in again["README.md"]


@pytest.mark.slow
def test_a_copy_has_the_curves_for_its_tables_report_and_figures(directory, tmp_path):
    directory.keep(tmp_path / "b")
    before = tables(tmp_path / "b")
    for name in before:
        (tmp_path / "b" / name).unlink()
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    assert tables(tmp_path / "b") == before
    assert "Prox, mu=0.0" in (tmp_path / "b" / "report.html").read_text()
    done = CliRunner().invoke(
        cli.app,
        ["report", str(tmp_path / "b"), "--figures", "png", "--out", str(tmp_path / "figures")],
    )
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "figures").iterdir())
    again = RunDirectory.load(tmp_path / "b")
    elsewhere = dataclasses.replace(
        again,
        runs={n: dataclasses.replace(r, versions={"jax": "0.1"}) for n, r in again.runs.items()},
    )
    elsewhere.renew_archive()
    assert "8 of the runs were made elsewhere: jax 0.1." in tables(tmp_path / "b")["README.md"]
    assert (again.title, again.status, again.notes) == (
        directory.title,
        directory.status,
        directory.notes,
    )
    for mine, other in zip(again.records, directory.records, strict=True):
        for name, values in other.scalars.items():
            assert mine.metrics[name].dtype == values.dtype
            assert mine.metrics[name].tobytes() == values.tobytes()
        assert (mine.outcome, mine.settings, mine.seed, mine.draw) == (
            other.outcome,
            other.settings,
            other.seed,
            other.draw,
        )


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
    about, runs = unpacked(packed({"title": "A"}, {7: run}))
    assert about == {"title": "A"}
    (again,) = runs.values()
    assert again.metrics.keys() == {"train_loss"}
    assert again.metrics["train_loss"].dtype == kind
    np.testing.assert_array_equal(again.metrics["train_loss"], values)
    assert again.gradients.tolist() == [0.0, 2.0]
    assert (again.settings, again.versions, list(runs)) == (run.settings, run.versions, [7])


def test_damaged_curves_are_named(directory, tmp_path):
    directory.keep(tmp_path / "b")
    (tmp_path / "b" / NAME).write_bytes((tmp_path / "b" / NAME).read_bytes()[:100])
    with pytest.raises(InvalidInput, match=r"damaged files: runs\.jsonl\.xz is damaged"):
        RunDirectory.load(tmp_path / "b")


def test_a_copy_with_other_runs_is_not_overwritten(directory, tmp_path):
    made = RunDirectory.create(tmp_path / "a", "A")
    made.configure([Experiment.parse(TINY)])
    made.add(record("FedAvg", "Tiny <run>", 0, 0, (1.0, 0.5)), 0)
    made.add(record("FedAvg", "Tiny <run>", 1, 0, (1.0, 0.5)), 1)
    made.keep(tmp_path / "b")
    before = (tmp_path / "b" / NAME).read_bytes()
    del made.runs[1]
    with pytest.raises(
        InvalidInput,
        match=r"b: holds 1 of 2 runs that .* does not have; "
        r"nothing was overwritten.*--reuse",
    ):
        made.keep(tmp_path / "b")
    assert (tmp_path / "b" / NAME).read_bytes() == before
    with pytest.raises(InvalidInput, match=r"cannot be continued in place"):
        resume(tmp_path / "b", Display())


def test_every_run_has_its_line_with_what_it_was_for(directory):
    with (directory.path / "runs.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    losses = [row for row in rows if row["metric"] == "train_loss"]
    assert len(losses) == len(directory.records) == 8
    assert sum(row["purpose"] == "selection" for row in losses) == 4
    (plain,) = (row for row in losses if (row["algorithm"], row["draw"]) == ("Plain", "0"))
    assert [float(plain[name]) for name in ("first", "last", "best")] == [
        2.0,
        0.5,
        pytest.approx(1 / 3, rel=1e-8),
    ]
    assert float(plain["mean_last_10_rounds"]) == pytest.approx((1 / 3 + 0.5) / 2, rel=1e-8)
    assert float(plain["rounds_to_0.6"]) == 1.0
    lines, _ = parse_runs_csv((directory.path / "runs.csv").read_text())
    assert len(lines) == len(directory.shown()) == 4
    (lost,) = (line for line in lines if line.diverged)
    assert math.isnan(lost.numbers["train_loss", "last"])
    with pytest.raises(InvalidInput, match=r"train_loss of Plain in runs\.csv: got 'mean_last_77'"):
        Results([lost]).of("Only", "Plain", "train_loss", "mean_last_77")


def test_a_folder_without_the_numbers_says_so(tmp_path):
    (tmp_path / "runs.csv").write_text("task\n")
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "neither a run directory nor an archive" in " ".join(done.output.split())


def test_the_terminal_has_the_papers_numbers_beside_ours_and_the_selected_member(directory):
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    show_comparison(directory.study.comparison(directory.shown(), directory.experiments), console)
    print_summary(directory, console)
    text = stream.getvalue()
    for words in (
        "The paper beside ours",
        "2.00 ± 0.50",
        "The claims are about the paper's length; these runs are shorter.",
        "UNDECIDED: Prox gets there first",
        "Selected from the grid of Prox: Prox, mu=0.0",
        "1 ok, 1 diverged",
    ):
        assert words in text
    for words in ("no pair", "without chance", "mu=10000.0"):
        assert words not in text
