"""`fedax resume`: continues a run directory."""

from fedax.cli.options import Folder, Jobs, OnHosts, OnSlurm, TrustCode


def resume(
    folder: Folder,
    jobs: Jobs = 1,
    hosts: OnHosts = False,
    trust: TrustCode = False,
    slurm: OnSlurm = False,
) -> None:
    """Continue a run directory that was interrupted or killed.

    Results are bit-for-bit identical to those of an uninterrupted run. A run of MPI ranks is
    continued by as many: `mpiexec -n 5 fedax resume DIR`.
    """
    from rich.console import Console

    from fedax.cli.run import cluster_for, follow_rank_0
    from fedax.cli.summary import print_summary
    from fedax.engine.distributed.multihost import connect_hosts
    from fedax.errors import InvalidInput
    from fedax.experiments.results.planned import read_study
    from fedax.experiments.running import runner
    from fedax.experiments.running.progress import Display
    from fedax.experiments.running.ranks import team
    from fedax.papers.study import open_directory

    if hosts:
        connect_hosts()
    # ranks other than 0 have no folder; they wait for what rank 0 sends
    if follow_rank_0(team()):
        return
    console = Console()
    cluster = None
    if slurm:
        if not trust:
            reason = "--slurm runs commands of the shell that the directory's [cluster] names"
            raise InvalidInput.because(str(folder), reason, "Read it, and pass --trust-code.")
        # [cluster] of the directory's own file
        study = read_study(open_directory(folder, repair=True), trust)
        cluster = cluster_for(study[0], jobs)
    directory = runner.resume(folder, Display(console), jobs, trust, cluster, open_directory)
    print_summary(directory, console)
