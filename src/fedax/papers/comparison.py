"""A recipe beside the runs of a directory: the paper's numbers and ours, and a verdict on each
claim.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedax.experiments.config.experiment import Experiment
from fedax.papers.cells import Cell, Number, compare_cells
from fedax.papers.claims import Evidence, Verdict
from fedax.papers.recipe import Recipe
from fedax.results import Record, Sheet
from fedax.results.tables.membership import AUDITED, membership_sheet
from fedax.results.tables.numbers import AnyRun, Results
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.statistics import holm

SHORTER = "The claims are about the paper's length; these runs are shorter."
NOT_JUDGED = Evidence("not judged", "smoke runs only show that it runs")
IN_SHORT_RUNS: dict[Verdict, Verdict] = {
    "holds": "holds in short runs",
    "does not hold": "does not hold in short runs",
    "holds on what ran": "holds on what ran, in short runs",
}
_HOW = (
    "Verdicts are from paired differences (same data, same seed). From: the quantity that is "
    "compared, what the claim says of it,"
    " and its mean on each task with the 95 % confidence interval (Student's t, of ratios "
    "Fieller's) over the draws of the data if"
    " there are several, else over the seeds; of several algorithms the one that says least for "
    "the claim. A claim holds if every"
    " comparison has p < 0.05. It does not hold if the opposite of one has p < 0.05 after "
    "Holm's correction over tasks and"
    " algorithms. A run that diverged has no final value and counts as the worst of its task."
)
_CELLS = (
    "± is the sample standard deviation over the runs, ours over the draws of the data if there "
    "are several. Difference: ours minus"
    " the paper's mean. Within 2 points: of accuracy, by the means alone. Within two standard "
    "errors: of both means together, with"
    " the paper's deviation, so that a method that scatters more does not pass more easily. p "
    "is that of Welch's test on the means,"
    " with both deviations."
)
_NO_COMPARISON = "These runs are of another model than the paper's, and no comparison."


class Comparison:
    """A recipe beside the runs of a directory.

    Args:
        recipe: with the scale that ran.
        records: the runs that reports show, or their lines in `runs.csv`. Interrupted runs are left
            out.
        experiments: what was run.
    """

    def __init__(
        self, recipe: Recipe, records: Sequence[AnyRun], experiments: Sequence[Experiment]
    ) -> None:
        self.recipe, ran_tasks = recipe, {experiment.name for experiment in experiments}
        self.left_out = [title for title in recipe.titles if title not in ran_tasks]
        # by label: of a grid's members, the algorithm that they stand for
        methods = {member.label: member.method for e in experiments for member in e.members()}
        complete = [
            r for r in records if not (isinstance(r, Record) and r.outcome.kind == "interrupted")
        ]
        self.results = results = Results(complete, methods)
        # a recipe without a scale (`ran` is None) is compared as if at the paper's
        self.read, self.comparable = (
            recipe.table_read,
            recipe.ran is None or recipe.scale[recipe.ran].comparable,
        )
        self.rows: list[Cell] = compare_cells(
            results, recipe.cells, self.read, recipe.paper_runs, recipe.also_read
        )
        self.verdicts: list[tuple[str, Evidence]] = []
        for claim in recipe.claim:
            # claims about attacks are judged on the audits, all others on the plain tasks
            is_audit_claim = (claim.metric or recipe.metric).startswith("auc")
            task_titles = [
                title for title in recipe.titles if title.endswith(AUDITED) == is_audit_claim
            ]
            evidence = claim.judge(
                results, recipe.metric, self.read, task_titles, recipe.rivals(claim.a)
            )
            self.verdicts.append((claim.text, self._qualify_verdict(evidence)))

    def _qualify_verdict(self, evidence: Evidence) -> Evidence:
        if self.recipe.ran == "smoke":
            return NOT_JUDGED
        return (
            evidence
            if not self.length
            else evidence._replace(verdict=IN_SHORT_RUNS.get(evidence.verdict, evidence.verdict))
        )

    @property
    def length(self) -> str:
        """A remark on the length of the runs, if it is not the paper's."""
        return "" if self.recipe.ran in ("paper", None) else SHORTER

    def sheets(self) -> list[Sheet]:
        """Returns the tables for the report."""
        claims = Sheet(
            "Claims",
            ["Claim", "Verdict", "In the mean", "From"],
            [[text, e.verdict, e.direction or "-", e.text] for text, e in self.verdicts],
            " ".join(filter(None, (self.length, _HOW))),
            lead=True,
        )
        title = "What the paper leaves open, and what was chosen"
        choices = Sheet(title, ["Choice"], [[text] for text in self.recipe.chosen])
        membership = membership_sheet(self.results.records)
        return [sheet for sheet in (claims, self.cell_sheet(), membership, choices) if sheet.rows]

    def cell_sheet(self) -> Sheet:
        """Returns the paper's numbers beside ours."""
        recipe, has_several_metrics = self.recipe, len({row.metric for row in self.rows}) > 1
        ours = (
            [f"Ours, {describe_reduction(read).lower()}" for read in (self.read, *recipe.also_read)]
            if recipe.also_read
            else ["Ours"]
        )
        metric = ["Metric"] if has_several_metrics else []
        heads = [
            "Task",
            "Algorithm",
            *metric,
            "Paper",
            *ours,
            "Runs",
            "Difference",
            "p (Welch)",
            "Status",
        ]
        rows = [self._format_cells(row, has_several_metrics) for row in self.rows]
        remarks = (
            [f"Scale: {recipe.ran}.", _CELLS]
            if self.comparable
            else [f"Scale: {recipe.ran}.", _NO_COMPARISON]
        )
        if recipe.also_read:
            remarks.insert(
                1,
                "Difference, p, status and claims are of the first reading, "
                f"{describe_reduction(self.read).lower()}.",
            )
        note = (
            f"{metric_heading(recipe.metric)}, {describe_reduction(self.read).lower()}. "
            f"{' '.join(remarks)}"
        )
        return Sheet("The paper beside ours", heads, rows, note, lead=True)

    def _format_cells(self, cell: Cell, with_metric: bool) -> list[str]:
        metric = [metric_heading(cell.metric)] if with_metric else []
        ours = [format_number(number) for number in (cell.ours, *cell.also)]
        runs = str(cell.runs) + (f" ({cell.diverged} diverged)" if cell.diverged else "")
        p = f"{cell.welch:.2g}" if math.isfinite(cell.welch) else "-"
        verdict = (
            [f"{cell.difference:+.2f}", p, cell.status]
            if self.comparable
            else ["-", "-", "no comparison"]
        )
        return [
            cell.task,
            cell.algorithm,
            *metric,
            format_number(cell.paper),
            *ours,
            runs,
            *verdict,
        ]

    def csv(self) -> str:
        """Returns the numbers as a table; verdicts are 1 or 0, or empty where there is none."""
        paper, ours = (
            ["paper_mean", "paper_deviation", "paper_runs"],
            ["ours_mean", "ours_deviation", "units", "runs", "diverged"],
        )
        verdicts = [
            "difference",
            "joint_error",
            "welch_p",
            "within_2_points",
            "within_two_errors",
            "status",
        ]
        also = [
            f"{read}_{statistic}"
            for read in self.recipe.also_read
            for statistic in ("mean", "deviation")
        ]
        return _to_csv(
            ["task", "algorithm", "metric", *paper, *ours, *verdicts, *also],
            map(self._csv_cells, self.rows),
        )

    def _csv_cells(self, row: Cell) -> list[str]:
        # the paper's mean, deviation and runs; then ours, units, runs and how many diverged
        numbers = [f"{x:.6g}" for x in (*row.paper, *row.ours, row.runs, row.diverged)]
        errors = [f"{x:.6g}" for x in (row.difference, row.error, row.welch)]
        within = [
            "" if verdict is None else str(int(verdict))
            for verdict in (row.within_points, row.within_errors)
        ]
        # runs of another model get empty verdicts: their columns stay
        verdicts = (
            [*errors, *within, row.status] if self.comparable else [*[""] * 5, "no comparison"]
        )
        also = [f"{x:.6g}" for number in row.also for x in number[:2]]
        return [row.task, row.algorithm, row.metric, *numbers, *verdicts, *also]

    def claims_csv(self) -> str:
        """Returns all comparisons that the verdicts rest on; `p_against_holm` is corrected over
        those of the claim.
        """
        numbers = ["mean", "low", "high", "p_for", "p_against", "p_against_holm"]
        rows = []
        for text, evidence in self.verdicts:
            for comparison, adjusted in zip(
                evidence.parts,
                holm([comparison.behind for comparison in evidence.parts]),
                strict=True,
            ):
                # mean and interval of the effect, then the p-values for and against
                values = [*comparison.effect[:3], comparison.ahead, comparison.behind, adjusted]
                claim_cells = [
                    text,
                    evidence.verdict,
                    comparison.task,
                    comparison.about,
                    evidence.claimed,
                    comparison.effect.units,
                    comparison.effect.unit,
                ]
                rows.append([*claim_cells, *(f"{value:.6g}" for value in values)])
        return _to_csv(
            ["claim", "verdict", "task", "comparison", "quantity", "units", "unit", *numbers], rows
        )

    def readme(
        self,
        versions: Mapping[str, Any],
        settings: Sequence[str],
        seconds: float,
        others: Sequence[str] = (),
        top: Sequence[str] = (),
    ) -> str:
        """Returns all of it as Markdown.

        Args:
            versions: of the libraries that made the runs.
            settings: names of the configuration files.
            seconds: wall time of all runs together.
            others: sentences about runs with other versions.
            top: paragraphs above the tables: the conclusion and the pictures.
        """
        recipe = self.recipe
        sections = [
            f"# {recipe.title}",
            f"{recipe.paper}, {recipe.shows}. Scale: {recipe.ran}.",
            *top,
        ]
        if recipe.not_obtainable:
            sections.append(f"Data not obtainable: {recipe.not_obtainable}.")
        if self.left_out:
            sections.append(f"Not run: {', '.join(self.left_out)}.")
        # a sheet of one column is a list, others are tables
        for sheet in self.sheets():
            head = [" | ".join(sheet.head), " | ".join("---" for _ in sheet.head)]
            rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in sheet.rows]
            table = "\n".join(f"| {line} |" for line in [*head, *rows])
            bullet_list = "\n".join(f"- {row[0]}" for row in sheet.rows)
            body = table if len(sheet.head) > 1 else bullet_list
            sections.append("\n\n".join(filter(None, [f"## {sheet.title}", body, sheet.note])))
        version_text = ", ".join(f"{name} {version}" for name, version in versions.items())
        spent = f"Wall time of all runs together: {seconds:.0f} s."
        sections.append(f"## How it was made\n\n{' '.join([spent, f'{version_text}.', *others])}")
        sections.append(f"Settings: {', '.join(f'`{name}`' for name in settings)}.")
        return "\n\n".join(sections) + "\n"


def metric_heading(metric: str) -> str:
    """Returns the name of a metric as a heading."""
    return metric.replace("_", " ").capitalize()


def format_number(number: Number) -> str:
    """Returns a mean, with its deviation where it is known."""
    return f"{number.mean:.2f}" + (
        f" ± {number.deviation:.2f}" if math.isfinite(number.deviation) else ""
    )


def _to_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(head)
    table.writerows(rows)
    return buffer.getvalue()


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Prints a recipe's numbers beside the paper's, and its verdicts."""
    sheet = comparison.cell_sheet()
    if sheet.rows:
        table = Table(
            title="The paper beside ours",
            title_justify="left",
            header_style="dim",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        # the first two columns are names, the others numbers
        for position, head in enumerate(sheet.head):
            table.add_column(head.lower(), justify="left" if position < 2 else "right")
        for row in sheet.rows:
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)
    if comparison.length:
        console.print(comparison.length, highlight=False, style="yellow")
    for text, evidence in comparison.verdicts:
        tasks = f"; in the mean {evidence.direction}" if evidence.direction else ""
        line = f"{evidence.verdict.upper()}: {text} ({evidence.text}{tasks})"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
