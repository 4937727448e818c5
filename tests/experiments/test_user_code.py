"""User code by name: in files, on the command line, in grids, in run directories that are read
without it."""

import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedax
from commands import call, succeed
from fedax.algorithms import make_algorithm
from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import data_hashes
from fedax.experiments.config.user_code import fingerprint_sources, hash_sources
from fedax.experiments.results.store import RunDirectory, merge
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.results.page import render
from samples import TINY, begin

CODE = '''
import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedax
from fedax.communication.channel import Codec
from fedax.communication.codecs import Identity
from fedax.core import Algorithm, Scalar, Upload, hyper
from fedax.core.client import Solver
from fedax.core.scheduling.sampling import Sampling

with open(Path(__file__).with_suffix(".log"), "a") as log:
    log.write("run")


class Half(Algorithm):
    """A step towards the mean."""

    lr: Scalar = hyper(0.5, low=0.0, high=1.0, doc="server step")

    def round(self, fed, w):
        return w + self.lr * (fed.average(self.train, fed.sample(), w) - w)

    def train(self, client, w):
        return Upload(client.minimize(start=w))


def lines(clients: int = 3, slope: float = 1.0):
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(8, 2)), "y": slope * rng.normal(size=8)} for _ in range(clients)]

    def squares(w, e):
        return (e["x"] @ w - e["y"]) ** 2

    federated = fedax.FederatedData.from_arrays(data, test=data)
    scores = {"scores": {"gap": squares}, "modes": {"gap": "min"}}
    return fedax.Task(np.zeros(2), squares, federated, name="lines", **scores)


class Plain(Solver):
    rate: Scalar = hyper(0.1, low=0.0, doc="step")

    def minimize(self, client, problem, start):
        return start - self.rate * client.gradient(start)


class Norm(fedax.observe.Observer):
    def __call__(self, view):
        return {"norm": jnp.linalg.norm(view.w)}


@dataclasses.dataclass(frozen=True)
class First(Sampling):
    def draw(self, key, offsets, cohort):
        return jnp.arange(cohort, dtype=jnp.int32), cohort


class Same(Identity):
    pass


@dataclasses.dataclass(frozen=True)
class Linear:
    features: int
    classes: int

    def init(self, key):
        return jnp.zeros((self.features, self.classes)), None

    def apply(self, params, state, x, key):
        return x @ params, state


seven = 7
'''

FILE = """
name = "mine"
rounds = 2
seeds = [0, 1]
observe = ["train_loss", "train_gap", "code.py:Norm"]
[task]
name = "code.py:lines"
clients = 4
[solver]
name = "code.py:Plain"
rate = 0.2
[schedule]
cohort = 2
sampling = "code.py:First"
[channel.up]
name = "code.py:Same"
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "code.py:Half"
[grid]
select = "test_gap"
Half.lr = [0.25, 0.5]
"""


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("code.py").write_text(CODE)
    Path("mine.toml").write_text(FILE)
    return tmp_path


def run_mine(out, display=Display, jobs=1):
    return run_experiment(Experiment.read(Path("mine.toml")), Path(out), display(), jobs)


def times_run(folder):
    log = folder / "code.log"
    return len(log.read_text()) // 3 if log.exists() else 0


def forget():
    """As a new process, in which no file has been loaded."""
    for name in [name for name in sys.modules if name.startswith("code_")]:
        del sys.modules[name]


@pytest.mark.slow
def test_everything_in_a_file_may_be_the_users(here):
    """Task, solver, observer, sampling, codec and algorithm; the grid selects by the task's score;
    the hash is part of a run's settings."""
    directory = run_mine("out")
    assert directory.status == "finished"
    assert {record.label for record in directory.records} == {
        "FedAvg",
        "Half, lr=0.25",
        "Half, lr=0.5",
    }
    half = next(record for record in directory.records if record.label.startswith("Half"))
    assert half.settings["algorithm"]["type"] == "code.py:Half"
    assert set(half.settings["sources"]) >= {
        "code.py:Half",
        "code.py:Plain",
        "code.py:lines",
        "code.py:First",
        "code.py:Same",
    }
    assert half.metrics.keys() >= {"norm", "train_gap"}
    assert "Selected: the lowest mean" in (here / "out" / "report.html").read_text()
    fedavg = next(record for record in directory.records if record.label == "FedAvg")
    # a change of it does not make this run another one
    assert "code.py:Half" not in fedavg.settings["sources"]


