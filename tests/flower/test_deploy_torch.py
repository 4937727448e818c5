"""A PyTorch network is deployed from one experiment file; needs PyTorch: make torch."""

import runpy

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from deployed import only_run  # noqa: E402

import fedax  # noqa: E402
from commands import call  # noqa: E402
from fedax.flower.deploy.folder import pack  # noqa: E402
from fedax.flower.deploy.worker import worker_for  # noqa: E402
from fedax.flower.server.in_process import LocalGrid  # noqa: E402

NET = """
import numpy as np
import optax
import torch
from torch import nn

import fedax


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def cross_entropy(logits, examples):
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def examples(partition):
    rng = np.random.default_rng(partition)
    return {"x": rng.normal(size=(20, 8)).astype("float32"), "y": rng.integers(0, 3, 20)}


def task(clients: int = 2):
    data = [examples(k) for k in range(clients)]
    model = fedax.models.torch(network(), data[0]["x"])
    return fedax.from_model(model, cross_entropy, data, name="torch network")
"""
EXPERIMENT = """
name = "a network of PyTorch"
rounds = 3
observe = ["train_loss"]
seeds = [3]
[task]
name = "net.py:task"
clients = 2
[solver]
learning_rate = 0.1
[schedule]
batch_size = 5
[[algorithm]]
name = "scaffold"
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    return tmp_path / "experiment.toml"


def check_weights(params, path):
    """They load into the module, and are not those that it starts with."""
    net = runpy.run_path(str(path))["network"]()
    before = [weights.clone() for weights in net.parameters()]
    net.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in params.items()})
    assert any(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_the_folder_of_a_network_gives_the_simulation(file, tmp_path):
    """Its workers, by the copy of the code that the folder has, in this process."""
    folder = tmp_path / "d"
    done = call("deploy", "init", str(file), "--out", str(folder))
    assert done.exit_code == 0, done.output
    file.with_name("net.py").unlink()  # a client has the folder alone
    copy = folder / "net.py"
    sites = [pack(folder, 0, ""), pack(folder, 1, "net.py")]
    with jax.enable_x64(False):
        workers = [worker_for(site) for site in sites]
        task, given, _, assignment = only_run(folder / "experiment.toml")
        engine = fedax.Flower(LocalGrid(workers), deadline=10.0)
        deployed, alone = (
            fedax.run(assignment.algorithm, task, seed=3, **given | own)
            for own in ({"engine": engine}, {})
        )
    for name, array in alone.params.items():
        np.testing.assert_allclose(deployed.params[name], array, rtol=0, atol=1e-5)
    assert deployed.metrics["train_loss"][-1] < deployed.metrics["train_loss"][0]
    check_weights(deployed.params, copy)
