"""Brings the papers' numbers in `cells.csv`, `README.md` and the pages of the papers up to date from
the folders beside this file: `python docs/reproduction/status.py`. It uses pandas and SciPy, and
nothing of fedax: numbers are read again from the curves of every run, z is computed from them,
verdicts from the comparisons in `claims.csv`. It stops where a folder's own tables say something
else."""

import io
import json
import re
import tarfile
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

HERE = Path(__file__).parent
CATALOGUE = {
    file.stem: tomllib.loads(file.read_text())
    for file in sorted((HERE.parents[1] / "src/fedax/papers/recipes").glob("*.toml"))
}
FORMER = {old: name for name, recipe in CATALOGUE.items() for old in recipe.get("formerly", [])}
COLUMNS = ["algorithm", "runs", "difference", "z"]
KEY = ["recipe", "task", "algorithm", "metric"]
VERDICTS = ["holds", "does not hold", "undecided", "not run"]
ROWS = {
    "FedBC, Table 1": "fedbc-table-1-searched|fedbc-draws",
    "FedBC, Table 6": "fedbc-table-6",
    "FedBC, Table 7": "fedbc-table-7",
    "FedBC, Table 8": "fedbc-table-8",
    "FedBC, other tables and figures": "fedbc-.*",
    "FedAWARE": "fedaware-.*",
    "FedDANE": "feddane-.*",
    "DFedAvgM": "dfedavgm-.*",
    "Local GD": "local-gd-.*",
}
"""Rows of the overview: a recipe belongs to the first that matches."""
PAPERS = ["feddane", "dfedavgm", "fedaware", "local-gd", "fedbc"]
"""Names of the pages, with which their folders' names begin."""
SHOWS = {
    "fedbc-table-1": "Table 1, values of the scripts",
    "fedbc-table-1-searched": "Table 1, searched",
    "fedbc-draws": "Table 1, nine other draws",
    "feddane-study": "All forms",
}
"""Titles of folders that show a part, or more, of what the recipe names."""
HEAD = """| Paper | Claims that hold | do not hold | undecided | not run | Numbers | compared | of one run | rms of z | p |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def targets() -> pd.DataFrame:
    """Returns the papers' numbers, each once."""
    rows = [
        [name, task, algorithm, metric, *(*target, np.nan)[:2], recipe.get("paper_runs")]
        for name, recipe in CATALOGUE.items()
        for metric, tasks in numbers_of(recipe).items()
        for task, numbers in tasks.items()
        for algorithm, target in numbers.items()
        if recipe.get("counted", True) and algorithm not in recipe.get("repeats", {})
    ]
    return pd.DataFrame(rows, columns=[*KEY, "paper_mean", "paper_deviation", "paper_runs"])


def numbers_of(recipe: dict) -> dict:
    """Returns the numbers of a recipe by metric, task and algorithm."""
    metric = recipe.get("metric", "test_accuracy")
    return {metric: recipe.get("targets", {})} | recipe.get("more_targets", {})


def read(curve: np.ndarray, rounds: np.ndarray, reading: str, kind: str) -> float:
    """Returns the number of a curve, in percent or squared points; NaN if the run broke."""
    if reading == "best_observed":
        return np.nanmax(curve)
    if kind != "ok":
        return np.nan
    if match := re.fullmatch(r"mean_last_(\d+)_rounds", reading):
        return curve[rounds > rounds[-1] - int(match[1])].mean()
    return {"best": curve.max(), "last": curve[-1]}[reading]


def read_again(folder: Path, recipe: dict) -> pd.DataFrame:
    """Returns mean, deviation and units of every cell, from the curves."""
    files = {}
    with tarfile.open(folder / "runs.tar.xz") as archive:
        for member in archive:
            run, _, part = member.name.partition("/")
            files.setdefault(run, {})[part] = archive.extractfile(member).read()
    rows = []
    for run in files.values():
        about = json.loads(run["run.json"])
        curves = np.load(io.BytesIO(run["curves.npz"]))
        for metric in numbers_of(recipe):
            if f"metrics/{metric}" not in curves:
                continue
            scale = 1e4 if "variance" in metric else 100
            curve = curves[f"metrics/{metric}"].astype(float) * scale
            value = read(curve, curves["rounds"], recipe["read"], about["outcome"]["kind"])
            key = about["task"], about["label"], metric
            rows.append([*key, about["draw"], about["seed"], value])
    runs = pd.DataFrame(rows, columns=[*KEY[1:], "draw", "seed", "value"])
    # draws of the data are the units, if there are several
    unit = "draw" if runs.draw.nunique() > 1 else "seed"
    units = runs.groupby([*KEY[1:], unit]).value.agg(lambda v: v.mean(skipna=False))
    groups = units.groupby(KEY[1:])
    columns = {"mean": groups.agg(lambda v: v.mean(skipna=False)), "n": groups.size()}
    return pd.DataFrame(columns).reset_index()


