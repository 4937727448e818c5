"""The pieces of work of an experiment: runs that one compiled program can serve together."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import Algorithm, Schedule
from fedax.engines.loop import Progress, likeness, run, run_grid
from fedax.experiments.spec import Experiment, Plan
from fedax.report import Record

Hook = Callable[[Progress], bool | None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Members of an experiment that differ in real hyperparameters and seeds only: one compiled program.

    Args:
        experiment: its place among those of the directory.
        labels: of the members.
        seeds: of each.
        numbers: of the runs: the first label with all seeds, then the next.
    """

    experiment: int
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def alone(self) -> bool:
        """Whether it is a single run."""
        return len(self.numbers) == 1

    def folder(self, out: Path) -> Path:
        """Where its checkpoints lie."""
        return out / "checkpoints" / f"{self.numbers[0]:04d}"

    def heading(self, experiment: Experiment, several: bool) -> str:
        """What is shown while it runs."""
        what = self.labels[0] + (f" and {len(self.labels) - 1} more" if len(self.labels) > 1 else "")
        listed = ", ".join(str(seed) for seed in self.seeds)
        several_seeds = f", seeds {listed}" if len(self.seeds) > 1 else f", seed {listed}"
        seed = several_seeds if len(experiment.seeds) > 1 else ""
        draw = f", draw {draw_of(experiment)}" if several else ""
        return (f"{experiment.name}{draw}: " if several else "") + what + seed

    def run(self, experiment: Experiment, plan: Plan, out: Path, hook: Hook | None = None) -> list[Record]:
        """Runs it, from its newest checkpoint on if there is one."""
        every = experiment.checkpoint_every
        every = max(experiment.rounds // 10, 1) if every is None else every
        checkpoints = {"checkpoint": self.folder(out), "checkpoint_every": every} if every else {}
        common = {"task": experiment.name, "draw": draw_of(experiment), "hook": hook}
        return run_batch(plan, self.labels, self.seeds, **common, **checkpoints)

    def run_alone(self, text: str, out: Path) -> list[bytes]:
        """The same in a process of its own."""
        return [record.to_bytes() for record in self.run(Experiment.parse(text), plan_of(text), out)]


def draw_of(experiment: Experiment) -> int:
    """The seed of the data."""
    return int(experiment.task.options.get("seed", 0))


@functools.lru_cache(maxsize=1)
def plan_of(text: str) -> Plan:
    """The plan of an experiment's TOML text; kept, because the compiled programs of a task serve all its methods and seeds."""
    return Experiment.parse(text).plan()


def batches_of(experiments: Sequence[Experiment]) -> list[Batch]:
    """All of them, in the order of experiments, algorithms and seeds; runs have consecutive numbers in that order."""
    made, begin = [], 0
    for position, experiment in enumerate(experiments):
        groups: dict[Any, list[int]] = {}
        members = experiment.members()
        for k, member in enumerate(members):
            alike = likeness(member.algorithm.make()) if experiment.grid else k
            groups.setdefault((member.method, str(member.solver), str(member.schedule), alike), []).append(k)
        count = len(experiment.seeds)
        for group in groups.values():
            places = [range(count)] if together(experiment) else [[i] for i in range(count)]
            for part in places:
                numbers = tuple(begin + k * count + i for k in group for i in part)
                labels, seeds = (members[k].label for k in group), (experiment.seeds[i] for i in part)
                made.append(Batch(position, tuple(labels), tuple(seeds), numbers))
        begin += len(members) * count
    return made


def together(experiment: Experiment) -> bool:
    """Whether all seeds of an algorithm are one program."""
    if experiment.seeds_together is None:
        return experiment.engine == "simulation" and not experiment.trackers
    return experiment.seeds_together


def run_batch(
    plan: Plan,
    labels: Sequence[str],
    seeds: Sequence[int],
    *,
    task: str,
    draw: int,
    hook: Callable[[Progress], bool | None] | None = None,
    **checkpoints: Any,
) -> list[Record]:
    """Algorithms of a plan that one program can serve, each with all seeds (see `fedax.run_grid`).

    Returns:
        The records of the first label with all seeds, then of the next. Each has its part of the time they took together.
    """
    arguments = plan.arguments_of(labels[0]) | checkpoints
    members = [plan.algorithms[label] for label in labels]
    if len(members) == len(seeds) == 1:
        histories = [run(members[0], plan.task, seed=seeds[0], progress=hook, **arguments)]
    else:
        histories = run_grid(members, plan.task, seed=seeds, progress=hook, **arguments)
    gradients = float(np.mean([_gradients(members[0], arguments["schedule"], int(size)) for size in plan.task.train.sizes]))
    named = zip(histories, ((label, seed) for label in labels for seed in seeds), strict=True)
    return [
        Record.of(
            dataclasses.replace(history, seconds=history.seconds / len(histories)),
            task=task,
            label=label,
            seed=seed,
            draw=draw,
            gradients=gradients,
        )
        for history, (label, seed) in named
    ]


def _gradients(algorithm: Algorithm[Any], schedule: Schedule, size: int) -> float:
    """What `Algorithm.gradients` expects of a client with so many examples."""
    return algorithm.gradients(schedule.mean_steps(size), schedule.mean_epoch(size))
