"""Rounds that run in Python, one after the other, for backends that reach each client on its own.

The reference engine, MPI and Flower share them. Cohorts have concrete sizes here, without padding.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.communication.channel import decode
from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, Memory, Upload
from fedax.engine.round.backend import Backend, PhaseResult, PhaseWork
from fedax.engine.round.client import Setup
from fedax.engine.round.context import EmptyPhaseError, RoundContext
from fedax.engine.round.engine import (
    Log,
    Program,
    RunCarry,
    initial_carry,
    pad_client_sets,
    stack_notes,
    to_device,
)
from fedax.engine.round.evaluation import empty_cohort
from fedax.engine.round.timing.asynchronous import row_of
from fedax.engine.round.timing.clock import WorkCount
from fedax.engine.round.traffic import bits_spent
from fedax.observe.base import Observer, View, joined
from fedax.utils.layout import accumulator


class ClientResult(NamedTuple):
    """What one client of a phase returns.

    Attributes:
        upload: as it is sent, messages not yet decoded.
        kept: its memories afterwards, by name.
        broken: the part that is not finite, see `PhaseWork.broken`.
    """

    upload: Upload[Any]
    kept: dict[str, PyTree]
    broken: int


class PythonBackend(Backend):
    """Backend with one upload per client, added up in the cohort's order."""

    @abstractmethod
    def each(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory]
    ) -> list[ClientResult]:
        """Runs the work at every place of a cohort and returns the results in its order."""

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        results = self.each(phase_work, cohort, client_states)
        decoded, clipped = zip(*(decode(result.upload.value) for result in results), strict=True)
        values = [phase_work.at(place).bounded(value) for place, value in enumerate(decoded)]
        broken = jnp.asarray([result.broken for result in results], jnp.int32)
        # the cohort's weights, after the algorithm's own where it gives some, which may all be zero
        weights = [cohort.weights]
        if own := [result.upload.weight for result in results if result.upload.weight is not None]:
            weights.insert(0, jnp.stack(own).astype(cohort.weights.dtype))
        places = list(range(len(results)))  # of the clients whose results count
        if self.setup.drop:
            places = [place for place, result in enumerate(results) if not result.broken]
            # zero the values too: a weight of 0 does not remove what is not finite
            values = [
                jax.tree.map(jnp.zeros_like, v) if result.broken else v
                for v, result in zip(values, results)
            ]
            weights = [jnp.where(broken > 0, 0, each) for each in weights]
        return PhaseResult(
            results[0].upload,
            None
            if gather
            else tuple(part for each in weights for part in _weighted_sum(values, each)),
            (jax.tree.map(stack, *values), weights[0]) if gather else None,
            client_states
            | _updated(client_states, cohort.ids, {place: results[place].kept for place in places}),
            broken,
            None if clipped[0] is None else jnp.stack(clipped).sum(dtype=jnp.int32),
        )


def _weighted_sum(
    values: Sequence[PyTree], weights: Float[Array, "places"]
) -> tuple[PyTree, Array]:
    """Returns the weighted sum of the uploads, and the sum of the weights."""

    def weighted(*leaves: Array) -> Any:
        wide = accumulator(leaves[0].dtype)
        return sum(
            w.astype(wide) * leaf.astype(wide) for w, leaf in zip(weights, leaves, strict=True)
        )

    return jax.tree.map(weighted, *values), weights.astype(accumulator(weights.dtype)).sum()


def _updated(
    client_states: dict[str, Memory], ids: Int[Array, "places"], kept: dict[int, dict[str, PyTree]]
) -> dict[str, Memory]:
    """Returns the memories after the work, given what clients keep by their place.

    All keep the same names.
    """
    names = next(iter(kept.values()), {})
    whose = ids[jnp.asarray([*kept], jnp.int32)]
    return {
        name: client_states[name].put(
            whose, jax.tree.map(stack, *(rows[name] for rows in kept.values()))
        )
        for name in names
    }


def stack(*rows: Array) -> Array:
    """Stacks rows to one array."""
    return jnp.stack(rows)