def results_of(folder: Path, recipe: dict, name: str) -> pd.DataFrame:
    """Returns a folder's numbers, if all planned runs of them are there."""
    study = tomllib.loads((folder / "study.toml").read_text())
    experiments = study.get("experiment", [study])
    planned = pd.Series({e["name"]: 0 for e in experiments})
    for experiment in experiments:
        planned[experiment["name"]] += len(experiment["seeds"])
    results = pd.read_csv(folder / "results.csv")
    if len(results) and (folder / "runs.tar.xz").exists() and "grid" not in experiments[0]:
        again = results.merge(read_again(folder, recipe), "left", KEY[1:])
        np.testing.assert_allclose(again["mean"], results.ours_mean, 1e-4)
        np.testing.assert_array_equal(again.n, results.units, folder.name)
    results = results[results.runs >= results.task.map(planned)]
    columns = [*KEY[1:], "ours_mean", "ours_deviation", "units", "runs", "diverged"]
    return results[columns].assign(recipe=name, folder=folder.name)


def claims_of(recipe: dict) -> list[dict]:
    """Returns the claims of a recipe. The second recipe of a table repeats those about its
    numbers.
    """
    counted = [r for r in CATALOGUE.values() if r.get("counted", True)]
    tables = tuple(r["shows"] for r in counted if r["paper"] == recipe["paper"])
    repeats = not recipe.get("counted", True) and recipe["shows"].startswith(tables)
    numbers = [None, *numbers_of(recipe)] if repeats else []
    return [c for c in recipe.get("claim", []) if c.get("metric") not in numbers or not repeats]


def verdict_of(rows: pd.DataFrame, claim: dict) -> str:
    """Returns the verdict on a claim from the p-values of its comparisons: on every task all have to
    hold, and the smallest for the opposite, by Holm, refutes. `at_least` asks for some tasks.
    """
    tasks = [part for _, part in rows.groupby("task", sort=False)]
    needed = claim.get("at_least") or len(tasks)
    count = len(tasks)
    ahead = sorted(part.p_for.max() for part in tasks)
    behind = sorted(min(len(part) * part.p_against.min(), 1) for part in tasks)
    if needed <= count and (count - needed + 1) * ahead[needed - 1] <= 0.05:
        return "holds"
    if needed * behind[count - needed] <= 0.05:
        return "does not hold"
    return "undecided"


def verdicts_of(folder: Path, claims: list[dict]) -> dict[str, str]:
    """Returns the verdicts on the claims that have runs."""
    table = pd.read_csv(folder / "claims.csv")
    verdicts = {}
    for claim in claims:
        rows = table[table.claim == claim["text"]]
        if not (rows.units > 0).any():
            continue
        verdicts[claim["text"]] = verdict_of(rows, claim)
        if verdicts[claim["text"]] != rows.verdict.iloc[0]:
            raise ValueError(f"{folder.name}: {claim['text']}: {verdicts[claim['text']]}")
    return verdicts


def row(title: str, verdicts: list[str], cells: pd.DataFrame) -> str:
    """Returns a row of the overview: claims by verdict, numbers, and how far these are from the
    paper's.
    """
    numbers = [*map(verdicts.count, VERDICTS), len(cells), cells.ours_mean.count()]
    z = cells.z.dropna()
    far = f"{np.sqrt((z**2).mean()):.2f} | {stats.chi2.sf((z**2).sum(), len(z)):.2g}"
    counts = " | ".join(str(number or "-") for number in (*numbers, (cells.units == 1).sum()))
    return f"| {title} | {counts} | {far if len(z) else '- | -'} |\n"


def distances(folders: list[Path]) -> str:
    """Returns the distances to a paper's numbers by method and table; empty if none is comparable."""
    columns = {}
    for folder in folders:
        results = pd.read_csv(folder / "results.csv").reindex(columns=COLUMNS).dropna(subset="z")
        if results.empty:
            continue
        column = {"runs for each number, at least": str(results.runs.min())}
        for algorithm, cells in results.groupby("algorithm", sort=False):
            rms = np.sqrt((cells.z**2).mean())
            column[algorithm] = f"{cells.difference.mean():+.2f} ({rms:.2f})"
        columns[f"[{title_of(folder)}]({folder.name}/results.csv)"] = column
    table = pd.DataFrame(columns).fillna("-")
    lines = [["Method", *table], ["---", *("---:" for _ in table)], *table.reset_index().values]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) if columns else ""


