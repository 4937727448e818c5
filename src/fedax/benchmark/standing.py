"""Where methods stand: scores of families, differences to the reference, tables and figures."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from fedax.benchmark.archive import Archive, Entry, Keys
from fedax.benchmark.measures import COSTS, QUALITIES, cost_to, is_higher, quality_of
from fedax.benchmark.scores import LIMIT, area, interval, profile, ratios, speed_gains, typical
from fedax.benchmark.task import FAMILIES, BenchTask, Method
from fedax.benchmark.trials import STANDING, Tuning, judged_by
from fedax.results.compare import EMPTY
from fedax.results.drawing import Picture, curves
from fedax.results.tables.statistics import LEVEL, Effect, deviation_of, effect_of, holm

if TYPE_CHECKING:
    import matplotlib.figure

LEAST = 6
"""Tasks of a family from which on its methods are ranked."""
DRAWN = 6
"""Curves of a figure, at most, beside the newcomer and the reference."""


class Difference(NamedTuple):
    """The gain of a method over the reference, better where positive, with p-values that Holm has
    adjusted.

    Attributes:
        effect: of the speed for costs, else of the metric.
        ahead, behind: adjusted p-values that it is better, and that it is worse.
    """

    effect: Effect
    ahead: float
    behind: float

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or nothing if the difference is not significant."""
        return "better" if self.ahead <= LEVEL else "worse" if self.behind <= LEVEL else ""


class Placed(NamedTuple):
    """A method in a family.

    Attributes:
        method: its title.
        area, low, high: under the profile, with the bootstrap interval over tasks.
        rank: from 1; None in a family with too few tasks.
        better, worse: tasks with a significant difference to the reference.
    """

    method: str
    area: float
    low: float
    high: float
    rank: int | None
    better: int
    worse: int


