"""Sweeps as jobs of a cluster, by submitit's local executor: the same results, failures that leave
the rest, resumption."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from commands import call
from fedax.core import FedaxError, RunFailed
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import data_hashes
from fedax.experiments.config.sections import ClusterSection
from fedax.experiments.results.planned import planned_runs
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running import pools
from fedax.experiments.running.batches import Batch
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from samples import TINY, begin

SWEEP = TINY + "[grid]\nseeds = [7]\nfedprox.mu = [0.0, 1.0]\n[cluster]\ntimeout_min = 5\n"
SLURM = ClusterSection(timeout_min=5)
PROGRAM = """
import submitit
from fedax.cli import app

auto = submitit.AutoExecutor
submitit.AutoExecutor = lambda folder, cluster: auto(folder=folder, cluster="local")
app()
"""
"""The command line, whose jobs are processes of this machine."""


@pytest.fixture
def submitit(monkeypatch):
    """The module, whose jobs are processes of this machine."""
    monkeypatch.setenv("JAX_ENABLE_X64", "1")  # as here
    module = pytest.importorskip("submitit", reason="needs the extra `slurm`")
    auto = module.AutoExecutor
    monkeypatch.setattr(
        module, "AutoExecutor", lambda folder, cluster: auto(folder=folder, cluster="local")
    )
    monkeypatch.setattr(pools, "_cancel", lambda *_: None)
    return module


def test_the_table_is_checked():
    experiment = Experiment.parse(SWEEP)
    assert experiment.cluster == SLURM
    assert Experiment.parse(experiment.toml()).cluster == experiment.cluster
    assert ClusterSection(slurm_account="me").options == {"slurm_account": "me"}


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
        run_experiment(experiment, tmp_path / "out", Display(), cluster=SLURM)
    left = RunDirectory.load(tmp_path / "out")
    assert [record.label for record in left.records] == ["FedAvg"]
    assert left.status == "failed"
    assert "out of memory" in left.line()
    monkeypatch.setattr(pools, "work_on", original)
    directory = resume(tmp_path / "out", Display(), cluster=SLURM)
    assert directory.status == "finished"
    assert len(directory.runs) == 2


def submitted(tmp_path, monkeypatch, ids):
    """A directory of an earlier process, whose jobs are listed in a file, on a machine without
    Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", None)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.txt").write_text(ids)

    class Submitit:
        @staticmethod
        def AutoExecutor(folder, cluster):
            raise RuntimeError("no such cluster")

    monkeypatch.setattr(pools, "import_submitit", Submitit)


def test_without_scancel_it_says_which_jobs_remain(tmp_path, monkeypatch):
    submitted(tmp_path, monkeypatch, "12\n13\n")
    with pytest.raises(FedaxError, match=r"--slurm: scancel is not found here, and jobs 12, 13 "):
        list(pools.run_on_cluster([Batch(())], tmp_path, SLURM))


@pytest.mark.parametrize("options", [[], ["--trust-code"]])
def test_a_folder_reaches_a_shell_only_if_it_is_trusted(tmp_path, monkeypatch, options):
    """Commands in [cluster] and options among the ids of jobs."""
    commands = []
    text = SWEEP + 'slurm_setup = ["touch OWNED"]\n'
    (tmp_path / "slurm").mkdir(parents=True)
    directory = RunDirectory(tmp_path / "a", "A")
    experiment = Experiment.parse(text)
    experiment = experiment.model_copy(update={"data": data_hashes(experiment.plan().task)})
    begin(directory, [experiment])
    directory.close("interrupted")
    (tmp_path / "a" / "slurm").mkdir()
    (tmp_path / "a" / "slurm" / "jobs.txt").write_text("--me\n77\n")
    monkeypatch.setattr(pools.subprocess, "run", lambda words, **_: commands.append(words))
    fail = types.SimpleNamespace(
        AutoExecutor=lambda **_: (_ for _ in ()).throw(RuntimeError("here"))
    )
    monkeypatch.setattr(pools, "import_submitit", lambda: fail)
    result = call("resume", str(tmp_path / "a"), "--slurm", *options)
    assert result.exit_code == 2, result.output
    if options:
        assert commands == [["scancel", "--", "--me", "77"]]
    else:
        assert "--trust-code" in result.output
        assert commands == []


