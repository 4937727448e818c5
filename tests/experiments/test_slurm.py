"""Sweeps as jobs of a cluster, by submitit's local executor: the same results, failures that leave
the rest, resumption."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedax.core import FedaxError, InvalidInput, RunFailed
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import ClusterSection
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running import pools
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from samples import TINY

LOCAL = ClusterSection(executor="local", minutes=5)
SWEEP = TINY + (
    '[grid]\nseeds = [7]\nfedprox.mu = [0.0, 1.0]\n[cluster]\nexecutor = "local"\nminutes = 5\n'
)


@pytest.fixture
def submitit(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")  # as here
    return pytest.importorskip("submitit", reason="needs the extra `slurm`")


def same(one, other):
    assert one.runs.keys() == other.runs.keys()
    for number, record in one.runs.items():
        assert record.settings == other.runs[number].settings
        # jobs of a process compile for other devices
        np.testing.assert_allclose(
            record.metrics["train_loss"], other.runs[number].metrics["train_loss"], rtol=1e-10
        )


def test_the_table_is_checked():
    experiment = Experiment.parse(SWEEP)
    assert experiment.cluster == ClusterSection(executor="local", minutes=5)
    assert Experiment.parse(experiment.toml()).cluster == experiment.cluster
    with pytest.raises(
        InvalidInput,
        match=r"cluster.minutes: got 0; allowed: whole numbers in "
        r"\[1",
    ):
        Experiment.parse(SWEEP.replace("minutes = 5", "minutes = 0"))
    with pytest.raises(
        InvalidInput,
        match=r"key of \[cluster\]: got 'partiton'.*Did you mean "
        r"'partition'",
    ):
        Experiment.parse(SWEEP.replace("minutes = 5", 'partiton = "gpu"'))
    full = ClusterSection(partition="gpu", minutes=30, cpus=4, gpus=1, memory=16.0).parameters()
    assert full == {
        "timeout_min": 30,
        "gpus_per_node": 1,
        "cpus_per_task": 4,
        "slurm_partition": "gpu",
        "mem_gb": 16.0,
    }


def test_without_submitit_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(FedaxError, match=r"--slurm needs submitit .* Run: .* install"):
        pools.check_cluster()


@pytest.mark.slow
def test_jobs_give_the_same_results(submitit, tmp_path):
    experiment = Experiment.parse(SWEEP)
    jobs = run_experiment(experiment, tmp_path / "jobs", Display(), cluster=LOCAL)
    assert jobs.status == "finished"
    same(run_experiment(experiment, tmp_path / "turn", Display()), jobs)
    assert (tmp_path / "jobs" / "slurm" / "jobs.txt").read_text()


@pytest.mark.slow
def test_a_failed_job_leaves_the_others_and_is_resumed(submitit, tmp_path, monkeypatch):
    experiment = Experiment.parse(TINY.replace("seeds = [0, 1]", "seeds = [0]"))
    original = pools.work_on

    def fails_for_fedprox(batch, *arguments):
        if batch.labels[0].startswith("FedProx"):
            raise RuntimeError("out of memory")
        return original(batch, *arguments)

    monkeypatch.setattr(pools, "work_on", fails_for_fedprox)
    with pytest.raises(RunFailed, match=r"1 jobs failed: FedProx mu=1 \(job \w+: .*out of memory"):
        run_experiment(experiment, tmp_path / "out", Display(), cluster=LOCAL)
    assert [record.label for record in RunDirectory.load(tmp_path / "out").records] == ["FedAvg"]
    monkeypatch.setattr(pools, "work_on", original)
    directory = resume(tmp_path / "out", Display(), cluster=LOCAL)
    assert directory.status == "finished"
    assert len(directory.runs) == 2


@pytest.mark.slow
def test_a_killed_sweep_is_resumed(submitit, tmp_path):
    text = TINY.replace("seeds = [0, 1]", "seeds = [0, 1, 2]\nseeds_together = false").partition(
        '[[algorithm]]\nname = "fedprox"'
    )[0]
    file = tmp_path / "sweep.toml"
    file.write_text(text + '[cluster]\nexecutor = "local"\n')
    command = [
        sys.executable,
        "-m",
        "fedax",
        "run",
        str(file),
        "--slurm",
        "--out",
        str(tmp_path / "out"),
    ]
    log = tmp_path / "log.txt"
    with log.open("w") as said:
        child = subprocess.Popen(
            command, env=dict(os.environ), stdout=said, stderr=subprocess.STDOUT
        )
    end = time.monotonic() + 200
    while not list(Path(tmp_path / "out" / "runs").glob("*.npz")) and time.monotonic() < end:
        assert child.poll() is None, log.read_text()
        time.sleep(0.2)
    child.send_signal(signal.SIGKILL)
    child.wait()
    begun = set(RunDirectory.load(tmp_path / "out", repair=True).runs)
    assert begun
    time.sleep(2 * pools.POLL)  # the jobs notice
    directory = resume(tmp_path / "out", Display(), cluster=LOCAL)
    assert directory.status == "finished"
    assert len(directory.runs) == 3