def test_scores_of_an_own_task_are_observed(here):
    task = {"name": "code.py:lines"}
    plan = Experiment.of(name="a", task=task, algorithm=[{"name": "fedavg"}]).plan()
    assert fedax.observe.CentralScore("gap") in plan.arguments["observe"]


@pytest.mark.slow
def test_a_run_directory_is_read_without_its_code(here):
    """Report, figures, tables, export, citation, and joint pages run no code, and need no
    file."""
    run_mine("out")
    Path("code.py").unlink()
    forget()
    foreign = here / "elsewhere" / "out"
    shutil.copytree(here / "out", foreign)
    before = times_run(here)
    run = RunDirectory.load(here / "out").planned[0].id
    for folder in (here / "out", foreign):
        succeed("report", folder)
        succeed("report", folder, "--keep", here / f"kept-{folder.parent.name}")
        succeed("report", here / f"kept-{folder.parent.name}")
        assert "Half" in call("cite", folder).output
        succeed("export", folder, "--run", run, here / "model.safetensors")
        directory = RunDirectory.load(folder)
        render(merge([directory, directory]).page())
    assert times_run(here) == before
    succeed("report", here / "out", foreign, "--out", here / "both.html")
    for command in (["resume", foreign], ["predict", foreign, "--run", run, "train"]):
        refused = call(*command)
        assert refused.exit_code == 2, refused.output
        assert "names code" in refused.output


@pytest.mark.slow
def test_an_interrupted_run_goes_on_only_if_its_code_is_trusted(here):

    class Stop(Display):
        def end(self, heading, records):
            raise KeyboardInterrupt

    straight = run_mine("straight")
    run_mine("out", Stop)
    with pytest.raises(InvalidInput, match="names code"):
        resume(here / "out", Display())
    Path("code.py").write_text(CODE + "\nseven = 8\n")
    with pytest.raises(InvalidInput, match=r"code.py:\w+: its file has changed"):
        resume(here / "out", Display(), trust=True)
    Path("code.py").write_text(CODE)
    directory = resume(here / "out", Display(), trust=True)
    assert directory.status == "finished"
    for number, record in straight.runs.items():
        assert record.settings == directory.runs[number].settings
        assert (record.metrics["train_loss"] == directory.runs[number].metrics["train_loss"]).all()


@pytest.mark.slow
def test_a_module_that_a_folder_names_is_imported_only_if_it_is_trusted(here, monkeypatch):
    (here / "foreign_module.py").write_text("import fedax\nclass X(fedax.FedAvg):\n    pass\n")
    monkeypatch.syspath_prepend(here)
    text = TINY.replace('"fedprox"\nmu = 1', '"foreign_module:X"')
    directory = RunDirectory(here / "out", "A")
    experiment = Experiment.parse(text)
    experiment = experiment.model_copy(update={"data": data_hashes(experiment.plan().task)})
    begin(directory, [experiment])
    directory.close("interrupted")
    sys.modules.pop("foreign_module")
    with pytest.raises(InvalidInput, match="names code"):
        resume(here / "out", Display())
    assert "foreign_module" not in sys.modules
    assert resume(here / "out", Display(), trust=True).status == "finished"


def test_a_file_that_changes_while_it_runs_is_refused(here):
    experiment = Experiment.read(Path("mine.toml"))
    sources = hash_sources(experiment.resolved())
    experiment = experiment.model_copy(update={"sources": sources})
    Path("code.py").write_text(CODE + "\nseven = 8\n")
    with pytest.raises(InvalidInput, match=r"code.py:\w+: its file has changed"):
        experiment.plan()


