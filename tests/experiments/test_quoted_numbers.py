"""Numbers that pages quote beside a link to a folder of runs are numbers of that folder."""

import csv
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from fedax.experiments.results.archive import kept_experiments, parse_runs_csv
from fedax.papers.recipe import Recipe
from fedax.report.tables.numbers import number_of

DOCS = Path(__file__).parents[2] / "docs"
ARTICLE = DOCS / "findings" / "papers.md"
COUNTED = {0.27, 0.23, 0.86}
"""Of the article, the mean deviations that `test_the_article_counts_the_cells_of_table_7` has
computed."""
LINK = re.compile(r"\[[^\]]*\]\(([^)#]*/README\.md)(?:#[^)]*)?\)")
NUMBER = re.compile(r"(?<![\w.(])[-+]?(\d+(?:\.\d+)?)(?![\w.]*\d)(?=( %| points)?)")


def numbers_of(folder, every):
    """Returns the numbers of a folder: means by the readings of its recipe, effects with their
    intervals, the paper's numbers.

    With `every` also all other metrics and readings of `runs.csv`, and the extremes over the runs.
    """
    if not (folder / "runs.csv").exists():  # studies of earlier days have their tables only
        return np.array(
            [float(text) for text in re.findall(r"\d+\.\d+", (folder / "README.md").read_text())]
        )
    recipe, experiments = (
        Recipe.parse((folder / "recipe.toml").read_text()),
        kept_experiments(folder),
    )
    runs, _ = parse_runs_csv(
        (folder / "runs.csv").read_text(), {e.name: e.observe_every for e in experiments}
    )
    pairs = {(metric, read) for read, metrics in recipe.readings.items() for metric in metrics}
    found = [float(text) for read in recipe.readings for text in re.findall(r"_to_(.*)", read)]
    for metric, read in {pair for run in runs for pair in run.numbers} if every else pairs:
        values = {}
        for run in runs:
            if (metric, read) in run.numbers:
                values.setdefault((run.task, run.label), []).append(number_of(run, metric, read))
        for own in (own for own in values.values() if np.isfinite(own).any()):
            found += (
                [np.nanmean(own), np.nanmin(own), np.nanmax(own)] if every else [np.nanmean(own)]
            )
    for name, columns in (
        ("claims.csv", ("mean", "low", "high")),
        ("results.csv", ("paper_mean", "ours_mean", "difference")),
    ):
        with (folder / name).open() as stream:
            found += [
                float(row[column] or "nan") for row in csv.DictReader(stream) for column in columns
            ]
    return np.abs(np.array(found)[np.isfinite(found)])


def quoted(text):
    """The numbers of a text with their decimals: those with a point, and whole ones of percent or
    points."""
    plain = re.sub(
        r"p < 0\.\d+|`[^`]*`|\{[^}]*\}|\[[^\]]*\]\([^)]*\)|\([^()]*\d, *\d[^()]*\)", " ", text
    )
    return [
        (float(found[1]), len(found[1].partition(".")[2]))
        for found in NUMBER.finditer(plain)
        if "." in found[1] or found[2]
    ]


def missing(text, folders, every=False):
    """The quoted numbers that no number of the folders is when it is rounded as they are."""
    known = np.concatenate([numbers_of(folder, every) for folder in folders])
    return [
        x
        for x, digits in quoted(text)
        if not (np.abs(known - x) <= 0.5 * 10.0**-digits + 1e-6).any()
    ]


def blocks(text):
    """Table rows, list items and paragraphs, each on one line."""
    return re.sub(r"(?<=[^|\n])\n(?! *(?:\||- |\d+\. |\n))", " ", text).splitlines()


def statements():
    """`choose.md`: the text before each link. The page of the reproduction and the article: each
    paragraph. All conclusions."""
    for line in blocks((DOCS / "choose.md").read_text()):
        begin = line.find("| ", line.find("| ", 1) + 1) if line.startswith("|") else 0
        for link in LINK.finditer(line):
            yield f"choose.md: {link[1]}", line[begin : link.start()], [DOCS / Path(link[1]).parent]
            begin = link.end()
    for page in (DOCS / "reproduction" / "README.md", ARTICLE):
        for part in re.split(r"\n\n|\n(?=- )", page.read_text()):
            links = [(page.parent / link[1]).resolve().parent for link in LINK.finditer(part)]
            if links and not part.startswith("Folders: "):
                yield f"{page.parent.name}: {links[0].name}", part.replace("\n", " "), links
    for file in sorted((DOCS / "reproduction").glob("*/conclusion.md")):
        text = file.read_text()
        links = [(file.parent / link[1]).resolve().parent for link in LINK.finditer(text)]
        yield f"conclusion: {file.parent.name}", text, [file.parent, *links]


STATEMENTS = list(statements())


def test_pages_quote_numbers():
    assert sum(bool(quoted(text)) for name, text, _ in STATEMENTS if name.startswith("choose")) >= 5


@pytest.mark.parametrize(
    ("text", "folders"), [s[1:] for s in STATEMENTS], ids=[s[0] for s in STATEMENTS]
)
def test_quoted_numbers_are_those_of_the_folder(text, folders):
    assert all(folder.is_dir() for folder in folders)
    lost = missing(text, folders, every=not text.startswith("| "))
    assert [x for x in lost if x not in COUNTED or "cells of" not in text] == []


