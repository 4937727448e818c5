"""The status of the reproduction: which numbers and claims of the papers were run, and what came
out."""

import csv
import io
import math
import shutil
from pathlib import Path

import pytest

from fedax import papers
from fedax.core import FedaxError, InvalidInput
from fedax.experiments.results.store import RunDirectory
from fedax.papers import coverage as status
from fedax.papers.reasons import NAME, Reasons

REPRODUCTION = Path(__file__).parents[2] / "docs" / "reproduction"


@pytest.fixture(scope="module")
def found():
    return status.status_of(REPRODUCTION)


def generated(page):
    parts = [page.split(begin)[1].split(end)[0] for begin, end in (status.OVERVIEW, status.CELLS)]
    return "\n".join(parts)


def summary(folder):
    made = status.status_of(folder)
    return f"{status.overview(made)}\n\n{status.details(made)}"


def rows_of(text, head):
    """The lines of the Markdown table whose first column has a title, as lists of cells."""
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {head} |"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[0], table[2:]


def test_the_papers_have_475_numbers(found):
    """FedBC: 25 in Table 1, 105 in 2, 75 each in 3, 6, 7, 8, 20 in 9; FedAWARE's Table 1: 24;
    DFedAvgM's text: 96.81 %."""
    counts = {}
    for entry in found.entries:
        counts[entry.recipe] = counts.get(entry.recipe, 0) + entry.counted
    # Tables 2 and 3 are the same runs
    tables = {"1-searched": 25, "2": 105 + 75, "6": 75, "7": 75, "8": 75, "9": 20}
    expected = {f"fedbc-table-{number}": count for number, count in tables.items()}
    assert {name: n for name, n in counts.items() if n} == expected | {
        "fedaware-table-1": 24,
        "dfedavgm-figure-6": 1,
    }
    assert sum(counts.values()) == 475


def test_the_committed_page_is_what_the_command_makes(found):
    page = (REPRODUCTION / "README.md").read_text()
    assert page == status.with_summary(page, found), (
        "run `fedax recipes --status docs/reproduction`"
    )
    assert (REPRODUCTION / "cells.csv").read_text() == status.cells_csv(found.entries)


def test_the_page_begins_with_one_row_for_each_paper(found):
    """All its numbers counted once more, from the cells, the claims and the recipes as they are on
    disk."""
    text = generated((REPRODUCTION / "README.md").read_text())
    head, rows = rows_of(text, "Paper")
    assert text.index("| Paper |") < text.index("| Recipe |")
    assert head[1:5] == ["Claims that hold", "do not hold", "undecided", "not run"]
    assert head[5:] == ["Cells compared", "within 2 points", "within two standard errors"]
    for group in found.reasons.groups:  # below the table, which has to fit a page
        assert (f"\n- {group.title}: {group.reason}\n" in text) == bool(group.reason)
    groups = {row[0]: row for row in rows}
    inferred = next(row for title, row in groups.items() if "Tables 1 and 7" in title)
    assert any("Tables 6 and 8" in title for title in groups)
    with (REPRODUCTION / "cells.csv").open() as stream:
        cells = [
            row
            for row in csv.DictReader(stream)
            if row["counted"] == "1" and row["compared"] == "paper"
        ]
    own = [row for row in cells if row["recipe"] in ("fedbc-table-1-searched", "fedbc-table-7")]
    errors = [0.0] * len(own)
    for k, row in enumerate(own):
        with (REPRODUCTION / row["folder"] / "results.csv").open() as stream:
            line = next(
                r
                for r in csv.DictReader(stream)
                if (r["task"], r["algorithm"]) == (row["task"], row["algorithm"])
            )
        assert math.isclose(float(line["ours_mean"]), float(row["ours"]), rel_tol=1e-5)
        error = float(line["paper_deviation"]) * math.sqrt(
            1 / int(line["paper_runs"]) + 1 / int(line["units"])
        )
        errors[k] = abs(float(line["ours_mean"]) - float(line["paper_mean"])) / error
    near = [abs(float(row["difference"])) <= 2 for row in own]
    assert [int(cell) for cell in inferred[5:8]] == [
        len(own),
        sum(near),
        sum(error <= 2 for error in errors),
    ]
    total = sum(int(row[5]) if row[5] != "-" else 0 for row in rows)
    assert total == len(cells)
    verdicts = sum(int(cell) if cell != "-" else 0 for row in rows for cell in row[1:5])
    assert verdicts == len(found.claims) > 200