@dataclasses.dataclass(frozen=True)
class Standing:
    """Results on some tasks.

    Args:
        tasks: in the order in which they are shown.
        entries: by task and title of the method, without those that the task refused.
        refused: reasons by task and title.
    """

    tasks: Sequence[BenchTask]
    entries: Mapping[str, Mapping[str, Entry]]
    refused: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(
        cls,
        tasks: Sequence[BenchTask],
        archive: Archive,
        tuning: Tuning = STANDING,
        keys: Keys | None = None,
    ) -> "Standing":
        """Reads the results on all tasks that have a target, of one budget.

        With `keys`, the fingerprints of current results by task and title, results of these titles
        with other ones are left out: those of an older file, or of other search spaces.
        """
        known = [task for task in tasks if task.target is not None]
        found = {
            task.name: list(archive.entries(task.name, {judged_by(task, tuning)}, keys))
            for task in known
        }
        return cls(
            known,
            {
                name: {entry.method: entry for entry in entries if not entry.refused}
                for name, entries in found.items()
            },
            {
                name: {entry.method: entry.refused for entry in entries if entry.refused}
                for name, entries in found.items()
            },
        )

    @property
    def families(self) -> list[str]:
        """The families that have tasks here."""
        return [name for name in FAMILIES if self.tasks_of(name)]

    def tasks_of(self, family: str) -> list[BenchTask]:
        """Returns the tasks of a family."""
        return [task for task in self.tasks if task.family == family]

    def methods(self, family: str) -> list[str]:
        """Returns the methods that have run on all tasks of a family, in alphabetical order."""
        # a method that lacks one task of the family has no ratio there
        names = [set(self.entries[task.name]) for task in self.tasks_of(family)]
        return sorted(set.intersection(*names), key=str.lower) if names else []

    def numbers(self, task: BenchTask, measure: str, method: str) -> np.ndarray:
        """Returns the numbers of a method's runs in the order of their seeds: costs, or values of a
        quality, NaN for those that diverged.
        """
        runs = self.entries[task.name][method].records
        if measure in COSTS:
            target = task.required_target()
            return np.array([cost_to(run, task.metric, target, measure) for run in runs])
        return np.array([quality_of(run, task.quality[measure], task.metric) for run in runs])

    def reference(self, task: BenchTask) -> str:
        """Returns the title of a task's reference."""
        return Method(task.reference, {}).label

    def ratios(self, family: str, measure: str) -> tuple[list[str], np.ndarray]:
        """Returns the methods of a family with the ratios of their costs, shape (methods, tasks);
        tasks that do not have the measure are left out.
        """
        methods = self.methods(family)
        tasks = [task for task in self.tasks_of(family) if measure in task.measures]
        # the shape is set so that there are two axes without tasks too
        costs = np.array(
            [[typical(self.numbers(task, measure, method)) for task in tasks] for method in methods]
        ).reshape(len(methods), len(tasks))
        return methods, ratios(costs) if costs.size else costs

    def placed(self, family: str, measure: str) -> list[Placed]:
        """Returns the methods of a family: ranked by their areas, or in alphabetical order where
        there are fewer than `LEAST` tasks.
        """
        methods, found = self.ratios(family, measure)
        if not found.size:
            return []
        areas, (low, high) = area(found), interval(found)
        # by task, then by method
        verdicts = {
            task.name: {m: d.verdict for m, d in self.differences(task, measure).items()}
            for task in self.tasks_of(family)
            if measure in task.measures
        }
        is_ranked = found.shape[1] >= LEAST
        made = []
        for i, method in enumerate(methods):
            # its verdict on each task; the reference itself has none
            told = [found.get(method, "") for found in verdicts.values()]
            # equal areas share a rank
            rank = 1 + int((areas > areas[i]).sum()) if is_ranked else None
            numbers = float(areas[i]), float(low[i]), float(high[i])
            made.append(Placed(method, *numbers, rank, told.count("better"), told.count("worse")))
        return sorted(made, key=lambda one: one.rank or 0)

    def differences(self, task: BenchTask, measure: str) -> dict[str, Difference]:
        """Returns the differences of all methods to the reference of a task, paired by seeds, with
        Holm's correction over the methods; nothing without the reference.
        """
        reference = self.reference(task)
        if reference not in self.entries[task.name]:
            return {}
        others = [method for method in self.entries[task.name] if method != reference]
        effects = [self._effect(task, measure, method, reference) for method in others]
        return dict(zip(others, _corrected(effects), strict=True))

    def verdicts(self, method: str, measure: str) -> dict[str, Difference]:
        """Returns the differences of one method to the references by task, with Holm's correction
        over the tasks.
        """
        tasks = [
            task
            for task in self.tasks
            if {method, self.reference(task)} <= set(self.entries[task.name])
            and measure in (*task.measures, *task.quality)
            and method != self.reference(task)
        ]
        effects = [self._effect(task, measure, method, self.reference(task)) for task in tasks]
        return dict(zip([task.name for task in tasks], _corrected(effects), strict=True))

    def _effect(self, task: BenchTask, measure: str, method: str, reference: str) -> Effect:
        ours, theirs = (self.numbers(task, measure, name) for name in (method, reference))
        if measure in COSTS:
            # speeds, because costs may be infinite: a run that never arrives has speed 0
            return effect_of(speed_gains(ours, theirs), "seeds")
        metric = task.quality[measure]
        every = [run for entry in self.entries[task.name].values() for run in entry.records]
        sign = 1.0 if is_higher(every[0], metric) else -1.0
        # values at the start and at the end, of all methods on the task
        known = [run.scalars[metric][0] for run in every]
        known += [quality_of(run, metric, task.metric) for run in every]
        # a run that diverged counts as the worst of its task, as in reports
        worst = sign * float(np.nanmin(sign * np.array(known)))
        ours, theirs = (np.where(np.isnan(values), worst, values) for values in (ours, theirs))
        return effect_of(sign * (ours - theirs), "seeds")

    def table(self, measure: str, methods: Sequence[str] | None = None) -> pd.DataFrame:
        """Returns a table of costs until the target, or of a quality, for `format_tables`.

        A star or bold numbers mark the methods that are significantly better than the reference.

        Args:
            measure: a name of `COSTS` or `QUALITIES`.
            methods: which; all by default.
        """
        tasks = [task for task in self.tasks if measure in (*task.measures, *task.quality)]
        names = {name for task in tasks for name in self.entries[task.name]}
        known = sorted(names if methods is None else names & set(methods), key=str.lower)
        references = " and ".join(dict.fromkeys(self.reference(task) for task in tasks))
        heads = {
            "table": COSTS[measure].heading if measure in COSTS else QUALITIES[measure],
            "note": "Means and sample standard deviations over the reported seeds. Bold: "
            f"significantly better than tuned {references} (paired by seeds, t-test on "
            f"{'speeds' if measure in COSTS else 'values'}, Holm over the methods of a task, level "
            f"{LEVEL:g}). never: the target is not reached in some run.",
        }
        rows = []
        for task in tasks:
            told = self.differences(task, measure)
            for method in known:
                row = heads | EMPTY | {"column": task.title, "method": method}
                if method in self.entries[task.name]:
                    numbers = self.numbers(task, measure, method)
                    row |= {
                        "runs": len(numbers),
                        # an infinite cost is a number: the run never reached the target
                        "lost": int(np.isnan(numbers).sum()),
                        "diverged": True,
                        "mean": float(numbers.mean()),
                        "deviation": deviation_of(numbers),
                        "top": method in told and told[method].verdict == "better",
                    }
                rows.append(row)
        return pd.DataFrame(rows)

    def profiles(self, measure: str) -> pd.DataFrame:
        """Returns the performance profiles of the best methods and the references of all families:
        a row for each factor, with the columns `family`, `method`, and those of `draw_profiles`.
        """
        factors, parts = np.geomspace(1.0, LIMIT, 200), [pd.DataFrame()]
        for family in self.families:
            methods, found = self.ratios(family, measure)
            if not found.size:
                continue
            references = {self.reference(task) for task in self.tasks_of(family)}
            # by area; equal ones in alphabetical order
            best = {methods[i] for i in np.argsort(-area(found), kind="stable")[:DRAWN]}
            title = f"{family.capitalize()} ({found.shape[1]})"
            for method, share in zip(methods, profile(found, factors), strict=True):
                columns = {"family": title, "method": method, FACTOR: factors, SHARE: share}
                is_shown = method in best | references
                parts.append(pd.DataFrame(columns).assign(shown=is_shown))
        return pd.concat(parts, ignore_index=True)

    def picture(self, measure: str, newcomer: str | None = None) -> Picture | None:
        """Returns the performance profiles of all families, of the best methods and a newcomer;
        None without results.
        """
        rows = self.profiles(measure)
        if not len(rows):
            return None
        figure = draw_profiles(rows.loc[rows["shown"] | (rows["method"] == newcomer)])
        title = f"Performance profiles: {COSTS[measure].heading.lower()}"
        return Picture(f"profiles-{measure}", figure, title)


