"""Flower's own simulation, in processes of Ray: the same apps, the same parameters."""

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("ray", reason="ray is not installed: pip install 'flwr[simulation]'")

from deployed import check_equal, experiment, fedax_command

PROGRAM = """
import pathlib, sys
from flwr.simulation import run_simulation
from fedax.flower.deploy.app import apps
folder, out = map(pathlib.Path, sys.argv[1:])
server, client = apps(folder, out)
run_simulation(server, client, 3, backend_config={"client_resources": {"num_cpus": 1}})
"""


@pytest.mark.slow
def test_the_parameters_of_the_simulation(tmp_path):
    """SCAFFOLD, whose memory is on the clients' disks, whichever process works for them."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", ["scaffold"], rounds=2, clients=3)
    assert (
        fedax_command("deploy", "init", folder, "--experiment", file, "--clients", 3).returncode
        == 0
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(out)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert fedax_command("run", file, "--out", tmp_path / "alone").returncode == 0
    check_equal(out, tmp_path / "alone")
