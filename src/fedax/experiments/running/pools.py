"""Batches of an experiment in processes of this machine, or as jobs of a cluster."""

import importlib
import itertools
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from fedax.core import FedaxError, RunFailed
from fedax.errors import install_hint
from fedax.experiments.config.sections import ClusterSection
from fedax.experiments.running.batches import Batch
from fedax.experiments.running.setup import set_up_jax, share_of_cores
from fedax.results import Record
from fedax.utils.files import write

POLL = 1.0
"""Seconds between two looks at the jobs of a cluster."""

Done = Iterator[tuple[Batch, list[Record]]]
"""Batches with their records, in the order in which they end."""


def run_in_processes(batches: Sequence[Batch], folder: Path, jobs: int) -> Done:
    """Runs batches in processes of this machine, each on separate cores.

    If the caller stops early, batches that have not begun are cancelled.

    Raises:
        RunFailed: a process ended without a result.
    """
    # a forked process would inherit JAX's threads and locks
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _set_up_worker, (context.Value("i", 0), jobs))
    try:
        futures = {pool.submit(batch.run, folder): batch for batch in batches}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise RunFailed(
            f"{folder}: a process ended without a result. What was finished is kept; "
            "`fedax resume` continues."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _set_up_worker(next_index: Synchronized, jobs: int) -> None:
    """Sets up a process of a pool. It ends when the process that began it ends, because no other
    process may go on writing.

    It stays on its cores: processes that move between each other's lose what the caches hold.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # processes take the numbers 0, 1, 2, ... in the order in which they start
    with next_index.get_lock():
        index = next_index.value
        next_index.value += 1
    process_cores = share_of_cores(index, jobs)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, process_cores)
    set_up_jax(len(process_cores))


def _exit_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        # `sys.exit` would end only this thread
        os._exit(1)


def run_on_cluster(batches: Sequence[Batch], folder: Path, cluster: ClusterSection) -> Done:
    """Runs each batch as a job of an array on a cluster, after cancelling the jobs of an earlier
    process that was killed.

    A job that fails leaves the others: their runs are kept, and the failure is raised when all have
    ended. If the caller stops early, jobs are cancelled.

    Raises:
        FedaxError: submitit is not installed, there is no such cluster here, or jobs of an earlier
            process cannot be cancelled from here.
        RunFailed: jobs failed.
    """
    if not batches:
        return
    submitit = import_submitit()
    logs = folder / "slurm"
    ids_file = logs / "jobs.txt"
    if ids_file.exists():
        _cancel(ids_file.read_text(encoding="utf-8").split(), folder)
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster="slurm")
        executor.update_parameters(**cluster.model_dump())
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        raise FedaxError(f"--slurm: {error}") from error
    # within an allocation, its variables would reach the jobs
    with submitit.helpers.clean_env():
        jobs = executor.map_array(work_on, batches, itertools.repeat(folder))
    # a killed process leaves the ids of its jobs
    write(ids_file, "\n".join(job.job_id for job in jobs))
    batch_of = dict(zip(jobs, batches, strict=True))
    failures = list[str]()
    try:
        for job in submitit.helpers.as_completed(jobs, poll_frequency=POLL):
            batch = batch_of[job]
            try:
                records = job.result()
            except Exception as error:  # of the job, or of the cluster
                label = ", ".join(batch.labels)
                failures.append(f"{label} (job {job.job_id}: {_last_traceback_line(error)})")
            else:
                yield batch, records
    finally:
        for job in jobs:
            if not job.done():
                job.cancel()
    if failures:
        raise RunFailed(
            f"{len(failures)} jobs failed: {'; '.join(failures)}. Their logs are in {logs}. "
            "`fedax resume` runs them again."
        )


def _last_traceback_line(error: Exception) -> str:
    """Returns the last line of a job's traceback, which submitit puts between lines of dashes."""
    sections = f"{type(error).__name__}: {error}".split("-" * 22)
    return sections[len(sections) // 2].strip().splitlines()[-1]


def _cancel(ids: Sequence[str], folder: Path) -> None:
    """Cancels jobs of Slurm, which would go on writing into a folder."""
    try:
        subprocess.run(["scancel", "--", *ids], check=False, capture_output=True)
    except FileNotFoundError as error:
        raise FedaxError(
            f"--slurm: scancel is not found here, and jobs {', '.join(ids)} of an earlier process "
            f"may still write into {folder}. Continue on a machine of the cluster."
        ) from error


def import_submitit() -> Any:
    """Returns the module submitit.

    Raises:
        FedaxError: it is not installed.
    """
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise FedaxError(
            f"--slurm needs submitit ({error}). Run: {install_hint('slurm')}"
        ) from error


def work_on(batch: Batch, folder: Path) -> list[Record]:
    """Works on a batch as a job of a cluster; `folder` is the run directory."""
    set_up_jax()
    return batch.run(folder)