class FakeJob:
    """A job that has ended once somebody has looked at it as often as its number."""

    def __init__(self, number):
        self.job_id = str(number)
        self.looks = 0
        self.cancelled = False

    def done(self):
        self.looks += 1
        return self.looks > int(self.job_id)

    def result(self):
        return []

    def cancel(self):
        self.cancelled = True


class FakeSubmitit:
    """Stands for the module; within `clean_env` its jobs see no allocation."""

    def __init__(self):
        self.helpers = self
        self.is_clean = False

    @contextlib.contextmanager
    def clean_env(self):
        self.is_clean = True
        yield
        self.is_clean = False

    def AutoExecutor(self, **_):
        return self

    def update_parameters(self, **_): ...

    def map_array(self, function, *arguments):
        assert self.is_clean
        self.jobs = [FakeJob(batch.seeds[0]) for batch, *_ in zip(*arguments, strict=False)]
        return self.jobs

    def as_completed(self, jobs, poll_frequency):
        return (job for job in jobs if job.done())


def test_jobs_are_cancelled_where_the_caller_stops(tmp_path, monkeypatch):
    """By Ctrl-C, or a disk that is full."""
    fake = FakeSubmitit()
    monkeypatch.setattr(pools, "import_submitit", lambda: fake)
    experiment = Experiment.parse(TINY.replace("[0, 1]", "[0, 1, 2]"))
    batches = [Batch((run,)) for run in planned_runs([experiment])[:3]]
    done = pools.run_on_cluster(batches, tmp_path, SLURM)
    next(done)
    done.close()
    assert [job.cancelled for job in fake.jobs] == [False, True, True]
    assert (tmp_path / "slurm" / "jobs.txt").read_text().split() == ["0", "1", "2"]


SWEEP_OF_24 = (
    TINY.replace("seeds = [0, 1]", f"seeds = {list(range(12))}").replace(
        '[[algorithm]]\nname = "fedavg"\n', ""
    )
    + """
[grid]
seeds = [20, 21, 22, 23, 24, 25]
fedprox.mu = [0.0, 1.0]

[cluster]
timeout_min = 5
"""
)
"""12 runs select in one job, 12 are reported in a second one. Each job is a process, whose imports
take most of the test's time."""


@pytest.fixture
def fedax(tmp_path):
    """Starts the command in a process group, which its jobs belong to as well."""
    started = []

    def start(*arguments):
        with (tmp_path / "log.txt").open("a") as said:
            command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
            started.append(
                subprocess.Popen(
                    command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        return started[-1]

    yield start
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def kill_after(child, out, runs, log):
    """Kills a command and its jobs as soon as some runs are kept; returns how many there are."""
    end = time.monotonic() + 900
    while len(list((out / "runs").glob("*/run.json"))) < runs:
        assert child.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return len(RunDirectory.load(out, repair=True).runs)


@pytest.mark.slow
def test_a_killed_sweep_of_24_runs_gives_the_same_table(submitit, fedax, tmp_path, monkeypatch):
    """Killed with the second of its two jobs, and resumed: the bits of a sweep in one process that
    is never killed."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", str(jax.device_count()))  # the same programs as here
    file = tmp_path / "sweep.toml"
    log = tmp_path / "log.txt"
    file.write_text(SWEEP_OF_24)
    experiment = Experiment.parse(SWEEP_OF_24)
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    child = fedax("run", file, "--slurm", "--out", out)
    assert kill_after(child, out, 12, log) == 12
    other = resume(out, Display(), cluster=experiment.cluster)
    assert len(list((out / "slurm").glob("*_result.pkl"))) == 2, "a job ran twice"

    one = run_experiment(experiment, whole, Display())
    assert one.status == other.status == "finished"
    assert one.runs.keys() == other.runs.keys()
    assert len(one.runs) == 24
    for number, record in one.runs.items():
        assert record.settings == other.runs[number].settings
        for name, values in record.metrics.items():
            np.testing.assert_array_equal(values, other.runs[number].metrics[name])
    tables = [call("report", str(folder), "--table", "csv").stdout for folder in (whole, out)]
    assert tables[0] == tables[1]
    assert tables[0].count("\n") >= 2
