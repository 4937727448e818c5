"""Numbers the runs that experiments may need."""

from collections.abc import Sequence
from typing import NamedTuple

from fedax.experiments.config.experiment import Experiment, Member
from fedax.results import Record


class RunId(NamedTuple):
    """Identity of a run that experiments may need.

    Attributes:
        number: of the run in its directory.
        experiment: index of the experiment.
        member: the algorithm with its settings.
        seed: of the run.
        selecting: whether it only selects among the members of a grid, and is not reported.
    """

    number: int
    experiment: int
    member: Member
    seed: int
    selecting: bool

    def is_of(self, record: Record) -> bool:
        """Returns whether a record has this label and seed."""
        return (record.label, record.seed) == (self.member.label, self.seed)


def list_run_ids(experiments: Sequence[Experiment]) -> list[RunId]:
    """Returns the ids of all runs, in the order of experiments, members and seeds.

    Runs that select in a grid come before those to report: which of these are needed is known only
    when the selecting ones have run.
    """
    run_ids: list[RunId] = []
    for position, experiment in enumerate(experiments):
        members = experiment.members()
        methods = [member.method for member in members]
        for member in members:
            # an algorithm with a single member has nothing to select
            needs_selection = experiment.grid is not None and methods.count(member.method) > 1
            selection_seeds = (
                experiment.grid.selecting(experiment.seeds)
                if experiment.grid and needs_selection
                else []
            )
            # `run_ids` does not grow inside a comprehension: numbers are 0, 1, 2, ... without gaps
            run_ids += [
                RunId(len(run_ids) + i, position, member, seed, True)
                for i, seed in enumerate(selection_seeds)
            ]
            run_ids += [
                RunId(len(run_ids) + i, position, member, seed, False)
                for i, seed in enumerate(experiment.seeds)
            ]
    return run_ids


def data_seed(experiment: Experiment) -> int:
    """Returns the seed of the data."""
    return int(experiment.task.options.get("seed", 0))
