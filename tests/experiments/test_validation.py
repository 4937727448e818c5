"""Selection on validation examples, early stopping and new clients in experiment files."""

import numpy as np
import pytest
from test_models_kept import call

import fedax
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import read_study
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from samples import TINY

pytestmark = pytest.mark.slow

TEXT = """
name = "Flipped"
rounds = 4
[task]
name = "table"
table = "{folder}/train"
test = "{folder}/test"
validation = 0.25
[solver]
learning_rate = 0.5
[schedule]
batch_size = "full"
[[algorithm]]
name = "fedavg"
[grid]
solver.learning_rate = [1e-4, 0.5]
"""
SLOW = "FedAvg, learning_rate=0.0001"
FAST = "FedAvg, learning_rate=0.5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Labels are the sign of x in training; in the test they are all the other way round."""
    folder = tmp_path_factory.mktemp("flipped")
    rng = np.random.default_rng(0)
    for split, flip in (("train", False), ("test", True)):
        (folder / split).mkdir()
        for client in "abc":
            x = rng.normal(size=(16, 2))
            rows = np.column_stack([x, (x[:, 0] > 0) != flip])
            np.savetxt(
                folder / split / f"{client}.csv", rows, delimiter=",", header="u,v,y", comments=""
            )
    return folder


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    return run_experiment(
        Experiment.parse(TEXT.format(folder=folder)), tmp_path_factory.mktemp("v") / "a", Display()
    )


def test_a_grid_selects_on_validation_and_not_on_test(folder, finished, tmp_path):
    """The larger step learns what validation asks for, which is wrong in all of the test: the other
    one would win there."""
    assert finished.selects[finished.planned[0].task] == "validation_loss"
    assert finished.selections() == {"Flipped": {"FedAvg": FAST}}
    text = TEXT.format(folder=folder)
    on_test = run_experiment(
        Experiment.parse(text + 'select = "test_loss"\n'), tmp_path / "t", Display()
    )
    assert on_test.selections() == {"Flipped": {"FedAvg": SLOW}}
    notes = [directory.sheets()[0].note for directory in (finished, on_test)]
    assert ["test examples" in note for note in notes] == [False, True]
    again = RunDirectory.load(finished.path)
    assert again.selections() == finished.selections()
    assert "validation_loss" in (finished.path / "metrics.csv").read_text().splitlines()[0]


def test_the_best_model_on_validation_is_kept(folder, finished, tmp_path):
    """It is the one of the last round here, where the loss is lowest; its predictions are written
    like those of any model."""
    (number,) = (i for i, record in finished.runs.items() if record.seed == 0)
    losses = finished.runs[number].metrics["validation_loss"]
    assert np.argmin(losses) == len(losses) - 1
    models = []
    for best in ([], ["--best"]):
        file = tmp_path / f"m{len(best)}.safetensors"
        assert call("export", finished.path, file, *best).exit_code == 0
        models.append(fedax.load_params(file))
    assert models[0].keys() == models[1].keys()
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    result = call("predict", finished.path, "--best", "validation")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1 + 3 * 4)


EARLY = TINY.replace("alpha = 1.0", "alpha = 1.0\nvalidation = 0.3\nunseen = 0.25").replace(
    "rounds = 2", "rounds = 30\nunseen_steps = 2"
)
EARLY = EARLY.replace("learning_rate = 0.05", "learning_rate = 3.0").replace(
    "cohort = 2", "cohort = 3"
)
EARLY += "[early_stopping]\npatience = 2\n"


def test_runs_end_early_each_for_itself_and_go_on_to_the_same_bytes(tmp_path):
    from test_grid_and_resume import Crash

    straight = run_experiment(Experiment.parse(EARLY), tmp_path / "a", Display())
    kinds = {record.outcome.kind for record in straight.records}
    assert kinds == {"stopped"}
    for record in straight.records:
        best = int(np.argmin(record.metrics["validation_loss"]))
        assert record.rounds[-1] - record.rounds[best] == 2
        assert record.metrics["unseen_accuracy_adapted"].shape == record.rounds.shape
    with pytest.raises(RuntimeError, match="killed"):
        run_experiment(Experiment.parse(EARLY), tmp_path / "b", Crash(2))
    again = resume(tmp_path / "b", Display())
    files = [
        {str(file.relative_to(d.path)): file.read_bytes() for file in d.path.rglob("*.safetensors")}
        for d in (straight, again)
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 2 * len(straight.runs)
    assert read_study(again)[0].resolved()["early_stopping"]["patience"] == 2
