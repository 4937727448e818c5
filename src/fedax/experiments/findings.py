"""What the runs of the long demo say, as tables and sentences; every word is derived from the numbers."""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedax.engines.loop import Divergence
from fedax.experiments.design import BASELINES, FORMS, MUS, SELECTION_SEED, TASKS, at
from fedax.experiments.versions import versions
from fedax.report import Record
from fedax.report.summary import columns_of, counted, shown, summarize

_INTRODUCTION = """\
Synthetic data as in Li et al. 2020: 30 devices, 10 a round, 20 local epochs, batches of 10, learning rate 0.01, softmax
regression. FedProx has mu=1. FedDANE's mu is the one of {{{mus}}} with the lowest final training loss: the mean over the draws
of the data, with the first seed, where a run that is not finite or ends above its initial loss counts as infinite. The other
seeds run with the selected mu.

*Correct* is Algorithm 2 of the FedDANE paper. *As released* subtracts the wrong gradient, as the published code does for
models of two parameter arrays. *Shared* cohorts train the devices that sent gradients, as the published code does;
*independent* ones are drawn anew, as Algorithm 2 says. So the published code is *as released* with *shared* cohorts.

A difference is called lower or higher if its mean over the paired runs (same data, same seed) is beyond two standard errors
and has the same sign in every draw of the data. ± is the sample standard deviation over the runs."""

Grid = Mapping[tuple[str, str], Sequence[Record]]
"""Runs by task and label, in the same order of draws and seeds for all labels."""


def final_losses(runs: Iterable[Record]) -> np.ndarray:
    """Final training losses, infinite where not finite."""
    losses = np.array([float(run.metrics["train_loss"][-1]) for run in runs])
    return np.where(np.isfinite(losses), losses, math.inf)


def diverged(runs: Iterable[Record]) -> int:
    """How many runs are not finite, or ended above their initial training loss."""
    return sum(not run.outcome.ok for run in runs)


def selecting(runs: Iterable[Record]) -> list[Record]:
    """The runs that select mu."""
    return [run for run in runs if run.seed == SELECTION_SEED]


