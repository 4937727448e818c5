"""Rounds in Python, one after the other, for engines whose transport knows its cohorts."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort
from fedax.core.view import Observer, View
from fedax.engines.base import Carried, Log, Program, begin, numbers, stacked
from fedax.engines.client import Setup
from fedax.engines.round import NobodyError, Round, bits_spent
from fedax.engines.transport import Transport
from fedax.engines.view import nobody


class PlainProgram(Program):
    """The states are a list of what each run carries, with the cohort that worked last.

    Args:
        algorithms, setup, roots: see `Engine.program`.
        transport: of an algorithm.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        transport: Callable[[Algorithm[Any]], Transport],
    ) -> None:
        self.setup, self.seeds = setup, len(roots)
        self.runs = [(algorithm, transport(algorithm), root) for algorithm in algorithms for root in roots]

    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        each = [*models] * (len(self.runs) // self.seeds)
        return [(begin(way, algorithm, root, w), None) for (algorithm, way, root), w in zip(self.runs, each, strict=True)]

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        rounds = range(first, first + count)
        results = [self._advance(i, carried, worked, rounds) for i, (carried, worked) in enumerate(states)]
        return [state for state, _ in results], [log for _, log in results]

    def _advance(self, run: int, carried: Carried, worked: Cohort | None, rounds: range) -> tuple[Any, Log]:
        algorithm, transport, root = self.runs[run]
        reports = []
        for t in rounds:
            fed, after = Round(transport, t, root, carried.lost), carried
            try:
                after, worked = Carried(algorithm.round(fed, carried.state), tuple(fed.lost)), fed.last
            except NobodyError:
                fed.nobody, worked = True, None
            report = fed.report(carried.state, after.state)
            bits = (int(bits_spent(report.traffic, way)) for way in ("down", "up"))
            reports.append((report.notes, np.asarray(report.left_out), *bits, int(report.broken), int(report.bad_client)))
            carried = after
        notes, left_out, *columns = zip(*reports, strict=True)
        down, up, broken, bad = (np.asarray(values, np.int64) for values in columns)
        return (carried, worked), Log(stacked(notes), down, up, broken, bad, numbers(left_out))

    def observe(self, states: Any, observers: Sequence[Observer], done: int) -> list[dict[str, np.ndarray]]:
        clients, dtype = self.setup.population.clients, self.setup.layout.dtype
        views = [
            self.view(algorithm, carried.state, (worked or nobody(0, dtype)).padded(clients))
            for (algorithm, *_), (carried, worked) in zip(self.runs, states, strict=True)
        ]
        return [
            {name: np.asarray(value) for observer in observers for name, value in observer(view).items()} for view in views
        ]

    def personal(self, states: Any) -> list[Float[Array, "clients dim"]]:
        return [self.own(algorithm, carried.state) for (algorithm, *_), (carried, _) in zip(self.runs, states, strict=True)]

    def split(self, states: Any) -> list[Carried]:
        return [carried for carried, _ in states]

    def join(self, carried: Sequence[Carried]) -> Any:
        return [(one, None) for one in carried]

    @abstractmethod
    def view(self, algorithm: Algorithm[Any], state: Any, worked: Cohort) -> View:
        """The view of observers."""

    @abstractmethod
    def own(self, algorithm: Algorithm[Any], state: Any) -> Float[Array, "clients dim"]:
        """The models that the clients use themselves."""
