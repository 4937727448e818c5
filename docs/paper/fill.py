"""Writes paper.md from paper.txt, the benchmark's results and the folders of the reproduction.

    python docs/paper/fill.py    # part of `make generate`

`paper.bib` has the references. The form is that of the Journal of Open Source Software.
"""

import re
import runpy
from collections import Counter
from pathlib import Path

import jinja2
import pandas as pd

from fedax.algorithms import algorithm_classes
from fedax.benchmark.standing import verdict_of
from fedax.conformance import LAWS

HERE = Path(__file__).parent
DOCS = HERE.parent
STANDING = pd.read_csv(DOCS / "benchmark/standing.csv", index_col=["family", "method"])
SPEEDS = (DOCS.parent / "benchmarks/README.md").read_text()
COST_TEXT = runpy.run_path(str(DOCS / "benchmark/page.py"))["cost_text"]


def cost(family: str, method: str) -> str:
    """Returns the rounds of a method where FedAvg needs 100, with the interval."""
    return COST_TEXT(STANDING.loc[(family, method)], "rounds")


def speeds(name: str) -> str:
    """Returns the ratios of wall time beside another library, in cells of a table."""
    cells = re.search(rf"^\| {name} \| (.*) \|$", SPEEDS, re.MULTILINE)[1]
    return re.sub(r" \([\d.]+\)", "", cells)


def read(folder: str, **cells: str) -> pd.Series:
    """Returns the first row of a folder's comparisons with some cells, or of its numbers."""
    name = "claims" if "comparison" in cells else "results"
    rows = pd.read_csv(DOCS / f"reproduction/{folder}/{name}.csv")
    for column, begin in cells.items():
        rows = rows[rows[column].str.startswith(begin)]
    return rows.iloc[0]


def count_claims() -> list[int]:
    """Returns how many claims hold, do not hold, and are undecided."""
    overview = (DOCS / "reproduction/README.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([\d-]+) \| ([\d-]+) \| ([\d-]+) \| ", overview, re.MULTILINE)
    return [sum(int(n) for n in column if n.isdigit()) for column in zip(*rows)]


def page() -> str:
    """Returns the paper."""
    networks = STANDING.loc["networks"].drop(index="FedAvg").to_dict("index").values()
    return jinja2.Template((HERE / "paper.txt").read_text(), keep_trailing_newline=True).render(
        cost=cost,
        speeds=speeds,
        read=read,
        families=Counter(kind.__module__.split(".")[2] for kind in algorithm_classes().values()),
        laws=len(LAWS),
        verdicts=Counter(verdict_of(row, "rounds") for row in networks),
        claims=count_claims(),
        numbers=pd.read_csv(DOCS / "reproduction/cells.csv")["ours_mean"].count(),
        since=re.search(r"CNN runs ([\d.]+) .* 2NN ([\d.]+) and LeNet ([\d.]+)", SPEEDS).groups(),
        archive=pd.read_csv(DOCS.parent / "src/fedax/benchmark/archive.csv"),
    )


if __name__ == "__main__":
    (HERE / "paper.md").write_text(page())
