"""Ends of jobs of several ranks, without MPI."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_ranks_are_named_from_the_import_on():
    """Below a launcher, an exception before there is an engine says its rank."""
    code = "import fedax\nraise ValueError('rows of one client')"
    rank = os.environ | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=rank, capture_output=True, text=True)
    assert done.returncode == 1
    assert "fedax: rank 2: ValueError: rows of one client" in done.stderr
