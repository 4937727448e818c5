"""Pools of processes that work on the batches of an experiment: on this machine, or on a cluster
through submitit.
"""

import contextlib
import importlib
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Protocol

from fedax.core import FedaxError, RunFailed
from fedax.errors import install_hint
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import ClusterSection
from fedax.experiments.running.batches import Batch
from fedax.experiments.running.setup import cores, set_up_jax, share_of_cores
from fedax.results import Record
from fedax.utils.files import write

POLL = 1.0
"""Seconds between two looks at the jobs of a cluster."""


class Pool(Protocol):
    """What works on batches."""

    def work(
        self, batches: Sequence[Batch], experiments: Sequence[Experiment]
    ) -> Iterator[tuple[Batch, list[Record]]]:
        """Yields batches with their records as they end.

        Raises:
            RunFailed: work that ended without a result.
        """
        ...


class LocalPool:
    """Processes of this machine, each on separate cores."""

    def __init__(self, pool: ProcessPoolExecutor, folder: Path) -> None:
        self.pool, self.folder = pool, folder

    def work(
        self, batches: Sequence[Batch], experiments: Sequence[Experiment]
    ) -> Iterator[tuple[Batch, list[Record]]]:
        futures = {
            self.pool.submit(batch.run, experiments[batch.experiment], self.folder): batch
            for batch in batches
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            message = (
                f"{self.folder}: a process ended without a result. What was finished is kept; "
                "`fedax resume` continues."
            )
            raise RunFailed(message) from error


@contextlib.contextmanager
def local_pool(jobs: int, folder: Path) -> Iterator[LocalPool]:
    """Starts processes, and ends them after the block; what has not begun is cancelled if the block
    fails.
    """
    # a forked process would inherit JAX's threads and locks
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, context, initializer=_set_up_worker, initargs=(context.Value("i", 0), jobs)
    ) as pool:
        try:
            yield LocalPool(pool, folder)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _set_up_worker(next_index: Synchronized, jobs: int) -> None:
    """Sets up a process of a pool. It ends when the process that began it ends, because no other
    process may go on writing.

    It stays on its cores: processes that move between each other's lose what the caches hold.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # processes take the numbers 0, 1, 2, ... in the order in which they start
    with next_index.get_lock():
        index, next_index.value = next_index.value, next_index.value + 1
    process_cores = share_of_cores(index, jobs)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, process_cores)
    set_up_jax(len(process_cores))


def _exit_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        # `sys.exit` would end only this thread
        os._exit(1)


class ClusterPool:
    """Jobs of a cluster, one for each batch.

    A job that fails leaves the others: their runs are kept, and the failure is raised when all have
    ended.

    Args:
        executor: of submitit.
        folder: the run directory.
        logs: the folder of the executor.
        most: jobs that may wait or run at a time; None means all.
    """

    def __init__(self, executor: Any, folder: Path, logs: Path, most: int | None) -> None:
        self.executor, self.folder, self.logs, self.most = executor, folder, logs, most
        self.jobs = list[Any]()

    def work(
        self, batches: Sequence[Batch], experiments: Sequence[Experiment]
    ) -> Iterator[tuple[Batch, list[Record]]]:
        # reversed, so that `pop` takes the first batch
        waiting, running, failed = list(batches)[::-1], dict[Any, Batch](), list[str]()
        while waiting or running:
            while waiting and (self.most is None or len(running) < self.most):
                batch = waiting.pop()
                running[self._submit(batch, experiments[batch.experiment])] = batch
            for job in [job for job in running if job.done()]:
                batch = running.pop(job)
                try:
                    records = job.result()
                except Exception as error:  # of the job, or of the cluster
                    failed.append(
                        f"{', '.join(batch.labels)} (job {job.job_id}: "
                        f"{_last_traceback_line(error)})"
                    )
                    continue
                yield batch, records
            # a job that has ended makes room for the next one at once
            if running and (not waiting or len(running) == self.most):
                time.sleep(POLL)
        if failed:
            raise RunFailed(
                f"{len(failed)} jobs failed: {'; '.join(failed)}. Their logs are in {self.logs}. "
                "`fedax resume` runs them again."
            )

    def _submit(self, batch: Batch, experiment: Experiment) -> Any:
        owner = (socket.gethostname(), os.getpid())
        job = self.executor.submit(work_on, batch, experiment, self.folder, owner)
        self.jobs.append(job)
        # after each submission, so that a killed process leaves the ids of all its jobs
        write(self.logs / "jobs.txt", "".join(f"{submitted.job_id}\n" for submitted in self.jobs))
        return job


def _last_traceback_line(error: Exception) -> str:
    """Returns the last line of a job's traceback, which submitit puts between lines of dashes."""
    sections = str(error).split("-" * 22)
    lines = (sections[1] if len(sections) > 2 else sections[0]).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


@contextlib.contextmanager
def cluster_pool(cluster: ClusterSection, folder: Path) -> Iterator[ClusterPool]:
    """Connects to the cluster; jobs of an earlier, killed process are cancelled first, and those of
    this one if the block fails.

    Raises:
        FedaxError: submitit is not installed, there is no such cluster here, or jobs of an earlier
            process cannot be cancelled from here.
    """
    submitit = _import_submitit()
    log_folder = folder / "slurm"
    jobs_file = log_folder / "jobs.txt"
    if jobs_file.exists() and cluster.executor == "slurm":
        _cancel(jobs_file.read_text(encoding="utf-8").split(), folder)
    try:
        executor = submitit.AutoExecutor(folder=log_folder, cluster=cluster.executor)
        executor.update_parameters(**cluster.parameters())
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        raise FedaxError(f"--slurm: {error}") from error
    log_folder.mkdir(exist_ok=True)
    # by default all on a cluster, and one for each core here
    most = cluster.jobs or (len(cores()) if cluster.executor == "local" else None)
    pool = ClusterPool(executor, folder, log_folder, most)
    try:
        # within an allocation, its variables would reach the jobs
        with submitit.helpers.clean_env():
            yield pool
    except BaseException:
        for job in pool.jobs:
            job.cancel()
        raise


def _cancel(ids: Sequence[str], folder: Path) -> None:
    """Cancels jobs of Slurm, which would go on writing into a folder."""
    # without ids, scancel ends in an error
    if not ids:
        return
    try:
        subprocess.run(["scancel", "--", *ids], check=False, capture_output=True)
    except FileNotFoundError as error:
        raise FedaxError(
            f"--slurm: scancel is not found here, and jobs {', '.join(ids)} of an earlier process "
            f"may still write into {folder}. Continue on a machine of the cluster."
        ) from error


def check_cluster() -> None:
    """Refuses to begin without submitit.

    Raises:
        FedaxError: it is not installed.
    """
    _import_submitit()


def _import_submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise FedaxError(
            f"--slurm needs submitit ({error}). Run: {install_hint('slurm')}"
        ) from error


def work_on(
    batch: Batch, experiment: Experiment, folder: Path, owner: tuple[str, int]
) -> list[Record]:
    """Works on a batch as a job of a cluster.

    Args:
        batch: the runs.
        experiment: of the batch.
        folder: the run directory.
        owner: host and number of the process that collects the results. On the same host the job
            ends with it, because the next one that resumes would work in the same folder.
    """
    host, process = owner
    if host == socket.gethostname():
        threading.Thread(target=_exit_with_process, args=(process,), daemon=True).start()
    set_up_jax()
    return batch.run(experiment, folder)


def _exit_with_process(process: int) -> None:
    while True:
        try:
            # signal 0 only asks whether the process is there
            os.kill(process, 0)
        except OSError:
            os._exit(1)
        time.sleep(POLL)