@pytest.mark.slow
def test_missed_cells_have_a_cause_or_are_unexplained(found):
    text = generated((REPRODUCTION / "README.md").read_text())
    missed = [
        e for e in found.entries if e.counted and e.found == "paper" and e.cell.status == "missed"
    ]
    lines = [line for line in text.splitlines() if line.startswith("- ") and "(paper " in line]
    assert len(lines) == len(missed)
    for entry, line in zip(missed, lines, strict=True):
        cause = line.rpartition("): ")[2]
        assert cause == found.reasons.cause(entry.recipe, entry.cell.task, entry.cell.algorithm)
        assert cause


def test_cells_whose_data_cannot_be_had_are_not_called_not_run(found):
    lost = [entry for entry in found.entries if entry.found == "data not obtainable"]
    assert {entry.recipe for entry in lost} == {"fedbc-table-9"}
    assert sum(entry.counted for entry in lost) == 20
    text = generated((REPRODUCTION / "README.md").read_text())
    head, rows = rows_of(text, "Recipe")
    by_name = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert (by_name["fedbc-table-9"]["No data"], by_name["fedbc-table-9"]["Not run"]) == ("20", "-")
    for name in papers.recipe_files():
        assert (f"- {name}: " in text) == bool(papers.load(name).not_obtainable)


def test_runs_of_another_model_leave_the_table(found):
    """FedAWARE's Table 1 ran at small scale only, with an MLP."""
    ran = {entry.found for entry in found.entries if entry.recipe == "fedaware-table-1"}
    assert "small" not in ran


def looked_up(folder):
    """The first cell of the searched table in a folder with one run of it."""
    return next(
        e
        for e in status.status_of(folder).entries
        if (e.recipe, e.cell.algorithm) == ("dfedavgm-figure-6", "FedAvg")
    )


@pytest.fixture
def catalogue(monkeypatch):
    """One recipe alone, which the returned function replaces."""
    own = {"dfedavgm-figure-6": papers.load("dfedavgm-figure-6")}
    monkeypatch.setattr(papers, "recipe_files", lambda: dict.fromkeys(own))
    monkeypatch.setattr(papers, "load", lambda name: own[name])
    return own


def kept_folder(root, recipe, scale, seeds="2"):
    """A folder of runs of that recipe, as folders had it before there were statuses."""
    below = root / "dfedavgm-figure-6"
    below.mkdir()
    made = RunDirectory.create(below / "x", "A")
    made.configure(recipe.experiments(scale))
    for file in (below / "x").glob("config*.toml"):
        shutil.move(file, below / file.name)
    (below / "recipe.toml").write_text(recipe.model_copy(update={"ran": scale}).text)
    head = "task,algorithm,paper_mean,paper_deviation,ours_mean,ours_deviation,runs,difference,in_joint_deviations"
    (below / "results.csv").write_text(
        f"{head}\nTwo shards each,FedAvg,96.81,nan,96,0.2,{seeds},-0.81,nan\n"
    )
    return below


