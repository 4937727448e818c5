"""`fedax cite` and `fedax new`: entries for what a run used; skeletons that run, pass laws and
validate."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

from commands import call, succeed
from fedax.algorithms import algorithm_classes
from fedax.cli.cite import bibtex, entries
from fedax.cli.new import FAMILIES
from fedax.experiments.config.experiment import Experiment
from fedax.tasks.sources import DATASETS

ROOT = Path(__file__).parents[2]


def keys(text):
    return re.findall(r"^@\w+\{(\w+),$", text, flags=re.MULTILINE)


def test_entries_are_well_formed_and_of_what_there_is():
    known = {*algorithm_classes(), *DATASETS}
    assert len({entry.key for entry in entries()}) == len(entries())
    for entry in entries():
        assert entry.text.count("{") == entry.text.count("}"), entry.key
        for field in ("author", "title", "year"):
            assert f"  {field} = {{" in entry.text, entry.key
        assert "keywords" not in entry.text
        assert entry.names & known, entry.key


@pytest.mark.parametrize("name", algorithm_classes())
def test_entries_of_algorithms_are_those_of_their_cards(name):
    """First author, year, and arXiv number as far as the citation has them; a method without an entry
    is cited by its citation."""
    citation = algorithm_classes()[name].citation.paper
    own = [entry for entry in entries() if name in entry.names]
    if not own:
        assert citation in bibtex([name])
        return
    first = re.match(r"[A-Z]\w+", citation)[0]
    assert any(first in entry.text.replace(r"{\'c}", "c") for entry in own)
    for number in re.findall(r"arXiv:(\S+?)\)?$", citation):
        assert any(number in entry.text for entry in own)
    for year in re.findall(r" ((?:19|20)\d\d)\b", citation):
        assert any(f"year = {{{year}}}" in entry.text for entry in own)


def test_this_library_is_cited_as_its_citation_file_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    text = bibtex([])
    assert keys(text) == ["fedax"]
    for value in (citation["title"], citation["version"], citation["authors"][0]["name"]):
        assert value in text


@pytest.mark.slow
def test_a_run_is_cited_by_methods_data_and_library():
    options = ["--task", "synthetic:clients=2", "--rounds", "1", "--out", "a"]
    succeed("compare", "fedprox", "scaffold", "fedprox:mu=1", *options)
    result = succeed("cite", "a")
    assert keys(result.stdout) == ["li2020federated", "karimireddy2020scaffold", "fedax"]
    assert (
        "% FedProx, data: synthetic\n@inproceedings{li2020federated,\n  author = " in result.stdout
    )
    assert keys(call("cite", "a/study.toml").stdout) == keys(result.stdout)
    assert keys(bibtex(["fedavg"], [], "Bedi et al. (arXiv:2206.10815)")) == [
        "mcmahan2017communication",
        "bedi2022fedbc",
        "fedax",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_algorithm_runs_and_passes_laws(family, tmp_path, monkeypatch):
    from laws.test_laws import test_bits_counted_are_bits_traced as bits
    from laws.test_laws import test_observers_do_not_matter as unseen

    name = f"Fed{family.capitalize()}"
    succeed("new", "algorithm", name, "--family", family)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        module, tests = (
            importlib.import_module(part) for part in (name.lower(), f"test_{name.lower()}")
        )
        parameters = [mark.args for mark in getattr(tests.test_by_hand, "pytestmark", [])]
        tests.test_by_hand(*(values[0] for _, values in parameters))
        others = [
            test
            for key, test in vars(tests).items()
            if key.startswith("test_the_") and "range" not in key
        ]
        assert others
        for test in others:
            test()
        for law in (unseen, bits):
            law(getattr(module, name))
    finally:
        for part in (name.lower(), f"test_{name.lower()}"):
            sys.modules.pop(part, None)
    again = call("new", "algorithm", name, "--family", family)
    assert "already" in again.stderr


def test_a_new_algorithm_goes_into_a_checkout(tmp_path):
    (tmp_path / "src" / "fedax" / "algorithms" / "server").mkdir(parents=True)
    succeed("new", "algorithm", "FedHalf")
    assert (tmp_path / "src/fedax/algorithms/server/fedhalf.py").exists()
    assert (
        "from fedax.algorithms.server.fedhalf import FedHalf"
        in (tmp_path / "tests/closed_forms/test_fedhalf.py").read_text()
    )


@pytest.mark.slow
def test_a_new_experiment_is_a_toml_file_that_selects_by_validation():
    """With its grid switched on, too: no hyperparameter is selected on examples that are trained on
    or reported."""
    succeed("new", "experiment")
    file = Path("experiment.toml")
    text = file.read_text()
    grid = text[text.index("# [grid]") :]
    file.write_text(text.replace(grid, re.sub(r"^# ", "", grid, flags=re.MULTILINE)))
    experiment = Experiment.read(file)
    assert (experiment.select, experiment.best_by) == ("validation_loss", "validation_loss")
    assert experiment.plan().task.validation is not None
    assert len(experiment.members()) > 4


@pytest.mark.parametrize("stem", ['a "b"', "back\\slash", "tab\there"])
def test_the_name_of_a_new_experiment_is_escaped(stem):
    succeed("new", "experiment", f"{stem}.toml")
    assert Experiment.read(Path(f"{stem}.toml")).name == stem
