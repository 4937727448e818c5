"""Run directories under attack: flipped bits, two processes, a killed parent, disks that are
full."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from commands import call
from fedax.core import RunExists, WriteFailed
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.results.store import from_files, to_files
from fedax.utils.lock import held, is_held
from samples import TINY, begin, put, record


@pytest.mark.parametrize("name", ["run.json", "curves.npz"])
def test_any_flipped_bit_of_a_run_is_noticed(name):
    files = to_files(record())
    rng = np.random.default_rng(0)
    data = files[name]
    missed = []
    for bit in rng.choice(8 * len(data), 300, replace=False):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            again = from_files(files | {name: bytes(flipped)})
        except Exception:  # of zip, JSON or the checksum
            continue
        # spaces and line ends between values of JSON mean nothing
        missed.append(again.label == "FedAvg" and name == "run.json")
    assert all(missed)
    assert len(missed) < 100
    assert from_files(files).label == "FedAvg"


def directory(tmp_path):
    made = RunDirectory(tmp_path / "a", "A")
    begin(made, [Experiment.parse(TINY)])
    put(made, record(task="Tiny <run>", label="FedAvg"))
    return made


HOLD = """
import sys, time
from pathlib import Path
from fedax.utils.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_kept_out_of_a_folder(tmp_path):
    path = directory(tmp_path).path
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        for second in (
            lambda: resume(path, Display()),
            lambda: run_experiment(Experiment.parse(TINY), path, Display()),
            lambda: RunDirectory.load(path).renew(),
        ):
            with pytest.raises(RunExists, match="in use by another process"):
                second()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert not is_held(path)  # a lock of a dead process does not block
    with held(path):
        pass


def writes(path, ready):
    from fedax.experiments.running.pools import _set_up_worker

    _set_up_worker(multiprocessing.Value("i", 0), 1)
    ready.set()
    while True:
        path.write_text(str(os.getpid()))
        time.sleep(0.05)


def parent(path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    context.Process(target=writes, args=(path, ready)).start()
    ready.wait()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_processes_of_a_queue_end_with_their_parent(tmp_path):
    path = tmp_path / "a"
    killed = multiprocessing.get_context("spawn").Process(target=parent, args=(path,))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    time.sleep(0.5)
    path.unlink(missing_ok=True)
    time.sleep(0.5)
    assert not path.exists()


FULL = "No space left on device"


@pytest.fixture
def full(monkeypatch):
    def write(*_, **__):
        raise OSError(28, FULL, "file")

    monkeypatch.setattr("os.fsync", write)


def test_a_full_disk_is_said(tmp_path, full):
    with pytest.raises(WriteFailed, match=FULL):
        run_experiment(Experiment.parse(TINY), tmp_path / "a", Display())


@pytest.mark.parametrize("command", ["report --figures", "report --keep", "data prepare"])
def test_places_that_cannot_be_written_are_said(tmp_path, command, monkeypatch):
    path = directory(tmp_path).path
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("FEDAX_DATA", str(file / "data"))
    words = {
        "report --figures": ["report", str(path), "--figures", "pdf", "--out", str(file / "x")],
        "report --keep": ["report", str(path), "--keep", str(file / "x")],
        "data prepare": ["data", "prepare", "mnist"],
    }[command]
    shown = call(*words)
    assert (shown.exit_code, "Not a directory" in shown.output) == (2, True), shown.output
