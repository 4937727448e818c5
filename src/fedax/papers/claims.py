"""Sentences of a paper with a check, and the verdict of the runs on them."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedax.core import InvalidInput
from fedax.core.directions import Mode
from fedax.results.tables.numbers import Results, Values, higher_is_better, quantity_of
from fedax.results.tables.reductions import is_value_reduction
from fedax.results.tables.statistics import (
    LEVEL,
    Effect,
    digits,
    effect_of,
    partial_conjunction,
    ratio_of,
)
from fedax.results.tables.summary import counted

Verdict = Literal[
    "holds",
    "does not hold",
    "undecided",
    "holds on what ran",
    "not judged",
    "holds in short runs",
    "does not hold in short runs",
    "holds on what ran, in short runs",
]
Checks = Literal["best", "better", "close", "order", "ratio", "below", "above", "diverges", "rises"]
MOST_SHOWN = 8
"""Tasks whose comparisons stand in a sentence; of more it has the extremes."""


class Part(NamedTuple):
    """One comparison of a claim.

    Attributes:
        task: on which; of `rises`, between which two.
        about: which algorithms, such as `A minus B`.
        effect: what the runs show, in the unit of `quantity_of`: the difference of the two, of
            `ratio` the ratio, of `below` and `above` the number itself. The margin of the claim is
            not part of it.
        ahead, behind: p-values of the two verdicts, as those of `Effect`.
        agrees: whether the mean is as claimed, without regard to its p-value; None without runs.
        text: the effect with its interval.
    """

    task: str
    about: str
    effect: Effect
    ahead: float
    behind: float
    agrees: bool | None
    text: str = ""


class Evidence(NamedTuple):
    """A verdict and what it rests on.

    Attributes:
        verdict: of all tasks together.
        text: the compared quantity and the claim about it; the deciding comparison of each task
            with its interval; how many runs diverged.
        direction: on how many tasks the means are as claimed, as a phrase.
        parts: all comparisons.
        claimed: the quantity of the comparisons, and the claim about it.
    """

    verdict: Verdict
    text: str
    direction: str = ""
    parts: Sequence[Part] = ()
    claimed: str = ""


class Claim(BaseModel):
    """A sentence of a paper with the check that decides it.

    Args:
        text: the sentence, in plain words.
        check: `best` (`a` is better than all of `among`, by default all others), `better` (`a` than
            `b`, by at least `margin`), `close` (`a` and `b` differ by at most `margin`), `order`
            (each of `among` is better than the next), `ratio` (`a` is at least `margin` times `b`),
            `below` and `above` (`a` is, of `margin`), `diverges` (all runs of `a` diverge), `rises`
            (of `a`, the metric is larger on each of `tasks` than on the one before, whether or not
            more is better; runs are paired by seed).
        a, b, among: labels of algorithms.
        margin: as the check says, in the metric's unit (accuracies in percent).
        tasks: titles of the tasks on which it is claimed, by default all.
        at_least: on how many of them it is claimed to hold, by default on each.
        metric, read: the compared numbers, by default those of the recipe.
        exact: the runs do not depend on chance, so that a single one decides.
        mode: `"max"` or `"min"`, the direction of a metric that no observer of this package gives.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    check: Checks
    a: str | None = None
    b: str | None = None
    among: list[str] | None = None
    margin: float = 0.0
    tasks: list[str] | None = None
    at_least: int | None = None
    metric: str | None = None
    read: str | None = None
    exact: bool = False
    mode: Mode | None = None

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
        `fedax.results.tables.statistics.partial_conjunction`. Where tasks or algorithms of the
        claim have not run, it can hold on what ran only.

        Args:
            results: the runs.
            metric, read: of the recipe.
            tasks, algorithms: that the claim is about, if it names none; by default those that have
                run.
        """
        task_names = list(self.tasks or tasks or results.tasks)
        comparisons = self._make_comparisons(
            results, self.metric or metric, self.read or read, task_names, algorithms
        )
        # by task (or by step, for `rises`), all comparisons
        by_task: dict[str, list[Part]] = {}
        for comparison in comparisons:
            by_task.setdefault(comparison.task, []).append(comparison)
        groups = list(by_task.values())
        # of each task the comparisons that have runs
        ran = [
            with_runs
            for group in groups
            if (with_runs := [comparison for comparison in group if comparison.agrees is not None])
        ]
        if not ran:
            return Evidence("undecided", "no runs", "", comparisons)
        is_complete = sum(map(len, ran)) == len(comparisons)
        verdict = self._decide_verdict(groups, [] if is_complete else ran)
        # tasks on which every mean is as claimed; p-values do not count here
        agreeing = sum(all(comparison.agrees for comparison in group) for group in ran)
        claimed = self._describe_claim(results, self.metric or metric, self.read or read)
        text, direction = (
            self._describe_comparisons(results, groups, ran, claimed),
            self._describe_direction(agreeing, len(ran), len(groups)),
        )
        return Evidence(
            verdict, text, direction, comparisons, "" if self.check == "diverges" else claimed
        )

    def _decide_verdict(
        self, groups: Sequence[Sequence[Part]], ran: Sequence[Sequence[Part]]
    ) -> Verdict:
        """Decides the claim by the p-values of its comparisons.

        Args:
            groups: of each task all comparisons; those without runs have p = 1 for and against.
            ran: those that have runs, where they are not all.
        """
        # tasks on which the claim has to hold
        needed = self.at_least or len(groups)
        # a task is as claimed if all of its comparisons are: the largest p counts, without a
        # correction
        task_p = np.array([max(comparison.ahead for comparison in group) for group in groups])
        if partial_conjunction(task_p, needed) <= LEVEL:
            return "holds"
        # it is refuted by one comparison, so the smallest p counts, corrected for their number
        against = np.array(
            [
                min(len(group) * min(comparison.behind for comparison in group), 1.0)
                for group in groups
            ]
        )
        if partial_conjunction(against, len(groups) - needed + 1) <= LEVEL:
            return "does not hold"
        # the same test as the first one, on the comparisons that have runs
        ran_p = np.array([max(comparison.ahead for comparison in group) for group in ran])
        if len(ran_p) and partial_conjunction(ran_p, min(needed, len(ran))) <= LEVEL:
            return "holds on what ran"
        return "undecided"

    def _describe_direction(self, agreeing: int, ran: int, total: int) -> str:
        unit = "step" if self.check == "rises" else "task"
        if ran < total:
            return f"as claimed on {agreeing} of the {counted(ran, unit)} that ran (of {total})"
        return f"as claimed on {agreeing} of {counted(total, unit)}"

    def _describe_claim(self, results: Results, metric: str, read: str) -> str:
        """Returns the quantity that `_describe_comparisons` lists, and the claim about it."""
        ranks = self.check in ("best", "better", "order")  # other checks need no direction
        m, lower = (
            digits(self.margin),
            ranks and not higher_is_better(metric, read, results.records, self.mode),
        )
        claimed = {
            "rises": "above 0",
            "ratio": f"at least {m}",
            "above": f"above {m}",
            "below": f"below {m}",
            "close": f"between -{m} and {m}",
        }.get(self.check, f"below {digits(0.0 - self.margin)}" if lower else f"above {m}")
        quantity = quantity_of(metric, read)
        if self.check in ("below", "above"):  # a value, not a difference
            # accuracies themselves are in percent, their differences in points
            quantity = quantity.replace("points", "percent", 1)
        return f"in {quantity}, claimed {claimed}"

    def _describe_comparisons(
        self,
        results: Results,
        groups: Sequence[Sequence[Part]],
        ran: Sequence[Sequence[Part]],
        claimed: str,
    ) -> str:
        """Returns the comparison of each task that says least for the claim, or of many tasks the
        extremes, with what did not run and what diverged.
        """
        # of each task the comparison that says least for the claim: the largest p-value for it
        deciding = [
            max(group, key=lambda comparison: (comparison.ahead, -comparison.behind))
            for group in ran
        ]
        # one comparison per task, the same everywhere: it is named once, in front
        common = len({comparison.about for comparison in deciding}) == 1 and all(
            len(group) == 1 for group in ran
        )
        phrases = []
        # of many tasks only the smallest and the largest mean are written out
        extremes = sorted(deciding, key=lambda comparison: comparison.effect.mean)
        many = len(deciding) > MOST_SHOWN and self.check != "diverges"
        for comparison in (extremes[0], extremes[-1]) if many else deciding:
            head = ": ".join(
                [comparison.task] * (len(groups) > 1) + [comparison.about] * (not common)
            )
            phrases.append((f"{head}: " if head else "") + comparison.text)
        if many:
            phrases = [f"from {phrases[0]} to {phrases[1]}; all {len(deciding)} are in claims.csv"]
        if self.check != "diverges":
            # the claimed quantity stands once, before the first comparison
            phrases[0] = (
                f"{f'{deciding[0].about} {claimed}' if common else claimed.capitalize()}: "
                f"{phrases[0]}"
            )
            phrases[-1] += _format_counts(ran)
        lacking = sorted(
            {
                comparison.about
                for group in groups
                for comparison in group
                if comparison.agrees is None
            }
        )
        if len(ran) < len(groups):
            phrases.append(f"only {len(ran)} of {len(groups)} tasks ran")
        elif lacking:
            phrases.append(f"did not run: {', '.join(lacking)}")
        if self.check != "diverges":
            phrases += self._describe_diverged(results)
        return "; ".join(phrases)

    def _describe_diverged(self, results: Results) -> Iterator[str]:
        """Yields for each task and method of the claim how many runs diverged, where some did."""
        for task in results.tasks:
            for name in dict.fromkeys(filter(None, (self.a, self.b, *(self.among or ())))):
                diverged, total = results.diverged(task, name)
                if diverged and (self.tasks is None or task in self.tasks):
                    yield f"{task}: {diverged} of {total} runs of {name} diverged"

    def _make_comparisons(
        self,
        results: Results,
        metric: str,
        read: str,
        tasks: Sequence[str],
        algorithms: Sequence[str],
    ) -> list[Part]:
        if self.check == "rises":
            # runs of two neighbouring tasks are paired by draw and seed
            a = self._require_name(self.a)
            curves = [(task, results.of(task, a, metric, read, mode=self.mode)) for task in tasks]
            steps = [
                (f"{low} to {high}", _pair(high_values, low_values, lambda x, y: x - y))
                for (low, low_values), (high, high_values) in itertools.pairwise(curves)
            ]
            return [self._test_difference(results, step, a, rise, rise) for step, rise in steps]
        return [
            comparison
            for task in tasks
            for comparison in self._compare_on_task(results, task, metric, read, algorithms)
        ]

    def _compare_on_task(
        self, results: Results, task: str, metric: str, read: str, algorithms: Sequence[str]
    ) -> list[Part]:
        def values(algorithm: str | None, worst: float | None = None) -> Values:
            return results.of(task, self._require_name(algorithm), metric, read, worst, self.mode)

        if self.check == "diverges":
            return [self._test_divergence(results, task, len(values(self.a)))]
        if self.check == "ratio":
            # runs without a number count against the claim: a small numerator, a large denominator
            return [
                self._test_ratio(results, task, values(self.a, -math.inf), values(self.b, math.inf))
            ]
        if self.check in ("below", "above"):
            # as if `above` were claimed of the values, or of their opposites
            side = 1 if self.check == "above" else -1
            numbers = values(self.a, -side * math.inf)
            single = {run: side * (value - self.margin) for run, value in numbers.items()}
            return [
                self._test_difference(
                    results, task, self._require_name(self.a), single, numbers, sign=""
                )
            ]
        if self.check == "close":
            return [
                self._test_closeness(
                    results,
                    task,
                    f"{a} minus {b}",
                    _pair(values(a), values(b), lambda x, y: x - y),
                )
                for a, b in self.pairs(algorithms)
            ]
        # positive differences speak for the claim, whether more or less is better
        sign = 1 if higher_is_better(metric, read, results.records, self.mode) else -1
        return [
            self._test_difference(
                results,
                task,
                f"{a} minus {b}",
                # tested: the gain beyond the margin; shown: the plain difference
                _pair(values(a), values(b), lambda x, y: sign * (x - y) - self.margin),
                _pair(values(a), values(b), lambda x, y: x - y),
            )
            for a, b in self.pairs(algorithms or results.algorithms(task))
        ]

    def pairs(self, algorithms: Sequence[str]) -> list[tuple[str, str]]:
        """Returns which algorithms are compared, the one that is claimed to be better first;
        `algorithms` are all there are.
        """
        if self.check == "order":
            return list(itertools.pairwise(self.among or []))
        if self.check == "best":
            return [
                (self._require_name(self.a), other)
                for other in self.among or algorithms
                if other != self.a
            ]
        return [(self._require_name(self.a), self._require_name(self.b))]

    def _test_difference(
        self,
        results: Results,
        task: str,
        about: str,
        claimed: Values,
        displayed: Values,
        sign: str = "+",
    ) -> Part:
        """Tests whether `claimed` is above zero, and shows the quantity `displayed`, of which it is
        a shift or its opposite.
        """
        test, effect = (
            effect_of(*results.units(values), exact=self.exact) for values in (claimed, displayed)
        )
        # without runs it neither agrees nor disagrees
        agrees = test.mean > 0 if test.units else None
        return Part(task, about, effect, test.ahead, test.behind, agrees, effect.in_words(sign))

    def _test_ratio(self, results: Results, task: str, a: Values, b: Values) -> Part:
        """Tests whether a - margin b is above zero, and shows a / b."""
        test = effect_of(
            *results.units(_pair(a, b, lambda x, y: x - self.margin * y)), exact=self.exact
        )
        # numerator and denominator from the same runs, so that Fieller's interval can use their
        # covariance
        common = [run for run in a if run in b]
        (numerators, unit), (denominators, _) = (
            results.units({run: values[run] for run in common}) for values in (a, b)
        )
        effect, agrees = (
            ratio_of(numerators, denominators, unit, self.exact),
            test.mean > 0 if test.units else None,
        )
        return Part(
            task,
            f"{self.a} over {self.b}",
            effect,
            test.ahead,
            test.behind,
            agrees,
            effect.in_words(),
        )

    def _test_closeness(self, results: Results, task: str, about: str, differences: Values) -> Part:
        """Tests with two one-sided tests whether the difference is within the margin."""
        values, unit = results.units(differences)
        effect = effect_of(values, unit, self.exact)
        # the difference is below the margin, and its opposite is as well
        sides = [effect_of(self.margin - side * values, unit, self.exact) for side in (1, -1)]
        agrees = all(side.mean >= 0 for side in sides) if effect.units else None
        return Part(
            task,
            about,
            effect,
            # both sides must hold, but one that fails is enough to refute the claim
            max(s.ahead for s in sides),
            min(s.behind for s in sides),
            agrees,
            effect.text,
        )

    def _test_divergence(self, results: Results, task: str, runs: int) -> Part:
        diverged, _ = results.diverged(task, self._require_name(self.a))
        nothing = effect_of(np.array([]), "seeds")
        agrees = None if not runs else diverged == runs
        return Part(
            task,
            self._require_name(self.a),
            nothing,
            # exact, without a test: p is 0 or 1
            float(diverged < max(runs, 1)),
            float(diverged > 0 or not runs),
            agrees,
            f"{diverged} of {runs} runs diverged",
        )

    def count_in_cells(
        self,
        targets: Mapping[str, Mapping[str, Sequence[float]]],
        metric: str,
        algorithms: Sequence[str],
    ) -> tuple[int, int] | None:
        """Counts the tasks on which the paper's own numbers are as claimed, and those on which they
        decide.

        Args:
            targets: by task and algorithm.
            metric: what they are of.
            algorithms: that the claim is about, if it names none.

        Returns:
            None if they say nothing about the claim: other checks than of values, tasks or
            algorithms without numbers.
        """
        # cells are values of a metric: they say nothing about rounds or changes
        read = self.read is None or is_value_reduction(self.read)
        compare = self._make_cell_check(metric, algorithms) if read else None
        # only tasks of which the paper prints numbers
        tasks = [task for task in self.tasks or targets if task in targets]
        if compare is None or not tasks:
            return None
        verdicts = [
            compare({name: number[0] for name, number in targets[task].items()}) for task in tasks
        ]
        decided = [verdict for verdict in verdicts if verdict is not None]
        return (sum(decided), len(decided)) if decided else None

    def _make_cell_check(
        self, metric: str, algorithms: Sequence[str]
    ) -> Callable[[Mapping[str, float]], bool | None] | None:
        def check(cells: Mapping[str, float]) -> bool | None:
            if self.check in ("below", "above"):
                side, a = 1 if self.check == "above" else -1, self._require_name(self.a)
                return side * (cells[a] - self.margin) > 0 if a in cells else None
            pairs = [(a, b) for a, b in self.pairs(algorithms) if a in cells and b in cells]
            # the paper prints no number of one of the two
            if not pairs:
                return None
            if self.check == "close":
                return all(abs(cells[a] - cells[b]) <= self.margin for a, b in pairs)
            if self.check == "ratio":
                return all(cells[a] >= self.margin * cells[b] for a, b in pairs)
            sign = 1 if higher_is_better(metric, default_mode=self.mode) else -1
            return all(sign * (cells[a] - cells[b]) > self.margin for a, b in pairs)

        return None if self.check in ("diverges", "rises") else check

    def _require_name(self, algorithm: str | None) -> str:
        if algorithm is None:
            raise InvalidInput.because(
                f"claim {self.text!r}", f"the check {self.check!r} needs more algorithms"
            )
        return algorithm


def _format_counts(groups: Sequence[Sequence[Part]]) -> str:
    """Returns how many units, draws or seeds, the comparisons are of, in brackets.

    >>> _format_counts([])
    ''
    """
    # (how many, "draws" or "seeds") of each comparison
    units = {
        (comparison.effect.units, comparison.effect.unit)
        for group in groups
        for comparison in group
        if comparison.effect.units
    }
    if not units:
        return ""
    fewest, unit = min(units)
    if len(units) > 1:
        return f" ({fewest} to {max(units)[0]} {unit})"
    return f" ({fewest} {unit if fewest != 1 else unit.removesuffix('s')})"


def _pair(a: Values, b: Values, difference: Callable[[float, float], float]) -> Values:
    differences = {run: difference(a[run], b[run]) for run in a if run in b}
    # infinite minus infinite: neither of the two gets there
    return {run: 0.0 if math.isnan(value) else value for run, value in differences.items()}
