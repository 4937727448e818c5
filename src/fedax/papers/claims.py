"""Sentences of a paper with a check, and the verdict of the runs on them."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from fedax.experiments.config.sections import Table
from fedax.papers.numbers import Results
from fedax.results.tables.reductions import Reduction
from fedax.results.tables.statistics import (
    LEVEL,
    Effect,
    digits,
    effect_of,
    interval_text,
    partial_conjunction,
    ratio_of,
)
from fedax.results.tables.summary import counted, quantity_of

Verdict = Literal["holds", "does not hold", "undecided", "not run"]
NEEDED = {
    "best": ("a",),
    "better": ("a", "b"),
    "close": ("a", "b"),
    "order": ("among",),
    "ratio": ("a", "b"),
    "below": ("a",),
    "above": ("a",),
    "rises": ("a",),
}
"""The algorithms that a check compares."""


class Part(NamedTuple):
    """One comparison of a claim.

    Attributes:
        task: on which; of `rises`, between which two.
        comparison: of which algorithms, such as `A minus B`.
        units, unit: as those of `Effect`.
        mean, low, high: what the runs show with the 95 % interval, in the unit of `quantity_of`:
            the difference of the two, of `ratio` the ratio, of `below` and `above` the number
            itself. The margin of the claim is not part of it.
        p_for, p_against: p-values of the two verdicts, `ahead` and `behind` of `Effect`.
        agrees: whether the mean is as claimed, without regard to its p-value.
    """

    task: str
    comparison: str
    units: int
    unit: str
    mean: float
    low: float
    high: float
    p_for: float
    p_against: float
    agrees: bool


class Evidence(NamedTuple):
    """A verdict and what it rests on.

    Attributes:
        verdict: of all tasks together.
        text: the comparison that decides, with its interval and what is claimed.
        direction: on how many tasks the means are as claimed.
        parts: all comparisons.
        claimed: the quantity of the comparisons, and the claim about it.
    """

    verdict: Verdict
    text: str = ""
    direction: str = ""
    parts: Sequence[Part] = ()
    claimed: str = ""


class Claim(Table):
    """A sentence of a paper with the check that decides it.

    Args:
        text: the sentence, in plain words.
        check: `best` (`a` is better than all of `among`, by default all others), `better` (`a` than
            `b`, by at least `margin`), `close` (`a` and `b` differ by at most `margin`), `order`
            (each of `among` is better than the next), `ratio` (`a` is at least `margin` times `b`),
            `below` and `above` (`a` is, of `margin`), `rises` (of `a`, the metric is larger on each
            of `tasks` than on the one before, whether or not more is better; runs are paired by
            seed).
        a, b, among: labels of algorithms.
        margin: as the check says, in the metric's unit (accuracies in percent).
        tasks: titles of the tasks on which it is claimed, by default all.
        at_least: on how many of them it is claimed to hold, by default on each.
        metric, read: the compared numbers, by default those of the recipe.
        exact: the runs do not depend on chance, so that a single one decides.
    """

    text: str
    check: Literal["best", "better", "close", "order", "ratio", "below", "above", "rises"]
    a: str | None = None
    b: str | None = None
    among: list[str] | None = None
    margin: float = 0.0
    tasks: list[str] | None = None
    at_least: int | None = Field(None, ge=1)
    metric: str | None = None
    read: Reduction | None = None
    exact: bool = False

    @model_validator(mode="after")
    def _names_its_algorithms(self) -> "Claim":
        for name in NEEDED[self.check]:
            if getattr(self, name) is None:
                raise ValueError(f"the check {self.check!r} needs {name!r}")
        return self

    def judge(
        self,
        results: Results,
        metric: str,
        read: str,
        tasks: Sequence[str] = (),
        algorithms: Sequence[str] = (),
    ) -> Evidence:
        """Judges the claim.

        It holds if every comparison on every task has p < 0.05 (`Effect.ahead` at most `LEVEL`),
        and does not hold if one has p < 0.05 for the opposite after Holm's correction over tasks
        and pairs. With `at_least` it needs that number of tasks, see
        `fedax.results.tables.statistics.partial_conjunction`. Comparisons without runs have p = 1.

        Args:
            results: the runs.
            metric, read: of the recipe.
            tasks, algorithms: that the claim is about, if it names none; by default those that have
                run.
        """
        metric, read = self.metric or metric, self.read or read
        titles = list(self.tasks or tasks or results.tasks)
        parts = []
        if self.check == "rises":
            for low, high in itertools.pairwise(titles):
                before, after = (results.of(task, self.a, metric, read) for task in (low, high))
                gaps = _subtract(after, before)
                parts.append(self._test(results, f"{low} to {high}", str(self.a), gaps, [gaps]))
        else:
            for task in titles:
                parts += self._compare_on(results, task, metric, read, algorithms)
        ran = [part for part in parts if part.units]
        if not ran:
            return Evidence("not run", parts=parts)
        by_task = [list(group) for _, group in itertools.groupby(parts, lambda part: part.task)]
        verdict = self._decide(by_task)
        if verdict == "does not hold":
            deciding = min(ran, key=lambda part: part.p_against)
        else:
            deciding = max(ran, key=lambda part: (part.p_for, -part.p_against))
        claimed = self._describe(results, metric, read)
        interval = interval_text(deciding.mean, deciding.low, deciding.high)
        units = f"{deciding.units} {deciding.unit}"
        text = f"{deciding.task}: {deciding.comparison} {interval} {claimed} ({units})"
        agreeing = sum(all(part.agrees for part in group) for group in by_task)
        direction = f"{agreeing} of {counted(len(by_task), 'task')}"
        if len(ran) < len(parts):
            direction += f", {len(parts) - len(ran)} of {len(parts)} comparisons not run"
        return Evidence(verdict, text, direction, parts, claimed)

    def _decide(self, by_task: Sequence[Sequence[Part]]) -> Verdict:
        """Decides the claim by the p-values of the comparisons on each task."""
        # tasks on which the claim has to hold
        needed = self.at_least or len(by_task)
        # all comparisons on a task have to hold: the largest p counts, without a correction
        ahead = np.array([max(part.p_for for part in group) for group in by_task])
        if partial_conjunction(ahead, needed) <= LEVEL:
            return "holds"
        # one comparison refutes, so the smallest p counts, corrected for their number
        behind = [min(len(group) * min(part.p_against for part in group), 1.0) for group in by_task]
        if partial_conjunction(np.array(behind), len(by_task) - needed + 1) <= LEVEL:
            return "does not hold"
        return "undecided"

    def _describe(self, results: Results, metric: str, read: str) -> str:
        """Returns the quantity of the comparisons, and the claim about it."""
        margin = digits(self.margin)
        bounds = {
            "rises": "above 0",
            "ratio": f"at least {margin}",
            "above": f"above {margin}",
            "below": f"below {margin}",
            "close": f"between -{margin} and {margin}",
        }
        if self.check in bounds:
            bound = bounds[self.check]
        elif results.higher_is_better(metric, read):
            bound = f"above {margin}"
        else:
            bound = f"below {digits(0.0 - self.margin)}"
        quantity = quantity_of(metric, read)
        if self.check in ("below", "above"):
            # accuracies themselves are in percent, their differences in points
            quantity = quantity.replace("points", "percent", 1)
        return f"in {quantity}, claimed {bound}"

    def _compare_on(
        self, results: Results, task: str, metric: str, read: str, algorithms: Sequence[str]
    ) -> list[Part]:
        """Compares algorithms on one task."""
        margin = self.margin
        if self.check in ("below", "above"):
            # runs without a number count against the claim
            sign = 1 if self.check == "above" else -1
            numbers = results.of(task, self.a, metric, read, -sign * math.inf)
            tested = [sign * (numbers - margin)]
            return [self._test(results, task, str(self.a), numbers, tested)]
        if self.check == "ratio":
            a = results.of(task, self.a, metric, read, -math.inf)
            b = results.of(task, self.b, metric, read, math.inf)
            # of the same runs, so that Fieller's interval can use their covariance
            a, b = a.align(b, join="inner")
            over, unit = results.units(a)
            effect = ratio_of(over, results.units(b)[0], unit, self.exact)
            tested = [_subtract(a, margin * b)]
            return [self._test(results, task, f"{self.a} over {self.b}", a, tested, effect)]
        parts = []
        for first, second in self.pairs(algorithms or results.algorithms(task)):
            a, b = (results.of(task, name, metric, read) for name in (first, second))
            gaps = _subtract(a, b)
            if self.check == "close":
                # two one-sided tests
                tested = [margin - gaps, margin + gaps]
            else:
                sign = 1 if results.higher_is_better(metric, read) else -1
                tested = [sign * gaps - margin]
            parts.append(self._test(results, task, f"{first} minus {second}", gaps, tested))
        return parts

    def _test(
        self,
        results: Results,
        task: str,
        about: str,
        shown: pd.Series,
        tested: Sequence[pd.Series],
        effect: Effect | None = None,
    ) -> Part:
        """Tests whether all of some quantities are above zero; shown is another one, or an effect
        of its own.
        """
        effect = effect or effect_of(*results.units(shown), self.exact)
        tests = [effect_of(*results.units(gaps), self.exact) for gaps in tested]
        return Part(
            task,
            about,
            *(effect.units, effect.unit, effect.mean, effect.low, effect.high),
            max(test.ahead for test in tests),
            min(test.behind for test in tests),
            all(test.mean > 0 for test in tests),
        )

    def pairs(self, algorithms: Sequence[str]) -> list[tuple[str, str]]:
        """Returns which algorithms are compared, the one that is claimed to be better first;
        `algorithms` are all there are.
        """
        if self.check == "order":
            return list(itertools.pairwise(self.among or []))
        if self.check == "best":
            return [(str(self.a), other) for other in self.among or algorithms if other != self.a]
        return [(str(self.a), str(self.b))]


def _subtract(a: pd.Series, b: pd.Series) -> pd.Series:
    """Returns the differences of the runs that both have."""
    a, b = a.align(b, join="inner")
    # infinite minus infinite: neither of the two gets there
    return (a - b).fillna(0.0)
