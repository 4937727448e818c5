"""Runs the protocol: two draws of settings, selection on separate seeds, and the reported runs."""

import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from fedax.algorithms import algorithm_class
from fedax.benchmark.spaces import Setting, Space, draw_settings, unit_points
from fedax.benchmark.task import BenchTask, Target
from fedax.core import InvalidInput, Task
from fedax.engine.round.trace import footprint
from fedax.experiments.config.sections import AlgorithmSection
from fedax.experiments.running.batches import gradients_of, run_batch
from fedax.observe.modes import is_higher_better
from fedax.results import Record
from fedax.results.frame import spent_of
from fedax.results.tables.reductions import read_curve
from fedax.utils.plugins import is_user_code, load

COSTS = ("rounds", "gradients", "gigabits", "hours")
"""Costs until the target, columns of results."""
Score = tuple[float, ...]
"""Of a setting, smaller is better from the first number on."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The budget of tuning.

    Args:
        settings: of each of the two draws.
        screening: seeds on which all settings run.
        deciding: seeds on which the better half of them runs as well; none, and the first ones
            decide.
        reported: seeds of the runs that are reported.
        draw: seed of the settings.
    """

    settings: int = 8
    screening: tuple[int, ...] = (1000,)
    deciding: tuple[int, ...] = (1001,)
    reported: tuple[int, ...] = (0, 1, 2, 3, 4)
    draw: int = 54


STANDING = Tuning()
"""The budget of every method."""