def test_a_score_without_a_direction_is_refused_before_it_selects(here):
    Path("code.py").write_text(CODE.replace('{"gap": "min"}', "{}"))
    with pytest.raises(InvalidInput, match="modes="):
        Experiment.read(Path("mine.toml")).plan()


def test_titles_and_columns_are_no_code():
    """They may have colons."""
    columns = 'y = "risk:high"\nclient = "a:b"\nclasses = ["a:c"]\ncolumns = {drop = "a:d"}'
    task = f'name = "table"\ntable = "a.csv"\n{columns}'
    text = f'name = "a:e"\n[task]\n{task}\n[[algorithm]]\nname = "fedavg"\nlabel = "a:f"'
    assert hash_sources(Experiment.parse(text, trust=False).resolved()) == {}


def test_files_of_equal_names_count_one_by_one(here):
    """A change of either file makes the run another one, also where both define one name."""
    text = """name = "a"
rounds = 1
[task]
name = "t/code.py:lines"
[[algorithm]]
name = "m/code.py:lines"
"""
    method = "import fedax\n\n\nclass lines(fedax.FedAvg):\n    pass\n"
    for folder, code in (("t", CODE), ("m", method)):
        (here / folder).mkdir()
        (here / folder / "code.py").write_text(code)
    (here / "two.toml").write_text(text)

    def fingerprint():
        values = Experiment.read(Path("two.toml")).resolved()
        return fingerprint_sources(values, hash_sources(values))

    before = fingerprint()
    assert fingerprint() == before
    (here / "t" / "code.py").write_text(CODE + "# changed\n")
    after = fingerprint()
    assert after != before
    (here / "t" / "code.py").write_text(CODE)
    (here / "m" / "code.py").write_text(method + "# changed\n")
    assert fingerprint() not in (before, after)


@pytest.mark.slow
def test_processes_load_it_too(here):
    directory = run_mine("two", jobs=2)
    assert directory.status == "finished"
    assert len(directory.runs) == len(run_mine("one").runs)


@pytest.mark.slow
def test_a_model_by_name(here):
    task = fedax.task("digits", clients=3, model="code.py:Linear")
    assert task.start(jax.random.key(0)).shape == (64, 10)
    pytest.importorskip("flax")
    Path("net.py").write_text(
        "import fedax\n"
        "from flax import nnx\n"
        "def Net(features, classes):\n"
        "    return fedax.models.nnx(lambda rngs: nnx.Linear(features, classes, rngs=rngs))\n"
    )
    task = fedax.task("digits", clients=3, model="net.py:Net")
    history = fedax.run(fedax.FedAvg(), task, rounds=1)
    predicted = task.predictions(history.params, {"x": task.train.arrays["x"][:5]}, None)
    np.testing.assert_allclose(predicted.sum(1), np.ones(5), rtol=1e-6)
    assert history.last("accuracy" if "accuracy" in history.metrics else "test_accuracy") > 0.1


@pytest.mark.slow
def test_entry_points_are_names(here, monkeypatch):
    (here / "lab_methods.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr(
        "fedax.utils.plugins._entry_points",
        lambda kind: {"half": "lab_methods:Half"} if kind == "algorithm" else {},
    )
    assert make_algorithm("half", lr=0.25).lr == 0.25
    Path("half.toml").write_text(
        'name = "a"\nrounds = 1\n[task]\nname = "code.py:lines"\n[[algorithm]]\nname = "half"\n'
    )
    directory = run_experiment(Experiment.read(Path("half.toml")), here / "out", Display())
    assert directory.records[0].settings["sources"].keys() == {"code.py:lines"}
    cited = succeed("cite", "half.toml")
    assert "% half: your own code (half)" in cited.stdout
    # the package is not installed
    monkeypatch.setattr("fedax.utils.plugins._entry_points", lambda kind: {})
    succeed("report", here / "out")
