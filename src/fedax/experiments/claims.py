"""What a paper says beside what the runs say: numbers against targets, and claims in words with a verdict from the data."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import stats

from fedax.core import InvalidInput, UnknownName
from fedax.report import Record
from fedax.report.reading import read_curve
from fedax.report.summary import is_percent, more_is_better

Verdict = Literal["holds", "does not hold", "undecided"]
LEVEL = 0.95
"""Confidence of a verdict: of the interval for a mean paired difference."""


class Run(NamedTuple):
    """What pairs runs of different algorithms: the draw of the data, and the seed."""

    draw: int
    seed: int


Values = dict[Run, float]


@dataclasses.dataclass(frozen=True)
class Results:
    """The runs of an experiment, read as numbers.

    Args:
        records: the runs.
        methods: the algorithm that a record's label stands for, where that is not the label itself (members of grids).
    """

    records: Sequence[Record]
    methods: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    def of(self, task: str, algorithm: str, metric: str, read: str) -> Values:
        """The number of every run; accuracies in percent. A diverged run counts as worst, plus or minus infinity.

        Args:
            task: title of the task.
            algorithm: label of the algorithm.
            metric: name of a scalar metric.
            read: how a curve becomes a number, see `fedax.report.reading.read_curve`.
        """
        found: Values = {}
        for record in self.records:
            if record.task != task or self.methods.get(record.label, record.label) != algorithm:
                continue
            if metric not in record.scalars:
                raise UnknownName.among(f"metric of {record.label}", metric, record.scalars)
            curve = record.scalars[metric] * (100 if is_percent(metric) else 1)
            fine = record.outcome.kind not in ("diverged", "non-finite")
            along = record.bits / 1e9 if read.startswith("gigabits_to_") else record.rounds
            value = read_curve(curve, along, read, higher_is_better(metric)) if fine else math.nan
            worst = -math.inf if higher_is_better(metric, read) else math.inf
            found[Run(record.draw, record.seed)] = value if math.isfinite(value) else worst
        return found

    def algorithms(self, task: str) -> list[str]:
        """Those that have run on a task, in order."""
        return list(dict.fromkeys(self.methods.get(r.label, r.label) for r in self.records if r.task == task))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(record.task for record in self.records))


def higher_is_better(metric: str, read: str = "last") -> bool:
    """Accuracies: more is better. Losses, gaps and variances of accuracies, and rounds or bits until something: less."""
    return more_is_better(metric) and not read.startswith(("rounds_to_", "gigabits_to_"))


class Evidence(NamedTuple):
    """A verdict and what it rests on, in words."""

    verdict: Verdict
    text: str


def decide(differences: Values, level: float = LEVEL, exact: bool = False) -> Evidence:
    """Whether paired differences are above zero.

    The units are the draws of the data if there are several (the mean over the seeds of each), else the seeds. It holds if the
    confidence interval of the mean (Student's t) is above zero, does not hold if it is below, and is undecided otherwise, or
    with a single unit. With infinite differences (diverged runs), or with `exact` ones, in which there is no chance, all units
    have to agree.

    >>> decide({Run(0, seed): 1.0 + 0.1 * seed for seed in range(3)}).verdict
    'holds'
    >>> decide({Run(0, 0): 1.0}).verdict
    'undecided'
    """
    draws = sorted({run.draw for run in differences})
    if len(draws) > 1:
        values = np.array([_mean([d for run, d in differences.items() if run.draw == draw]) for draw in draws])
    else:
        values = np.array(list(differences.values()))
    unit, count = "draws" if len(draws) > 1 else "seeds", len(values)
    if exact and count:
        return Evidence(_agreed(values), f"{', '.join(f'{value:+.3g}' for value in values)}, without chance")
    if count < 2:
        single = "no pair" if not count else f"one pair, difference {values[0]:+.3g}"
        return Evidence("undecided", f"{single}; at least two are needed")
    if not np.isfinite(values).all():
        return Evidence(_agreed(values), f"with diverged runs; ahead in {int((values > 0).sum())} of {count} {unit}")
    mean, error = float(values.mean()), float(values.std(ddof=1) / math.sqrt(count))
    reach = float(stats.t.ppf((1 + level) / 2, count - 1)) * error
    verdict: Verdict = "holds" if mean - reach > 0 else "does not hold" if mean + reach < 0 else "undecided"
    return Evidence(verdict, f"{mean:+.3g} ± {error:.2g} ({count} {unit})")


def _agreed(values: np.ndarray) -> Verdict:
    return "holds" if (values > 0).all() else "does not hold" if (values < 0).all() else "undecided"


def _mean(values: Sequence[float]) -> float:
    with np.errstate(invalid="ignore"):
        mean = float(np.mean(values))
    return 0.0 if math.isnan(mean) else mean


class Claim(BaseModel):
    """A sentence of a paper with the check that decides it.

    Args:
        text: the sentence, in plain words.
        check: `best` (`a` is better than all of `among`, by default all others), `better` (`a` than `b`, by at least `margin`),
            `close` (`a` and `b` differ by at most `margin`), `order` (each of `among` is better than the next), `ratio` (`a` is
            at least `margin` times `b`), `below` and `above` (`a` is, of `margin`), `diverges` (all runs of `a`
            diverge), `rises` (of `a`, the metric is larger on each of `tasks` than on the one before, whether or not more is
            better; runs are paired by seed).
        a, b, among: labels of algorithms.
        margin: as the check says, in the metric's unit (accuracies in percent).
        tasks: titles of the tasks on which it is claimed, by default all; it has to hold on each.
        metric, read: what is compared, by default those of the recipe.
        exact: the runs do not depend on chance, so that a single one decides.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    check: Literal["best", "better", "close", "order", "ratio", "below", "above", "diverges", "rises"]
    a: str | None = None
    b: str | None = None
    among: list[str] | None = None
    margin: float = 0.0
    tasks: list[str] | None = None
    metric: str | None = None
    read: str | None = None
    exact: bool = False

    def judge(self, results: Results, metric: str, read: str) -> Evidence:
        """The verdict: of all tasks together, with what it rests on."""
        metric, read = self.metric or metric, self.read or read
        tasks = results.tasks if self.tasks is None else self.tasks
        if self.check == "rises":
            curves = {task: results.of(task, self._named(self.a), metric, read) for task in tasks}
            steps = [
                (low, high, _paired(curves[high], curves[low], operator.sub)) for low, high in itertools.pairwise(tasks)
            ]
            return _joined([(f"{low} to {high}: ", decide(step, exact=self.exact)) for low, high, step in steps])
        found = [(task, self._on(results, task, metric, read)) for task in tasks]
        return _joined([(f"{task}: " if len(found) > 1 else "", evidence) for task, evidence in found])

    def _on(self, results: Results, task: str, metric: str, read: str) -> Evidence:
        def values(algorithm: str | None) -> Values:
            return results.of(task, self._named(algorithm), metric, read)

        def ahead(a: str | None, b: str | None, level: float = LEVEL) -> Evidence:
            sign = 1 if higher_is_better(metric, read) else -1
            return decide(_paired(values(a), values(b), lambda x, y: sign * (x - y) - self.margin), level, self.exact)

        if self.check == "better":
            return ahead(self.a, self.b)
        if self.check == "close":
            return decide_close(_paired(values(self.a), values(self.b), lambda x, y: x - y), self.margin, self.exact)
        if self.check == "ratio":
            return decide(_paired(values(self.a), values(self.b), lambda x, y: x - self.margin * y), exact=self.exact)
        if self.check in ("below", "above"):
            side = 1 if self.check == "above" else -1
            return decide({run: side * (value - self.margin) for run, value in values(self.a).items()}, exact=self.exact)
        if self.check == "diverges":
            runs = list(values(self.a).values())
            bad = sum(not math.isfinite(value) for value in runs)
            verdict: Verdict = "undecided" if not runs or 0 < bad < len(runs) else "holds" if bad else "does not hold"
            return Evidence(verdict, f"{bad} of {len(runs)} runs diverged")
        if self.check == "order":
            line = self.among or []
            pairs: list[tuple[str | None, str]] = list(itertools.pairwise(line))
        else:
            pairs = [(self.a, other) for other in self.among or results.algorithms(task) if other != self.a]
        # one of several comparisons may fail by chance: to refute, each gets its part of the error
        parts = []
        for a, b in pairs:
            evidence, strict = ahead(a, b), ahead(a, b, 1 - (1 - LEVEL) / len(pairs))
            refuted = evidence.verdict == "does not hold" and strict.verdict != "does not hold"
            parts.append((f"{a} over {b}: ", evidence._replace(verdict="undecided") if refuted else evidence))
        return _joined(parts)

    def _named(self, algorithm: str | None) -> str:
        if algorithm is None:
            raise InvalidInput.of(f"claim {self.text!r}", self.check, "a check with all the algorithms it needs")
        return algorithm


def decide_close(differences: Values, margin: float, exact: bool = False) -> Evidence:
    """Whether the mean of paired differences is within a margin: two one-sided tests."""
    below = decide({run: margin - value for run, value in differences.items()}, exact=exact)
    above = decide({run: margin + value for run, value in differences.items()}, exact=exact)
    text = decide(differences, exact=exact).text
    return Evidence(_all([below.verdict, above.verdict]), text)


def _paired(a: Values, b: Values, difference: Any) -> Values:
    return {run: difference(a[run], b[run]) for run in a if run in b}


def _all(verdicts: Sequence[Verdict]) -> Verdict:
    if not verdicts or ("undecided" in verdicts and "does not hold" not in verdicts):
        return "undecided"
    return "does not hold" if "does not hold" in verdicts else "holds"


def _joined(parts: Sequence[tuple[str, Evidence]]) -> Evidence:
    """All parts have to hold; what decided comes first."""
    verdict = _all([evidence.verdict for _, evidence in parts])
    deciding = [part for part in parts if part[1].verdict == verdict] or list(parts)
    return Evidence(verdict, "; ".join(head + evidence.text for head, evidence in deciding) or "no runs")


class Beside(NamedTuple):
    """A number of the paper beside ours; deviations are sample standard deviations over runs, NaN if not known."""

    task: str
    algorithm: str
    paper: tuple[float, float]
    ours: tuple[float, float]
    runs: int

    @property
    def difference(self) -> float:
        return self.ours[0] - self.paper[0]

    @property
    def joint(self) -> float:
        r"""The difference in units of the joint deviation $\sqrt{s_{paper}^2 + s_{ours}^2}$; NaN if it is zero or unknown."""
        deviation = math.hypot(*(s if math.isfinite(s) else 0.0 for s in (self.paper[1], self.ours[1])))
        return self.difference / deviation if deviation > 0 and math.isfinite(self.difference) else math.nan


def beside(results: Results, targets: Mapping[str, Mapping[str, Sequence[float]]], metric: str, read: str) -> list[Beside]:
    """The targets, by task and algorithm `[mean]` or `[mean, deviation]`, of those that have run."""
    rows = []
    for task, numbers in targets.items():
        for algorithm, target in numbers.items():
            values = np.array(list(results.of(task, algorithm, metric, read).values()))
            if not len(values):
                continue
            finite = np.isfinite(values).all()
            mean = float(values.mean()) if finite else float(values[~np.isfinite(values)][0])
            deviation = float(values.std(ddof=1)) if finite and len(values) > 1 else math.nan
            paper = (float(target[0]), float(target[1]) if len(target) > 1 else math.nan)
            rows.append(Beside(task, algorithm, paper, (mean, deviation), len(values)))
    return rows
