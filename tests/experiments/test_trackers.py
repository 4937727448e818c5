"""Trackers, with stand-ins for their packages."""

import sys
import types

import pytest

import fedax
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running import trackers
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from samples import TINY

ONE = TINY.replace("seeds = [0, 1]", "seeds = [0]").replace(
    "rounds = 2", 'rounds = 2\ntrackers = ["NAME"]'
)


class Fake:
    """Notes every call, and stands for modules and for what they return."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def called(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return called

    def named(self, name):
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


@pytest.fixture
def fake(monkeypatch):
    made = Fake()
    for name in ("tensorboardX", "wandb"):
        module = types.ModuleType(name)
        module.__getattr__ = made.__getattr__
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_every_tracker_gets_the_curves_of_a_run(fake, tmp_path):
    tracking = trackers.Tracking(list(trackers.TRACKERS), {"mu": 0.1}, folder=tmp_path)
    tracking(trackers.Progress(3, 9, 0.5, {"train_loss": 2.0, "client_accuracy": [1.0, 2.0]}))
    tracking.__exit__()
    assert fake.named("add_scalar") == [(("train_loss", 2.0, 3), {}), (("seconds", 0.5, 3), {})]
    assert fake.named("SummaryWriter") == [
        ((str(tmp_path / "tensorboard" / "run"),), {"purge_step": 3})
    ]
    assert len(fake.named("flush")) == 1
    assert fake.named("init")[0][1]["config"] == {"mu": 0.1}
    assert fake.named("log") == [(({"train_loss": 2.0, "seconds": 0.5},), {"step": 3})]
    assert [len(fake.named(name)) for name in ("close", "finish")] == [1, 1]


@pytest.mark.slow
def test_runs_are_tracked_live_and_grids_when_they_end(fake, tmp_path):
    text = ONE.replace("NAME", "wandb") + "[grid]\nfedprox.mu = [0.0, 1.0]\n"
    directory = run_experiment(Experiment.parse(text), tmp_path / "a", Display())
    labels = [options["config"]["label"] for _, options in fake.named("init")]
    # the grid's two members select, then the selected one is run beside the other method
    assert len(labels) == 4
    steps = [kwargs["step"] for _, kwargs in fake.named("log")]
    assert steps == [0, 1, 2] * 4
    logged = [args[0]["train_loss"] for args, _ in fake.named("log")]
    tracked = [(label, logged[3 * i : 3 * i + 3]) for i, label in enumerate(labels)]
    kept = [(r.label, [float(loss) for loss in r.metrics["train_loss"]]) for r in directory.records]
    assert sorted(tracked) == sorted(kept)


def test_a_tracker_that_fails_does_not_end_the_run():
    def fails(step, metrics):
        if step == 1:
            raise ConnectionError("no network")

    kept = []
    task = fedax.task("synthetic", clients=3)
    tracking = fedax.Tracking([fails, lambda *seen: kept.append(seen)])
    with pytest.warns(UserWarning, match="fails .* failed and is left out: no network"):
        fedax.run(fedax.FedAvg(), task, rounds=2, progress=tracking)
    assert [step for step, _ in kept] == [0, 1, 2]


def test_python_runs_are_tracked(fake, tmp_path):
    task = fedax.task("synthetic", clients=3)
    options = {"project": "mine", "name": "first", "folder": tmp_path}
    with fedax.Tracking(["wandb", "tensorboard"], {"mu": 0.1}, **options) as tracking:
        history = fedax.run(fedax.FedAvg(), task, rounds=2, progress=tracking)
    (_, started), *_ = fake.named("init")
    assert (started["project"], started["name"], started["config"]) == (
        "mine",
        "first",
        {"mu": 0.1},
    )
    live = [(kwargs["step"], args[0]["train_loss"]) for args, kwargs in fake.named("log")]
    assert live == [
        (t, pytest.approx(loss)) for t, loss in enumerate(history.metrics["train_loss"])
    ]
    assert len(fake.named("finish")) == len(fake.named("close")) == 1
    with fedax.Tracking("wandb") as tracking:
        tracking.replay(history)
    assert [kwargs["step"] for _, kwargs in fake.named("log")] == [0, 1, 2] * 2
