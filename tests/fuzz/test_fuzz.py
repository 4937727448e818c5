"""The short form of the fuzzing; `make faults` runs the long one."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("fuzz.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "examples"), [("specifications", 150), ("data", 40), ("bits", 200)]
)
def test_mutated_inputs(kind, examples):
    """No bit of a run's file flips in silence, and what is written is what was read."""
    done = subprocess.run(
        [sys.executable, PROGRAM, kind, str(examples)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
