"""A finished run stands under the configuration it was made with, or is refused."""

import json
import re

import jax
import pytest

from fedax.algorithms import algorithm_classes
from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume
from samples import TINY, record


@pytest.fixture
def folder(tmp_path):
    """Four runs, made up."""
    experiment = Experiment.parse(TINY)
    directory = RunDirectory.create(tmp_path / "a", "A")
    directory.configure([experiment])
    labels = [(label, seed) for label in ("FedAvg", "FedProx mu=1") for seed in (0, 1)]
    for number, (label, seed) in enumerate(labels):
        directory.add(record(label, experiment.name, seed), number)
    return directory.path


def edit(folder, old, new):
    file = folder / "config.toml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def put(folder, text):
    (folder / "config.toml").write_text(Experiment.parse(text).toml(), encoding="utf-8")


def refusal(folder):
    with pytest.raises(InvalidInput) as report:
        RunDirectory.load(folder)
    with pytest.raises(InvalidInput) as again:
        resume(folder, Display())
    assert str(again.value) == str(report.value)
    return str(report.value)


def test_the_configuration_as_it_was_is_taken(folder):
    runs = RunDirectory.load(folder).runs
    assert [run.settings["seed"] for run in runs.values()] == [0, 1, 0, 1]
    assert resume(folder, Display()).status == "finished"  # nothing is left to do


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
    directory = RunDirectory.create(tmp_path / "a", "A")
    directory.configure([experiment])
    labels = [(member.label, seed) for member in experiment.members() for seed in (0, 1)]
    records = {i: record(label, experiment.name, seed) for i, (label, seed) in enumerate(labels)}
    directory.take(records)
    assert RunDirectory.load(directory.path).runs.keys() == records.keys()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "learning_rate = 0.05",
            "learning_rate = 0.1",
            "0000.npz, solver.learning_rate: made with 0.05, but .* has 0.1",
        ),
        (
            "steps = 3",
            "steps = 4",
            "schedule.steps: made with 3, but the configuration beside it has 4",
        ),
        ("rounds = 2", "rounds = 3", "rounds: made with 2, but"),
        ("alpha = 1.0", "alpha = 0.5", "task.alpha: made with 1.0, but .* 0.5"),
        ("mu = 1", "mu = 2", "0002.npz, algorithm.mu: made with 1.0, but .* 2.0"),
        ("[solver]", "[stop]\nrise = 5.0\n\n[solver]", "stop: made with None, but"),
        (
            'name = "Tiny <run>"',
            'name = "B"',
            "name: made with 'Tiny <run>', but the configuration beside it has 'B'",
        ),
        ("    1,\n", "", "0001.npz, label: made with 'FedAvg', but"),
    ],
)
def test_an_edit_is_refused_with_the_field(folder, old, new, words):
    edit(folder, old, new)
    assert re.search(words, refusal(folder))


def test_a_swap_of_two_methods_is_refused(folder):
    head, first, second = TINY.split("[[algorithm]]")
    put(folder, "[[algorithm]]".join([head, second + "\n", first]))
    assert (
        "0000.npz, label: made with 'FedAvg', but the configuration beside it has 'FedProx mu=1'"
    ) in refusal(folder)


def test_a_method_taken_away_is_refused(folder):
    head, first, _ = TINY.split("[[algorithm]]")
    put(folder, f"{head}[[algorithm]]{first}")
    assert "0002.npz: the configuration beside it has no such run" in refusal(folder)


def test_other_random_settings_of_jax_do_not_go_on(folder):
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        assert RunDirectory.load(folder).runs  # shown they may be
        with pytest.raises(
            InvalidInput,
            match=r"0000.npz, jax.jax_threefry_partitionable: made "
            r"with .*, but here",
        ):
            resume(folder, Display())


def test_other_versions_do_not_go_on(folder):
    kept = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    (folder / "versions.json").write_text(json.dumps(kept | {"jax": "0.4.0"}), encoding="utf-8")
    with pytest.raises(
        InvalidInput,
        match=r"begun with other versions: jax 0.4.0 then, .* now. "
        r"Install those of then",
    ):
        resume(folder, Display())