def claim_list(folders: list[Path], verdicts: dict[str, dict[str, str]]) -> str:
    """Returns the verdicts of the folders that ran at the paper's length, and refuted claims."""
    lines = []
    for folder in folders:
        if folder.name not in verdicts:
            continue
        study = tomllib.loads((folder / "study.toml").read_text())
        experiments = study.get("experiment", [study])
        seeds = {e["name"]: 0 for e in experiments}
        for experiment in experiments:
            seeds[experiment["name"]] += len(experiment["seeds"])
        rounds = " or ".join(f"{n:,}" for n in sorted({e["rounds"] for e in experiments}))
        runs = " to ".join(map(str, sorted({min(seeds.values()), max(seeds.values())})))
        length = f"{rounds} rounds, {runs} run{'s' if runs != '1' else ''}"
        found = verdicts[folder.name]
        counts = [f"{verdict}: {n}" for verdict, n in Counter(found.values()).items()]
        lines.append(f"- **{title_of(folder)}** ({length}): ")
        lines.append(f"[{', '.join(sorted(counts))}]({folder.name}/claims.csv)\n")
        lines += [f"    - *{claim}*\n" for claim in found if found[claim] == "does not hold"]
    return "".join(lines)


def title_of(folder: Path) -> str:
    """Returns what a folder shows, such as `"Table 7"`."""
    shows = tomllib.loads((folder / "recipe.toml").read_text())["shows"]
    return SHOWS.get(folder.name, shows)


def replace_part(page: Path, part: str, text: str) -> None:
    """Replaces what stands between the marks of a part of a page."""
    marks = rf"(?s)(<!-- {part}: begin -->\n\n).*(\n<!-- {part}: end -->)"
    page.write_text(re.sub(marks, lambda m: m[1] + text + m[2], page.read_text()))


def main() -> None:
    """Writes all files."""
    results = []
    by_folder = {}
    judged = {name: {} for name in CATALOGUE}
    for folder in sorted(path.parent for path in HERE.glob("*/recipe.toml")):
        own = tomllib.loads((folder / "recipe.toml").read_text())
        # named by a recipe, or by one and a suffix; or a figure that is part of a recipe now
        fitting = [name for name in CATALOGUE if f"{folder.name}-".startswith(f"{name}-")]
        name = FORMER.get(folder.name) or max(fitting, key=len)
        recipe = own if folder.name in FORMER else CATALOGUE[name]
        if own["ran"] == "paper":
            # a claim that has changed since is not judged
            same = {(c["text"], c["check"], c.get("margin", 0)) for c in own.get("claim", [])}
            claims = [
                c for c in claims_of(recipe) if (c["text"], c["check"], c.get("margin", 0)) in same
            ]
            judged[name] |= verdicts_of(folder, claims)
            by_folder[folder.name] = verdicts_of(folder, recipe.get("claim", []))
            if recipe["scale"]["paper"].get("comparable", True):
                results.append(results_of(folder, own, name))
    for name, verdicts in judged.items():
        # the figures that a recipe has taken over speak for its claims
        if not any((HERE / figure).exists() for figure in CATALOGUE[name].get("formerly", [])):
            claims = claims_of(CATALOGUE[name])
            judged[name] = {claim["text"]: "not run" for claim in claims} | verdicts
    cells = targets().merge(pd.concat(results), "left", KEY)
    cells["difference"] = cells.ours_mean - cells.paper_mean
    cells = cells.astype({"paper_runs": float, "units": float})
    error = cells.paper_deviation * np.sqrt(1 / cells.paper_runs + 1 / cells.units)
    cells["z"] = cells.difference / error.where(error > 0)
    cells.to_csv(HERE / "cells.csv", index=False, float_format="%.6g")

    rows = []
    rest = list(CATALOGUE)
    for title, pattern in ROWS.items():
        names = [name for name in rest if re.fullmatch(pattern, name)]
        rest = [name for name in rest if name not in names]
        verdicts = [verdict for name in names for verdict in judged[name].values()]
        rows.append(row(title, verdicts, cells[cells.recipe.isin(names)]))
    replace_part(HERE / "README.md", "overview", HEAD + "".join(rows))
    for paper in PAPERS:
        files = sorted(HERE.glob(f"{paper}-*/recipe.toml"))
        # those that are not counted repeat the numbers of another recipe with other settings
        own = {file: tomllib.loads(file.read_text()) for file in files}
        folders = [file.parent for file in files if own[file].get("counted", True)]
        replace_part(HERE / f"{paper}.md", "distances", distances(folders))
        replace_part(HERE / f"{paper}.md", "claims", claim_list(folders, by_folder))


if __name__ == "__main__":
    main()