FACTOR, SHARE = "factor of the best cost", "share of tasks"


def draw_profiles(rows: pd.DataFrame) -> "matplotlib.figure.Figure":
    """Draws performance profiles, a panel for each family."""
    return curves(rows, FACTOR, SHARE, col="family", log_x=True, lines=len(rows))


def _corrected(effects: Sequence[Effect]) -> list[Difference]:
    ahead, behind = (holm([getattr(one, side) for one in effects]) for side in ("ahead", "behind"))
    return [Difference(*parts) for parts in zip(effects, ahead, behind, strict=True)]


def describe_place(standing: Standing, method: str, measure: str = "rounds") -> list[str]:
    """Returns the place of a method in words: by family, and on each task against the reference."""
    lines = []
    # by task: one method against the references, corrected for the number of tasks
    told = standing.verdicts(method, measure)
    for family in standing.families:
        tasks = [
            task for task in standing.tasks_of(family) if method in standing.entries[task.name]
        ]
        if not tasks:
            continue
        placed = {one.method: one for one in standing.placed(family, measure)}
        own = placed.get(method)
        if own is None:
            lines.append(f"{family}: no place, because it has not run on all tasks of the family.")
        else:
            ranked = (
                f"place {own.rank} of {len(placed)}"
                if own.rank
                else f"no ranking with fewer than {LEAST} tasks ({len(tasks)})"
            )
            # one task has no interval over tasks
            ends = f" [{own.low:.2f}, {own.high:.2f}]" if len(tasks) > 1 else ""
            lines.append(f"{family}: area {own.area:.2f}{ends}, {ranked}; {len(placed)} methods.")
        for task in tasks:
            # the median over the seeds
            cost = typical(standing.numbers(task, measure, method))
            text = (
                f"{cost:.4g} {COSTS[measure].unit}"
                if math.isfinite(cost)
                else "never at the target"
            )
            if task.name in told:
                effect, verdict = told[task.name].effect, told[task.name].verdict
                word = f"significantly {verdict}" if verdict else "not significant"
                gain = "".join([f"{effect.mean:+.0%}", f" [{effect.low:+.0%}, {effect.high:+.0%}]"])
                text += f"; speed against {standing.reference(task)} {gain}, {word}"
            lines.append(f"  {task.title}: {text}.")
    for name, reasons in standing.refused.items():
        if method in reasons:
            lines.append(f"  {name}: refused: {reasons[method]}")
    return lines
