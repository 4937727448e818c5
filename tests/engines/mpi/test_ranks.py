"""Ranks against clients: checked before any data are made, and said by one rank."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedax import cli, tasks
from fedax.core import InvalidInput
from fedax.engines.mpi import MPI
from fedax.experiments.config import sections
from fedax.experiments.config.experiment import Experiment
from samples import TINY

FILE = 'engine = "mpi"\n' + TINY


@pytest.fixture
def no_data(monkeypatch):
    def made(*_, **__):
        raise AssertionError("data were made")

    monkeypatch.setattr(tasks, "make_task", made)


def ranks(monkeypatch, size, rank=0):
    def engine():
        return MPI(SimpleNamespace(size=size, rank=rank))

    monkeypatch.setitem(sections.ENGINES, "mpi", engine)
    monkeypatch.setattr(sections, "MPI", engine)
    monkeypatch.setattr(cli.commands, "MPI", engine)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_another_number_of_ranks_is_refused_before_data_are_made(size, no_data, monkeypatch):
    ranks(monkeypatch, size)
    with pytest.raises(InvalidInput, match=rf"a task of 4 clients; allowed: {size}, the number of ranks.*mpiexec -n 4"):
        Experiment.parse(FILE).plan()


def test_a_default_number_of_clients_counts_too(no_data, monkeypatch):
    ranks(monkeypatch, 4)
    with pytest.raises(InvalidInput, match="a task of 30 clients"):
        Experiment.parse(FILE.replace("clients = 4\n", "")).plan()


def test_as_many_ranks_as_clients_go_on(monkeypatch):
    ranks(monkeypatch, 4)
    assert Experiment.parse(FILE).plan().task.train.clients == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_says_it(rank, no_data, monkeypatch, tmp_path):
    monkeypatch.setattr(cli.commands, "set_up_jax", lambda: None)
    monkeypatch.chdir(tmp_path)
    ranks(monkeypatch, 3, rank)
    (tmp_path / "a.toml").write_text(FILE)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["run", "a.toml"])
    assert (result.exit_code, result.output == "") == ((2, False) if rank == 0 else (0, True))
    assert not (tmp_path / "runs").exists()