def best_mu(grid: Grid, task: str, form: str) -> float:
    """The mu of the lowest mean final training loss, where a diverged run counts as infinite.

    Among several that are all infinite: the fewest diverged runs, then the lowest mean of what was reached.
    """

    def key(mu: float) -> tuple[float, int, float]:
        runs = selecting(grid[task, at(form, mu)])
        reached, bad = float(final_losses(runs).mean()), diverged(runs)
        return math.inf if bad else reached, bad, reached

    return min(MUS, key=key)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Final training losses of two methods, run by run: the same data, the same seed."""

    values: np.ndarray
    draws: np.ndarray

    @classmethod
    def of(cls, one: Sequence[Record], other: Sequence[Record]) -> "Difference":
        first, second = final_losses(one), final_losses(other)
        both = np.isfinite(first) & np.isfinite(second)
        return cls((first - np.where(both, second, 0))[both], np.array([run.draw for run in one])[both])

    @property
    def clear(self) -> bool:
        """Whether the mean is beyond two standard errors and has one sign in all draws; never for fewer than three runs."""
        if len(self.values) < 3:
            return False
        error = self.values.std(ddof=1) / math.sqrt(len(self.values))
        signs = {bool(self.values[self.draws == draw].mean() > 0) for draw in np.unique(self.draws)}
        return bool(abs(self.values.mean()) > 2 * error and len(signs) == 1)

    @property
    def verdict(self) -> str:
        """`lower than`, `higher than` or `not clearly different from`."""
        return "not clearly different from" if not self.clear else "higher than" if self.values.mean() > 0 else "lower than"

    def numbers(self) -> str:
        if not len(self.values):
            return "no pair of finite runs"
        digits = ".3f" if abs(self.values).max() < 100 else ".3g"
        deviation = f" ± {self.values.std(ddof=1):{digits}}" if len(self.values) > 1 else ""
        return f"{self.values.mean():+{digits}}{deviation}"

    def sentence(self, other: str) -> str:
        lower = int((self.values < 0).sum())
        return f"{self.verdict} {other}'s ({self.numbers()}, lower in {lower} of {len(self.values)} runs)"


class Findings:
    """Selection of mu, tables and statements.

    Args:
        grid: all runs.
        rounds: of each run.
        draws: data sets drawn for each kind.
        seeds: runs on each.
    """

    def __init__(self, grid: Grid, rounds: int, draws: int, seeds: int) -> None:
        self.grid, self.rounds, self.draws, self.seeds = grid, rounds, draws, seeds
        self.mu = {(task, form): best_mu(grid, task, form) for task in TASKS for form in FORMS}

    def runs(self, task: str, method: str) -> Sequence[Record]:
        """The runs of a method, with the selected mu if it has a grid."""
        return self.grid[task, at(method, self.mu[task, method]) if method in FORMS else method]

    @property
    def chosen(self) -> list[Record]:
        """The runs that the report shows, under the name of their method."""
        return [
            dataclasses.replace(run, label=method)
            for task in TASKS
            for method in (*BASELINES, *FORMS)
            for run in self.runs(task, method)
        ]

    def line(self) -> str:
        """What was run."""
        methods, runs = len(BASELINES) + len(FORMS), self.draws * self.seeds
        return (
            f"{methods} methods on {len(TASKS)} kinds of synthetic data, {counted(self.rounds, 'round')}, "
            f"{counted(runs, 'run')} each: {counted(self.draws, 'draw')} of the data times {counted(self.seeds, 'seed')}."
        )

    def note(self, task: str) -> str:
        """The settings of one kind of data."""
        selected = "; ".join(f"{form} {self.mu[task, form]:g}" for form in FORMS)
        return (
            "30 devices, 10 a round, 20 epochs, batches of 10, learning rate 0.01. FedProx: mu=1. Selected mu: "
            f"{selected}. Diverged: ended above its initial training loss."
        )

    def grid_csv(self) -> str:
        """Final values of every run of the grid; `rise_round` is the first round at which FedProx's rule fired."""
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        metrics = ("train_loss", "test_accuracy")
        table.writerow(["task", "form", "mu", "selected", "draw", "seed", *metrics, "outcome", "rise_round"])
        for (task, form), selected in self.mu.items():
            for mu in MUS:
                for run in self.grid[task, at(form, mu)]:
                    last = [f"{float(run.metrics[name][-1]):.6g}" for name in metrics]
                    which = [task, form, mu, int(mu == selected), run.draw, run.seed]
                    table.writerow([*which, *last, run.outcome.kind, _first_rise(run)])
        return buffer.getvalue()

    def readme(self) -> str:
        """The page beside the report, as Markdown."""
        parts = [
            "# FedDANE, correct and as released",
            self.line(),
            _INTRODUCTION.format(mus=", ".join(f"{mu:g}" for mu in MUS)),
            "## What FedDANE does",
            *(self._statement(task) for task in TASKS),
            "## Shared or independent cohorts",
            "Final training loss with shared cohorts minus that with independent ones, at the same mu.",
            self._cohort_table(),
            *(self._cohort_statement(correction) for correction in ("exact", "as_released")),
            "## Final values",
            *(f"### {task}\n\n{self._final_table(task)}" for task in TASKS),
            "## The grid of mu",
            "Mean final training loss of the runs that select mu; in brackets how many diverged, if any; the selected one in bold.",
            self._grid_table(),
            "## Again",
            "`fedax demo --full`. Made with "
            + ", ".join(f"{name} {value}" for name, value in versions().items() if name != "platform")
            + ".",
        ]
        return "\n\n".join(parts) + "\n"

    def _statement(self, task: str) -> str:
        lines = [f"**{task}.**"]
        for method, name in (("FedDANE", "Correct FedDANE"), ("FedDANE as released", "FedDANE as released")):
            runs = self.runs(task, method)
            bad = diverged(runs)
            end = f"diverged in {bad} of {len(runs)} runs" if bad else "did not diverge"
            against = " and ".join(Difference.of(runs, self.runs(task, o)).sentence(o) for o in ("FedAvg", "FedProx"))
            lines.append(f"{name} (mu={self.mu[task, method]:g}) {end}; its final training loss is {against}.")
        return " ".join(lines)

    def _pair(self, task: str, correction: str, mu: float) -> Difference:
        form = {cohorts: name for name, (kind, cohorts) in FORMS.items() if kind == correction}
        shared, independent = (
            {(run.draw, run.seed): run for run in self.grid[task, at(form[cohorts], mu)]}
            for cohorts in ("shared", "independent")
        )
        both = sorted(shared.keys() & independent.keys())
        return Difference.of([shared[run] for run in both], [independent[run] for run in both])

    def _cohort_table(self) -> str:
        rows = []
        for task in TASKS:
            for correction in ("exact", "as_released"):
                rows.append([task, correction, *(self._cohort_cell(self._pair(task, correction, mu)) for mu in MUS)])
        table = _markdown(["data", "correction", *(f"mu={mu:g}" for mu in MUS)], rows)
        return f"{table}\n\nBold: a clear difference. In brackets the number of paired runs, if not all."

    def _cohort_cell(self, pair: Difference) -> str:
        text = f"**{pair.numbers()}**" if pair.clear else pair.numbers()
        return text if len(pair.values) in (0, self.draws * self.seeds) else f"{text} ({len(pair.values)})"

    def _cohort_statement(self, correction: str) -> str:
        pairs = [self._pair(task, correction, mu) for task in TASKS for mu in MUS]
        lower, higher = (sum(pair.verdict == word for pair in pairs) for word in ("lower than", "higher than"))
        name = "exact correction" if correction == "exact" else "correction as released"
        return (
            f"With the {name}, shared cohorts end clearly lower in {lower} and clearly higher in {higher} of the "
            f"{len(pairs)} cells; in the other {len(pairs) - lower - higher} there is no clear difference."
        )

    def _final_table(self, task: str) -> str:
        runs = [run for run in self.chosen if run.task == task]
        columns = columns_of(runs)
        rows = [
            [
                row.label,
                f"{self.mu[task, row.label]:g}" if row.label in FORMS else {"FedProx": "1"}.get(row.label, ""),
                *(shown(column, row.values.get(column.metric)) for column in columns),
                row.outcome,
            ]
            for row in summarize(runs)
        ]
        return _markdown(["method", "mu", *(column.title.lower() for column in columns), "outcome"], rows)

    def _grid_table(self) -> str:
        rows = []
        for (task, form), selected in self.mu.items():
            cells = []
            for mu in MUS:
                runs = selecting(self.grid[task, at(form, mu)])
                mean, bad = float(final_losses(runs).mean()), diverged(runs)
                text = (f"{mean:.3f}" if mean < 1000 else f"{mean:.3g}") + (f" ({bad})" if bad else "")
                cells.append(f"**{text}**" if mu == selected else text)
            rows.append([task, form, *cells])
        return _markdown(["data", "form", *(f"mu={mu:g}" for mu in MUS)], rows)


def _first_rise(run: Record) -> int | str:
    rule, losses = Divergence(), run.metrics["train_loss"].tolist()
    rounds = run.rounds.tolist()
    return next((rounds[i] for i in range(1, len(rounds)) if rule.fires(rounds[: i + 1], losses[: i + 1])), "")


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
