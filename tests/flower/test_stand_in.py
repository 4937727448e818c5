"""What the page on deployment says about stand-in data."""

import re
import runpy
import tomllib

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from deployed import only_run

import fedax
from commands import call, succeed
from fedax.core import DataError, InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from fedax.flower.client.worker import Worker
from fedax.flower.deploy.folder import make, pack
from fedax.flower.deploy.worker import load_client_data, worker_for
from fedax.flower.protocol.plan import Assignment
from fedax.flower.server.engine import use_engine
from fedax.flower.server.in_process import LocalGrid
from parts import with_validation
from sources import ROOT

TASK = '''import numpy as np
import optax

import fedax


def loss(w, examples):
    logits = examples["x"] @ w
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, examples["y"]
    )


def stand_in():
    """A task with 64 features and the classes 0 to 9, without real examples."""
    x = np.random.default_rng(0).random((2, 64), np.float32)
    rows = {"x": x, "y": np.array([0, 9])}
    data = fedax.FederatedData.from_arrays([rows], test=[rows])
    return fedax.Task(np.zeros((64, 10), np.float32), loss, data)
'''
TABLES = '''import pandas as pd


def examples(partition):
    """Returns the tables for training, testing and validation."""
    table = pd.read_csv("/srv/data/mine.csv").sample(
        frac=1, random_state=0
    )
    fifth = len(table) // 5
    return table[2 * fifth :], table[:fifth], table[fifth : 2 * fifth]
'''


