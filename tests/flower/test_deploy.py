"""Deployments: folder, keys, own data, and real processes with TLS and authentication."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
import jax
from deployed import (
    check_equal,
    experiment,
    fedax_command,
    left_out,
    models,
    newest,
    replayed,
    server_process,
    wait_for_round,
    wait_until_still,
)
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.batches import count_runs
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from fedax.flower.deploy import keys, processes, trial
from fedax.flower.deploy.app import _train
from fedax.flower.deploy.bundle import serve_app
from fedax.flower.deploy.processes import TRUSTED, Run, free_port, nodes
from fedax.flower.deploy.settings import Deployment
from fedax.flower.deploy.trial import client_process, run_server, stop_runs, submit
from fedax.flower.deploy.worker import device_for, load_client_data
from fedax.flower.protocol.plan import Assignment
from fedax.flower.server.engine import use_engine
from fedax.flower.server.in_process import LocalGrid, in_process

METHODS = ["fedavg", "fedprox", "feddane", "scaffold", "fedbc", "fedaware"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder by `fedax deploy init`."""
    place = tmp_path_factory.mktemp("deploy")
    file = experiment(place / "experiment.toml", ["fedavg"], clients=3)
    done = CliRunner().invoke(
        app, ["deploy", "init", str(place / "d"), "--experiment", str(file), "--clients", "3"]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("The experiment makes 1 run of 5 rounds.\n")
    return place / "d"


@pytest.mark.slow
def test_the_folder_is_whole(made):
    deployment = Deployment.load(made)
    assert (deployment.clients, deployment.address, deployment.folder) == (
        3,
        "127.0.0.1:9093",
        made,
    )
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    keys = {f"keys/client-{k}{end}" for k in range(3) for end in ("", ".pub")}
    app_files = {
        "app/pyproject.toml",
        "app/fedax_app/__init__.py",
        "app/fedax_app/server.py",
        "app/fedax_app/client.py",
    }
    rest = {
        "deployment.toml",
        "experiment.toml",
        "flower/config.toml",
        "keys/ca.crt",
        "keys/server.crt",
        "keys/server.key",
        "keys/app.json",
        "keys/trusted.yaml",
        "app.fab",
    }
    assert files == keys | app_files | rest
    secret = [path for path in (made / "keys").iterdir() if path.stat().st_mode & 0o077]
    assert {path.suffix for path in secret} == {".pub", ".crt", ".json", ".yaml"}


@pytest.mark.slow
def test_a_node_takes_the_signed_app_and_no_other(made, tmp_path):
    """By the function with which Flower's SuperNode verifies apps, on what its SuperLink gets."""
    import yaml
    from flwr.supercore.fab import Fab
    from flwr.supercore.utils import request_download_link
    from flwr.superlink.servicer.control.control_handlers import _format_verification
    from flwr.supernode.start_client_internal import _verify_fab

    deployment = Deployment.load(made)
    trusted = yaml.safe_load((made / "keys" / TRUSTED).read_text())
    with serve_app(deployment) as hub:
        url = hub["FLWR_SUPERGRID_API_URL"] + "/hub/fetch-fab"
        where, signatures, _ = request_download_link("@fedax/fedax-app", "1.0.0", url, "fab_url")
        content = httpx.get(where).content
        with pytest.raises(ValueError, match=r"@other/app not found"):
            request_download_link("@other/app", None, url, "fab_url")
    assert content == (made / "app.fab").read_bytes()
    found = _format_verification(signatures)
    assert found["valid_license"]
    assert _verify_fab(Fab("", content, found), trusted)
    assert not _verify_fab(Fab("", content + b" ", found), trusted)
    keys.sign(tmp_path, content)
    assert not _verify_fab(
        Fab("", content, found), yaml.safe_load((tmp_path / TRUSTED).read_text())
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients", "0"], "deployment.toml, clients: got 0; allowed: whole numbers >= 1"),
        (
            ["--clients", "4"],
            "--clients: got 4; allowed: as many as the experiment's task has. Its task has 3",
        ),
        (["--port", "70000"], "port: got 70000; allowed: whole numbers from 1 to 65535"),
        (["--minimum", "9"], "minimum: got 9; allowed: whole numbers from 1 to 3"),
        (["--deadline", "-1"], "deadline: got -1.0; allowed: numbers above 0"),
    ],
)
def test_settings_out_of_range(made, arguments, message, tmp_path):
    given = ["--experiment", str(made / "experiment.toml"), "--clients", "3", *arguments]
    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "d"), *given])
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([], "4 runs of 5 rounds."),
        (
            ["grid.solver.learning_rate=[0.1,0.2,0.3]"],
            "16 runs of 5 rounds: 12 to select in the grid, 4 to report.",
        ),
        (["algorithm=[{name='fedavg'}]", "grid={}", "seeds=0"], "1 run of 5 rounds."),
    ],
)
def test_the_number_of_runs_counts_methods_seeds_and_the_grid(changes, text, tmp_path):
    file = experiment(tmp_path / "experiment.toml", ["fedavg", "fedprox"], clients=3)
    found = Experiment.read(file, ["seeds=[0,1]", 'engine="flower"', *changes])
    assert count_runs(found) == f"The experiment makes {text}"


