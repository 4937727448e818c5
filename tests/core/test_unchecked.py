"""Runs files of tests without the type checker of the tests, as a user's program runs: about
arguments that are of other types than the annotations say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = [Path(__file__).with_name(name) for name in ("numpy_numbers.py", "wrong_types.py")]


@pytest.mark.slow
def test_arguments_of_other_types_are_taken_or_refused():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES],
        env={**os.environ, "FEDAX_CHECKED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-5000:]
