"""Runs the protocol: two draws of settings, selection on separate seeds, and the reported runs."""

import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax import tasks
from fedax.benchmark.archive import Entry, trimmed
from fedax.benchmark.measures import best_value, cost_to, has_diverged, is_higher
from fedax.benchmark.spaces import Setting, Space, space_of, unit_points
from fedax.benchmark.task import BenchTask, Method, Target
from fedax.core import InvalidInput, Task
from fedax.engine.round.footprint import footprint
from fedax.experiments.config.plan import Plan
from fedax.experiments.running.batches import run_batch
from fedax.results import Record
from fedax.results.versions import versions

SEQUENCE = "halton"
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
REFERENCE = Tuning(screening=(2000, 2001), deciding=(), reported=(2100, 2101, 2102, 2103, 2104))
"""The budget of the reference that sets a target, on seeds that nobody else uses."""


class Tuned(NamedTuple):
    """A tuned method: its settings with their scores, the selected one and its runs."""

    settings: list[Setting]
    scores: list[Score]
    selected: int
    edges: list[str]
    records: list[Record]


def judged_by(task: BenchTask, tuning: Tuning = STANDING) -> str:
    """Returns the fingerprint of a task with its target and the budget: results with another one
    are not compared.
    """
    # with the name of the sequence that settings are drawn from
    budget = [*dataclasses.astuple(tuning), SEQUENCE]
    told = [task.fingerprint, task.required_target(), budget]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def key_of(task: BenchTask, method: Method, space: Space, tuning: Tuning = STANDING) -> str:
    """Returns the fingerprint of all that the results of a method on a task depend on."""
    told = [judged_by(task, tuning), method.label, method.sha256, space.distributions]
    text = json.dumps([*told, task.options_for(method)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def search_space(task: BenchTask, method: Method, spaces: Mapping[str, Mapping[str, Any]]) -> Space:
    """Returns the search space of a method on a task, see `fedax.benchmark.spaces.space_of`."""
    return space_of(method.kind, task.learning_rate, task.options_for(method), spaces)


def make_data(task: BenchTask) -> Task:
    """Makes the data and the model of a task, which serve all methods.

    Raises:
        InvalidInput: data that are not there, with the command that loads them.
    """
    section = dict(task.sections["task"])
    return tasks.task(section.pop("name"), **section)


def run_method(
    task: BenchTask, method: Method, space: Space, data: Task, tuning: Tuning = STANDING
) -> Entry:
    """Runs the protocol for one method on one task.

    A method that the task refuses, such as one with two phases on an asynchronous server, gives an
    entry without runs.
    """
    begin, target = time.process_time(), task.required_target()
    entry = Entry(
        task.name,
        method.label,
        key_of(task, method, space, tuning),
        judged_by(task, tuning),
        space.plain,
        versions=versions(),
    )
    # such as a method with several phases on an asynchronous server
    try:
        tuned = tune(task, method, space, data, tuning, standing_score(task.metric, target))
    except InvalidInput as error:
        return dataclasses.replace(entry, refused=str(error))
    # a user's file is read again by every stage
    if key_of(task, method, space, tuning) != entry.key:
        reason = "its file changed while it ran, so that these results belong to neither version"
        raise InvalidInput.because(method.label, reason, "Run the command again.")
    return dataclasses.replace(
        entry,
        settings=tuned.settings,
        scores=tuned.scores,
        selected=tuned.selected,
        edges=tuned.edges,
        records=tuple(trimmed(run, task) for run in tuned.records),
        seconds=round(time.process_time() - begin, 1),
    )


def tune(
    task: BenchTask,
    method: Method,
    space: Space,
    data: Task,
    tuning: Tuning,
    score: Callable[[Sequence[Record]], Score],
) -> Tuned:
    """Tunes a method: a first draw, a second one across the edges that it selected, the better half
    on further seeds, and the reported runs.

    All stages of the selection have equally many runs, so that one compiled program serves them.
    """
    # shape (2 * settings, hyperparameters): the first draw, then the second
    points = unit_points(len(space.ranges), 2 * tuning.settings, tuning.draw)
    settings = space.settings(points[: tuning.settings])
    runs = _select(task, method, settings, data, tuning.screening)
    scores = [score(one) for one in runs]
    # a best value at the edge of its range moves the second draw across this edge
    second = space.extended(space.edges(settings[scores.index(min(scores))]))
    settings += second.settings(points[tuning.settings :])
    runs += _select(task, method, settings[tuning.settings :], data, tuning.screening)
    scores = [score(one) for one in runs]
    finalists = sorted(range(len(settings)), key=scores.__getitem__)
    if tuning.deciding:
        finalists = finalists[: tuning.settings]
        chosen = [settings[i] for i in finalists]
        further = _select(task, method, chosen, data, tuning.deciding)
        for i, more in zip(finalists, further, strict=True):
            # the finalists are judged on all of their runs
            scores[i] = score(runs[i] + more)
    # only finalists: the scores of the others are of fewer runs
    selected = min(finalists, key=scores.__getitem__)
    # edges of both draws together: beyond these nothing was tried
    left = space.joined(second).edges(settings[selected])
    records = run_settings(task, method, [settings[selected]], data, tuning.reported)
    return Tuned(
        settings, scores, selected, [f"{key}: {side}" for key, side in left.items()], records
    )


def _select(
    task: BenchTask,
    method: Method,
    settings: Sequence[Setting],
    data: Task,
    seeds: Sequence[int],
) -> list[list[Record]]:
    """Returns the runs of each setting, which observe only what selects."""
    records, count = run_settings(task.selecting, method, settings, data, seeds), len(seeds)
    # settings in order, each with all seeds
    return [records[i * count : (i + 1) * count] for i in range(len(settings))]


def run_settings(
    task: BenchTask,
    method: Method,
    settings: Sequence[Setting],
    data: Task,
    seeds: Sequence[int],
) -> list[Record]:
    """Runs settings with seeds as one program: the first setting with all seeds, then the next."""
    experiment = task.experiment_of(method, settings)
    plan, labels = experiment.plan(data), [str(number) for number in range(len(settings))]
    records = run_batch(plan, labels, seeds, task=task.name, draw=0)
    # settings differ in numbers only, so that one stands for all
    gradients = gradients_per_client(plan, labels[0])
    return [dataclasses.replace(run, gradients=run.rounds * gradients) for run in records]


def gradients_per_client(plan: Plan, label: str) -> float:
    """Returns the expected minibatch gradients of a round over the number of all clients.

    A phase of a drawn cohort counts with the cohort's share of the clients, because methods differ
    in who works: with 5 of 20 clients, gradient descent by all costs four times FedAvg's work of
    the same length.
    """
    arguments = plan.arguments_of(label)
    schedule, sizes = arguments["schedule"], plan.task.train.sizes
    phases = footprint(plan.algorithms[label], plan.task, solver=arguments["solver"]).phases
    share = 1.0 if schedule.cohort is None else schedule.cohort / len(sizes)
    # means over the clients, which have unequally many examples
    steps = float(np.mean([schedule.mean_steps(int(n)) for n in sizes]))
    epoch = float(np.mean([schedule.mean_epoch(int(n)) for n in sizes]))
    return sum(
        (phase.step_gradients * steps + phase.full_gradients * epoch)
        * (1.0 if phase.everyone else share)
        for phase in phases
    )


def standing_score(metric: str, target: float) -> Callable[[Sequence[Record]], Score]:
    """Returns the score of a setting: the runs that miss the target, the mean rounds of the others,
    and the mean final value, as a loss.

    A run whose metric ends worse than it began misses the target: selection sees no other metric
    that could tell that it diverged.
    """

    def score(records: Sequence[Record]) -> Score:
        rounds = [
            math.inf if has_diverged(run, metric) else cost_to(run, metric, target, "rounds")
            for run in records
        ]
        reached = [cost for cost in rounds if math.isfinite(cost)]
        finals = [
            _as_loss(run, metric, math.nan if run.diverged else float(run.scalars[metric][-1]))
            for run in records
        ]
        # compared as a tuple: first who arrives, then how fast, then how good
        missed = float(len(rounds) - len(reached))
        return missed, statistics.fmean(reached or [0.0]), statistics.fmean(finals)

    return score


def _as_loss(run: Record, metric: str, value: float) -> float:
    if not math.isfinite(value):
        return math.inf
    return -value if is_higher(run, metric) else value


def set_target(
    task: BenchTask,
    spaces: Mapping[str, Mapping[str, Any]],
    data: Task,
    tuning: Tuning = REFERENCE,
) -> Target:
    """Sets the target of a task: what its tuned reference reaches in half of the rounds.

    The median over the reported seeds of the best value until then, rounded to three digits towards
    the easier side.

    Raises:
        InvalidInput: the reference does not become better than the initial model.
    """
    # rounds in which the reference has to reach the target
    method, half = Method.parse(task.reference), int(task.sections["rounds"]) / 2

    def score(records: Sequence[Record]) -> Score:
        losses = [_as_loss(run, task.metric, best_value(run, task.metric, half)) for run in records]
        return (statistics.fmean(losses),)

    tuned = tune(task, method, search_space(task, method, spaces), data, tuning, score)
    values = [best_value(run, task.metric, half) for run in tuned.records]
    first, higher = tuned.records[0], is_higher(tuned.records[0], task.metric)
    initial = float(first.scalars[task.metric][0])
    # a run that diverged is the worst of all
    worst = -math.inf if higher else math.inf
    median = statistics.median(worst if math.isnan(value) else value for value in values)
    value = _easier(median, higher)
    # rounding to the easier side may bring the target back to the initial value
    if not (value > initial if higher else value < initial):
        reason = f"its tuned reference does not leave the initial {task.metric} of {initial:.3g}"
        raise InvalidInput.because(f"task {task.name}", reason, "Give it more rounds.")
    return Target(
        value=value,
        reference=method.label,
        settings=tuned.settings[tuned.selected],
        seeds=list(tuning.reported),
        values=values,
        fedax=fedax.__version__,
        task=task.fingerprint,
    )


def _easier(value: float, higher: bool) -> float:
    """Rounds to three significant digits, down where more is better, else up.

    >>> _easier(0.98765, True), _easier(0.98765, False), _easier(12.341, False)
    (0.987, 0.988, 12.4)
    """
    if not math.isfinite(value) or value == 0:
        return value
    places = 2 - math.floor(math.log10(abs(value)))
    scaled = value * 10**places
    return round((math.floor(scaled) if higher else math.ceil(scaled)) / 10**places, places)
