"""The MPI engine, with four real ranks, against the simulation."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

mpi4py = pytest.importorskip("mpi4py", reason="mpi4py is not installed")
MPIEXEC = Path(sysconfig.get_path("scripts")) / "mpiexec"
PROGRAM = Path(__file__).parent / "program.py"
RANKS = [str(MPIEXEC), "-n", "4", "--allow-run-as-root", "--oversubscribe"]


def launch(*arguments):
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside Python")
    done = subprocess.run(
        [*RANKS, sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def results():
    """Every case once, with the examples of each rank on that rank alone."""
    return json.loads(launch(PROGRAM, "all", "--own").splitlines()[-1])


CASES = [
    "SCAFFOLD",
    "FedDANE",
    "FedBC",
    "FedAWARE",
    "DFedAvgM",
    "Quantized 8",
    "Coded",
]
CASES += [
    "State",
    "Local state",
    "State on a graph",
    "State mixed first",
    "Local state tuned",
    "Hard graph",
    "Daily",
    "Private",
    "Private clients",
]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_same_trajectory_as_the_simulation(results, name):
    result = results[name]
    assert result["far"] < 1e-10
    assert result["metrics"] < 1e-10
    assert result["watched"]
    assert result["bits"] == [True, True]
    assert result["moved"] > 1e-3
