"""Names of clients from files to results: histories, records, tables, pages and predictions."""

import csv
import gzip
import io

import jax
import numpy as np
import pytest

import fedax
from fedax.core import UnknownName
from fedax.experiments.running.predictions import examples_of, of_split, predictions_csv
from fedax.results.record import Record
from fedax.results.store import from_files, to_files

NAMES = ["client1", "client2", "client10"]


pytestmark = pytest.mark.usefixtures("as_users_run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Clients with as many test examples as the number in their name; only the first feature of the
    test examples tells labels."""
    folder = tmp_path_factory.mktemp("clients")
    for part in ("train", "test"):
        (folder / part).mkdir()
        for name in NAMES:
            n = int(name.removeprefix("client"))
            rows = "".join(
                f"{i % 2},{n + i / 64},{i % 2}\n" for i in range(2 * n if part == "train" else n)
            )
            (folder / part / f"{name}.csv").write_text("a,b,y\n" + rows)
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        task = fedax.task("table", table=folder / "train", test=folder / "test")
        watch = [fedax.observe.ClientAccuracy(), fedax.observe.TrainLoss()]
        return task, fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=2, observe=watch)


@pytest.mark.slow
def test_histories_have_the_numbers_of_a_client_by_name(runs):
    task, history = runs
    assert history.details.clients == tuple(NAMES)
    found = history.by_client("client_accuracy")
    assert list(found) == NAMES
    for k, name in enumerate(NAMES):
        values = np.asarray(found[name])
        own = task.test[k]
        predicted = np.asarray(
            task.predictions(history.params, jax.tree.map(jax.numpy.asarray, own), None)
        ).argmax(1)
        assert len(own["y"]) == int(name.removeprefix("client"))
        assert values.shape == (3,)
        np.testing.assert_allclose(values[-1], (predicted == own["y"]).mean(), rtol=1e-6)
    with pytest.raises(UnknownName, match="client_accuracy"):
        history.by_client("train_loss")


@pytest.mark.slow
def test_records_name_the_clients(runs):
    _, history = runs
    record = Record.of(history, task="files", label="FedAvg", seed=0)
    again = from_files(to_files(record))
    assert again.clients == NAMES


def test_predictions_name_the_clients(runs):
    task, history = runs
    head, *rows = csv.reader(
        io.StringIO(predictions_csv(task, history.params, of_split(task, "test")))
    )
    owners = [row[head.index("client")] for row in rows]
    assert owners == [name for name in NAMES for _ in range(int(name.removeprefix("client")))]


def test_tables_are_read_whatever_the_case_of_their_ending(runs, tmp_path):
    task, _ = runs
    encoding = task.data.encoding
    expected = encoding.features({"a": [1], "b": [5]})
    (tmp_path / "new.v2.CSV").write_text("b,a\n5,1\n")
    (tmp_path / "new.v2.csv.gz").write_bytes(gzip.compress(b"b,a\n5,1\n"))
    for name in ("new.v2.CSV", "new.v2.csv.gz"):
        np.testing.assert_array_equal(examples_of(tmp_path / name, encoding).arrays["x"], expected)


def test_a_broken_client_is_named(folder):
    task = fedax.Task(
        0.0,
        lambda w, e: (w - e["x"]) ** 2,
        {"anna": {"x": np.ones(2)}, "berta": {"x": np.full(2, 1e30)}},
    )
    history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(1e30), rounds=3)
    assert history.outcome.kind == "non-finite"
    assert history.outcome.client is not None
    assert str(history.outcome).endswith(f"client {['anna', 'berta'][history.outcome.client]}")


def test_clients_without_names_are_numbered():
    task = fedax.task("digits", clients=3, test_fraction=0.2)
    history = fedax.run(fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.ClientAccuracy()])
    assert history.details.clients is None
    assert list(history.by_client("client_accuracy")) == ["0", "1", "2"]
    record = Record.of(history, task="digits", label="FedAvg", seed=0)
    assert record.clients is None
