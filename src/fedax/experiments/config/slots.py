"""The runs that experiments may need, numbered."""

from collections.abc import Sequence
from typing import NamedTuple

from fedax.experiments.config.experiment import Experiment, Member
from fedax.report import Record


class Slot(NamedTuple):
    """A run that experiments may need: its number, what it is, and whether it only selects among the members of a grid."""

    number: int
    experiment: int
    member: Member
    seed: int
    selecting: bool

    def is_of(self, record: Record) -> bool:
        """Whether a run can be this one: its label and its seed are."""
        return (record.label, record.seed) == (self.member.label, self.seed)


def slots_of(experiments: Sequence[Experiment]) -> list[Slot]:
    """All of them, in the order of experiments, members and seeds; of a grid, those that select before those to report.

    Which of the latter are needed is known when the former have run.
    """
    made: list[Slot] = []
    for position, experiment in enumerate(experiments):
        members = experiment.members()
        methods = [member.method for member in members]
        for member in members:
            contested = experiment.grid is not None and methods.count(member.method) > 1
            trial = experiment.grid.selecting(experiment.seeds) if experiment.grid and contested else []
            made += [Slot(len(made) + i, position, member, seed, True) for i, seed in enumerate(trial)]
            made += [Slot(len(made) + i, position, member, seed, False) for i, seed in enumerate(experiment.seeds)]
    return made


def draw_of(experiment: Experiment) -> int:
    """The seed of the data."""
    return int(experiment.task.options.get("seed", 0))