REFUSED = {
    "observe": (
        'observe=["train_loss","dissimilarity"]',
        "observe.1: .*Dissimilarity .* gradients of single clients",
    ),
    "predictions": ('observe=["test_auc"]', "observe.0: .*AUC .* gather the predictions"),
    "server": ('algorithm.0.name="dsgd"', "algorithm.0: .*a method without a server"),
    "personal": ('keep_models="personal"', r"keep_models: .*own models stay with them"),
    "simulation": ("simulation.chunk=1", r"simulation: got a table \[simulation\]"),
    "folder": (
        'task={name="table",table="sites"}',
        r"task.table: got 'sites'; allowed: an absolute path .* stand-in task",
    ),
    "audit": ("audit={}", r"audit: got a table \[audit\]"),
    "momentum": (
        "solver.momentum=0.9",
        r"line \d+: .*run\(solver=\.\.\.\): .*SGD without momentum",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_deployed_runs_cannot_do_is_refused_with_its_field(kind, tmp_path):
    """By `init`, which leaves no folder; `run` would refuse it after it has started the server and
    the clients."""
    method = {"personal": "ditto", "momentum": "scaffold"}.get(kind, "fedavg")
    change, message = REFUSED[kind]
    file = experiment(tmp_path / "experiment.toml", [method], clients=3)
    done = CliRunner().invoke(
        app, ["deploy", "init", str(tmp_path / "d"), "--experiment", str(file), "--set", change]
    )
    assert done.exit_code == 2, done.output
    assert re.search(message, done.output.replace("\n", " "))
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_files_that_were_edited_are_checked_before_anything_starts(tmp_path):
    folder = tmp_path / "d"
    file = experiment(tmp_path / "experiment.toml", ["fedaware"], clients=3)
    done = CliRunner().invoke(app, ["deploy", "init", str(folder), "--experiment", str(file)])
    assert done.exit_code == 0, done.output
    settings = folder / "deployment.toml"
    settings.write_text(settings.read_text().replace("secure = 0.0", "secure = 8.0"))
    done = CliRunner().invoke(app, ["deploy", "run", str(folder), "--trial"])
    assert done.exit_code == 2
    assert re.search(
        r"algorithm\.0: Flower\(secure=\.\.\.\): .*gathers single uploads",
        done.output.replace("\n", " "),
    )
    assert not (folder / "logs").exists()


SUMS = (
    "train_loss",
    "test_loss",
    "test_accuracy",
    "client_accuracy",
    "validation_loss",
    "validation_accuracy",
)


@pytest.mark.parametrize("engine", ["flower", "simulation"])
def test_every_observer_is_allowed_or_refused_by_name(engine):
    """Each observer of files either works on a deployed run's view, or the refusal names it: there
    is no other error."""
    from fedax.engine.driver.grid import Grid
    from fedax.engine.driver.options import RunOptions
    from fedax.experiments.config.observers import OBSERVERS, make_observer
    from fedax.flower.deploy.check import Rehearsal

    task, refused = fedax.task("digits", partition="iid", clients=3, validation=0.2), set[str]()
    chosen = (
        Rehearsal(Deployment(Path("d"), clients=3), 3) if engine == "flower" else fedax.Simulation()
    )
    program = Grid(
        [fedax.FedBC()], task, [0], RunOptions.of({"engine": chosen, "observe": []})
    ).program
    for name in OBSERVERS:
        observer = make_observer(name, None, None)
        try:
            observer.check(task)
        except fedax.InvalidInput:
            continue
        if name in SUMS or engine == "simulation":
            program.check([observer], False)
            continue
        with contextlib.suppress(fedax.InvalidInput):
            program.check([observer], False)
            continue
        with pytest.raises(
            fedax.InvalidInput,
            match=rf"{type(observer).__name__} cannot be "
            r"used in a deployed run",
        ):
            program.check([observer], False)
        refused.add(name)
    assert ({"dissimilarity", "client_weights", "test_auc"} <= refused) is (engine == "flower")


def test_a_folder_is_not_overwritten(made):
    done = CliRunner().invoke(
        app, ["deploy", "init", str(made), "--experiment", str(made / "experiment.toml")]
    )
    assert done.exit_code == 2
    assert "is not empty" in done.output


def test_no_server_no_run(made):
    done = CliRunner().invoke(app, ["deploy", "run", str(made)])
    assert done.exit_code == 2
    assert (
        "no server at 127.0.0.1:9093: Connection refused. `fedax deploy server"
        in done.output.replace("\n", " ")
    )


def test_the_exit_code_of_status(made, tmp_path):
    """1 without a server, 2 for a folder that is none; the tests of real processes have 0."""
    done = CliRunner().invoke(app, ["deploy", "status", str(made)])
    assert (done.exit_code, done.stdout) == (
        1,
        "No server at 127.0.0.1:9093: Connection refused.\n",
    )
    assert CliRunner().invoke(app, ["deploy", "status", str(tmp_path)]).exit_code == 2
    # a client's copy lacks the server's keys
    shutil.copy(made / "deployment.toml", tmp_path)
    for command in ("status", "stop"):
        done = CliRunner().invoke(app, ["deploy", command, str(tmp_path)])
        assert done.exit_code == 2
        assert "such as a client's copy; allowed: the server's folder" in " ".join(
            done.stderr.split()
        )


def test_status(made, monkeypatch):
    monkeypatch.setattr(processes, "connection_failure", lambda deployment: None)
    monkeypatch.setattr(trial, "nodes", lambda deployment: {70: "offline", 50: "online", 9: "x"})
    found = {3: Run("running", ""), 4: Run("finished:failed", "exit code 1")}
    monkeypatch.setattr(trial, "runs", lambda deployment: found)
    (made / "flower" / "nodes.json").write_text("[50, 70, 60]")
    for number in (1, 2):
        RunDirectory.create(made / "runs" / f"run-{number}", "a run")
    done = CliRunner().invoke(app, ["deploy", "status", str(made)])
    shutil.rmtree(made / "runs")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[3:] == [
        "unknown client: x (node 9)",
        "client-0: online (node 50)",
        "client-1: offline (node 70)",
        "run 3: running",
        "run 4: finished:failed exit code 1",
        f"newest results: {made / 'runs' / 'run-2'}",
    ]


def test_the_engine_needs_a_server(made):
    with pytest.raises(
        fedax.FedaxError, match='engine = "flower" runs in a server of Flower: `fedax deploy init'
    ):
        Deployment.load(made).experiment("flower").plan()


@pytest.mark.slow
def test_a_run_that_fails_is_marked_and_goes_on(tmp_path, monkeypatch):
    """From its checkpoint, which `fedax export` names until a run is done."""
    monkeypatch.setattr("fedax.flower.deploy.app._keep_warnings", lambda path: None)
    file, folder, out = tmp_path / "experiment.toml", tmp_path / "d", tmp_path / "run"
    experiment(file, ["fedavg"], rounds=2, clients=3)
    arguments = ["--experiment", str(file), "--deadline", "5.5"]
    with jax.enable_x64(False):
        done = CliRunner().invoke(app, ["deploy", "init", str(folder), *arguments])
        assert done.exit_code == 0, done.output
        devices = [device_for(Deployment.load(folder), k) for k in range(3)]
        config = {"deployment": str(folder), "out": str(out), "resume": False}
        with pytest.raises(fedax.FedaxError, match="round 1: client 2: no answer"):
            _train(Losing(devices), config)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["status"] == "failed"
        assert "round 1: client 2: no answer within 5.5 seconds" in summary["reason"]
        asked = ["export", str(out), str(tmp_path / "model.safetensors")]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 2
        assert re.search(
            r"no run is done yet \(failed\); its newest checkpoint is \S+/round-000000001\. "
            "`fedax resume`, or `fedax deploy resume`",
            done.output.replace("\n", " "),
        )
        _train(LocalGrid(devices), config | {"resume": True})
    assert json.loads((out / "summary.json").read_text())["reason"] == ""
    assert RunDirectory.load(out).status == "finished"


class Losing(LocalGrid):
    """Has no answer of client 2 in round 1."""

    def answers(self, message):
        k, round = message.metadata.dst_node_id - 100, message.content["order"].get("round")
        return [] if (k, round) == (2, 1) else super().answers(message)


@pytest.mark.slow
def test_a_deployed_run_predicts_without_a_server(tmp_path, monkeypatch):
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda cpus=None: None)
    file = experiment(tmp_path / "experiment.toml", ["fedavg"], rounds=1, clients=3)
    plan = Experiment.read(file).plan()
    ((label, algorithm),) = plan.algorithms.items()
    given = plan.arguments_of(label)
    assignment = Assignment(algorithm, given["solver"], given["schedule"], given["channel"])
    with use_engine(in_process(plan.task, tmp_path / "clients", [assignment], deadline=60.0)):
        run_experiment(Experiment.read(file, ['engine="flower"']), tmp_path / "run", Display())
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "test"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1 + plan.task.test.total


OWN = "import numpy as np\ndef examples(partition):\n    return {}\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("{'x': np.zeros((4, 64)), 'y': np.zeros(4, int)}", None),
        (
            "{'x': np.zeros((4, 63)), 'y': np.zeros(4, int)}",
            r"'x': got float\d+ rows of shape \(63,\); allowed: float\d+ rows of shape \(64,\)",
        ),
        ("{'x': np.zeros((4, 64))}", r"got \['x'\]; allowed: a dictionary of arrays \['x', 'y'\]"),
        (
            "{'x': np.zeros((4, 64)), 'y': np.arange(8, 12)}",
            r"'y': got numbers from 8 to 11; "
            r"allowed: 0 to 9, as in",
        ),
        ("{'x': np.full((4, 64), np.nan), 'y': np.zeros(4, int)}", "NaN"),
        ("{'x': np.zeros((0, 64)), 'y': np.zeros(0, int)}", "training examples"),
    ],
)
def test_own_data(code, message, made, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(code))
    if message is None:
        assert device_for(Deployment.load(made), 1, path).task.train.total == 4
        return
    task = Deployment.load(made).experiment("simulation").plan().task
    with pytest.raises(fedax.InvalidInput, match=message):
        load_client_data(task, 1, path)


