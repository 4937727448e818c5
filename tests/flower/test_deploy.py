"""Deployments: folders, keys, the signed app, clients' data, and runs of the ServerApp in this
process."""

import base64
import contextlib
import logging
import shutil
import threading
import tomllib

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
import jax
import numpy as np
from deployed import SETTINGS, experiment, only_run

import fedax
from commands import call
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.batches import count_runs
from fedax.flower.client import member
from fedax.flower.client.worker import Worker
from fedax.flower.deploy import keys
from fedax.flower.deploy.app import run_on
from fedax.flower.deploy.folder import Rehearsal
from fedax.flower.deploy.hub import find_crashed, open_hub, settings_of
from fedax.flower.deploy.worker import load_client_data, worker_for
from fedax.flower.protocol import masks
from fedax.flower.server.in_process import LocalGrid
from fedax.utils.lock import held


def deploy(*arguments):
    with jax.enable_x64(False):
        return call("deploy", *map(str, arguments))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder by `fedax deploy init`, and one of a client by `fedax deploy pack`."""
    place = tmp_path_factory.mktemp("deploy")
    # code of one's own, which the server also loads when it continues a run
    (place / "own.py").write_text("import fedax\nclass Own(fedax.FedAvg): ...\n")
    file = experiment(place / "experiment.toml", ["own.py:Own"], rounds=2, clients=3)
    done = deploy("init", file, "--out", place / "d")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("The experiment makes 1 run of 2 rounds.\n")
    for k in range(3):
        assert deploy("pack", place / "d", k).exit_code == 0
    return place / "d"


def test_private_files_are_their_owners_alone(made):
    private = {
        str(path.relative_to(made))
        for path in made.rglob("*")
        if path.is_file() and not path.stat().st_mode & 0o077
    }
    expected = {"keys/server.key", *(f"sites/{k}/client.key" for k in range(3))}
    assert private - {"keys/noise.key"} == expected


def test_a_client_is_packed_once_and_within_the_number(made, tmp_path):
    """Also where its folder was moved to its machine."""
    moved = shutil.copytree(made, tmp_path / "d", ignore=shutil.ignore_patterns("sites"))
    assert deploy("pack", moved, 0).exit_code == 2
    assert deploy("pack", made, 3).exit_code == 2
    # a client's folder has no such path
    assert "--data" in deploy("pack", made, 0, "--data", "../mine.py").output


def test_a_folder_is_not_overwritten(made):
    assert deploy("init", made / "experiment.toml", "--out", made).exit_code == 2


@pytest.mark.slow
def test_a_node_takes_the_signed_app_and_no_other(made, tmp_path):
    """By the function with which Flower's SuperNode verifies apps, on what its SuperLink gets."""
    import yaml
    from flwr.supercore.fab import Fab
    from flwr.supercore.utils import request_download_link
    from flwr.superlink.servicer.control.control_handlers import _format_verification
    from flwr.supernode.start_client_internal import _verify_fab

    trusted = yaml.safe_load((made / "keys" / "trusted.yaml").read_text())
    hub = open_hub(made)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{hub.server_port}/hub/fetch-fab"
    where, signatures, _ = request_download_link("@fedax/fedax-app", "1.0.0", url, "fab_url")
    content = httpx.get(where).content
    hub.shutdown()
    hub.server_close()
    assert content == (made / "app.fab").read_bytes()
    found = _format_verification(signatures)
    assert found["valid_license"]
    assert _verify_fab(Fab("", content, found), trusted)
    assert not _verify_fab(Fab("", content + b" ", found), trusted)
    keys.sign(tmp_path, content)
    other = yaml.safe_load((tmp_path / "trusted.yaml").read_text())
    assert not _verify_fab(Fab("", content, found), other)


def test_the_number_of_runs_counts_methods_seeds_and_the_grid(tmp_path):
    file = experiment(tmp_path / "experiment.toml", ["fedavg", "fedprox"], clients=3)
    changes = ["seeds=[0,1]", "grid.solver.learning_rate=[0.1,0.2,0.3]"]
    text = "The experiment makes 16 runs of 5 rounds, 12 of them to select in the grid."
    assert count_runs(Experiment.read(file, changes)) == text