def table_section():
    """The page's task of a stand-in's table."""
    page = (ROOT / "docs" / "flower.md").read_text()
    return re.findall(r"^```toml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)[1]


def made_of_a_stand_in(place, name, clients):
    """The folder that `fedax deploy init` makes of a stand-in, and `mine.py`."""
    (place / "task.py").write_text(TASK)
    rest = """name = "stand-in"
rounds = 2
observe = ["train_loss"]
[task]
name = "task.py:stand_in"
[schedule]
cohort = 3
[solver]
learning_rate = 0.1
[[algorithm]]
name = "fedavg"
"""
    (place / "experiment.toml").write_text(rest)
    (place / "mine.py").write_text(
        "import numpy as np\ndef examples(partition):\n"
        "    rng = np.random.default_rng(partition)\n"
        "    x = rng.uniform(size=(5 + partition, 64)).astype('float32')\n"
        "    return {'x': x, 'y': rng.integers(0, 10, 5 + partition)}\n"
    )
    folder = place / name
    with jax.enable_x64(False):
        made = make(place / "experiment.toml", folder, [], clients, "127.0.0.1", 9093, 0.0)
        assert made == clients
        return [pack(folder, k, str(place / "mine.py")) for k in range(clients)]


@pytest.mark.slow
def test_clients_of_another_number_train_on_their_data_and_no_stand_in(tmp_path):
    """The task has one client, whose rows enter no step and no metric."""
    sites = made_of_a_stand_in(tmp_path, "d", 3)
    with jax.enable_x64(False):
        workers = [worker_for(site) for site in sites]
        assert [worker.task.train.total for worker in workers] == [5, 6, 7]
        stand_in, given, _, assignment = only_run(tmp_path / "d" / "experiment.toml", clients=3)
        algorithm = assignment.algorithm
        engine = fedax.Flower(LocalGrid(workers), clients=3, deadline=10.0)
        history = fedax.run(algorithm, stand_in, seed=0, **given | {"engine": engine})
        data = [runpy.run_path(str(tmp_path / "mine.py"))["examples"](k) for k in range(3)]
        loss = runpy.run_path(str(tmp_path / "task.py"))["loss"]
        task = fedax.Task(np.zeros((64, 10), np.float32), loss, data)
        alone = fedax.run(algorithm, task, seed=0, **given)
    for ours, theirs in (
        (history.params, alone.params),
        (history.metrics["train_loss"], alone.metrics["train_loss"]),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert history.metrics["train_loss"][-1] < history.metrics["train_loss"][0]


HEADER = "age,dose,pressure,relapse\n"


def write_rows(folder, count, header=HEADER):
    """Writes a client's file: the only one of its folder."""
    folder.mkdir()
    rows = "".join(f"{30 + i},0.5,{count},{('no', 'yes')[i % 2]}\n" for i in range(count))
    (folder / "mine.csv").write_text(header + rows)


@pytest.fixture
def tables(tmp_path):
    """The guide's task with the stand-in's file, and how a client's file is read."""
    write_rows(tmp_path / "stand-in", 10)
    options = tomllib.loads(table_section())["task"]
    options |= {"table": str(tmp_path / "stand-in"), "columns": {"standardize": False}}
    task = fedax.task(options.pop("name"), **options)

    def read(name, code=TABLES):
        (tmp_path / "mine.py").write_text(code.replace("/srv/data", str(tmp_path / name)))
        return load_client_data(task, 0, tmp_path / "mine.py")

    return task, read


def test_clients_with_a_csv_file_each(tables, tmp_path):
    read = tables[1]
    for k, count in enumerate((10, 25, 40)):
        write_rows(tmp_path / f"site-{k}", count)
        own = read(f"site-{k}")
        sizes = [part.total for part in (own.train, own.validation, own.test)]
        assert sum(sizes) == count
        assert sizes[2] == count // 5
        assert all(part.clients == 1 for part in (own.train, own.validation, own.test))
        assert {float(row[2]) for row in own.validation.arrays["x"]} == {count}


@pytest.mark.slow
def test_measurements_are_of_the_clients_own_validation_rows(tables, tmp_path):
    """Not of the stand-in's: the loss that a deployed run reports is the mean over the clients'
    rows at its last model."""
    task, read = tables
    for k, count in enumerate((10, 25, 40)):
        write_rows(tmp_path / f"site-{k}", count)
    owns = [read(f"site-{k}") for k in range(3)]
    method = fedax.FedAvg()
    solver = fedax.SGD(0.01)
    schedule = fedax.Schedule(cohort=2, steps=2)
    assignment = Assignment(method, solver, schedule, None)
    workers = [
        Worker(own, k, tmp_path / f"d{k}", [assignment], clients=3) for k, own in enumerate(owns)
    ]
    history = fedax.run(
        method,
        task,
        solver=solver,
        schedule=schedule,
        rounds=2,
        engine=fedax.Flower(LocalGrid(workers), clients=3, deadline=10.0),
        observe=[fedax.observe.ValidationLoss(), fedax.observe.ClientAccuracy()],
    )
    # the stand-in's client has a name, which is none of theirs
    assert task.names is not None
    assert history.details.clients is None
    assert history.metrics["client_accuracy"].shape[1] == 3
    losses = np.concatenate(
        [
            task.loss(history.params, jax.tree.map(jnp.asarray, own.validation.arrays), None)
            for own in owns
        ]
    )
    assert len(losses) == sum(own.validation.total for own in owns)
    np.testing.assert_allclose(history.last("validation_loss"), losses.mean(), rtol=1e-6)


@pytest.mark.slow
def test_runs_on_a_stand_in_predict(tables, tmp_path):
    """With a cohort that is larger than the stand-in, whose one client has a name."""
    _, read = tables
    section = re.sub("columns = .*", "columns.standardize = false", table_section()).replace(
        "/srv", str(tmp_path)
    )
    (tmp_path / "a.toml").write_text(
        'name = "a"\nrounds = 1\n[[algorithm]]\nname = "fedavg"\n[schedule]\ncohort = 2\n'
        + "batch_size = 1\n"
        + section
    )
    assignment = only_run(tmp_path / "a.toml", clients=2)[-1]
    workers = []
    for k, rows in enumerate((20, 35)):
        write_rows(tmp_path / f"site-{k}", rows)
        workers.append(Worker(read(f"site-{k}"), k, tmp_path / f"d{k}", [assignment], clients=2))
    with use_engine(fedax.Flower(LocalGrid(workers), clients=2, deadline=60.0)):
        experiment = Experiment.read(tmp_path / "a.toml", ['engine="flower"'])
        directory = run_experiment(experiment, tmp_path / "run", Display())
    # the report has the clients' numbers of examples, not the stand-in's
    sizes = [int(worker.task.train.total) for worker in workers]
    assert sizes == [12, 21]
    (note,) = directory.notes.values()
    assert ": 2 clients, 33 training examples. Schedule:" in note
    assert directory.records[0].gradients[-1] == np.mean(sizes)
    (tmp_path / "new.csv").write_text("age,dose,pressure\n1,2,3\n")
    command = ["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]
    done = succeed(*command)
    assert done.stdout.startswith("label")
    # the rows of the stand-in are nobody's
    refused = call(*command[:2], "train")
    assert "those of a stand-in" in str(refused.exception) + refused.output


def test_a_worker_has_examples_of_one_client(tables, tmp_path):
    write_rows(tmp_path / "site", 40)
    two = with_validation(fedax.task("synthetic", clients=2), 0.2)
    mixed = eqx.tree_at(lambda t: t.train, two, tables[1]("site").train)
    with pytest.raises(InvalidInput, match="test: got examples of 2 clients; allowed: of one"):
        Worker(mixed, 0, tmp_path / "worker", [])


def test_missing_validation_rows_are_refused(tables, tmp_path):
    write_rows(tmp_path / "site", 40)
    with pytest.raises(DataError, match="no validation examples"):
        tables[1]("site", TABLES.replace(", table[fifth : 2 * fifth]", ""))


def test_test_rows_that_nobody_uses_are_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def examples(k):\n"
        "    rows = {'x': np.zeros((3, 2)), 'y': np.zeros(3)}\n"
        "    return rows, rows\n"
    )
    task = fedax.Task(
        np.zeros(2),
        lambda w, example: (example["x"] @ w - example["y"]) ** 2,
        [{"x": np.zeros((3, 2)), "y": np.zeros(3)}],
    )
    with pytest.raises(DataError, match="test examples"):
        load_client_data(task, 0, tmp_path / "mine.py")