class PythonProgram(Program):
    """Rounds in Python.

    The states are a list with a pair for each run: its carry, and the cohort that worked last.

    Args:
        algorithms, setup, roots: see `Engine.program`.
        backend: a function of an algorithm and a root key that returns their backend.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        backend: Callable[[Algorithm[Any], Key[Array, ""]], Backend],
    ) -> None:
        self.setup, self.seeds = setup, len(roots)
        self.runs: list[tuple[Algorithm[Any], Any, Key[Array, ""]]] = [
            (algorithm, backend(algorithm, root), root)
            for algorithm in algorithms
            for root in roots
        ]
        is_clocked = setup.clock is not None
        self.work_counts = (
            [WorkCount(setup, root) for _, _, root in self.runs] if is_clocked else []
        )
        timed = setup.asynchronous or setup.cutoff
        self.timetables = (
            None if timed is None else [timed.timetable(setup, root) for _, _, root in self.runs]
        )

    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        per_run = [*models] * (len(self.runs) // self.seeds)
        runs = zip(self.runs, per_run, strict=True)
        return [
            (initial_carry(backend, algorithm, root, w), None)
            for (algorithm, backend, root), w in runs
        ]

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        rounds = range(first, first + count)
        results = [
            self._advance(i, carry, worked, rounds) for i, (carry, worked) in enumerate(states)
        ]
        return [state for state, _ in results], [log for _, log in results]

    def _advance(
        self, run: int, carry: RunCarry, worked: Cohort | None, rounds: range
    ) -> tuple[Any, Log]:
        """Runs some rounds of one run; returns its new state and the log of the rounds."""
        algorithm, backend, root = self.runs[run]
        reports, arrivals = [], None
        if self.timetables is not None:
            timetable = self.timetables[run]
            arrivals = jax.tree.map(jnp.asarray, timetable.rows(rounds.start, len(rounds)))
        if self.setup.asynchronous is not None:
            assert self.timetables is not None, "of the server steps"
            timetable = self.timetables[run]
            carry = carry._replace(
                downlinks=self.setup.asynchronous.grown(carry.downlinks, [timetable], rounds.stop)
            )
        for t in rounds:
            own = row_of(arrivals, t - rounds.start)
            fed, after = (
                RoundContext(backend, t, root, *carry[1:4], **carry.by_name, arrivals=own),
                carry,
            )
            try:
                state = algorithm.round(fed, carry.state)
                after = RunCarry(
                    state,
                    tuple(fed.lost),
                    fed.model_state,
                    fed.bounds,
                    fed.downlinks,
                    fed.solver_states,
                )
                worked = fed.last
            except EmptyPhaseError:  # the round is abandoned, and `after` is the carry before it
                fed.is_abandoned, worked = True, None
            report = fed.report(carry.state, after.state)
            bits = (int(bits_spent(report.traffic, way)) for way in ("down", "up"))
            notes = report.notes
            if self.work_counts:
                phases = jax.tree.map(lambda leaf: np.asarray(leaf)[None], report.traffic)
                costs = self.setup.clock.costs(self.work_counts[run], t, phases, 1)
                notes = notes | {name: value[0] for name, value in costs.items()}
            reports.append(
                (
                    notes,
                    np.asarray(report.left_out),
                    *bits,
                    int(report.broken),
                    int(report.bad_client),
                )
            )
            carry = after
        notes, left_out, *columns = zip(*reports, strict=True)
        down, up, broken, bad = (np.asarray(values, np.int64) for values in columns)
        log = Log(stack_notes(notes), down, up, broken, bad, pad_client_sets(left_out))
        return (carry, worked), log if self.timetables is None else log.at_times(
            self.timetables[run], rounds.start
        )

    def observe(
        self, states: Any, observers: Sequence[Observer], done: int
    ) -> list[dict[str, np.ndarray]]:
        # padded to all clients, so that observers are compiled once whatever the cohort
        clients, dtype = self.setup.population.clients, self.setup.layout.dtype
        seen = [
            self.metrics(
                run, carry, (worked or empty_cohort(0, dtype)).padded(clients), tuple(observers)
            )
            for run, (carry, worked) in enumerate(states)
        ]
        return [{name: np.asarray(value) for name, value in metrics.items()} for metrics in seen]

    def personal(self, states: Any) -> list[Float[Array, "clients dim"]]:
        return [self.own(run, carry) for run, (carry, _) in enumerate(states)]

    def split(self, states: Any) -> list[RunCarry]:
        return [carry for carry, _ in states]

    def join(self, carry: Sequence[RunCarry]) -> Any:
        return [(to_device(one), None) for one in carry]

    @abstractmethod
    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        """Computes the metrics of one run; `run` is its place in `runs`."""

    @abstractmethod
    def own(self, run: int, carry: RunCarry) -> Float[Array, "clients dim"]:
        """Returns the models that the clients use themselves."""


def evaluate_observers(observers: Sequence[Observer], view: View) -> dict[str, Any]:
    """Computes the metrics of all observers on a view."""
    return joined([observer(view) for observer in observers])
