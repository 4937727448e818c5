"""`fedax data`: what it lists, describes, draws and fetches, and what it refuses."""

import functools
import gc
import hashlib
import http.server
import io
import json
import shutil
import tarfile
import threading
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits

import commands
from fedax import data
from fedax.data.files import FILES, File
from fedax.tasks.sources import DATASETS, DataSet


@pytest.fixture(autouse=True)
def _files(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path / "data"))


def call(*arguments):
    return commands.call("data", *arguments)


def refused(*arguments):
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stderr.startswith("Error: ")
    return result.stderr


def test_all_data_sets_are_listed(tmp_path):
    text = call("list").stdout
    assert all(name in text for name in DATASETS)
    assert str(tmp_path / "data") in text


def test_a_description_counts():
    options = "partition=shards,clients=5,shards_per_client=1,test_fraction=0"
    text = call("describe", f"digits:{options}").stdout
    labels = np.bincount(load_digits().target)
    assert "digits, shards" in text
    assert all(f"{label} {count} " in " ".join(text.split()) for label, count in enumerate(labels))
    assert "train examples 1,797" in " ".join(text.split())
    assert "x: float64[64], y: int32" in text
    assert "359 to 360, median 359, mean 359.4" in text
    rows = [line.split()[:2] for line in text.splitlines()]
    assert all(option.split("=") in rows for option in options.split(",")[:3])
    assert "at least 1" in text


def test_numbers_are_described_without_labels(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0.5\n2,1.5\n3,0\n")
    options = "partition=iid,clients=1,classes=0"
    text = call("describe", f"table:table={tmp_path}/a.csv,y=y,{options}").stdout
    assert "y: float" in text
    assert "label" not in text.split("option")[0]


@pytest.fixture
def server(tmp_path):
    """Serves a folder on this machine; gives the folder and its address."""
    (tmp_path / "served").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as own:
        thread = threading.Thread(target=own.serve_forever)
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{own.server_port}"
        own.shutdown()
        thread.join()


def toy(folder=None):
    return data.libsvm("toy", clients=1, folder=folder)


def publish(monkeypatch, name, address, content):
    """A data set `toy` with one file, and the sum of its content."""
    monkeypatch.setitem(FILES, name, File(address, hashlib.sha256(content).hexdigest()))
    monkeypatch.setitem(DATASETS, "toy", DataSet(toy, "", files=(name,)))


def test_missing_files_are_fetched_and_kept(server, tmp_path, monkeypatch):
    served, address = server
    content = b"1 1:1\n-1 2:1\n" * 50_000
    (served / "source").write_bytes(content)
    publish(monkeypatch, "libsvm/toy", f"{address}/source", content)
    result = call("prepare", "toy", "synthetic")
    assert result.exit_code == 0, result.output
    assert f"toy: fetched and verified in {tmp_path / 'data'}" in result.stdout
    assert "synthetic: nothing to prepare" in result.stdout
    # its files are no data of the data folder
    assert "stored: nothing to prepare: it reads no file of the" in call("prepare", "stored").stdout
    assert (tmp_path / "data" / "libsvm" / "toy").read_bytes() == content
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["libsvm"]
    (served / "source").unlink()
    assert "toy: ready and verified" in call("prepare", "toy").stdout


def test_archives_are_unpacked(server, tmp_path, monkeypatch):
    served, address = server
    with tarfile.open(served / "toy.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("libsvm/toy")
        entry.size = len(b"1 1:1\n-1 2:1\n")
        archive.addfile(entry, io.BytesIO(b"1 1:1\n-1 2:1\n"))
    content = (served / "toy.tar.gz").read_bytes()
    publish(monkeypatch, "toy.tar.gz", f"{address}/toy.tar.gz", content)
    assert "fetched and verified" in call("prepare", "toy").stdout
    assert (tmp_path / "data" / "libsvm" / "toy").read_bytes() == b"1 1:1\n-1 2:1\n"


@pytest.mark.parametrize("content", [b"1 1:1\n", None], ids=["other content", "no file"])
def test_nothing_is_kept_of_a_bad_answer(server, tmp_path, monkeypatch, content):
    served, address = server
    if content is not None:
        (served / "toy").write_bytes(content)
    publish(monkeypatch, "libsvm/toy", f"{address}/toy", b"1 1:1\n-1 2:1\n")
    message = refused("prepare", "toy")
    assert ("SHA256" in message) if content else ("404" in message)
    assert not (tmp_path / "data" / "libsvm" / "toy").exists()
    with warnings.catch_warnings():  # the connection of a response that says 404
        warnings.simplefilter("ignore")
        gc.collect()


def test_files_that_a_user_brings_are_named(tmp_path):
    """With the command that makes them; in the place where tasks look for them they are checked."""
    for name in ("femnist", "femnist_letters", "sent140", "shakespeare"):
        message = refused("prepare", name)
        assert "preprocess.sh" in message or "litian96/FedProx" in message
        assert f"no folder {tmp_path / 'data' / name / 'train'}" in message
        assert f"`fedax data prepare {name}`" in message
    users = {
        "users": ["me"],
        "num_samples": [1],
        "user_data": {"me": {"x": [[0.5] * 784], "y": [3]}},
    }
    (tmp_path / "data" / "femnist" / "train").mkdir(parents=True)
    (tmp_path / "data" / "femnist" / "train" / "all.json").write_text(json.dumps(users))
    assert f"ready and verified in {tmp_path / 'data'}" in call("prepare", "femnist").stdout
    assert "train examples" in call("describe", "femnist").stdout
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a9a").write_text("1 1:1\n")
    assert "published data, SHA-256" in refused("prepare", "a9a")
