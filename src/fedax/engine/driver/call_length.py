"""Length of the calls of a program, after which a run can be stopped."""

CALL_SECONDS = 2.0
"""The time that one call of a program is meant to take at most, unless a single round takes
longer."""
GROWTH = 64
"""The most that the number of rounds grows from one call to the next.

A first call of one round measures the speed.
"""


def next_length(length: int, rounds: int, seconds: float) -> int:
    """Returns how many rounds the next call may have, so that it returns after a few seconds and
    Ctrl-C is answered then.

    The number of rounds is an argument of the compiled program, so that it changes neither the
    program nor a bit of its results.

    Args:
        length: how many the last call might have.
        rounds: how many it had.
        seconds: how long it took. The first call, of one round, compiles: the second has no more
            rounds then.
    """
    affordable = int(CALL_SECONDS * rounds / max(seconds, 1e-9))
    return max(1, min(affordable, max(length, GROWTH * rounds)))
