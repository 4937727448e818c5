"""Experiments among MPI ranks or hosts: rank 0 keeps the folder and shows progress, the others work
along without files.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedax.core import InvalidInput
from fedax.engine.backends.mpi import MPI
from fedax.engine.distributed.multihost import multihost_group
from fedax.engine.distributed.process_group import ProcessGroup, is_launched
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import study_of
from fedax.experiments.results.store import RunDirectory
from fedax.results import Record

NOWHERE = Path(os.devnull) / "rank"
"""The folder of a rank that keeps none."""


class Following(RunDirectory):
    """A run directory as ranks other than 0 have it: in memory."""

    def take(self, runs: Mapping[str, Record]) -> None:
        self.runs |= runs

    def save(self) -> None:
        """Does nothing: only rank 0 writes."""

    def write_outputs(self) -> None:
        """Does nothing."""


def team() -> ProcessGroup:
    """Returns the ranks of this process's job: connected hosts, or those of an MPI launcher; alone
    without either.
    """
    hosts = multihost_group()
    return MPI().process_group if hosts.size == 1 and is_launched() else hosts


def team_of(experiments: Sequence[Experiment], jobs: int) -> ProcessGroup:
    """Returns the ranks that work on experiments together.

    Raises:
        InvalidInput: several ranks, each of which would run all of it; processes beside ranks.
    """
    engines = {experiment.engine for experiment in experiments}
    # several hosts run one simulation together
    expected = "simulation" if multihost_group().size > 1 else "mpi"
    ranks = team()
    if ranks.size == 1 and engines == {"mpi"}:
        # a launcher whose environment variables are unknown shows its ranks only through MPI
        ranks = MPI().process_group
    # with another engine, each process would run all of it
    if ranks.size > 1 and (engines != {expected} or jobs > 1):
        got = f"{', '.join(sorted(engines))} with --jobs {jobs}"
        allowed = f"{expected} without --jobs, with {ranks.size} processes of a launcher"
        raise InvalidInput.found("engine", got, allowed)
    return ranks


def receive_directory(ranks: ProcessGroup) -> Following:
    """Returns the directory that rank 0 works on, once it has said that it can keep it."""
    experiments, runs = ranks.broadcast(None)
    # only rank 0 sends curves to trackers
    quiet = [experiment.model_copy(update={"trackers": []}) for experiment in experiments]
    return Following(NOWHERE, "", runs=runs, versions={}, **study_of(quiet))
