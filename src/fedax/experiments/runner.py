"""Runs experiments into a run directory; an interruption leaves it valid."""

import dataclasses
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from fedax.core import Outcome
from fedax.engines.loop import Progress, run
from fedax.experiments.directory import RunDirectory, refuse_if_taken
from fedax.experiments.display import Display
from fedax.experiments.spec import Experiment, Plan
from fedax.report import Record


class Interruption:
    """Ctrl-C, once: the current round is finished and kept. Twice: at once.

    A context manager; outside the main thread it changes nothing.
    """

    def __init__(self, display: Display) -> None:
        self.display, self.asked = display, False
        self._before: Any = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.display.say("Stopping after the current round; press Ctrl-C again to stop at once.")


def run_one(
    plan: Plan,
    label: str,
    seed: int,
    *,
    task: str,
    draw: int,
    display: Display,
    interruption: Interruption,
    enough: Callable[[Progress], bool] | None = None,
    heading: str = "",
) -> Record:
    """One run of one algorithm of a plan.

    Args:
        plan: what is run.
        label: which algorithm.
        seed: of the run.
        task: title of the task, for the record.
        draw: seed of the data, for the record.
        display: where progress is shown.
        interruption: checked after every observation.
        enough: whether the run may end early; a run that it ends is complete, not interrupted.
        heading: shown in place of the label.

    Returns:
        The record; its outcome is `interrupted` only if a person asked for it.
    """
    heading, ended = heading or label, False

    def hook(observation: Progress) -> bool:
        nonlocal ended
        display.observe(observation)
        ended = enough is not None and enough(observation)
        return ended or interruption.asked

    display.begin(heading, plan.arguments["rounds"])
    history = run(plan.algorithms[label], plan.task, seed=seed, progress=hook, **plan.arguments)
    if ended and not interruption.asked and history.outcome.kind == "interrupted":
        history = dataclasses.replace(history, outcome=Outcome())
    record = Record.of(history, task=task, label=label, seed=seed, draw=draw)
    display.end(heading, record)
    return record


def run_experiment(experiment: Experiment, out: Path, display: Display) -> RunDirectory:
    """Runs every algorithm with every seed, and keeps each run on disk as soon as it is done.

    Args:
        experiment: what to run.
        out: the run directory, new or empty.
        display: where progress is shown.

    Returns:
        The directory, with status `finished`, or `interrupted` after Ctrl-C.

    Raises:
        RunExists: `out` is not empty; checked before anything is made or compiled.
        InvalidInput: the experiment does not fit its task.

    Example:
        >>> experiment = Experiment.read(Path("examples/digits.toml"))  # doctest: +SKIP
        >>> run_experiment(experiment, Path("runs/digits"), Display()).status  # doctest: +SKIP
        'finished'
    """
    refuse_if_taken(out)
    plan = experiment.plan()
    directory = RunDirectory.create(out, experiment.name)
    directory.configure([experiment.toml()])
    directory.notes[experiment.name] = describe(experiment, plan)
    pairs = [(label, seed) for label in plan.algorithms for seed in experiment.seeds]
    draw = int(experiment.task.options.get("seed", 0))
    with display, Interruption(display) as interruption:
        try:
            for number, (label, seed) in enumerate(pairs, start=1):
                heading = f"[{number}/{len(pairs)}] {label}" + (f", seed {seed}" if len(experiment.seeds) > 1 else "")
                common = {"task": experiment.name, "draw": draw, "display": display, "interruption": interruption}
                record = run_one(plan, label, seed, heading=heading, **common)
                directory.add(record)
                if record.outcome.kind == "interrupted" or (interruption.asked and number < len(pairs)):
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            directory.close("interrupted")
        else:
            directory.close("finished")
    return directory


def describe(experiment: Experiment, plan: Plan) -> str:
    """One line about task, schedule and solver, for reports."""

    def listed(options: dict[str, Any]) -> str:
        return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in options.items()) or "the defaults"

    task, train = experiment.task, plan.task.train
    data = f"{task.name} ({listed(task.options)}): {train.clients} clients, {train.total} training examples."
    solver = f"{experiment.solver.name}, {listed(experiment.solver.options)}"
    return f"{data} Schedule: {listed(experiment.schedule)}. Solver: {solver}."
