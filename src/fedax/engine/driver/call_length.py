"""Length of the calls of a program, after which a run can be stopped."""

import contextlib
import sys
import time
from collections.abc import Iterator

CALL_SECONDS = 2.0
"""The time that one call of a program is meant to take at most, unless a single round takes
longer."""
GROWTH = 64
"""The most that the number of rounds grows from one call to the next.

A first call of one round measures the speed.
"""


class CallLength:
    """Number of rounds per call of a program, so that calls return every few seconds and Ctrl-C is
    answered then.

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
