"""`fedax run`: the experiment of a file, in this process or as one of several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from fedax.cli.options import File, Jobs, OnHosts, OnSlurm, Out, Settings

if TYPE_CHECKING:
    from fedax.engine.distributed.process_group import ProcessGroup
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.config.sections import ClusterSection


def run(
    file: File,
    settings: Settings = None,
    out: Out = None,
    jobs: Jobs = 1,
    engine: Annotated[
        str | None,
        Option(help="Engine: simulation, eager, mpi or flower.", show_default=False),
    ] = None,
    hosts: OnHosts = False,
    slurm: OnSlurm = False,
) -> None:
    """Run the experiment of a TOML file.

    With `--engine mpi` every rank is one client: `mpiexec -n 5 fedax run FILE --engine mpi`. With
    `--hosts` the simulation uses the devices of all hosts: `srun fedax run FILE --hosts`. Rank 0
    shows and keeps the results.
    """
    from fedax.cli.summary import run_and_print
    from fedax.engine.backends.mpi import MPI
    from fedax.engine.distributed.multihost import connect_hosts
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.running.ranks import team

    if hosts:
        connect_hosts()
    # before the file is read: ranks other than 0 get the experiment from rank 0
    if follow_rank_0(team()):
        return
    # --engine is a setting as well, so it comes last and wins
    changes = [*(settings or ()), *([] if engine is None else [f'engine="{engine}"'])]
    experiment = Experiment.read(file, changes)
    # a launcher whose environment variables `team` does not know shows its ranks only through MPI
    if experiment.engine == "mpi" and follow_rank_0(MPI().process_group):
        return
    cluster = cluster_for(experiment, jobs) if slurm else None
    run_and_print(experiment, out, jobs, cluster)


def cluster_for(experiment: Experiment, jobs: int) -> ClusterSection:
    """Returns the cluster of an experiment, once it is known that jobs can be submitted.

    Raises:
        InvalidInput: processes beside jobs.
        FedaxError: submitit is not installed.
    """
    from fedax.errors import InvalidInput
    from fedax.experiments.config.sections import ClusterSection
    from fedax.experiments.running.pools import import_submitit

    if jobs > 1:
        hint = "`slurm_array_parallelism` in [cluster] limits how many jobs run at a time."
        raise InvalidInput.of("--jobs", jobs, "1 with --slurm", hint)
    import_submitit()
    return experiment.cluster or ClusterSection()


def follow_rank_0(ranks: ProcessGroup) -> bool:
    """Works as a rank other than 0 until rank 0 is done; returns False at once on rank 0."""
    from fedax.experiments.running import runner

    if ranks.rank == 0:
        return False
    runner.follow(ranks)
    return True