@pytest.mark.slow
def test_processes_end_with_their_parent(tmp_path):
    """A process whose parent is killed ends too; its commands come from the environment it is
    given."""
    code = (
        "import os, pathlib, sys, time; from fedax.flower.deploy.processes import process\n"
        "with process(['sleep', '60'], pathlib.Path(sys.argv[1]), dict(os.environ)) as p: "
        "print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    finish = time.monotonic() + 20
    while alive(child):
        assert time.monotonic() < finish
        time.sleep(0.05)


def alive(number):
    """Whether a process runs; one that nobody has looked after is dead."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_real_processes_give_the_parameters_of_the_simulation(tmp_path):
    """SuperLink with TLS and authentication, five SuperNodes with workers, six methods, five
    rounds, by the commands alone."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", METHODS)
    made = fedax_command(
        "deploy", "init", folder, "--experiment", file, "--clients", 5, "--port", free_port()
    )
    assert made.returncode == 0, made.stderr
    done = fedax_command("deploy", "run", folder, "--out", out, "--trial", limit=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Uvicorn running on https://127.0.0.1" in (folder / "logs" / "server.log").read_text()
    alone = fedax_command("run", file, "--out", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    assert len(models(out)) == len(METHODS)
    check_equal(out, tmp_path / "alone")


@pytest.mark.slow
def test_killed_processes(tmp_path):
    """SCAFFOLD with three clients. One is killed in the middle of a round and comes back; then the
    run is stopped, everything is ended, and resumed.

    The result is that of the rounds with exactly the uploads that were taken: nothing is lost or
    counted twice."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", ["scaffold"], rounds=12, clients=3)
    file.write_text(file.read_text().replace("seeds =", 'on_bad_client = "drop"\nseeds =', 1))
    options = ["--clients", 3, "--port", free_port(), "--deadline", 30]
    assert fedax_command("deploy", "init", folder, "--experiment", file, *options).returncode == 0
    deployment, said = Deployment.load(folder), []
    with run_server(deployment, said.append), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_process(deployment, k)) for k in range(3)]
        submit(deployment, out, False)
        wait_for_round(folder, 0, 1)
        os.killpg(clients[0].pid, signal.SIGSTOP)  # now the server waits for it
        wait_until_still(folder)
        os.killpg(clients[0].pid, signal.SIGKILL)
        stack.enter_context(client_process(deployment, 0))
        wait_for_round(folder, 1, newest(folder, 0) + 2)
        assert "online" in nodes(deployment).values()
        assert len(stop_runs(deployment)) == 1
        finish = time.monotonic() + 120
        while RunDirectory.load(out).status == "running":
            assert time.monotonic() < finish, "it goes on"
            time.sleep(0.5)
        assert RunDirectory.load(out).status == "interrupted"
    (log,) = (folder / "logs").glob("run-*.log")
    assert "Stopping after the current round" in log.read_text()  # nobody has followed the run
    assert not any("\x1b" in path.read_text() for path in (folder / "logs").iterdir())
    kept = max(int(path.name.removeprefix("round-")) for path in out.rglob("round-*"))
    before = left_out(folder)
    again = fedax_command("deploy", "resume", folder, out, "--trial")
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    assert len(models(out)) == 1
    # rounds that were begun and not kept were done anew
    lost = {(t, k) for t, k in before if t < kept} | set(left_out(folder)[len(before) :])
    check_equal(out, replayed(tmp_path, file, lost))


@pytest.mark.slow
def test_a_server_killed_within_its_first_minute(tmp_path):
    """Long before the first checkpoint by rounds: the run goes on from one by time, to the
    parameters of the simulation."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", ["scaffold"], rounds=8, clients=3)
    file.write_text(file.read_text().replace("checkpoint_every = 1\n", "checkpoint_every = 8\n"))
    port = free_port()
    assert (
        fedax_command("deploy", "init", folder, "--experiment", file, "--port", port).returncode
        == 0
    )
    deployment, said = Deployment.load(folder), []
    assert deployment.checkpoint_seconds == 60.0
    with run_server(deployment, said.append), contextlib.ExitStack() as stack:
        for k in range(3):
            stack.enter_context(client_process(deployment, k))
        assert fedax_command("deploy", "status", folder).returncode == 0
        arguments = [sys.executable, "-m", "fedax", "deploy", "run", str(folder), "--out", str(out)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        following = stack.enter_context(
            subprocess.Popen(
                arguments,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
        )
        stack.callback(following.kill)
        finish = time.monotonic() + 300
        while not list(out.rglob("round-*")):
            assert time.monotonic() < finish, "no checkpoint"
            time.sleep(0.05)
        os.killpg(server_process(port), signal.SIGKILL)
        shown, _ = following.communicate(timeout=60)
        assert following.returncode == 2
        assert re.search(
            rf"Error: the server at \S+:{port} has ended during run \d+\. Start it "
            r"again",
            shown,
        )
        assert f"`fedax deploy resume {folder} {out}` continues the run" in shown
    assert not (out / "models").exists(), "it had ended already"
    kept = max(int(path.name.removeprefix("round-")) for path in out.rglob("round-*"))
    assert 1 <= kept < 8
    again = fedax_command("deploy", "resume", folder, out, "--trial")
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    assert fedax_command("run", file, "--out", tmp_path / "alone").returncode == 0
    check_equal(out, tmp_path / "alone")
