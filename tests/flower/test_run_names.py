"""The name of a deployed run: new for every run, also in a folder that was used before, and the same
when the run goes on elsewhere."""

import shutil
import tomllib

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from deployed import SETTINGS

import fedax
from fedax.experiments.results.store import RunDirectory
from fedax.flower.client.worker import Worker
from fedax.flower.deploy import app as deploy_app
from fedax.flower.deploy.hub import settings_of
from fedax.flower.protocol.plan import Assignment
from fedax.flower.server.engine import current_engine
from fedax.flower.server.in_process import LocalGrid

pytestmark = pytest.mark.slow

OPTIONS = {"solver": fedax.SGD(0.3), "schedule": fedax.Schedule(steps=3), "rounds": 4}
OLD = [[1.0, 2.0], [50.0, 60.0, 70.0]]
NEW = [[1.0, 2.0], [5.0, 6.0, 7.0]]


def task_of(clients):
    rows = [np.float32(values) for values in clients]
    return fedax.Task(np.float32(0.0), lambda w, x: (w - x) ** 2 / 2, rows)


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    """A function that runs or continues a deployed run of a method on some data, as the ServerApp
    does, with clients that keep their folders."""
    monkeypatch.setattr(deploy_app.Experiment, "read", lambda path, changes: None)
    settings = SETTINGS | {"folder": str(tmp_path), "clients": 2, "deadline": 20.0}

    def train(
        algorithm,
        clients,
        out,
        channel=None,
        resume=False,
        grid=LocalGrid,
        server=None,
        **options,
    ):
        histories = []

        def run(*arguments, **trusted):
            folder = RunDirectory.load(out) if resume else RunDirectory(out, "a run")
            folder.begin()
            given = OPTIONS | options | {"channel": channel, "engine": current_engine()}
            histories.append(fedax.run(algorithm, task, **given))
            return folder

        monkeypatch.setattr(deploy_app, "run_experiment", run)
        monkeypatch.setattr(deploy_app, "resume", run)
        config = settings | {"out": str(out)}
        if resume:
            config |= {"name": tomllib.loads(settings_of(out).read_text())["name"]}
        with jax.enable_x64(False):
            task = task_of(server or clients)
            own = task_of(clients)
            assignment = Assignment(algorithm, OPTIONS["solver"], OPTIONS["schedule"], channel)
            workers = [Worker(own, k, tmp_path / f"client-{k}", [assignment]) for k in range(2)]
            deploy_app.run_on(grid(workers), config)
        return float(histories[0].params)

    return train


def test_a_new_run_in_a_used_folder_has_no_old_states(deployed, tmp_path):
    """SCAFFOLD: the first run had wrong data at a client, whose control variate would stay."""
    out = tmp_path / "runs" / "run"
    method = fedax.SCAFFOLD()
    deployed(method, OLD, out)
    shutil.rmtree(out)
    with jax.enable_x64(False):
        expected = float(fedax.run(method, task_of(NEW), **OPTIONS).params)
    assert deployed(method, NEW, out) == pytest.approx(expected, rel=1e-5)


def test_a_new_run_in_a_used_folder_has_no_old_messages(deployed, tmp_path):
    """Uploads with noise of the client are stored, and would answer the orders of the new run."""
    out = tmp_path / "runs" / "run"
    privacy = fedax.Privacy(clip=100.0, noise=1e-4, where="client", delta=1e-5)
    channel = fedax.Channel(privacy=privacy)
    deployed(fedax.FedAvg(), OLD, out, channel)
    shutil.rmtree(out)
    with jax.enable_x64(False):
        expected = float(fedax.run(fedax.FedAvg(), task_of(NEW), **OPTIONS).params)
    assert deployed(fedax.FedAvg(), NEW, out, channel) == pytest.approx(expected, abs=0.1)


class Killed(LocalGrid):
    """A grid whose server is killed in round 2."""

    def answers(self, message):
        if message.content["order"].get("round") == 2:
            raise RuntimeError("killed")
        return super().answers(message)


def test_a_run_goes_on_after_its_folder_was_moved(deployed, tmp_path):
    method = fedax.SCAFFOLD()
    out = tmp_path / "out"
    moved = tmp_path / "elsewhere" / "out"

    def checkpoints(folder):
        return {"checkpoint": folder / "checkpoints" / "0000", "checkpoint_every": 1}

    with pytest.raises(RuntimeError, match="killed"):
        deployed(method, OLD, out, grid=Killed, **checkpoints(out))
    moved.parent.mkdir()
    out.rename(moved)
    settings_of(out).rename(settings_of(moved))
    with jax.enable_x64(False):
        expected = float(fedax.run(method, task_of(OLD), **OPTIONS).params)
    found = deployed(method, OLD, moved, resume=True, **checkpoints(moved))
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_run_goes_on_with_the_clients_examples_alone(deployed, tmp_path):
    """As within one process: with other sizes, SCAFFOLD's control variates would not fit."""
    method = fedax.SCAFFOLD()
    out = tmp_path / "out"
    options = {"checkpoint": out / "checkpoints" / "0000", "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="killed"):
        deployed(method, OLD, out, grid=Killed, **options)
    # the server's task is a stand-in, which stays as it was
    with pytest.raises(fedax.InvalidInput, match="examples of client 1"):
        deployed(method, [OLD[0], [*OLD[1], 80.0]], out, resume=True, server=OLD, **options)
    with jax.enable_x64(False):
        expected = float(fedax.run(method, task_of(OLD), **OPTIONS).params)
    found = deployed(method, OLD, out, resume=True, **options)
    assert found == pytest.approx(expected, rel=1e-5)