def key_of(
    task: BenchTask, method: AlgorithmSection, space: Space, tuning: Tuning = STANDING
) -> str:
    """Returns the fingerprint of all that the results of a method on a task depend on."""
    kind = algorithm_class(method.name).__name__
    if is_user_code("algorithm", method.name):
        kind += load("algorithm", method.name).sha256
    told = [
        task.sections,
        task.target.model_dump(include={"metric", "value", "learning_rate", "quality"}),
        task.options_for(method),
        {name: one[:3] for name, one in space.items()},
        dataclasses.astuple(tuning),
        kind,
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def run_method(
    task: BenchTask, method: AlgorithmSection, space: Space, data: Task, tuning: Tuning = STANDING
) -> pd.DataFrame:
    """Runs the protocol for one method on one task.

    Returns:
        A row for each reported run with the columns `task`, `method`, `draw` (of the data), `study`
        (of the tuning), `seed`, those of `COSTS` (infinite if it does not arrive), of the task's
        qualities (missing if it diverged), `everyone` (whether all clients work in every round),
        the selected `settings`, `edges`, and the `key` of `key_of`.

    Raises:
        InvalidInput: a method that the task refuses, such as one with two phases on an asynchronous
            server.
    """
    metric = task.target.metric
    key = key_of(task, method, space, tuning)

    def score(records: Sequence[Record]) -> Score:
        rounds = [cost_to(run, task.target, "rounds") for run in records]
        reached = [cost for cost in rounds if math.isfinite(cost)]
        losses = [math.inf if run.diverged else loss_of(run, metric) for run in records]
        # first who arrives, then how fast, then how good
        missed = float(len(rounds) - len(reached))
        return missed, statistics.fmean(reached or [0.0]), statistics.fmean(losses)

    setting, edges, records = tune(task, method, space, data, tuning, score)
    # a user's file is read again by every stage
    if key_of(task, method, space, tuning) != key:
        raise InvalidInput.because(
            method.shown(),
            "its file changed while it ran, so that these results belong to neither version",
            "Run the command again.",
        )
    algorithm = task.experiment_of(method, [setting]).algorithm[0].make()
    return rows_of(task, records).assign(
        method=method.shown(),
        everyone=int(any(phase.everyone for phase in footprint(algorithm).phases)),
        settings=" ".join(f"{name}={value:g}" for name, value in setting.items()),
        edges=", ".join(edges),
        key=key,
    )


def rows_of(task: BenchTask, records: Sequence[Record]) -> pd.DataFrame:
    """Returns what `run_method` says of the runs themselves."""
    target = task.target
    rows = []
    for run in records:
        row = {cost: cost_to(run, target, cost) for cost in COSTS}
        for name, shown in target.quality.items():
            row[name] = math.nan if has_diverged(run, target.metric) else run.scalars[shown][-1]
        rows.append({"task": task.name, "draw": 0, "study": 0, "seed": run.seed} | row)
    return pd.DataFrame(rows)


def tune(
    task: BenchTask,
    method: AlgorithmSection,
    space: Space,
    data: Task,
    tuning: Tuning,
    score: Callable[[Sequence[Record]], Score],
) -> tuple[Setting, list[str], list[Record]]:
    """Tunes a method: a first draw, a second one across the edges that it selected, the better half
    on further seeds, and the reported runs.

    All stages of the selection have equally many runs, so that one compiled program serves them.

    Returns:
        The selected setting, values of it at an edge such as `mu: high`, and its runs.
    """

    def select(settings: Sequence[Setting], seeds: Sequence[int]) -> list[list[Record]]:
        records = run_settings(task.selecting, method, settings, data, seeds)
        # settings in order, each with all seeds
        return [records[i : i + len(seeds)] for i in range(0, len(records), len(seeds))]

    # shape (2 * settings, hyperparameters): the first draw, then the second
    points = unit_points(len(space), 2 * tuning.settings, tuning.draw)
    settings = draw_settings(space, points[: tuning.settings])
    runs = select(settings, tuning.screening)
    scores = [score(one) for one in runs]
    # a best value at the edge of its range moves the second draw across this edge
    best = settings[scores.index(min(scores))]
    second = {key: one.shifted(best[key]) for key, one in space.items()}
    settings += draw_settings(second, points[tuning.settings :])
    runs += select(settings[tuning.settings :], tuning.screening)
    scores = [score(one) for one in runs]
    finalists = sorted(range(len(settings)), key=scores.__getitem__)
    if tuning.deciding:
        finalists = finalists[: tuning.settings]
        further = select([settings[i] for i in finalists], tuning.deciding)
        for i, more in zip(finalists, further, strict=True):
            # the finalists are judged on all of their runs
            scores[i] = score(runs[i] + more)
    # only finalists: the scores of the others are of fewer runs
    setting = settings[min(finalists, key=scores.__getitem__)]
    edges = []
    for key, one in space.items():
        # the edges of both draws together: beyond these nothing was tried
        ends = {"low": min(one.low, second[key].low), "high": max(one.high, second[key].high)}
        if edge := one._replace(**ends).edge(setting[key]):
            edges.append(f"{key}: {edge}")
    return setting, edges, run_settings(task, method, [setting], data, tuning.reported)


def make_data(task: BenchTask) -> Task:
    """Makes the data and the model of a task, which serve all methods.

    Raises:
        InvalidInput: data that are not there, with the command that loads them.
    """
    return task.experiment_of(task.reference, [{}]).plan().task


def run_settings(
    task: BenchTask,
    method: AlgorithmSection,
    settings: Sequence[Setting],
    data: Task,
    seeds: Sequence[int],
) -> list[Record]:
    """Runs settings with seeds as one program: the first setting with all seeds, then the next."""
    plan = task.experiment_of(method, settings).plan(data)
    labels = list(map(str, range(len(settings))))
    histories = run_batch(plan, labels, seeds)
    # minibatch gradients of a round over the number of all clients: a phase of a cohort counts with
    # its share of them, because with 5 of 20 clients gradient descent by all is four times the work
    clients = plan.task.train.clients
    share = (plan.arguments_of(labels[0])["schedule"].cohort or clients) / clients
    # settings differ in numbers only, so that one stands for all
    gradients = gradients_of(plan, labels[:1], share)["0"]
    return [
        Record.of(history, seed=seed, gradients=gradients)
        for history, seed in zip(histories, [*seeds] * len(settings), strict=True)
    ]


def has_diverged(run: Record, metric: str) -> bool:
    """Returns whether a run counts as diverged on a task with some metric.

    It was stopped for that, is not finite, or its metric ends worse than it began. The metric of
    the task decides, not the training loss: a loss that rises may go with accuracies that rise.
    """
    last = loss_of(run, metric)
    is_worse = math.isinf(last) or last > loss_of(run, metric, 0)
    return is_worse or run.outcome.kind in ("diverged", "non-finite")


def cost_to(run: Record, target: Target, cost: str) -> float:
    """Returns what a run has spent when the metric is first as good as the target.

    Infinite if it never is, or if the run diverged. NaN where the cost is not known, such as hours
    without devices. Observations before the first round do not count: where clients adapt the
    initial model on their own, it can be as good as the target without any message.
    """
    spent = spent_of(run)[cost]
    if spent is None:
        return math.nan
    if has_diverged(run, target.metric):
        return math.inf
    begun = np.asarray(run.rounds) > 0
    curve = np.asarray(run.scalars[target.metric], float)[begun]
    # the curve is read along what was spent, so "rounds" stands for the unit of the cost
    return read_curve(
        curve,
        np.asarray(spent, float)[begun],
        f"rounds_to_{target.value!r}",
        is_higher_better(target.metric, [run.modes]),
    )


def loss_of(run: Record, metric: str, observation: int = -1) -> float:
    """Returns a value of a metric, by default the last, as a loss; infinite if it is not finite."""
    value = float(run.scalars[metric][observation])
    if not math.isfinite(value):
        return math.inf
    return -value if is_higher_better(metric, [run.modes]) else value