REFUSED = {
    "observe": 'observe=["train_loss","dissimilarity"]',
    "predictions": 'observe=["test_auc"]',
    "server": 'algorithm.0.name="dsgd"',
    "personal": 'keep_models="personal"',
    "simulation": "simulation.chunk=1",
    "audit": "audit={}",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_deployed_runs_cannot_do_is_refused(kind, tmp_path):
    method = "ditto" if kind == "personal" else "fedavg"
    file = experiment(tmp_path / "experiment.toml", [method], clients=3)
    done = deploy("init", file, "--out", tmp_path / "d", "--set", REFUSED[kind])
    assert done.exit_code == 2, done.output
    assert not (tmp_path / "d").exists()


SUMS = (
    "train_loss",
    "test_loss",
    "test_accuracy",
    "client_accuracy",
    "validation_loss",
    "validation_accuracy",
)


def test_every_observer_is_allowed_or_refused_by_name():
    """Each observer of files either works on a deployed run's view, or the refusal names it."""
    from fedax.engine.driver.grid import Grid
    from fedax.engine.driver.options import RunOptions
    from fedax.experiments.config.observers import make_observer, observers_of

    task = fedax.task("digits", partition="iid", clients=3, validation=0.2)
    refused = set[str]()
    options = RunOptions.of({"engine": Rehearsal(None, clients=3), "observe": []})
    program = Grid([fedax.FedBC()], task, [0], options).program
    known = observers_of(task)
    for name in known:
        observer = make_observer(name, known)
        try:
            observer.check(task)
        except fedax.InvalidInput:
            continue
        if name in SUMS:
            program.check([observer])
            continue
        with contextlib.suppress(fedax.InvalidInput):
            program.check([observer])
            continue
        with pytest.raises(fedax.InvalidInput, match=type(observer).__name__):
            program.check([observer])
        refused.add(name)
    assert {"dissimilarity", "client_weights", "test_auc"} <= refused


class Losing(LocalGrid):
    """Has no answer of client 2 in round 1."""

    def answers(self, message):
        k = message.metadata.dst_node_id - 100
        round = message.content["order"].get("round")
        return [] if (k, round) == (2, 1) else super().answers(message)


class Disconnected(Losing):
    """Has no server in round 1."""

    def answers(self, message):
        if message.content["order"].get("round") == 1:
            raise httpx.ConnectError("Connection refused")
        return super().answers(message)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [Losing, Disconnected])
def test_a_run_goes_on_from_its_checkpoint(grid, made, tmp_path, caplog):
    """One that a crash of the server has ended is found by the hub, and one that failed is not. The
    log has clients, rounds, metrics and the failure."""
    caplog.set_level(logging.INFO, "fedax")
    folder = tmp_path / "d"
    shutil.copytree(made, folder)
    config = SETTINGS | {"folder": str(folder)}
    with jax.enable_x64(False):
        workers = [worker_for(folder / "sites" / str(k)) for k in range(3)]
        with pytest.raises((fedax.FedaxError, httpx.ConnectError)):
            run_on(grid(workers), config)
        out = folder / "runs" / "run"
        assert RunDirectory.load(out).status == ("failed" if grid is Losing else "running")
        assert find_crashed(folder) == ([] if grid is Losing else [out])
        for words in (
            "client 2 is node 102",
            "round 0: 3 answers",
            "loss ",
            f"{out} ended: ",
            f"{out} begins",
        ):
            assert words in caplog.text
        with held(out):
            assert find_crashed(folder) == []
        shown = deploy("status", folder).stdout
        assert "round 1" in shown.split("newest checkpoint of")[1]
        assert ("ended by a crash" in shown) == (grid is Disconnected)
        settings = tomllib.loads(settings_of(out).read_text())
        with pytest.raises(fedax.core.RunExists):
            run_on(LocalGrid(workers), config | {"out": str(out)})
        run_on(LocalGrid(workers), settings)
    assert RunDirectory.load(out).status == "finished"
    assert find_crashed(folder) == []


