"""Brings the papers' numbers in `cells.csv` and `README.md` up to date, from the folders beside this
file: `python docs/reproduction/status.py`."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedax import papers
from fedax.experiments.results.store import kept_experiments
from fedax.papers.claims import Claim
from fedax.papers.recipe import Recipe

HERE = Path(__file__).parent
KEY = ["recipe", "task", "algorithm", "metric"]
VERDICTS = ["holds", "does not hold", "undecided", "not run"]
GROUPS = {
    "FedBC, Tables 1 and 7 (reading inferred)": "fedbc-table-1-searched|fedbc-draws|fedbc-table-7",
    "FedBC, Tables 6 and 8 (reading tested)": "fedbc-table-6|fedbc-table-8",
    "FedBC, other tables and figures": "fedbc-.*",
    "FedAWARE": "fedaware-.*",
    "FedDANE": "feddane-.*",
    "DFedAvgM": "dfedavgm-.*",
    "Local GD": "local-gd-.*",
}
"""Rows of the overview: a recipe belongs to the first that matches."""
HEAD = """| Paper | Claims that hold | do not hold | undecided | not run | Numbers | compared | within 2 points | within two standard errors | missed |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
CATALOGUE = {name: papers.load(name) for name in papers.recipe_files()}
FORMER = {old: name for name, recipe in CATALOGUE.items() for old in recipe.formerly}


def targets() -> pd.DataFrame:
    """Returns the papers' numbers, each once."""
    rows = [
        [name, task, algorithm, metric, target[0]]
        for name, recipe in CATALOGUE.items()
        for metric, tasks in recipe.cells.items()
        for task, numbers in tasks.items()
        for algorithm, target in numbers.items()
        if recipe.counted and algorithm not in recipe.repeats
    ]
    return pd.DataFrame(rows, columns=[*KEY, "paper"])


def results_of(folder: Path, name: str) -> pd.DataFrame:
    """Returns a folder's numbers, if all planned runs of them are there."""
    planned = Counter()
    for experiment in kept_experiments(folder):
        planned[experiment.name] += len(experiment.seeds)
    results = pd.read_csv(folder / "results.csv")
    results = results[results.runs >= results.task.map(planned)]
    return results.assign(recipe=name, folder=folder.name)


def claims_of(recipe: Recipe) -> list[Claim]:
    """Returns the claims of a recipe. The second recipe of a table repeats those about its
    numbers.
    """
    tables = [r.shows for r in CATALOGUE.values() if r.counted and r.paper == recipe.paper]
    repeats = not recipe.counted and recipe.shows.startswith(tuple(tables))
    numbers = [None, *recipe.cells] if repeats else []
    return [claim for claim in recipe.claim if claim.metric not in numbers]


def verdicts_of(folder: Path, texts: Sequence[str]) -> dict[str, str]:
    """Returns the verdicts on the claims that have runs."""
    rows = pd.read_csv(folder / "claims.csv")
    rows = rows[((rows.units > 0) | rows.verdict.isin(VERDICTS[:2])) & rows.claim.isin(texts)]
    verdicts = rows.verdict.where(rows.verdict.isin(VERDICTS), "undecided")
    return dict(zip(rows.claim, verdicts, strict=True))


def row(title: str, verdicts: Sequence[str], cells: pd.DataFrame) -> str:
    """Returns a row of the overview: claims by verdict, and numbers."""
    near = [cells.within_2_points.sum(), cells.within_two_errors.sum()]
    counts = [len(cells), cells.status.count(), *near, (cells.status == "missed").sum()]
    numbers = [*map(verdicts.count, VERDICTS), *map(int, counts)]
    return f"| {title} | " + " | ".join(str(number or "-") for number in numbers) + " |\n"


def main() -> None:
    """Writes both files."""
    results = []
    judged = {name: {} for name in CATALOGUE}
    for folder in sorted(path.parent for path in HERE.glob("*/recipe.toml")):
        own = Recipe.parse((folder / "recipe.toml").read_text())
        # named by a recipe, or by one and a suffix; or a figure that is part of a recipe now
        fitting = [name for name in CATALOGUE if f"{folder.name}-".startswith(f"{name}-")]
        name = FORMER.get(folder.name) or max(fitting, key=len)
        recipe = own if folder.name in FORMER else CATALOGUE[name]
        if own.ran == "paper":
            # a claim that has changed since is not judged
            texts = [c.text for c in claims_of(recipe) if c in own.claim]
            judged[name] |= verdicts_of(folder, texts)
            if recipe.scale["paper"].comparable:
                results.append(results_of(folder, name))
    for name, verdicts in judged.items():
        # the figures that a recipe has taken over speak for its claims
        if not any((HERE / figure).exists() for figure in CATALOGUE[name].formerly):
            claims = claims_of(CATALOGUE[name])
            judged[name] = {claim.text: "not run" for claim in claims} | verdicts
    cells = targets().merge(pd.concat(results), "left", KEY)
    cells.to_csv(HERE / "cells.csv", index=False, float_format="%.6g")

    rows, rest = [], list(CATALOGUE)
    for title, pattern in GROUPS.items():
        names = [name for name in rest if re.fullmatch(pattern, name)]
        rest = [name for name in rest if name not in names]
        verdicts = [verdict for name in names for verdict in judged[name].values()]
        rows.append(row(title, verdicts, cells[cells.recipe.isin(names)]))
    table = HEAD + "".join(rows)
    page = HERE / "README.md"
    marks = r"(?s)(<!-- overview: begin -->\n\n).*(\n<!-- overview: end -->)"
    page.write_text(re.sub(marks, rf"\g<1>{table}\g<2>", page.read_text()))


if __name__ == "__main__":
    main()
