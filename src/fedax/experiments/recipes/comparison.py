"""A recipe beside the runs of a directory: the paper's numbers and ours, and a verdict on each claim."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.recipes.cells import Cell, Number, beside
from fedax.experiments.recipes.claims import Evidence
from fedax.experiments.recipes.recipe import Recipe
from fedax.experiments.recipes.statistics import holm
from fedax.report import Sheet
from fedax.report.leaks import AUDITED, leak_sheet
from fedax.report.numbers import AnyRun, Results

SHORTER = "The claims are about the paper's length; these runs are shorter."
NOT_JUDGED = Evidence("not judged", "smoke runs only show that it runs")
_HOW = (
    "Verdicts are from paired differences (same data, same seed). Given are the mean and its 95 % confidence interval (Student's t)"
    " over the draws of the data if there are several, else over the seeds; of several algorithms the one that says least for the"
    " claim. A claim holds if all its intervals are above zero, and does not hold if one is below zero after Holm's correction over"
    " tasks and algorithms. A run without a final value, because it diverged, counts as the worst of its task."
)
_CELLS = (
    "± is the sample standard deviation over the runs, ours over the draws of the data if there are several. Within 2 points: of"
    " accuracy, by the means alone. Joint standard error: of both means, with the paper's deviation, so that a method that scatters"
    " more does not pass more easily. p is that of Welch's test on the means, with both deviations."
)


class Comparison:
    """A recipe beside the runs of a directory.

    Args:
        recipe: with the scale that ran.
        records: the runs that reports show, or their lines in `runs.csv`.
        experiments: what was run.
    """

    def __init__(self, recipe: Recipe, records: Sequence[AnyRun], experiments: Sequence[Experiment]) -> None:
        self.recipe, ran = recipe, {experiment.name for experiment in experiments}
        self.left_out = [title for title in recipe.titles if title not in ran]
        methods = {member.label: member.method for e in experiments for member in e.members()}
        self.results = results = Results(records, methods)
        self.read = (recipe.scale[recipe.ran].read if recipe.ran else None) or recipe.read
        self.rows: list[Cell] = beside(results, recipe.cells, self.read, recipe.paper_runs)
        self.verdicts: list[tuple[str, Evidence]] = []
        for claim in recipe.claim:
            leaks = (claim.metric or recipe.metric).startswith("auc")
            named = [title for title in recipe.titles if title.endswith(AUDITED) == leaks]
            evidence = claim.judge(results, recipe.metric, self.read, named, recipe.rivals(claim.a))
            self.verdicts.append((claim.text, NOT_JUDGED if recipe.ran == "smoke" else evidence))

    @property
    def length(self) -> str:
        """A remark on how long the runs are, if they are not of the paper's length."""
        return "" if self.recipe.ran in ("paper", None) else SHORTER

    def sheets(self) -> list[Sheet]:
        """The tables for the report."""
        recipe, several = self.recipe, len({row.metric for row in self.rows}) > 1
        claims = Sheet(
            "Claims",
            ["Claim", "Verdict", "As claimed in the mean, tasks", "From"],
            [[text, e.verdict, e.direction or "-", e.text] for text, e in self.verdicts],
            " ".join(filter(None, (self.length, _HOW))),
            lead=True,
        )
        note = f"{words(recipe.metric)}, {self.read.replace('_', ' ')}. Scale: {recipe.ran}. {_CELLS}"
        numbers = Sheet(
            "The paper beside ours", heads(several), [cell_texts(r, several) for r in self.rows], note, lead=True
        )
        open_ = Sheet("What the paper leaves open, and what was chosen", ["Choice"], [[text] for text in recipe.chosen])
        leaks = leak_sheet(self.results.records)
        return [sheet for sheet in (claims, numbers, leaks, open_) if sheet.rows]

    def csv(self) -> str:
        """The numbers as a table."""
        paper, ours = (
            ["paper_mean", "paper_deviation", "paper_runs"],
            ["ours_mean", "ours_deviation", "units", "runs", "diverged"],
        )
        head = ["task", "algorithm", "metric", *paper, *ours, "difference", "joint_error", "welch_p", "status"]
        return _csv(
            head,
            (
                [row.task, row.algorithm, row.metric]
                + [f"{x:.6g}" for x in (*row.paper, *row.ours, row.runs, row.diverged, row.difference, row.error, row.welch)]
                + [row.status]
                for row in self.rows
            ),
        )

    def claims_csv(self) -> str:
        """All comparisons that the verdicts rest on; `p_against_holm` is corrected over those of the claim."""
        numbers = ["mean", "low", "high", "p_for", "p_against", "p_against_holm"]
        rows = []
        for text, evidence in self.verdicts:
            for part, adjusted in zip(evidence.parts, holm([part.behind for part in evidence.parts]), strict=True):
                values = [*part.effect[:3], part.ahead, part.behind, adjusted]
                which = [text, evidence.verdict, part.task, part.about, part.effect.units, part.effect.unit]
                rows.append([*which, *(f"{value:.6g}" for value in values)])
        return _csv(["claim", "verdict", "task", "comparison", "units", "unit", *numbers], rows)

    def readme(
        self, versions: Mapping[str, Any], settings: Sequence[str], seconds: float, others: Sequence[str] = ()
    ) -> str:
        """All of it as Markdown; `others` are sentences about runs with other versions."""
        recipe = self.recipe
        parts = [f"# {recipe.title}", f"{recipe.paper}, {recipe.shows}. Scale: {recipe.ran}."]
        if self.left_out:
            parts.append(f"Not run: {', '.join(self.left_out)}.")
        for sheet in self.sheets():
            head = [" | ".join(sheet.head), " | ".join("---" for _ in sheet.head)]
            rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in sheet.rows]
            table = "\n".join(f"| {line} |" for line in [*head, *rows])
            listed = "\n".join(f"- {row[0]}" for row in sheet.rows)
            body = table if len(sheet.head) > 1 else listed
            parts.append("\n\n".join(filter(None, [f"## {sheet.title}", body, sheet.note])))
        made = ", ".join(f"{name} {version}" for name, version in versions.items())
        spent = f"Wall time of all runs together: {seconds:.0f} s."
        parts.append(f"## How it was made\n\n{' '.join([spent, f'{made}.', *others])}")
        parts.append(f"Settings: {', '.join(f'`{name}`' for name in settings)}.")
        return "\n\n".join(parts) + "\n"


def heads(several: bool) -> list[str]:
    """The columns of `cell_texts`."""
    metric = ["Metric"] if several else []
    return ["Task", "Algorithm", *metric, "Paper", "Ours", "Runs", "Difference", "p (Welch)", "Status"]


def cell_texts(cell: Cell, several: bool) -> list[str]:
    """A cell in words; `several` if there are several metrics."""
    metric = [words(cell.metric)] if several else []
    runs = str(cell.runs) + (f" ({cell.diverged} diverged)" if cell.diverged else "")
    p = f"{cell.welch:.2g}" if math.isfinite(cell.welch) else "-"
    numbers = [in_digits(cell.paper), in_digits(cell.ours), runs, f"{cell.difference:+.2f}", p, cell.status]
    return [cell.task, cell.algorithm, *metric, *numbers]


def words(metric: str) -> str:
    """The name of a metric as a heading."""
    return metric.replace("_", " ").capitalize()


def in_digits(number: Number) -> str:
    """A mean, with its deviation where it is known."""
    return f"{number.mean:.2f}" + (f" ± {number.deviation:.2f}" if math.isfinite(number.deviation) else "")


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(head)
    table.writerows(rows)
    return buffer.getvalue()