def test_the_pages_of_fine_tuning_have_the_tables_of_its_study():
    spec = importlib.util.spec_from_file_location(
        "study", DOCS / "findings" / "fine-tuning" / "study.py"
    )
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    tables = study.results(), study.judged()
    page = (DOCS / "findings" / "fine-tuning.md").read_text()
    assert all(table in page for table in tables)
    guide = (DOCS / "fine-tuning.md").read_text()
    section = guide.partition("## What it costs and gains")[2].partition("\n## ")[0]
    assert "(findings/fine-tuning.md)" in section
    numbers = re.findall(r"\d+[.,]\d+", section)
    assert len(numbers) >= 5
    assert [x for x in numbers if x not in "".join(tables)] == []


def test_the_article_counts_the_cells_of_table_7():
    with (DOCS / "reproduction" / "fedbc-table-7-paper" / "results.csv").open() as stream:
        rows = [
            row
            for row in csv.DictReader(stream)
            if row["algorithm"] in ("FedAvg", "FedProx", "FedBC")
        ]
    value = {
        read: np.array([float(row[f"{read}_mean"]) for row in rows])
        for read in ("paper", "ours", "mean_last_20_rounds")
    }
    spread = {read: np.mean([float(row[f"{read}_deviation"]) for row in rows]) for read in value}
    near = {read: int((np.abs(value[read] - value["paper"]) <= 2).sum()) for read in value}
    above = {
        read: sum(
            value[read][i] > value[read][k]
            for i, row in enumerate(rows)
            for k, other in enumerate(rows)
            if (row["algorithm"], other["algorithm"], row["task"])
            == ("FedBC", "FedAvg", other["task"])
        )
        for read in value
    }
    text, pages = " ".join(ARTICLE.read_text().split()), len({row["task"] for row in rows})
    last, best = "mean_last_20_rounds", "ours"
    assert (
        f"With it, {near[last]} of the {len(rows)} cells of FedAvg, FedProx and FedBC in Table "
        "7 are within 2 points" in text
    )
    assert f"Read by the best value over the rounds, {near[best]} of {len(rows)} are." in text
    shown = (
        f"{spread['paper']:.2f} points in the paper, {spread[best]:.2f} by the best value, "
        f"{spread[last]:.2f} by the mean"
    )
    assert shown in text
    assert f"FedBC is above FedAvg in {above[last]} of {pages} partitions" in text
    assert f"By the best value it is above in {above[best]} of {pages}." in text
    assert {float(f"{value:.2f}") for value in spread.values()} == COUNTED
    for page in ("fedbc-table-7-paper/conclusion.md",):
        text = (DOCS / "reproduction" / page).read_text()
        assert (
            f"in {above[best]} of the {pages} partitions by the best value and in {above[last]} "
            "by the mean of the last" in text
        )


STUDIES = DOCS / "findings"


def rows_of(folder):
    """The table of a study on the time axis: hours, kilojoules and the last accuracy of each task
    and method, means and deviations over the seeds."""
    with (STUDIES / folder / "runs.csv").open() as stream:
        runs = [row for row in csv.DictReader(stream) if row["metric"] == "test_accuracy"]
    for task, label in dict.fromkeys((run["task"], run["algorithm"]) for run in runs):
        mine = [run for run in runs if (run["task"], run["algorithm"]) == (task, label)]
        hours, joules, last = (
            np.array([float(run[name] or "inf") for run in mine])
            for name in ("hours_to_90", "joules_to_90", "last")
        )
        there = int(np.isfinite(hours).sum())
        with np.errstate(invalid="ignore"):
            when = f"{hours.mean():.3f} ± {hours.std(ddof=1):.3f}"
            cost = f"{joules.mean() / 1e3:.1f} ± {joules.std(ddof=1) / 1e3:.1f}"
        reached = [when, cost] if there == len(mine) else ["never" if not there else "", ""]
        yield task, label, [*reached, f"{last.mean():.1f} %"]


def test_the_page_of_asynchronous_servers_has_the_numbers_of_its_runs():
    text = (STUDIES / "asynchronous.md").read_text()
    first, second = text.split("## Unequal work")
    for _, label, (hours, joules, last) in rows_of("asynchronous"):
        (row,) = (line for line in first.splitlines() if line.startswith(f"| {label} |"))
        assert f"| {hours} | {joules} |" in row
        assert row.endswith(f"| {last} |")
    for task, label, cells in rows_of("unequal-work"):
        assert f"| {task} | {label} | {' | '.join(cells)} |" in second
    with (STUDIES / "unequal-work" / "claims.csv").open() as stream:
        claims = list(csv.DictReader(stream))
    for claim in claims:
        (row,) = (line for line in second.splitlines() if f"| {claim['claim']} |" in line)
        assert f"| {claim['verdict']} |" in row
        known = [abs(float(claim[name] or "nan")) for name in ("mean", "low", "high")]
        if np.isfinite(known).all():
            shown = [float(x) for x in re.findall(r"\d+\.\d+", row)]
            assert all(min(abs(x - k) for x in shown) <= 0.00051 * max(1, k * 10) for k in known)


def test_a_number_that_the_folder_does_not_have_is_found():
    folder = DOCS / "reproduction" / "fedaware-figure-9"
    assert (
        missing("FedYogi 85.8 %, FedDyn 84.2 (Synthetic(0.5, 0.5), `0.123`, p < 0.05).", [folder])
        == []
    )
    assert missing("FedYogi 82.2 %, FedDyn 84.2, 93 points.", [folder]) == [82.2, 93.0]
