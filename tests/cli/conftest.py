"""Commands run in a folder of each test, and change no settings of the process."""

import pytest


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setattr("fedax.experiments.running.setup.set_up_jax", lambda cpus=None: None)
    monkeypatch.chdir(tmp_path)
