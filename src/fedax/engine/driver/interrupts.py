"""Interruption of runs by Ctrl-C without losing finished rounds.

A compiled program takes over the buffers of the state that it advances (donation). An exception
raised between the start of the program and the assignment of its result would lose the run, so
Ctrl-C is delayed to the end of the call. `CallLength` keeps the delay to a few seconds.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax

CALL_SECONDS = 2.0
"""The time that one call of a program is meant to take at most, unless a single round takes
longer."""
GROWTH = 64
"""The most that the number of rounds grows from one call to the next.

A first call of one round measures the speed.
"""


class CallLength:
    """Number of rounds per call of a program, so that calls return every few seconds.

    The number of rounds is an argument of the compiled program, so that it changes neither the
    program nor a bit of its results.

    Args:
        bounded: whether there is a bound. Ranks that run one program together must call it alike,
            whatever their clocks say.
    """

    def __init__(self, bounded: bool = True) -> None:
        self.rounds = 1 if bounded else sys.maxsize

    @contextlib.contextmanager
    def measure(self, rounds: int) -> Iterator[None]:
        """Measures a call of some rounds and updates `rounds`."""
        # the first call, of one round, compiles: the second has no more rounds then
        begun = time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        affordable = int(CALL_SECONDS * rounds / max(seconds, 1e-9))
        self.rounds = max(1, min(affordable, max(self.rounds, GROWTH * rounds)))


class Interrupts:
    """Delays Ctrl-C, so that a run ends between two calls of its program.

    A context manager for the main thread. A second Ctrl-C is not delayed. It changes nothing in
    other threads and where somebody handles SIGINT already, such as the command line.

    Args:
        enabled: False to leave Ctrl-C as it is.

    Attributes:
        asked: whether there was a Ctrl-C.
    """

    def __init__(self, enabled: bool = True) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self.asked = False
        self._installs = (
            enabled and in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )

    def __enter__(self) -> "Interrupts":
        if self._installs:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._installs:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        # the second Ctrl-C raises at once
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # the program was interrupted while it wrote to the same stream
        with contextlib.suppress(RuntimeError):
            print(
                "Stopping after the rounds that are running; press Ctrl-C again to stop at once.",
                file=sys.stderr,
            )


def is_intact(states: Any) -> bool:
    """Returns whether no buffer of a state was taken over by a program."""
    return not any(
        isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(states)
    )
