"""A recipe beside the runs of a directory: the paper's numbers and ours, and a verdict on each
claim.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedax.papers.cells import compare_cells, summarize_z
from fedax.papers.claims import PARTS, Evidence
from fedax.papers.numbers import Results
from fedax.papers.recipe import Recipe
from fedax.results.page import Sheet
from fedax.results.record import AUDITED, Record, finished
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.statistics import holm

SHORTER = "The claims are about the paper's length; these runs are shorter."
_HOW = (
    "Verdicts are from paired differences (same data, same seed), with 95 % confidence intervals "
    "(Student's t, of ratios Fieller's) over the draws of the data if there are several, else "
    "over the seeds. A claim holds if every comparison has p < 0.05. It does not hold if the "
    "opposite of one has p < 0.05 after Holm's correction over tasks and algorithms. As claimed: "
    "on how many tasks the means are. From: the comparison that decides; all are in claims.csv. A "
    "run that diverged has no final value and counts as the worst of its task."
)
_CELLS = (
    "± is the sample standard deviation over the runs, ours over the draws of the data if there "
    "are several. Difference: ours minus the paper's mean. z: the difference over the standard "
    "error of both means together, with the paper's deviation, so that a method that scatters more "
    "is not nearer. A cell of which a run has no number has none."
)
_Z = (
    "If the runs are the paper's up to chance, the root mean square (rms) of z is about 1, and p, "
    "of the sum of squares (chi-square), is not small. With another method's number: the rms of z "
    "against the paper's other algorithms on the same tasks, which cells that say nothing would "
    "reach."
)
_NO_COMPARISON = "These runs are of another model than the paper's, and no comparison."
CLAIM_COLUMNS = [
    "claim",
    "verdict",
    "task",
    "comparison",
    "quantity",
    *PARTS[2:-1],
    "p_against_holm",
]


class Comparison:
    """A recipe beside the runs of a directory.

    Args:
        recipe: with the scale that ran.
        records: the runs that reports show, or their lines in `runs.csv`. Interrupted runs are left
            out.

    Attributes:
        cells: the frame of `compare_cells`; without a comparison where the runs are of another
            model than the paper's.
        verdicts: claims, as text, with their evidence.
    """

    def __init__(self, recipe: Recipe, records: Sequence[Record]) -> None:
        self.recipe = recipe
        self.read = recipe.table_read
        self.results = Results(finished(records))
        self.cells = compare_cells(
            self.results, recipe.cells, self.read, recipe.paper_runs, recipe.also_read
        )
        self.comparable = recipe.scale[recipe.ran].comparable
        if not self.comparable:
            self.cells[["difference", "joint_error", "z"]] = math.nan
        self.shorter = "" if recipe.ran == "paper" else SHORTER
        self.verdicts: list[tuple[str, Evidence]] = []
        for claim in recipe.claim:
            # claims about attacks are judged on the audits, all others on the plain tasks
            is_audit = (claim.metric or recipe.metric).startswith("auc")
            tasks = [title for title in recipe.titles if title.endswith(AUDITED) == is_audit]
            evidence = Evidence("not run", "smoke runs only show that it runs")
            if recipe.ran != "smoke":
                evidence = claim.judge(
                    self.results, recipe.metric, self.read, tasks, recipe.rivals(claim.a)
                )
            self.verdicts.append((claim.text, evidence))

    def sheets(self) -> list[Sheet]:
        """Returns the tables for the report."""
        rows = [[text, e.verdict, e.direction or "-", e.text or "-"] for text, e in self.verdicts]
        table = pd.DataFrame(rows, columns=["Claim", "Verdict", "As claimed", "From"])
        claims = Sheet("Claims", table, f"{self.shorter} {_HOW}".strip(), lead=True)
        choices = list(self.recipe.chosen)
        if self.recipe.not_obtainable:
            choices.append(f"Data not obtainable: {self.recipe.not_obtainable}.")
        if left_out := [title for title in self.recipe.titles if title not in self.results.tasks]:
            choices.append(f"Not run: {', '.join(left_out)}.")
        title = "What the paper leaves open, and what was chosen"
        choice_sheet = Sheet(title, pd.DataFrame({"Choice": choices}))
        sheets = claims, self.z_sheet(), self.cell_sheet(), choice_sheet
        return [sheet for sheet in sheets if len(sheet.table)]

    def z_sheet(self) -> Sheet:
        """Returns how far the numbers are from the paper's, by algorithm."""
        table = summarize_z(self.cells)
        columns = {
            "Metric": table["metric"].map(metric_heading),
            "Algorithm": table["algorithm"],
            "Cells": table["cells"].astype(str),
            "Fewest runs": table["fewest"].astype(str),
            "Mean difference": table["difference"].map(_format("+.2f")),
            "rms of z": table["rms"].map(_format(".2f")),
            "p": table["p"].map(_format(".2g")),
            "rms with another method's number": table["rms_of_others"].map(_format(".2f")),
        }
        return Sheet("How far from the paper", pd.DataFrame(columns), _Z, lead=True)

    def cell_sheet(self) -> Sheet:
        """Returns the paper's numbers beside ours."""
        recipe = self.recipe
        table: Any = self.cells[["task", "algorithm", "metric"]]
        table = table.set_axis(["Task", "Algorithm", "Metric"], axis=1)
        table["Metric"] = self.cells["metric"].map(metric_heading)
        if table["Metric"].nunique() == 1:
            del table["Metric"]
        heads = {"paper": "Paper", "ours": "Ours"}
        if recipe.also_read:
            reads = {"ours": self.read} | {read: read for read in recipe.also_read}
            heads |= {name: f"Ours, {describe_reduction(r).lower()}" for name, r in reads.items()}
        cells = self.cells.to_dict("records")
        for name, head in heads.items():
            table[head] = [format_number(cell, name) for cell in cells]
        table["Runs"] = [
            f"{c['runs']} ({c['diverged']} diverged)" if c["diverged"] else str(c["runs"])
            for c in cells
        ]
        table["Difference"] = self.cells["difference"].map(_format("+.2f"))
        table["z"] = self.cells["z"].map(_format("+.2f"))
        remarks = [
            f"{metric_heading(recipe.metric)}, {describe_reduction(self.read).lower()}.",
            f"Scale: {recipe.ran}.",
            _CELLS if self.comparable else _NO_COMPARISON,
        ]
        if recipe.also_read:
            remarks.append("Difference, z and claims are of the first reading.")
        return Sheet("The paper beside ours", table, " ".join(remarks), lead=True)

    def claims(self) -> pd.DataFrame:
        """Returns all comparisons that the verdicts rest on; `p_against_holm` is corrected over
        those of the claim.
        """
        frames = [
            evidence.parts.assign(
                claim=text,
                verdict=evidence.verdict,
                quantity=evidence.claimed,
                p_against_holm=holm(evidence.parts["p_against"].tolist()),
            )
            for text, evidence in self.verdicts
            if len(evidence.parts)
        ]
        table = pd.concat(frames) if frames else pd.DataFrame(columns=CLAIM_COLUMNS)
        return table.reindex(columns=CLAIM_COLUMNS)


def metric_heading(metric: str) -> str:
    """Returns the name of a metric as a heading."""
    return metric.replace("_", " ").capitalize()


def format_number(cell: Mapping[Any, Any], name: str) -> str:
    """Returns a mean of a row of `compare_cells`, with its deviation where it is known."""
    mean = cell[f"{name}_mean"]
    deviation = cell[f"{name}_deviation"]
    if math.isnan(mean):
        return "-"
    return f"{mean:.2f}" + (f" ± {deviation:.2f}" if math.isfinite(deviation) else "")


def _format(form: str) -> Callable[[float], str]:
    return lambda value: "-" if math.isnan(value) else f"{value:{form}}"
