"""Several processes of `jax.distributed` on this machine give the numbers of one."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from hosts_program import result

import fedax
from fedax.core import FedaxError

PROGRAM = Path(__file__).parent / "hosts_program.py"
TESTS = PROGRAM.parents[2]


def launch(processes, folder, *cases, limit=400):
    """Output and end of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(Path(fedax.__file__).parents[1]), str(TESTS)])
    environment = os.environ | {
        "PYTHONPATH": paths,
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
    }
    children = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(k), str(processes), str(port), str(folder), *cases],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for k in range(processes)
    ]
    end = time.monotonic() + limit
    outputs = []
    try:
        for child in children:
            outputs.append(child.communicate(timeout=max(1.0, end - time.monotonic())))
    finally:
        for child in children:
            child.kill()
    return [child.returncode for child in children], outputs


def results(processes, folder, *cases, limit=400):
    codes, outputs = launch(processes, folder, *cases, limit=limit)
    assert codes == [0] * processes, outputs[0][1][-2000:] + outputs[-1][1][-2000:]
    return [
        {
            name: value
            for line in out.splitlines()
            if line.startswith("{")
            for name, value in json.loads(line).items()
        }
        for out, _ in outputs
    ]


def agree(found, expected):
    np.testing.assert_allclose(found["params"], expected["params"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-10)
    assert (found["up"], found["ok"]) == (expected["up"], expected["ok"])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return results(
        2,
        tmp_path_factory.mktemp("two"),
        "FedAvg",
        "FedAWARE",
        "DFedAvgM",
        "grid",
        "personal",
        "resumed",
        "disagree",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedAvg", "FedAWARE", "DFedAvgM"])
def test_two_processes_give_the_numbers_of_one(two, name, tmp_path):
    for found in two:
        agree(found[name], result(name, tmp_path, 0))


@pytest.mark.slow
def test_a_grid_and_its_seeds(two, tmp_path):
    for one, found, other in zip(
        result("grid", tmp_path, 0), two[0]["grid"], two[1]["grid"], strict=True
    ):
        agree(found, one)
        assert found == other


@pytest.mark.slow
def test_personal_models(two, tmp_path):
    expected = result("personal", tmp_path, 0)
    for found in two:
        agree(found["personal"], expected)
        np.testing.assert_allclose(
            found["personal"]["own"], expected["own"], rtol=1e-10, atol=1e-12
        )


@pytest.mark.slow
def test_a_run_is_continued_and_one_process_keeps_the_files(two, tmp_path):
    expected = result("resumed", tmp_path, 0)
    for found in two:
        agree(found["resumed"], expected)
    assert [found["resumed"]["files"] for found in two] == [expected["files"], 0]


@pytest.mark.slow
def test_processes_that_disagree_are_refused_on_both(two):
    for found in two:
        assert "the ranks disagree about solver.learning_rate" in found["disagree"]


@pytest.mark.slow
def test_an_error_of_one_ends_all(tmp_path):
    begun = time.monotonic()
    codes, outputs = launch(2, tmp_path, "fails", limit=120)
    assert 0 not in codes
    assert "ValueError: the disk of this host is broken" in outputs[1][1]
    assert "rank 1: it has ended its program" in outputs[0][1]
    assert time.monotonic() - begun < 100


@pytest.mark.slow
def test_three_processes_run_algorithms_of_every_kind(tmp_path):
    names = ["AFL", "FedAWARE", "FedBC", "FedDANE", "PushSum", "SCAFFOLD"]
    first, *others = results(3, tmp_path, *names, limit=1200)
    for name in names:
        agree(first[name], result(name, tmp_path, 0))
        assert all(other[name] == first[name] for other in others)


def test_without_a_launcher_nobody_is_found(monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    with pytest.raises(
        FedaxError,
        match=r"the hosts cannot be connected: .*Give coordinator, "
        r"processes and process",
    ):
        fedax.connect_hosts()
    assert not jax.distributed.is_initialized()
