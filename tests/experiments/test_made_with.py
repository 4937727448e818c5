"""Runs stand under the settings that they were made with: an edited study has other runs."""

import json

import jax
import pytest

from fedax.algorithms import algorithm_classes
from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import planned_runs, read_study
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume
from samples import TINY, begin, put, record


@pytest.fixture
def folder(tmp_path):
    """Four runs, made up."""
    directory = RunDirectory(tmp_path / "a", "A")
    begin(directory, [Experiment.parse(TINY).model_copy(update={"data": {"examples": "5e"}})])
    labels = [(label, seed) for label in ("FedAvg", "FedProx mu=1") for seed in (0, 1)]
    put(directory, *(record(label, "Tiny <run>", seed) for label, seed in labels))
    return directory.path


def edit(folder, old, new):
    file = folder / "study.toml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_the_study_as_it_was_has_its_runs(folder):
    directory = RunDirectory.load(folder)
    assert [run.settings["seed"] for run in directory.records] == [0, 1, 0, 1]
    assert directory.runs.keys() == {run.id for run in directory.planned}


@pytest.mark.slow
def test_a_directory_is_read_back_with_any_method(tmp_path):
    """Built-in methods, classes derived from each in a file, and an own one with its own solver."""
    kinds = algorithm_classes()
    bodies = [
        f"class X{kind.__name__}(fedax.{kind.__name__}):\n    pass" for kind in kinds.values()
    ]
    own = [
        "class Steps(fedax.SGD):\n    pass",
        "class Own(fedax.Algorithm):\n    def round(self, state, fed):\n        return state",
    ]
    (tmp_path / "h.py").write_text("\n\n".join(["import fedax", *bodies, *own]))
    sections = [f'name = "{name}"' for name in kinds]
    sections += [f'name = "h.py:X{kind.__name__}"' for kind in kinds.values()]
    sections += ['name = "h.py:Own"\nsolver = {name = "h.py:Steps"}']
    head = TINY[: TINY.index("[[algorithm]]")].replace("cohort = 2\n", "")
    text = head + "".join(f"[[algorithm]]\n{section}\n" for section in sections)
    (tmp_path / "a.toml").write_text(text)
    experiment = Experiment.read(tmp_path / "a.toml")
    directory = RunDirectory(tmp_path / "a", "A")
    begin(directory, [experiment])
    labels = [(member.label, seed) for member in experiment.members() for seed in (0, 1)]
    put(directory, *(record(label, experiment.name, seed) for label, seed in labels))
    again = RunDirectory.load(directory.path)
    assert [(run.label, run.seed) for run in again.records] == labels


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("learning_rate = 0.05", "learning_rate = 0.1", 0),
        ("steps = 3", "steps = 4", 0),
        ("rounds = 2", "rounds = 3", 0),
        ("alpha = 1.0", "alpha = 0.5", 0),
        ("mu = 1.0", "mu = 2.0", 2),
        ("[solver]", "[stop]\nrise = 5.0\n\n[solver]", 0),
        ('name = "Tiny <run>"', 'name = "B"', 4),
        ("    1,\n", "", 2),
        ('examples = "', 'examples = "0', 0),
    ],
)
def test_an_edited_study_has_other_runs_and_is_shown_as_it_ran(folder, old, new, left):
    edit(folder, old, new)
    directory = RunDirectory.load(folder)
    assert len(directory.records) == 4
    planned = {run.id for run in planned_runs(read_study(directory))}
    assert len(planned & directory.runs.keys()) == left


def test_other_random_settings_of_jax_do_not_go_on(folder):
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        assert RunDirectory.load(folder).runs  # shown they may be
        with pytest.raises(
            InvalidInput, match=r"other versions: jax_threefry_partitionable .* then and .* now"
        ):
            resume(folder, Display())


def test_other_versions_do_not_go_on(folder):
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["versions"]["jax"] = "0.4.0"
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(
        InvalidInput,
        match=r"begun with other versions: jax 0.4.0 then and .* now. Install those of then",
    ):
        resume(folder, Display())
