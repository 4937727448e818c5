"""Hints on what to install name packages that can be installed, with or without a release of
fedax."""

import importlib
import re
import sys
import tomllib

import pytest

import fedax
from fedax.errors import install_hint
from fedax.experiments.running.trackers import check_installed
from sources import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def call(path, *arguments):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(*arguments)


NEEDED = {
    "flower": (["flwr"], lambda folder: call("fedax.flower.protocol.quiet.need_flower")),
    "mpi": (["mpi4py", "mpi4py.MPI"], lambda folder: fedax.MPI()),
    "privacy": (
        ["dp_accounting"],
        lambda folder: call("fedax.communication.accounting._import_dp_accounting"),
    ),
    "tensorboard": (
        ["tensorboardX"],
        lambda folder: check_installed(["tensorboard"]),
    ),
    "wandb": (
        ["wandb"],
        lambda folder: check_installed(["wandb"]),
    ),
}


@pytest.mark.parametrize("extra", NEEDED)
def test_a_missing_package_is_named_with_a_command_that_installs_it(extra, monkeypatch, tmp_path):
    hidden, use = NEEDED[extra]
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(fedax.FedaxError) as found:
        use(tmp_path)
    command = re.search(r"(\S+ -m pip|uv pip) install [^.]*(\"[^\"]+\" ?)+", str(found.value))[0]
    assert re.findall(r'"([^"]+)"', command) == EXTRAS[extra]
    assert sys.executable in command


def test_every_hint_is_that_of_an_extra():
    for extra in EXTRAS.keys() - {"all", "test", "docs", "dev"}:
        assert re.findall(r'"([^"]+)"', install_hint(extra)) == EXTRAS[extra]


def test_deploy_without_flower_says_what_to_install(monkeypatch, tmp_path):
    """Before anything of Flower's own requirements is imported."""
    from commands import call

    monkeypatch.setitem(sys.modules, "flwr", None)
    for name in [name for name in sys.modules if name.startswith("fedax.flower.deploy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    shown = call("deploy", "init", "examples/digits.toml", "--out", str(tmp_path / "d"))
    assert shown.exit_code == 2
    assert 'pip install "flwr==1.42' in " ".join(shown.output.split())
