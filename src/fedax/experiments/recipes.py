"""Recipes: one table or figure of a paper as a file, with the paper's numbers and claims."""

import copy
import csv
import io
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedax.core import InvalidInput, UnknownName
from fedax.experiments.claims import Beside, Claim, Evidence, Results, beside
from fedax.experiments.leaks import leak_sheet
from fedax.experiments.sections import AuditSection, explained
from fedax.experiments.source import Place, Source, place_value
from fedax.experiments.spec import Experiment
from fedax.report import Record, Sheet
from fedax.report.reading import reading, reads_values

AUDITED = ", membership inference"
"""After a variant's title: the task in which it is attacked."""
SCALES = ("smoke", "small", "paper")
"""A few rounds to see that it runs; what a laptop does while one waits; the paper's own size."""


class Variant(BaseModel):
    """One task of a recipe: its title, and what it changes in the experiment, by dotted path."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    set: dict[str, Any] = {}


class Scale(BaseModel):
    """How much of a recipe is run: changes to the experiment by dotted path, data draws, which variants and algorithms (by
    their labels; all by default), and how curves are read, where a shorter run has fewer observations to average.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    set: dict[str, Any] = {}
    variants: list[str] | None = None
    algorithms: list[str] | None = None
    draws: list[int] | None = None
    read: str | None = None


