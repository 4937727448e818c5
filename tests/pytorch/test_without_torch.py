"""fedax without PyTorch: nothing imports it, and what needs it says so."""

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules["torch"] = None
import fedax
try:
    fedax.models.torch(None, [1.0])
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_adapter_says_what_it_needs():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert "import of torch halted" in done.stdout, done.stderr


@pytest.mark.slow
def test_nothing_else_imports_torch():
    code = (
        "import sys, fedax, fedax.cli.main, fedax.tasks; fedax.task; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr
