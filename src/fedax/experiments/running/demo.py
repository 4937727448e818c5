"""The first comparison for new users: five methods on three tasks, in three to five minutes."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedax.engine.driver.run import Progress
from fedax.experiments.config.experiment import Experiment, Plan
from fedax.experiments.results.store import RunDirectory, refuse_if_taken
from fedax.experiments.running.interruption import Interruption
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import describe, run_one

SYNTHETIC = {
    "solver": {"name": "sgd", "learning_rate": 0.01},
    "schedule": {"cohort": 10, "epochs": 20, "batch_size": 10},
}
"""Solver and schedule of the synthetic data in the FedProx and FedDANE papers."""

MOST_ROUNDS = 200
"""As many as the papers plot."""


READING = (
    "Do not rank the methods by these tables. They share a learning rate and have one seed, and "
    "only FedDANE's mu was selected. `fedax new experiment` writes a file that tunes each method.\n"
    "Worst tenth: the mean accuracy over the tenth of the clients with the lowest accuracy. Here "
    "these are two or three clients, some with a handful of test examples, so 0 % is possible.\n"
    "FedProx has mu = 1 on the synthetic data, as in its paper. This keeps local models close to "
    "the global one, so FedProx needs more rounds, most of all where clients are alike (IID).\n"
    "FedBC weighs clients by its multipliers and not by their examples. This helps small clients "
    "and costs accuracy over all examples. The step of the multipliers is the default."
)
"""What the tables of the demo say, and what they do not."""

_TIMED = (
    "Rounds: as many as fitted into the time on this machine, the same for all methods; "
    "another machine has others."
)
_FIXED = "Rounds: as asked for."


def methods(prox: float, dane: float) -> list[dict[str, Any]]:
    """Returns the methods of the demo, with the proximal weights of FedProx and FedDANE."""
    released = {"correction": "as_released", "cohorts": "shared"}
    return [
        {"name": "fedavg", "label": "FedAvg"},
        {"name": "fedprox", "label": "FedProx", "mu": prox},
        {"name": "feddane", "label": "FedDANE", "mu": dane},
        {"name": "feddane", "label": "FedDANE as released", "mu": dane, **released},
        {"name": "fedbc", "label": "FedBC", "start": "global"},  # the released form
    ]


def experiments() -> list[Experiment]:
    """Returns the three comparisons of the demo; their numbers of rounds are set by the time there
    is.

    FedDANE's mu is the best of {0, 0.001, 0.01, 0.1, 1} by training loss, as the paper chooses it.
    """
    digits = {
        "solver": {"name": "sgd", "learning_rate": 0.05},
        "schedule": {"cohort": 10, "epochs": 5, "batch_size": 10},
    }
    shards = {"name": "digits", "partition": "shards", "clients": 20}
    comparisons = (
        ("Digits by label", 60, shards, digits, methods(0.1, 0.0)),
        (
            "Synthetic IID",
            MOST_ROUNDS,
            {"name": "synthetic", "iid": True},
            SYNTHETIC,
            methods(1.0, 0.0),
        ),
        (
            "Synthetic (1, 1)",
            MOST_ROUNDS,
            {"name": "synthetic", "alpha": 1.0, "beta": 1.0},
            SYNTHETIC,
            methods(1.0, 1.0),
        ),
    )
    return [
        Experiment.of(name=name, rounds=rounds, task=task, algorithm=algorithms, **settings)
        for name, rounds, task, settings, algorithms in comparisons
    ]


def run_demo(
    out: Path,
    display: Display,
    *,
    seconds: float,
    rounds: int | None = None,
    chosen: Callable[[], Sequence[Experiment]] = experiments,
) -> RunDirectory:
    """Runs the demo.

    Args:
        out: the run directory, new or empty.
        display: where progress is shown.
        seconds: the time to spend in all. Each task gets an equal part of what is left when it
            begins; the first method of a task runs for its part of that, and the others run as many
            rounds as it did.
        rounds: a fixed number of rounds instead.
        chosen: the experiments.

    Raises:
        RunExists: `out` is not empty.
    """
    refuse_if_taken(out)
    comparisons = list(chosen())
    # all data are made before the clock starts
    plans = [experiment.plan() for experiment in comparisons]
    directory = RunDirectory.create(out, "Federated optimizers on heterogeneous data")
    end = time.perf_counter() + seconds
    with display, Interruption(display) as interruption:
        try:
            directory.configure(comparisons)
            for i, plan in enumerate(plans):
                # the remaining time is divided equally among the remaining tasks
                budget = Budget(
                    (end - time.perf_counter()) / (len(plans) - i), len(plan.algorithms)
                )
                _run_task(i, plan, directory, display, interruption, budget, rounds)
        except KeyboardInterrupt:
            directory.close("interrupted")
        else:
            directory.close("finished")
    return directory


def _run_task(
    number: int,
    plan: Plan,
    directory: RunDirectory,
    display: Display,
    interruption: Interruption,
    budget: "Budget",
    rounds: int | None,
) -> None:
    """Runs all methods on the task of an experiment of the directory, for as many rounds as the
    first one gets.
    """
    experiment, remark = directory.experiments[number], _FIXED if rounds is not None else _TIMED
    common = {"task": experiment.name, "draw": int(experiment.task.options.get("seed", 0))}
    for label in plan.algorithms:
        limited = dataclasses.replace(
            plan, arguments=plan.arguments | {"rounds": rounds or experiment.rounds}
        )
        heading, enough = f"{experiment.name}: {label}", budget if rounds is None else None
        tools: dict[str, Any] = {
            "display": display,
            "interruption": interruption,
            "heading": heading,
            "enough": enough,
        }
        record = run_one(limited, label, experiment.seeds[0], **common, **tools)
        # the first method sets the number of rounds for the others
        rounds = rounds or max(int(record.rounds[-1]), 1)
        if (
            directory.experiments[number].rounds != rounds
        ):  # before a run is kept, which names the settings that it belongs to
            updated = list(directory.experiments)
            updated[number] = experiment.model_copy(update={"rounds": rounds})
            directory.configure(updated)
        directory.notes[experiment.name] = (
            f"{describe(experiment, plan)} {_describe_weights(experiment)} {remark}"
        )
        directory.add(record)
        if interruption.asked or record.outcome.kind == "interrupted":
            raise KeyboardInterrupt


def _describe_weights(experiment: Experiment) -> str:
    mu = {
        section.shown(): section.options["mu"]
        for section in experiment.algorithm
        if "mu" in section.options
    }
    weights = ", ".join(f"{value:g} for {label}" for label, value in mu.items())
    forms = (
        "FedDANE as released: one cohort for both phases, and the correction of the "
        "authors' code. FedDANE's mu is the best of five by training loss."
    )
    return (
        f"Proximal weight mu: {weights}. {forms} Nothing else is tuned: the methods share a "
        "learning rate, and there is one seed. Worst tenth: the mean accuracy over the tenth of "
        "the clients with the lowest accuracy, which is two or three clients here. Diverged: "
        "ended above its initial training loss."
    )


class Budget:
    """Whether the first run of a task has to end, so that all of its runs together stay within a
    time.

    The other runs are taken to cost as much as the first, compilation included, times a margin for
    methods that do more. Where compiling takes most of the time, a third of it is added for the
    rounds.

    Args:
        seconds: for all runs of the task.
        methods: how many there are.
        margin: work of a mean method relative to the first one.
        least: rounds that are always run.
    """

    def __init__(self, seconds: float, methods: int, margin: float = 1.25, least: int = 20) -> None:
        self.seconds, self.runs, self.least = seconds, methods * margin, least
        self.begun = time.perf_counter()

    def __call__(self, observation: Progress) -> bool:
        # seconds of the run so far, without compilation
        elapsed = time.perf_counter() - self.begun - observation.compiling
        # compilation of all runs is paid first, but a third of the time is for rounds
        remaining = max(self.seconds - observation.compiling * self.runs, self.seconds / 3)
        return observation.round >= self.least and elapsed * self.runs >= remaining
