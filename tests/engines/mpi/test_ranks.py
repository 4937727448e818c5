"""Ranks against clients: checked before anything runs, and said by one rank."""

from types import SimpleNamespace

import pytest

from commands import call
from fedax.core import InvalidInput
from fedax.engine.backends.mpi import MPI
from fedax.experiments.config import sections
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running import ranks as running
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from samples import TINY

FILE = 'engine = "mpi"\n' + TINY


def ranks(monkeypatch, size, rank=0):
    def engine():
        return MPI(SimpleNamespace(size=size, rank=rank))

    monkeypatch.setitem(sections.ENGINES, "mpi", engine)
    monkeypatch.setattr("fedax.engine.backends.mpi.MPI", engine)
    return engine


@pytest.mark.parametrize("size", [1, 3, 5])
def test_another_number_of_ranks_is_refused(size, monkeypatch):
    ranks(monkeypatch, size)
    with pytest.raises(
        InvalidInput,
        match=rf"a task of 4 clients; allowed: {size}, the number "
        r"of ranks.*mpiexec -n 4",
    ):
        Experiment.parse(FILE).plan()


def test_the_command_says_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "MPI", ranks(monkeypatch, 3))
    (tmp_path / "a.toml").write_text(FILE)
    result = call("run", "a.toml")
    assert (result.exit_code, "mpiexec -n 4" in result.output) == (2, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "jobs", "words"),
    [
        (TINY, 1, "engine: got simulation with --jobs 1; allowed: mpi"),
        (FILE, 2, "engine: got mpi with --jobs 2; allowed: mpi without --jobs"),
    ],
)
def test_ranks_do_not_each_run_all_of_it(text, jobs, words, monkeypatch, tmp_path):
    """Below mpiexec, other engines would run as often as there are ranks, into one folder."""
    monkeypatch.setattr(running, "MPI", ranks(monkeypatch, 4))
    monkeypatch.setattr(running, "is_launched", lambda: True)
    with pytest.raises(InvalidInput, match=words):
        run_experiment(Experiment.parse(text), tmp_path / "a", Display(), jobs)
    assert not (tmp_path / "a").exists()
