"""The short form of `make faults`: real processes, killed and resumed, and real ranks that meet a
fault."""

import pytest
from attacks import KINDS, MPIEXEC, OF_RANK_0, complaint, faulty, kill_and_resume, straight

pytestmark = pytest.mark.slow


@pytest.fixture
def _mpi():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside Python")


@pytest.mark.parametrize("kind", KINDS)
def test_killed_runs_continue_to_the_bit(kind, tmp_path, request):
    if KINDS[kind][2]:
        request.getfixturevalue("_mpi")
    # `make faults` kills a hundred times
    assert kill_and_resume(kind, 1, tmp_path) == straight(kind, tmp_path)


@pytest.mark.usefixtures("_mpi")
@pytest.mark.parametrize(
    "fault",
    ["exception", "bad data", "exit", "left", "Ctrl-C", "killed", *OF_RANK_0],
)
def test_a_fault_of_one_rank_ends_all(fault, tmp_path):
    rank = 0 if fault in OF_RANK_0 else 2
    assert complaint(fault, rank, faulty(fault, rank, tmp_path)) == ""