class Recipe(BaseModel):
    """A table or figure of a paper, ready to run; files are in the folder `recipes` of the package.

    Args:
        paper: authors, title, where it appeared.
        shows: which table or figure.
        title: of the report.
        metric, read: what is compared with the paper, see `fedax.experiments.claims.Results.of`.
        chosen: what the paper leaves open, and what was chosen, a sentence each.
        draws: seeds of the data; every variant runs on each. Not given: the task's own.
        select_draws: those of them on which the members of a grid run to be selected; the selected one runs on all. By default all.
        experiment: the common part, as in an experiment file, without `name`.
        variant: the tasks; the claims and targets name them.
        audit: membership inference beside every variant, as tasks of their own (`<variant>, membership inference`).
        scale: for each of `smoke`, `small` and `paper`, what it changes.
        targets: the paper's numbers, by variant and algorithm, `[mean]` or `[mean, deviation]`; accuracies in percent.
        claim: what the paper says.
        ran: the scale, in the copy that a run directory keeps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    paper: str
    shows: str
    title: str
    metric: str = "test_accuracy"
    read: str = "last"
    chosen: list[str] = []
    draws: list[int] | None = None
    select_draws: list[int] | None = None
    experiment: dict[str, Any]
    variant: list[Variant] = Field(min_length=1)
    audit: AuditSection | None = None
    scale: dict[str, Scale]
    targets: dict[str, dict[str, list[float]]] = {}
    claim: list[Claim] = []
    ran: str | None = None

    @classmethod
    def parse(cls, text: str, name: str = "recipe") -> "Recipe":
        """Reads and checks TOML text.

        Raises:
            SpecError: malformed, an unknown key, a value out of range, a name that is not in it; with the line.
        """
        source = Source(text, name)
        try:
            recipe = cls.model_validate(source.document)
        except ValidationError as error:
            raise source.error(*explained(error, cls)) from error
        try:
            recipe.check()
        except InvalidInput as error:
            raise source.error((), str(error)) from error
        return recipe

    def check(self) -> None:
        """Refuses names of variants, algorithms and scales that are not there."""
        if set(self.scale) != set(SCALES):
            raise InvalidInput.of("scale", sorted(self.scale), "exactly smoke, small and paper")
        for read in (self.read, *(part.read for part in (*self.scale.values(), *self.claim))):
            if read is not None:
                reading(read)
        variants = self.titles
        algorithms = [section.shown() for section in self._experiment(self.variant[0], {}).algorithm]
        for scale in SCALES:
            for name in self.scale[scale].variants or ():
                _among("scale.variants", name, variants)
            for name in self.scale[scale].algorithms or ():
                _among("scale.algorithms", name, algorithms)
            self.experiments(scale)
        for task, numbers in self.targets.items():
            _among("targets", task, variants)
            for algorithm in numbers:
                _among(f"targets.{task}", algorithm, algorithms)
        for claim in self.claim:
            for task in claim.tasks or ():
                _among(f"tasks of the claim {claim.text!r}", task, variants)
            for name in (claim.a, claim.b, *(claim.among or ())):
                if name is not None:
                    _among(f"claim {claim.text!r}", name, algorithms)

    def only(self, scale: str, variants: Sequence[str] = (), algorithms: Sequence[str] = ()) -> "Recipe":
        """The recipe with fewer variants or algorithms at one scale; all that the scale has, if none are named.

        >>> [e.name for e in load("fedbc-table-1").only("paper", ["E = 1", "E = 5"], ["FedBC"]).experiments("paper")][::3]
        ['E = 1', 'E = 5']

        Raises:
            UnknownName: no such scale, variant or algorithm.
        """
        made = self.experiments(scale)
        for name in variants:
            _among("variant", name, {experiment.name for experiment in made})
        for name in algorithms:
            _among("algorithm", name, {section.shown() for section in made[0].algorithm})
        fewer = {"variants": list(variants) or None, "algorithms": list(algorithms) or None}
        size = self.scale[scale].model_copy(update={key: names for key, names in fewer.items() if names})
        return self.model_copy(update={"scale": self.scale | {scale: size}})

    def experiments(self, scale: str) -> list[Experiment]:
        """The experiments of a scale: every variant on every draw of the data."""
        if scale not in SCALES:
            raise UnknownName.among("scale", scale, SCALES)
        size = self.scale[scale]
        draws = self.draws if size.draws is None else size.draws
        if self.select_draws is not None and not set(self.select_draws) & set(draws or ()):
            raise InvalidInput.of("select_draws", self.select_draws, f"some of the draws {draws} of the scale {scale}")
        made = []
        for variant in (*self.variant, *self._audited()):
            names = {variant.name, variant.name.removesuffix(AUDITED)}
            if size.variants is not None and not names & set(size.variants):
                continue
            for draw in draws or [None]:
                changes = size.set | ({} if draw is None else {"task.seed": draw})
                read = size.read or self.read
                if reads_values(read):
                    changes = {"read": read} | changes
                if self.select_draws is not None and draw not in self.select_draws and "grid" in self.experiment:
                    changes = changes | {"grid.selects": False}
                experiment = self._experiment(variant, changes)
                chosen = [s for s in experiment.algorithm if size.algorithms is None or s.shown() in size.algorithms]
                made.append(experiment.only(chosen))
        return made

    def _experiment(self, variant: Variant, changes: dict[str, Any]) -> Experiment:
        sections = {"name": variant.name, **copy.deepcopy(self.experiment)}
        changes = {p: v for p, v in changes.items() if "audit" in variant.set or not p.startswith("audit.")}
        for path, value in (variant.set | changes).items():
            place: Place = tuple(int(part) if part.isdigit() else part for part in path.split("."))
            place_value(sections, place, value, f"set {path}")
        return Experiment.of(**sections)

    def _audited(self) -> list[Variant]:
        if self.audit is None:
            return []
        return [Variant(name=v.name + AUDITED, set=v.set | {"audit": self.audit.model_dump()}) for v in self.variant]

    @property
    def titles(self) -> list[str]:
        """The tasks' titles: the variants, then their audits."""
        return [variant.name for variant in (*self.variant, *self._audited())]

    @property
    def text(self) -> str:
        """As TOML."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def _among(field: str, name: str, known: Any) -> None:
    if name not in known:
        raise UnknownName.among(field, name, known)


def catalogue() -> dict[str, Any]:
    """The recipes of the package: files by name.

    >>> "fedbc-table-1" in catalogue()
    True
    """
    folder = files("fedax").joinpath("recipes")
    return {f.name.removesuffix(".toml"): f for f in sorted(folder.iterdir(), key=str) if f.name.endswith(".toml")}


def load(name: str) -> Recipe:
    """A recipe by its name, or from a file of one's own.

    Raises:
        UnknownName: no such recipe; the message holds the nearest name.
        SpecError: a file that is no recipe.
    """
    if name.endswith(".toml"):
        return Recipe.parse(Source.read(Path(name)).text, name)
    if name not in catalogue():
        raise UnknownName.among("recipe", name, catalogue())
    return Recipe.parse(catalogue()[name].read_text(encoding="utf-8"), f"{name}.toml")


class Findings:
    """A recipe beside the runs of a directory.

    Args:
        recipe: with the scale that ran.
        records: the runs that reports show.
        experiments: what was run.
    """

    def __init__(self, recipe: Recipe, records: Sequence[Record], experiments: Sequence[Experiment]) -> None:
        self.recipe, ran = recipe, {experiment.name for experiment in experiments}
        self.left_out = [title for title in recipe.titles if title not in ran]
        methods = {member.label: member.method for e in experiments for member in e.members()}
        self.results = results = Results(records, methods)
        self.read = (recipe.scale[recipe.ran].read if recipe.ran else None) or recipe.read
        self.rows: list[Beside] = beside(results, recipe.targets, recipe.metric, self.read)
        self.verdicts: list[tuple[str, Evidence]] = []
        for claim in recipe.claim:
            leaks = (claim.metric or recipe.metric).startswith("auc")
            all_ = [task for task in results.tasks if task.endswith(AUDITED) == leaks]
            tasks = [task for task in claim.tasks or all_ if task in results.tasks]
            evidence = claim.model_copy(update={"tasks": tasks}).judge(results, recipe.metric, self.read)
            self.verdicts.append((claim.text, evidence))

    def sheets(self) -> list[Sheet]:
        """The tables for the report."""
        recipe, heads = self.recipe, ["Task", "Algorithm", "Paper", "Ours", "Runs", "Difference", "In joint deviations"]
        claims = Sheet(
            "Claims", ["Claim", "Verdict", "From"], [[t, e.verdict, e.text] for t, e in self.verdicts], _HOW, lead=True
        )
        note = (
            f"{recipe.metric.replace('_', ' ').capitalize()}, {self.read.replace('_', ' ')}. Scale: {recipe.ran}. ± is the"
        )
        note += " sample standard deviation over the runs; the joint deviation is that of paper and ours together."
        numbers = Sheet("The paper beside ours", heads, [_cells(row) for row in self.rows], note, lead=True)
        open_ = Sheet("What the paper leaves open, and what was chosen", ["Choice"], [[text] for text in recipe.chosen])
        leaks = leak_sheet(self.results.records)
        return [sheet for sheet in (claims, numbers, leaks, open_) if sheet.rows]

    def csv(self) -> str:
        """The numbers as a table."""
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        paper, ours = ["paper_mean", "paper_deviation"], ["ours_mean", "ours_deviation", "runs"]
        table.writerow(["task", "algorithm", *paper, *ours, "difference", "in_joint_deviations"])
        for row in self.rows:
            numbers = [*row.paper, *row.ours, row.runs, row.difference, row.joint]
            table.writerow([row.task, row.algorithm, *(f"{x:.6g}" for x in numbers)])
        return buffer.getvalue()

    def readme(self, versions: Mapping[str, Any], settings: Sequence[str], seconds: float) -> str:
        """All of it as Markdown."""
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
        parts.append(f"## How it was made\n\nWall time of all runs together: {seconds:.0f} s. {made}.")
        parts.append(f"Settings: {', '.join(f'`{name}`' for name in settings)}.")
        return "\n\n".join(parts) + "\n"


_HOW = (
    "Verdicts are from paired differences (same data, same seed) ± their standard errors: 95 % confidence intervals over the draws"
    " of the data if there are several, else over the seeds. A diverged run counts as worst."
)


def _cells(row: Beside) -> list[str]:
    joint = f"{row.joint:+.1f}" if math.isfinite(row.joint) else "-"
    texts = [_number(*row.paper), _number(*row.ours), str(row.runs), f"{row.difference:+.2f}", joint]
    return [row.task, row.algorithm, *texts]


def _number(mean: float, deviation: float) -> str:
    return f"{mean:.2f}" + (f" ± {deviation:.2f}" if math.isfinite(deviation) else "")