@pytest.mark.parametrize(
    ("change", "word"),
    [(None, "small"), ("learning_rate", "older settings"), ("gone", "older settings")],
)
def test_settings_that_a_recipe_no_longer_has_are_no_comparison(tmp_path, catalogue, change, word):
    recipe = catalogue["dfedavgm-figure-6"]
    assert looked_up(tmp_path).found == "not run"
    below = kept_folder(tmp_path, recipe, "small")
    for file in below.glob("config*.toml"):
        text = file.read_text()
        if change == "learning_rate":
            text = text.replace("learning_rate = 0.1", "learning_rate = 0.2")
            assert text != file.read_text()
        file.write_text(text if change != "gone" else text + "[nothing]\n")
    if word == "small":  # one of two seeds: begun, not compared
        table = (below / "results.csv").read_text()
        (below / "results.csv").write_text(table.replace(",2,-0.81", ",1,-0.81"))
        assert looked_up(tmp_path).found == "not run"
        (below / "results.csv").write_text(table)
    entry = looked_up(tmp_path)
    assert (entry.found, entry.folder, entry.cell.status) == (
        word,
        "dfedavgm-figure-6",
        "within 2 points",
    )
    marks = "\nold\n".join(status.OVERVIEW) + "\nBetween.\n" + "\nold\n".join(status.CELLS)
    page = status.with_summary(f"By hand.\n{marks}\nMore.\n", status.status_of(tmp_path))
    assert page.startswith("By hand.\n")
    assert page.endswith(f"{status.CELLS[1]}\nMore.\n")
    assert f"{status.OVERVIEW[1]}\nBetween.\n{status.CELLS[0]}" in page
    assert "old\n" not in page
    head, ((_, *counts), _) = rows_of(page, "Recipe")
    shown = {name: count for name, count in zip(head[1:], counts, strict=True) if count != "-"}
    assert shown == {"Cells": "1", "Short runs" if word == "small" else "Older": "1"}
    short = page.partition("Short runs:\n\n")[2]
    assert bool(short) == (word == "small")
    if short:
        _, (counts,) = rows_of(short, "Recipe")
        assert counts == ["dfedavgm-figure-6", "1", "1", "-", "-"]


def test_more_seeds_than_the_recipe_has_are_no_older_settings(tmp_path, catalogue):
    recipe = catalogue["dfedavgm-figure-6"]
    kept_folder(tmp_path, recipe, "small")
    assert looked_up(tmp_path).found == "small"
    size = recipe.scale["small"].model_copy(
        update={"set": recipe.scale["small"].set | {"seeds": [0]}}
    )
    catalogue["dfedavgm-figure-6"] = recipe.model_copy(
        update={"scale": recipe.scale | {"small": size}}
    )
    assert looked_up(tmp_path).found == "small"
    size = recipe.scale["small"].model_copy(
        update={"set": recipe.scale["small"].set | {"seeds": [0, 1, 2]}}
    )
    catalogue["dfedavgm-figure-6"] = recipe.model_copy(
        update={"scale": recipe.scale | {"small": size}}
    )
    assert looked_up(tmp_path).found == "older settings"


@pytest.mark.parametrize(
    ("mark", "word"), [("comparable", "not run"), ("not_obtainable", "data not obtainable")]
)
def test_marks_of_a_recipe_leave_its_cells_out(tmp_path, catalogue, mark, word):
    recipe = catalogue["dfedavgm-figure-6"]
    kept_folder(tmp_path, recipe, "small")
    small = recipe.scale["small"].model_copy(update={"comparable": False})
    update = (
        {"not_obtainable": "lost"}
        if mark == "not_obtainable"
        else {"scale": recipe.scale | {"small": small}}
    )
    catalogue["dfedavgm-figure-6"] = recipe.model_copy(update=update)
    entry = looked_up(tmp_path)
    assert (entry.found, entry.folder) == (word, "")
    text = summary(tmp_path)
    assert ("- dfedavgm-figure-6: lost" in text) == (mark == "not_obtainable")


def claims_of(below, verdict, units):
    """`claims.csv` of the recipe's first claim."""
    claim = papers.load("dfedavgm-figure-6").claim[0]
    stream = io.StringIO()
    table = csv.writer(stream)
    table.writerow(["claim", "verdict", "task", "comparison", "quantity", "units", "unit"])
    table.writerow([claim.text, verdict, "IID", "x", "y", units, "seeds"])
    (below / "claims.csv").write_text(stream.getvalue())


