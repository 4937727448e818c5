"""Models of run directories: kept, resumed, taken over, exported, and used for predictions."""

import csv
import io

import jax
import numpy as np
import pytest
from test_grid_and_resume import Crash

import fedax
from commands import call, succeed
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import read_study
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.models.storage import load_params, read_weights
from samples import TINY, ids

pytestmark = pytest.mark.slow

GRID = TINY.replace("seeds = [0, 1]", "seeds = [0]") + (
    "[grid]\nseeds = [7]\nfedprox.mu = [0.0, 1.0]\n"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_experiment(
        Experiment.parse(GRID), tmp_path_factory.mktemp("models") / "a", Display()
    )


def files(directory):
    models = sorted(directory.path.rglob("*.safetensors"))
    return {str(file.relative_to(directory.path / "runs")): file.read_bytes() for file in models}


def run_of(directory, label, seed=0):
    return ids(directory)[label, seed]


def model_of(directory, label, which=""):
    return directory.path / "runs" / run_of(directory, label) / f"model{which}.safetensors"


def test_the_models_of_reported_runs_are_kept(finished):
    """Each is the model that the same run gives in Python."""
    runs = {name: record for name, record in finished.runs.items() if record.seed == 0}
    assert set(files(finished)) == {f"{name}/model.safetensors" for name in runs}
    plan = Experiment.parse(GRID).plan()
    for name, record in runs.items():
        own = fedax.run(
            plan.algorithms[record.label], plan.task, seed=0, **plan.arguments_of(record.label)
        )
        kept = load_params(model_of(finished, record.label), like=plan.task)
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-12), kept, own.params
        )
        about = read_weights(model_of(finished, record.label)).about
        assert (about["run"], about["label"], about["rounds"], about["seed"]) == (
            name,
            record.label,
            2,
            0,
        )


def test_export_writes_the_model(finished, tmp_path):
    kept = fedax.load_params(model_of(finished, "FedAvg"))
    run = run_of(finished, "FedAvg")
    for name in ("m.safetensors", "new/m.safetensors"):
        succeed("export", finished.path, "--run", run, tmp_path / name)
        again = fedax.load_params(tmp_path / name)
        assert again.keys() == kept.keys()
        assert all(np.array_equal(again[leaf], kept[leaf]) for leaf in kept)
    assert read_weights(tmp_path / "m.safetensors").about["label"] == "FedAvg"


def test_predictions_are_those_of_the_model(finished, tmp_path):
    """A softmax in NumPy on the clients' test examples, from the file of the model."""
    task = Experiment.parse(GRID).plan().task
    kept = fedax.load_params(model_of(finished, "FedAvg"))
    test = task.test
    logits = test.arrays["x"] @ kept["kernel"] + kept["bias"]
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    run = run_of(finished, "FedAvg")
    result = succeed("predict", finished.path, "--run", run[:6], "test")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [int(row["y"]) for row in rows] == test.arrays["y"].tolist()
    assert [int(row["label"]) for row in rows] == logits.argmax(1).tolist()
    assert [int(row["client"]) for row in rows] == np.repeat(np.arange(4), test.sizes).tolist()
    assert [int(row["row"]) for row in rows] == [i for n in test.sizes for i in range(n)]
    np.testing.assert_allclose(
        [[float(row[f"probability_{c}"]) for c in range(10)] for row in rows], chances, atol=1e-8
    )
    np.savez(tmp_path / "x.npz", x=test.arrays["x"][:3])
    out = tmp_path / "p.csv"
    succeed("predict", finished.path, tmp_path / "x.npz", "--run", run, "--out", out)
    with out.open() as stream:
        assert [row["label"] for row in csv.DictReader(stream)] == [
            row["label"] for row in rows[:3]
        ]


