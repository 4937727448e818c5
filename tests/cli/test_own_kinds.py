"""Every kind of own data and of own model of the guide, in Python, by experiment file, and over
`fedax predict` with columns in another order and no labels."""

import csv
import io
import tomllib

import numpy as np
import pandas as pd
import pytest
import tomli_w

import commands
import fedax
from blocks import BLOCKS
from test_documents import GIVEN, write_files

pytestmark = pytest.mark.usefixtures("as_users_run")
PAGES = ["docs/guides/data.md", "docs/models.md"]
TABLE = {"name": "table", "client": "ward", "y": "outcome"}
DATA = {
    "csv": TABLE | {"table": "wards.csv"},
    "folder": {"name": "table", "table": "wards", "y": "outcome"},
    "parquet": TABLE | {"table": "wards.parquet"},
    "hub": {"name": "own_data.py:hub"},
    "arrays": {"name": "own_data.py:arrays"},
}
MODELS = {"linen": "flax", "nnx": "flax", "equinox": "equinox", "haiku": "haiku", "torch": "torch"}


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder with the files of the guide, and the reader's table in every form."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for page in PAGES:
        write_files(page, tmp_path)
    return tmp_path


def make_table(kind):
    frame = pd.read_csv("wards.csv")
    if kind == "folder":
        (folder := fedax.data.data_folder("wards")).mkdir()
        for ward, rows in frame.groupby("ward"):
            rows.drop(columns="ward").to_csv(folder / f"{ward}.csv", index=False)
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet("wards.parquet")
    elif kind in ("hub", "arrays"):
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_pandas(frame).save_to_disk("wards_hub")


def call(*arguments):
    result = commands.call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def run_and_predict(task, data):
    """Runs the guide's experiment with another task; returns the columns of the predictions."""
    text = next(block.text for block in BLOCKS if block.file == "wards.toml")
    (fedax.data.data_folder(".") / "mine.toml").write_text(
        tomli_w.dumps(tomllib.loads(text) | {"task": task})
    )
    call("run", "mine.toml", "--out", "run")
    rows = [*csv.DictReader(io.StringIO(call("predict", "run", data, "--trust-code")))]
    return {name: [row[name] for row in rows] for name in rows[0]}


def features():
    """What the guide says of `new.csv`, computed here."""
    ages = pd.read_csv("wards.csv")["age"].to_numpy(float)
    new = pd.read_csv("new.csv")
    is_woman = new["sex"] == "f"
    columns = [(new["age"] - ages.mean()) / ages.std(), is_woman, ~is_woman]
    return np.stack([np.asarray(column, float) for column in columns], axis=1)


def softmax(x, run):
    weights = fedax.load_params(run)
    z = x @ weights["kernel"] + weights["bias"]
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", DATA)
def test_every_kind_of_data_runs_by_file_and_is_predicted_for(here, kind):
    make_table(kind)
    data = "new.csv"
    x = features()
    if kind == "arrays":
        data = "new.npz"
        x = np.arange(6.0).reshape(2, 3)
        np.savez(data, x=x.astype(np.float32))
    else:
        pd.read_csv(data).assign(patient=["007", "08"]).to_csv(data, index=False)
    found = run_and_predict(DATA[kind], data)
    labels = ["ill", "well"] if kind == "arrays" else ["relapse", "well"]
    assert kind == "arrays" or found["patient"] == ["007", "08"]
    probabilities = np.array([found[f"probability_{label}"] for label in labels], float).T
    call("export", "run", "model.safetensors")
    expected = softmax(x, "model.safetensors")
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4)
    assert found["label"] == [labels[k] for k in expected.argmax(axis=1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_runs_in_python_and_by_file(here, kind):
    """With the same predictions, also of PyTorch, whose modules draw their own weights."""
    pytest.importorskip(MODELS[kind])
    model = f"{kind}_net.py:net"
    found = run_and_predict(DATA["csv"] | {"model": model}, "new.csv")
    data = fedax.data.from_table("wards.csv", client="ward", y="outcome")
    task = fedax.classification(data, model)
    history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=5, observe=[])
    new = pd.read_csv(io.StringIO(GIVEN[PAGES[0]]["new.csv"]))[["age", "sex"]]
    expected = history.predict(new)
    assert np.ptp(expected[:, 0]) > 1e-3
    for column, label in enumerate(["relapse", "well"]):
        np.testing.assert_allclose(
            np.array(found[f"probability_{label}"], float), expected[:, column], rtol=1e-4
        )
