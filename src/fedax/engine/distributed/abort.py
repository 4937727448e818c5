"""The end of a job of several ranks: one that fails says so and ends all, instead of leaving them to wait for it."""

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
"""Seconds that the other ranks leave to rank 0, so that an error of all is said once."""

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Set by the launchers of Open MPI, of Slurm and of MPICH and its relatives."""


class Place(NamedTuple):
    """The rank of this process, and the number of ranks as far as it is known."""

    rank: int
    size: int | None = None

    def __str__(self) -> str:
        return f"rank {self.rank}" + ("" if self.size is None else f" of {self.size}")


def launched() -> bool:
    """Whether a launcher such as mpiexec has started this process."""
    return any(name in os.environ for name in _RANKS)


def place() -> Place | None:
    """The place of this process among several; None if it is alone."""
    if (comm := _world()) is not None:
        return Place(comm.rank, comm.size) if comm.size > 1 else None
    if _hosts():
        jax = sys.modules["jax"]
        return Place(jax.process_index(), jax.process_count())
    numbers = [os.environ[name] for name in _RANKS if name in os.environ]
    alone = "1" in (os.environ.get("OMPI_COMM_WORLD_SIZE"), os.environ.get("PMI_SIZE"))
    return Place(int(numbers[0])) if numbers and numbers[0].isdigit() and not alone else None


def _world() -> Any:
    """All ranks, if MPI is in use."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi.COMM_WORLD if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None


def _hosts() -> bool:
    """Whether JAX has connected several processes."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def end_all(say: Callable[[], None], code: int, here: Place) -> None:
    """Says why, and ends all ranks. Returns if MPI is not in use yet: then the launcher ends all once this process has."""
    if here.rank > 0:
        time.sleep(GRACE)
    say()
    sys.stdout.flush()
    sys.stderr.flush()
    if (comm := _world()) is not None:
        time.sleep(0.2)  # for the launcher to pass the text on
        comm.Abort(code)
    elif _hosts():
        os._exit(code)  # at once: an orderly end would wait for the others, which then see that this one has gone


def end_by(error: BaseException, here: Place) -> None:
    """Ends all ranks by an exception, with its traceback."""

    def say() -> None:
        traceback.print_exception(error)
        print(f"\nfedax: {here}: {text_of(error)}\nAll ranks end.", file=sys.stderr)

    end_all(say, INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1, here)


def text_of(error: BaseException) -> str:
    """An exception in one line, such as `DataError: client 0: ...`."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def install() -> None:
    """Makes exceptions that nobody catches end all ranks. Without effect on a process that is alone."""
    before = sys.excepthook
    if getattr(before, "ends_all_ranks", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if here := place():
            end_by(error, here)
        else:
            before(kind, error, trace)

    hook.ends_all_ranks = True  # pyright: ignore[reportFunctionMemberAccess]
    sys.excepthook = hook
