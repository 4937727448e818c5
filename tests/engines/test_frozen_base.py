"""A large frozen base is there once, however many clients train beside it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "frozen_base.py"


@pytest.mark.slow
def test_a_frozen_base_is_not_copied_for_clients():
    """Nineteen million parameters, 100 clients: the peak grows by the base; the adapter alone is sent, as the script asserts."""
    done = subprocess.run([sys.executable, SCRIPT, "--width", "1280"], capture_output=True, text=True, check=True)
    assert float(re.search(r"over its size: ([\d.]+)", done.stdout)[1]) <= 1.2, done.stdout
