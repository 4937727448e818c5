"""The pieces of work of an experiment: runs that one compiled program can serve together."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.engines.loop import Progress, likeness, run, run_grid
from fedax.experiments.spec import Experiment, Plan
from fedax.report import Record

Hook = Callable[[Progress], bool | None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Members of an experiment that differ in real hyperparameters only, with one seed: one compiled program.

    Args:
        experiment: its place among those of the directory.
        labels: of the members.
        seed: of the runs.
        numbers: of the runs, in the order of the labels.
    """

    experiment: int
    labels: tuple[str, ...]
    seed: int
    numbers: tuple[int, ...]

    def folder(self, out: Path) -> Path:
        """Where its checkpoints lie."""
        return out / "checkpoints" / f"{self.numbers[0]:04d}"

    def heading(self, experiment: Experiment, several: bool) -> str:
        """What is shown while it runs."""
        what = self.labels[0] + (f" and {len(self.labels) - 1} more" if len(self.labels) > 1 else "")
        seed = f", seed {self.seed}" if len(experiment.seeds) > 1 else ""
        draw = f", draw {draw_of(experiment)}" if several else ""
        return (f"{experiment.name}{draw}: " if several else "") + what + seed

    def run(self, experiment: Experiment, plan: Plan, out: Path, hook: Hook | None = None) -> list[Record]:
        """Runs it, from its newest checkpoint on if there is one."""
        every = experiment.checkpoint_every
        every = max(experiment.rounds // 10, 1) if every is None else every
        checkpoints = {"checkpoint": self.folder(out), "checkpoint_every": every} if every else {}
        common = {"task": experiment.name, "draw": draw_of(experiment), "hook": hook}
        return run_batch(plan, self.labels, self.seed, **common, **checkpoints)

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
            for i, seed in enumerate(experiment.seeds):
                numbers = tuple(begin + k * count + i for k in group)
                made.append(Batch(position, tuple(members[k].label for k in group), seed, numbers))
        begin += len(members) * count
    return made


def run_batch(
    plan: Plan,
    labels: Sequence[str],
    seed: int,
    *,
    task: str,
    draw: int,
    hook: Callable[[Progress], bool | None] | None = None,
    **checkpoints: Any,
) -> list[Record]:
    """Algorithms of a plan that one program can serve, with one seed; several are one `vmap` (see `fedax.run_grid`)."""
    arguments = plan.arguments_of(labels[0]) | checkpoints
    members = [plan.algorithms[label] for label in labels]
    if len(members) == 1:
        histories = [run(members[0], plan.task, seed=seed, progress=hook, **arguments)]
    else:
        histories = run_grid(members, plan.task, seed=seed, progress=hook, **arguments)
    steps = float(np.mean([arguments["schedule"].mean_steps(int(size)) for size in plan.task.train.sizes]))
    named = zip(histories, labels, strict=True)
    return [Record.of(history, task=task, label=label, seed=seed, draw=draw, steps=steps) for history, label in named]
