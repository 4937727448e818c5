"""Ctrl-C during runs."""

import signal
import threading
from typing import Any

from fedax.engine.distributed.process_group import ProcessGroup
from fedax.experiments.running.progress import Display
from fedax.results import Record


class Interruption:
    """Ctrl-C, once: the current round is finished and kept. Twice: at once.

    A context manager; outside the main thread, or if the processes that do the work hear it
    (`later`), it changes nothing.
    """

    def __init__(
        self, display: Display, later: bool = False, ranks: ProcessGroup | None = None
    ) -> None:
        self.display = display
        self.later = later
        self.ranks = ranks or ProcessGroup()
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread() and not self.later:
            self._before = signal.signal(signal.SIGINT, self._request_stop)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def synchronize(self, records: list[Record]) -> list[Record]:
        """Sends the records of rank 0 to all ranks, and interrupts all if one of them was
        interrupted.
        """
        # ranks decide together: one that stopped alone would leave the others waiting
        self.asked = self.ranks.any(self.asked)
        return self.ranks.broadcast(records)

    def _request_stop(self, *_: object) -> None:
        self.asked = True
        # the next Ctrl-C raises KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.display.say("Stopping after the current round; press Ctrl-C again to stop at once.")
