"""Sentences of a paper with a check, and the verdict of the runs on them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from pydantic import BeforeValidator, Field

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
PARTS = (
    "task",
    "comparison",
    "units",
    "unit",
    "mean",
    "low",
    "high",
    "p_for",
    "p_against",
    "agrees",
)
"""Columns of the comparisons of a claim:

- `task`: on which; of `rises`, between which two. `comparison`: of which algorithms, such as `A
  minus B`. `units`, `unit`: as those of `Effect`.
- `mean`, `low`, `high`: what the runs show with the 95 % interval, in the unit of `quantity_of`:
  the difference of the two, of `ratio` the ratio, of `below` and `above` the number itself. The
  margin of the claim is not part of it.
- `p_for`, `p_against`: p-values of the two verdicts, `ahead` and `behind` of `Effect`. `agrees`:
  whether the mean is as claimed, without regard to its p-value.
"""


class Evidence(NamedTuple):
    """A verdict and what it rests on.

    Attributes:
        verdict: of all tasks together.
        text: the comparison that decides, with its interval and what is claimed.
        direction: on how many tasks the means are as claimed.
        parts: all comparisons, a row each with the columns `PARTS`.
        claimed: the quantity of the comparisons, and the claim about it.
    """

    verdict: Verdict
    text: str = ""
    direction: str = ""
    parts: pd.DataFrame = pd.DataFrame(columns=PARTS)
    claimed: str = ""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Claim(Table):
    """A sentence of a paper with the check that decides it.

    Args:
        text: the sentence, in plain words.
        check: `better` (`a` is better than each of `b`, by at least `margin`), `close` (`a` and
            each of `b` differ by at most `margin`), `order` (`a` is better than the first of `b`,
            and each of these than the next), `ratio` (`a` is at least `margin` times each of `b`),
            `below` and `above` (`a` is, of `margin`), `rises` (of `a`, the metric is larger on each
            of `tasks` than on the one before, whether or not more is better; runs are paired by
            seed).
        a: label of an algorithm.
        b: labels of those that it is compared with, or of one; by default all others.
        margin: as the check says, in the metric's unit (accuracies in percent).
        tasks: titles of the tasks on which it is claimed, by default all.
        at_least: on how many of them it is claimed to hold, by default on each.
        metric, read: the compared numbers, by default those of the recipe.
        exact: the runs do not depend on chance, so that a single one decides.
    """

    text: str
    check: Literal["better", "close", "order", "ratio", "below", "above", "rises"]
    a: str
    b: Annotated[list[str], BeforeValidator(_listed)] = []
    margin: float = 0.0
    tasks: list[str] | None = None
    at_least: int | None = Field(None, ge=1)
    metric: str | None = None
    read: Reduction | None = None
    exact: bool = False

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
            tasks, algorithms: that the claim is about, if it names none; by default the tasks that
                have run.
        """
        metric = self.metric or metric
        read = self.read or read
        titles = list(self.tasks or tasks or results.tasks)
        rows = [
            [
                task,
                about,
                *shown[5:],
                *shown[:3],
                max(effect.ahead for effect in tested),
                min(effect.behind for effect in tested),
                all(effect.mean > 0 for effect in tested),
            ]
            for task, about, shown, tested in self._compare(
                results, titles, metric, read, algorithms
            )
        ]
        parts: Any = pd.DataFrame(rows, columns=PARTS)
        ran = parts[parts["units"] > 0]
        if ran.empty:
            return Evidence("not run", parts=parts)
        groups = parts.groupby("task", sort=False)
        # tasks on which the claim has to hold
        needed = self.at_least or len(groups)
        # all comparisons on a task have to hold: the largest p counts, without a correction
        ahead = groups["p_for"].max().to_numpy()
        # one comparison refutes, so the smallest p counts, corrected for their number
        behind = (groups["p_against"].min() * groups.size()).clip(upper=1.0).to_numpy()
        verdict: Verdict = "undecided"
        # tasks on which it need not hold do not decide
        deciding = ran[ran["p_for"] <= sorted(ahead)[:needed][-1]]
        deciding = deciding.sort_values(["p_for", "p_against"], ascending=[False, True]).iloc[0]
        if partial_conjunction(ahead, needed) <= LEVEL:
            verdict = "holds"
        elif partial_conjunction(behind, len(groups) - needed + 1) <= LEVEL:
            verdict = "does not hold"
            deciding = ran.loc[ran["p_against"].idxmin()]
        claimed = self._describe(results, metric, read)
        interval = interval_text(*deciding[["mean", "low", "high"]])
        about = f"{deciding['task']}: {deciding['comparison']} {interval}"
        text = f"{about} {claimed} ({deciding['units']} {deciding['unit']})"
        direction = f"{groups['agrees'].all().sum()} of {counted(len(groups), 'task')}"
        if len(ran) < len(parts):
            direction += f", {len(parts) - len(ran)} of {len(parts)} comparisons not run"
        return Evidence(verdict, text, direction, parts, claimed)

    def _describe(self, results: Results, metric: str, read: str) -> str:
        """Returns the quantity of the comparisons, and the claim about it."""
        margin = digits(self.margin)
        quantity = quantity_of(metric, read)
        if self.check in ("below", "above"):
            # accuracies themselves are in percent, their differences in points
            quantity = quantity.replace("points", "percent", 1)
            bound = f"{self.check} {margin}"
        elif self.check == "ratio":
            bound = f"at least {margin}"
        elif self.check == "close":
            bound = f"between -{margin} and {margin}"
        elif self.check == "rises" or results.higher_is_better(metric, read):
            bound = f"above {margin}"
        else:
            bound = f"below {digits(0.0 - self.margin)}"
        return f"in {quantity}, claimed {bound}"

    def _compare(
        self,
        results: Results,
        titles: Sequence[str],
        metric: str,
        read: str,
        algorithms: Sequence[str],
    ) -> Iterator[tuple[str, str, Effect, list[Effect]]]:
        """Yields the comparisons: the task, of which algorithms, the effect that is shown, and
        those that have to be above zero.
        """
        margin = self.margin
        others = [name for name in self.b or algorithms if name != self.a]
        pairs = [(self.a, other) for other in others]
        if self.check == "order":
            pairs = list(itertools.pairwise([self.a, *others]))

        def test(values: pd.Series) -> Effect:
            return effect_of(*results.units(values), self.exact)

        if self.check == "rises":
            for low, high in itertools.pairwise(titles):
                before, after = (results.of(task, self.a, metric, read) for task in (low, high))
                gaps = test(_subtract(after, before))
                yield f"{low} to {high}", self.a, gaps, [gaps]
            return
        for task in titles:
            if self.check in ("below", "above"):
                # runs without a number count against the claim
                sign = 1 if self.check == "above" else -1
                numbers = results.of(task, self.a, metric, read, -sign * math.inf)
                yield task, self.a, test(numbers), [test(sign * (numbers - margin))]
                continue
            for first, second in pairs:
                if self.check == "ratio":
                    a = results.of(task, first, metric, read, -math.inf)
                    b = results.of(task, second, metric, read, math.inf)
                    # of the same runs, so that Fieller's interval can use their covariance
                    a, b = a.align(b, join="inner")
                    shown = ratio_of(results.units(a)[0], *results.units(b), self.exact)
                    yield task, f"{first} over {second}", shown, [test(_subtract(a, margin * b))]
                    continue
                a, b = (results.of(task, name, metric, read) for name in (first, second))
                gaps = _subtract(a, b)
                if self.check == "close":
                    # two one-sided tests
                    tested = [test(margin - gaps), test(margin + gaps)]
                else:
                    sign = 1 if results.higher_is_better(metric, read) else -1
                    tested = [test(sign * gaps - margin)]
                yield task, f"{first} minus {second}", test(gaps), tested


def _subtract(a: pd.Series, b: pd.Series) -> pd.Series:
    """Returns the differences of the runs that both have."""
    a, b = a.align(b, join="inner")
    # infinite minus infinite: neither of the two gets there
    return (a - b).fillna(0.0)
