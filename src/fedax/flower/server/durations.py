"""Record of a deployment's durations, from which `fedax clock fit` estimates the clients' devices.

A client says when it received an order and how long it worked. The server knows when it sent the
order and when the answer came. Clocks that disagree move seconds from the download to the upload.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from fedax.core.algorithm import Algorithm
from fedax.engine.round.client import Setup
from fedax.engine.round.footprint import trace_footprint
from fedax.engine.round.timing.clock import WorkCount
from fedax.engine.round.timing.fitting import append_durations
from fedax.flower.protocol.records import bytes_of


class Exchange(NamedTuple):
    """An order and its answer.

    Attributes:
        sent, arrived: seconds of the server's clock.
        order, answer: their records.
    """

    sent: float
    arrived: float
    order: Any
    answer: Any


class DurationRecorder:
    """Appends the durations of a run's phases to a file.

    Args:
        path: of the record.
        run: the run's name.
        setup: of its rounds.
        algorithm: the method.
        root: of the run's random streams.
    """

    def __init__(
        self, path: Path, run: str, setup: Setup, algorithm: Algorithm[Any], root: Key[Array, ""]
    ) -> None:
        self.path, self.run, self.names = path, run, setup.task.names
        self.work = WorkCount(setup, root) if setup.solver.is_counted else None
        phases = trace_footprint(algorithm, setup).phases
        self.gradients = {p.work: (p.step_gradients, p.full_gradients) for p in phases}

    def add(self, round: int, work: str, exchanges: Mapping[int, Exchange]) -> None:
        """Records the exchanges of a phase by client; those without a time are left out."""
        rows: list[tuple[Any, ...]] = []
        for k, exchange in exchanges.items():
            timing = exchange.answer.get("timing", {})
            try:
                received, seconds = float(timing["received"]), float(timing["seconds"])
            except (KeyError, TypeError, ValueError):
                continue
            if not (math.isfinite(received) and math.isfinite(seconds)):
                continue
            common = self.run, k if self.names is None else self.names[k], round
            down, up = (bytes_of(records) for records in (exchange.order, exchange.answer))
            examples = self._count_examples(k, round, work)
            rows += [
                (*common, "download", f"{received - exchange.sent:.6f}", down, ""),
                (*common, "compute", f"{seconds:.6f}", "", examples),
                (*common, "upload", f"{exchange.arrived - received - seconds:.6f}", up, ""),
            ]
        append_durations(self.path, rows)

    def _count_examples(self, k: int, round: int, work: str) -> int | str:
        """Returns the examples that a client has processed; nothing where the data decide it."""
        if self.work is None or work not in self.gradients:
            return ""
        with jax.numpy_dtype_promotion("standard"):
            return int(self.work(np.array([k]), round, self.gradients[work])[0])