@pytest.mark.parametrize(
    ("scale", "verdict", "units", "word"),
    [
        ("paper", "holds", 3, "holds"),
        ("paper", "does not hold", 3, "does not hold"),
        ("paper", "undecided", 3, "undecided"),
        ("paper", "holds on what ran", 3, "undecided"),
        ("paper", "undecided", 0, "not run"),
        ("small", "holds in short runs", 2, "not run"),
    ],
)
def test_claims_are_counted_at_the_papers_length(tmp_path, catalogue, scale, verdict, units, word):
    recipe = catalogue["dfedavgm-figure-6"]
    claims_of(kept_folder(tmp_path, recipe, scale), verdict, units)
    first, *others = status.status_of(tmp_path).claims
    assert (first.text, first.verdict) == (recipe.claim[0].text, word)
    assert {claim.verdict for claim in others} == {"not run"}


def test_verdicts_on_a_claim_that_has_changed_do_not_count(tmp_path, catalogue):
    recipe = catalogue["dfedavgm-figure-6"]
    claims_of(kept_folder(tmp_path, recipe, "paper"), "holds", 3)
    claim = recipe.claim[0].model_copy(update={"margin": recipe.claim[0].margin + 1})
    catalogue["dfedavgm-figure-6"] = recipe.model_copy(update={"claim": [claim, *recipe.claim[1:]]})
    assert status.status_of(tmp_path).claims[0].verdict == "not run"


GROUPS = """
[[group]]
title = "Rings"
recipes = ["dfedavgm-figure-6"]
reason = "another ring"
[[cause]]
recipe = "dfedavgm-figure-6"
algorithms = ["FedAvg"]
tasks = ["Two shards each"]
text = "another split"
"""


def test_reasons_are_written_by_hand_beside_the_page(tmp_path, catalogue):
    recipe = catalogue["dfedavgm-figure-6"]
    (tmp_path / NAME).write_text(GROUPS)
    below = kept_folder(tmp_path, recipe, "paper", seeds="3")
    (below / "results.csv").write_text(
        (below / "results.csv").read_text().replace(",96,0.2,", ",90,0.2,")
    )
    text = summary(tmp_path)
    assert f"| Rings | - | - | - | {len(recipe.claim)} | 1 | - | - |\n" in text
    assert "\n- Rings: another ring\n" in text
    assert (
        "- dfedavgm-figure-6, Two shards each, FedAvg: 90.00 (paper 96.81): another split" in text
    )
    (tmp_path / NAME).write_text(GROUPS.replace("Two shards each", "IID"))
    text = summary(tmp_path)
    assert "- dfedavgm-figure-6, Two shards each, FedAvg: 90.00 (paper 96.81): unexplained" in text
    (tmp_path / NAME).unlink()
    assert "| Sun, Li and Wang, Decentralized Federated Averaging, 2021 | - |" in summary(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'recipes = ["dfedavgm-figure-6"]',
            'recipes = ["dfedavgm-figure-5"]',
            "recipes of 'Rings': got 'dfedavgm-figure-5'",
        ),
        ('recipe = "dfedavgm-figure-6"', 'recipe = "x"', "recipe of a cause: got 'x'"),
        ('"FedAvg"', '"FedAvgg"', "Did you mean 'FedAvg'"),
        ('"Two shards each"', '"Two shard each"', "Did you mean 'Two shards each'"),
        ('text = "another split"', 'text = " "', "text of a cause: got ' '"),
        ('text = "another split"', 'words = "another split"', "words"),
    ],
)
def test_reasons_of_what_there_is_not_are_refused(tmp_path, catalogue, old, new, words):
    assert old in GROUPS
    (tmp_path / NAME).write_text(GROUPS.replace(old, new))
    with pytest.raises(FedaxError, match=words):
        Reasons.read(tmp_path, catalogue)


def test_a_page_without_marks_is_refused(found):
    with pytest.raises(InvalidInput, match=r"README\.md: needs the lines"):
        status.with_summary("By hand.", found)