PRIVATE = """on_bad_client = "drop"
[channel.privacy]
clip = 0.5
noise = 1.0
delta = 1e-3
where = "client"
[task]"""


@pytest.mark.slow
def test_no_secret_is_in_a_log_or_in_a_file_that_others_may_read(tmp_path, monkeypatch, caplog):
    """Keys, seeds of masks, shares and uploads of a run under masks and with noise, in which
    answers are refused."""
    caplog.set_level(logging.DEBUG, "fedax")
    secrets = list[bytes]()
    spoiled = set[str]()
    derive = masks._derive
    to_fixed_point = member.to_fixed_point

    def derived(secret, purpose):
        secrets.extend([secret, derive(secret, purpose)])
        return secrets[-1]

    def uploaded(values, largest):
        some = values[:5]
        secrets.extend([some.tobytes(), some.astype(np.float32).tobytes()])
        secrets.extend(repr(float(value)).encode() for value in some)
        return to_fixed_point(values, largest)

    monkeypatch.setattr(masks, "_derive", derived)
    monkeypatch.setattr(member, "to_fixed_point", uploaded)

    class Spoiled(LocalGrid):
        """Each part of client 0's answers once holds what does not fit."""

        def answers(self, message):
            (answer,) = super().answers(message)
            facts = answer.content["answer"]
            secrets.extend(facts.get("shares", []))
            for name in {"keys", "letters", "shares"} & set(facts) - spoiled:
                if message.metadata.dst_node_id == 100:
                    spoiled.add(name)
                    facts[name] = [repr(value) for value in facts[name]]
            return [answer]

    file = experiment(tmp_path / "experiment.toml", ["fedavg"], rounds=3, clients=4)
    file.write_text(
        file.read_text().replace("[task]", PRIVATE).replace("cohort = 3", 'weights = "equal"')
    )
    with jax.enable_x64(False):
        task, _, _, assignment = only_run(file)
        workers = [Worker(task, k, tmp_path / str(k), [assignment], True) for k in range(4)]
        config = {"folder": str(tmp_path), "clients": 4, "secure": 64.0}
        run_on(Spoiled(workers), SETTINGS | config)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    open_files = [path for path in files if path.stat().st_mode & 0o077]
    shown = [caplog.text.encode(), *(path.read_bytes() for path in open_files)]
    assert caplog.text.count("client 0: left out") == len(spoiled) == 3
    assert b"finished" in b"".join(shown)
    secrets += [path.read_bytes() for path in tmp_path.rglob("noise.key")]
    for secret in set(secrets):
        forms = secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode()
        assert not [form for form in forms for text in shown if form in text]


OWN = "import numpy as np\ndef examples(partition):\n    return {}\n"


@pytest.mark.parametrize(
    ("code", "field"),
    [
        ("{'x': np.zeros((4, 64)), 'y': np.zeros(4, int)}", None),
        ("{'x': np.zeros((4, 63)), 'y': np.zeros(4, int)}", r"'x'\]: .*\(63,\)"),
        ("{'x': np.zeros((4, 64))}", r"\['x', 'y'\]"),
        ("{'x': np.zeros((4, 64)), 'y': np.arange(8, 12)}", r"'y'\]: got the label 10 in row 2;"),
        ("{'x': np.full((4, 64), np.nan), 'y': np.zeros(4, int)}", "NaN"),
        ("{'x': np.zeros((0, 64)), 'y': np.zeros(0, int)}", "train examples"),
    ],
)
def test_own_data(code, field, made, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(code))
    task = Experiment.read(made / "experiment.toml").plan().task
    if field is None:
        assert load_client_data(task, 1, path).train.total == 4
        return
    with pytest.raises(fedax.InvalidInput, match=field):
        load_client_data(task, 1, path)
