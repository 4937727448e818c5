"""Every script in examples/ runs as a user runs it, and says something."""

import subprocess
import sys

import pytest

from sources import own_files

SCRIPTS = own_files("examples")
NEEDED = {
    "flax_batch_norm": "flax",
    "haiku_mlp": "haiku",
    "pandas_frame": "pandas",
    "hub_from_disk": "datasets",
    "language_model": "flax",
    "diloco": "flax",
    "lora_transformer": "flax",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The last line of a script by its name, each run once."""
    found = {}

    def run(script):
        if script.stem in NEEDED:
            pytest.importorskip(NEEDED[script.stem], reason="a library of other people")
        if script.stem not in found:
            folder = tmp_path_factory.mktemp(script.stem)
            done = subprocess.run(
                [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stderr[-3000:]
            found[script.stem] = done.stdout.strip().splitlines()
        return found[script.stem]

    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs(script, said):
    assert said(script)


def test_own_statistics_are_ahead_where_images_differ_in_contrast(said):
    lines = said(next(s for s in SCRIPTS if s.stem == "flax_batch_norm"))
    average, local, norms_too = (float(line.split()[-1]) for line in lines)
    assert local > average + 0.1
    assert norms_too > local + 0.05
