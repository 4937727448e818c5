"""Aborts all ranks of a job when one fails, so that the others do not wait forever."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""
GRACE = 1.0
"""Seconds that other ranks wait for rank 0, so that an error of all ranks is printed once."""

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Environment variables set by the launchers of Open MPI, of Slurm and of MPICH and its
relatives."""


class RankInfo(NamedTuple):
    """Rank of this process, and the number of ranks if it is known."""

    rank: int
    size: int | None = None

    def __str__(self) -> str:
        return f"rank {self.rank}" + ("" if self.size is None else f" of {self.size}")


def is_launched() -> bool:
    """Returns whether a launcher such as mpiexec has started this process."""
    return any(name in os.environ for name in _RANK_VARIABLES)


def current_rank() -> RankInfo | None:
    """Returns the rank of this process, or None if it runs alone."""
    if (comm := _mpi_world()) is not None:
        return RankInfo(comm.rank, comm.size) if comm.size > 1 else None
    if _has_jax_processes():
        jax = sys.modules["jax"]
        return RankInfo(jax.process_index(), jax.process_count())
    # before MPI is initialized, only the launcher's environment says so
    ranks = [os.environ[name] for name in _RANK_VARIABLES if name in os.environ]
    is_single = "1" in (os.environ.get("OMPI_COMM_WORLD_SIZE"), os.environ.get("PMI_SIZE"))
    return RankInfo(int(ranks[0])) if ranks and ranks[0].isdigit() and not is_single else None


def _mpi_world() -> Any:
    """Returns the communicator of all ranks, or None while MPI is not in use."""
    mpi = sys.modules.get("mpi4py.MPI")  # importing it here would initialize MPI in every process
    return (
        mpi.COMM_WORLD
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
        else None
    )


def _has_jax_processes() -> bool:
    """Returns whether JAX has connected several processes."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def abort_all(print_reason: Callable[[], None], code: int, rank_info: RankInfo) -> None:
    """Prints the reason and aborts all ranks.

    Returns if neither MPI nor JAX connects the ranks yet; the launcher then ends them when this
    process exits.

    Args:
        print_reason: prints the reason.
        code: the exit code of the job.
        rank_info: the rank of this process.
    """
    if rank_info.rank > 0:
        time.sleep(GRACE)
    print_reason()
    sys.stdout.flush()
    if (comm := _mpi_world()) is not None:
        time.sleep(0.2)  # the launcher needs a moment to forward the output
        comm.Abort(code)
    elif _has_jax_processes():
        # the others end at once without rank 0, which coordinates them: it lets them print first
        if not rank_info.rank:
            time.sleep(2 * GRACE)
        # a regular exit would wait in JAX's shutdown barrier for the other processes
        os._exit(code)


def abort_with(error: BaseException, rank_info: RankInfo) -> None:
    """Prints the traceback of an exception and aborts all ranks."""

    def print_reason() -> None:
        traceback.print_exception(error)
        print(f"\nfedax: {rank_info}: {error_line(error)}\nAll ranks end.", file=sys.stderr)

    abort_all(print_reason, INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1, rank_info)


def error_line(error: BaseException) -> str:
    """Returns an exception as one line, such as `DataError: client 0: ...`."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def install_excepthook() -> None:
    """Makes uncaught exceptions abort all ranks. Has no effect on a process that runs alone."""
    previous_hook = sys.excepthook
    if getattr(previous_hook, "aborts_all_ranks", False):
        return

    def hook(
        error_type: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if rank_info := current_rank():
            abort_with(error, rank_info)
        else:
            previous_hook(error_type, error, trace)

    hook.aborts_all_ranks = True  # pyright: ignore[reportFunctionMemberAccess]
    sys.excepthook = hook