def test_clients_own_models_are_kept_and_asked(tmp_path):
    """Those of the same run in Python; a method without such keeps the global model alone, and the
    bytes stay after a break."""
    text = TINY.replace("seeds = [0, 1]", 'seeds = [0]\nkeep_models = "personal"') + (
        '[[algorithm]]\nname = "ditto"\n'
    )
    directory = run_experiment(Experiment.parse(text), tmp_path / "a", Display())
    plan = Experiment.parse(text).plan()
    run = run_of(directory, "Ditto")
    assert [name for name in files(directory) if "personal" in name] == [
        f"{run}/model-personal.safetensors"
    ]
    own = fedax.run(
        plan.algorithms["Ditto"], plan.task, seed=0, personal=True, **plan.arguments_of("Ditto")
    ).personal
    kept = fedax.load_params(model_of(directory, "Ditto", "-personal"))
    for name in ("bias", "kernel"):
        np.testing.assert_allclose(kept[name], getattr(own, name), rtol=1e-12)
    out = tmp_path / "own.safetensors"
    succeed("export", directory.path, "--run", run, "--client", 2, out)
    assert np.array_equal(fedax.load_params(out)["kernel"], kept["kernel"][2])
    result = call("predict", directory.path, "--run", run, "--client", 2, "test")
    assert "The model of 2 predicts all rows." in result.stderr
    assert f"--run {run} --client 2` keeps this model." in result.stderr
    rows = [*csv.DictReader(io.StringIO(result.stdout))]
    assert rows[-1]["client"] == "2"
    labels = plan.task.test[2]["x"] @ kept["kernel"][2] + kept["bias"][2]
    assert [int(row["label"]) for row in rows] == labels.argmax(1).tolist()
    for more, words in (
        (("--client", 4), "--client: got '4'"),
        (("--client", 0, "--best"), "final models"),
    ):
        assert words in call("predict", directory.path, "--run", run, "test", *more).stderr
    other = run_of(directory, "FedAvg")
    assert (
        "kept no model-personal.safetensors"
        in call("export", directory.path, "--run", other, "--client", 1, out).stderr
    )
    with pytest.raises(RuntimeError, match="killed"):
        run_experiment(Experiment.parse(text), tmp_path / "b", Crash(3))
    assert files(resume(tmp_path / "b", Display())) == files(directory)


def test_the_model_of_a_file_is_the_start_of_a_task(finished, tmp_path):
    path = model_of(finished, "FedAvg")
    text = TINY.replace('name = "synthetic"', f'name = "synthetic"\nparams = "{path}"').replace(
        "rounds = 2", "rounds = 0"
    )
    again = run_experiment(Experiment.parse(text), tmp_path / "a", Display())
    losses = [made.records[0].metrics["train_loss"] for made in (again, finished)]
    assert losses[0][0] == losses[1][-1]
    assert read_study(RunDirectory.load(again.path))[0].task.options["params"] == str(path)
    with pytest.raises(fedax.InvalidInput, match=r"missing\.safetensors: cannot be read"):
        Experiment.parse(text.replace(str(path), "missing.safetensors")).plan()


NORMED = """
import numpy as np
import optax
from flax import nnx

import fedax


class Net(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.head = nnx.BatchNorm(4, momentum=0.5, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


def loss(outputs, examples):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])


def accuracy(outputs, examples):
    return outputs.argmax(1).astype(examples["y"].dtype) == examples["y"]


def examples(seed):
    x = np.random.default_rng(seed).normal(3.0 + seed, 2.0, (30, 4)).astype("float32")
    return {"x": x, "y": (x.sum(1) > 15.0).astype(int)}


def task(policy: str = "average"):
    clients = [examples(k) for k in range(3)]
    model = fedax.models.nnx(Net)
    data = fedax.data.FederatedData.from_arrays(clients, test=clients, central=examples(1), classes=2)
    return fedax.from_model(
        model, loss, data, state_policy=policy, scores={"accuracy": accuracy}
    )
"""
NORMED_EXPERIMENT = """
name = "Normed"
rounds = 3
observe = ["test_accuracy"]

[task]
name = "net.py:task"

[solver]
learning_rate = 0.1

[[algorithm]]
name = "fedavg"
"""


def accuracy_of(*arguments):
    result = succeed("predict", *arguments)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    return np.mean([row["y"] == row["label"] for row in rows])


def test_a_models_state_is_kept_and_used(tmp_path, monkeypatch):
    """Batch statistics of Flax: predictions, exports and further runs start from them, and an old
    file without them is refused."""
    pytest.importorskip("flax.nnx", reason="flax is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NORMED)
    directory = run_experiment(Experiment.parse(NORMED_EXPERIMENT), tmp_path / "a", Display())
    (seen,) = (record.metrics["test_accuracy"][-1] for record in directory.runs.values())
    kept = model_of(directory, "FedAvg")
    arguments = (directory.path, "--trust-code")
    assert accuracy_of(*arguments, "central") == pytest.approx(seen)
    succeed("export", directory.path, "m.safetensors")
    arrays = fedax.load_params("m.safetensors")
    assert {"norm.mean.value", "norm.var.value"} <= arrays.keys()
    text = NORMED_EXPERIMENT.replace("rounds = 3", "rounds = 0")
    text = text.replace('task"', 'task"\nparams = "m.safetensors"')
    started = run_experiment(Experiment.parse(text), tmp_path / "b", Display())
    assert started.records[0].metrics["test_accuracy"][0] == pytest.approx(seen)
    state = ("norm.mean.value", "norm.var.value")
    fedax.save_params({name: a for name, a in arrays.items() if name not in state}, kept)
    result = call("predict", *arguments, "central")
    assert result.exit_code == 2
    assert "without the model's state" in result.stderr
