"""Flower's SuperNode with short waits: a program that takes the arguments of `flower-supernode`.

Flower's own looks for the next message every three seconds, and for the reply to one every half
second: a round of a small model is then mostly waiting. It tells the server every twenty seconds
that it is there, so that one which was killed counts as there for up to a minute. Nothing of fedax
is imported here, because a node has no need of JAX.
"""

import functools
from typing import Any

SHORTEST, GROWTH = 0.02, 1.15
"""Seconds of the first wait of its kind, and by how much each is longer than the one before: an
eighth of all waiting so far."""
PARTS = {"initial_backoff": 0.02, "backoff_cap": 1.0}
"""Seconds of the first and of the longest wait for a part of a message that is not there yet;
Flower's own are 1 and 10."""
HEARTBEAT = 10
"""Seconds within which the server hears of a node, the fewest that it takes; after twice as many a
silent one counts as gone."""


class Waits:
    """Stands in for the module `time`, of which Flower's node uses `sleep`: for messages, and for
    replies.

    >>> waits = Waits(rest=lambda seconds: print(round(seconds, 3)))
    >>> for seconds in (3, 3, 0.5, 3):
    ...     waits.sleep(seconds)
    0.02
    0.023
    0.02
    0.02
    """

    def __init__(self, rest: Any) -> None:
        self.rest, self.kind, self.pause = rest, 0.0, SHORTEST

    def sleep(self, seconds: float) -> None:
        """Waits at most so long; the first time in a row much shorter."""
        self.pause = min(seconds, GROWTH * self.pause if seconds == self.kind else SHORTEST)
        self.kind = seconds
        self.rest(self.pause)


def main() -> None:
    """Runs the node until it is interrupted."""
    import time

    from flwr.supercore import heartbeat
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    changed: list[tuple[Any, str, Any]] = [
        (start_client_internal, "time", Waits(time.sleep)),
        (start_client_internal, "pull_objects", functools.partial(pull_objects, **PARTS)),
        (fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT),
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT),
    ]
    for module, name, value in changed:
        assert hasattr(module, name), f"another version of Flower: no {name} in {module.__name__}"
        setattr(module, name, value)
    flower_supernode()


if __name__ == "__main__":
    main()
