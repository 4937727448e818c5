"""Rounds in Python, one after the other, for engines whose backend knows its cohorts."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.channel import decode
from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, Memory, Upload
from fedax.engine.round.backend import Backend, PhaseResult, PhaseWork
from fedax.engine.round.client import Setup
from fedax.engine.round.context import EmptyPhaseError, RoundContext, bits_spent
from fedax.engine.round.engine import Log, Program, RunCarry, initial_carry, pad_client_sets, stack_notes, to_device
from fedax.engine.round.evaluation import empty_cohort
from fedax.observe.base import Observer, View, joined
from fedax.utils.layout import accumulator


class Done(NamedTuple):
    """One client's part of a phase: its upload, messages unopened, its memories afterwards, and `PhaseWork.broken` of them."""

    upload: Upload[Any]
    kept: dict[str, PyTree]
    broken: int


class PythonBackend(Backend):
    """Uploads that are there one by one, and are added up in the cohort's order."""

    @abstractmethod
    def each(self, phase_work: PhaseWork, cohort: Cohort, held: dict[str, Memory]) -> list[Done]:
        """Runs the work at every place of a cohort and returns the results in its order."""

    def work(self, phase_work: PhaseWork, cohort: Cohort, held: dict[str, Memory], gather: bool) -> PhaseResult:
        uploads, kept, states = zip(*self.each(phase_work, cohort, held), strict=True)
        values, clipped = zip(*(decode(upload.value) for upload in uploads), strict=True)
        values = [phase_work.bounded(value) for value in values]
        broken = np.array(states, np.int32)
        own = [upload.weight for upload in uploads if upload.weight is not None]
        weights = jnp.stack(own).astype(cohort.weights.dtype) if own else cohort.weights
        default, there = cohort.weights, list(range(len(uploads)))
        if self.setup.drop:
            there, absent = np.flatnonzero(broken == 0).tolist(), np.flatnonzero(broken).tolist()
            weights, default = (w.at[jnp.asarray(absent, jnp.int32)].set(0) for w in (weights, default))
            values = [jax.tree.map(jnp.zeros_like, v) if i in absent else v for i, v in enumerate(values)]
        put = {name: [kept[i][name] for i in there] for name in kept[there[0]]} if there else {}
        ids = cohort.ids[jnp.asarray(there, jnp.int32)]
        return PhaseResult(
            uploads[0],
            None if gather else _sums(values, weights, default if own else weights),
            (jax.tree.map(stack, *values), weights) if gather else None,
            held | {name: held[name].put(ids, jax.tree.map(stack, *rows)) for name, rows in put.items()},
            jnp.asarray(broken),
            None if clipped[0] is None else jnp.stack(clipped).sum(dtype=jnp.int32),
        )


def stack(*rows: Array) -> Array:
    """Rows as one array."""
    return jnp.stack(rows)


def _sums(values: Sequence[PyTree], given: Array, default: Array) -> tuple[Any, ...]:
    """The weighted sum of uploads and the sum of their weights, one after the other, for both kinds of weights."""

    def pair(weights: Array) -> tuple[Any, Array]:
        def weighted(*parts: Array) -> Any:
            wide = accumulator(parts[0].dtype)
            return sum(w.astype(wide) * part.astype(wide) for w, part in zip(weights, parts, strict=True))

        return jax.tree.map(weighted, *values), weights.astype(accumulator(weights.dtype)).sum()

    return pair(given) if given is default else (*pair(given), *pair(default))


class PythonProgram(Program):
    """The states are a list of what each run carries, with the cohort that worked last.

    Args:
        algorithms, setup, roots: see `Engine.program`.
        backend: makes the backend of an algorithm and a root.
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
            (algorithm, backend(algorithm, root), root) for algorithm in algorithms for root in roots
        ]

    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        each = [*models] * (len(self.runs) // self.seeds)
        return [
            (initial_carry(way, algorithm, root, w), None) for (algorithm, way, root), w in zip(self.runs, each, strict=True)
        ]

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        rounds = range(first, first + count)
        results = [self._advance(i, carry, worked, rounds) for i, (carry, worked) in enumerate(states)]
        return [state for state, _ in results], [log for _, log in results]

    def _advance(self, run: int, carry: RunCarry, worked: Cohort | None, rounds: range) -> tuple[Any, Log]:
        algorithm, backend, root = self.runs[run]
        reports = []
        for t in rounds:
            fed, after = RoundContext(backend, t, root, *carry[1:]), carry
            try:
                state = algorithm.round(fed, carry.state)
                after, worked = RunCarry(state, tuple(fed.lost), fed.model_state, fed.bounds), fed.last
            except EmptyPhaseError:
                fed.nobody, worked = True, None
            report = fed.report(carry.state, after.state)
            bits = (int(bits_spent(report.traffic, way)) for way in ("down", "up"))
            reports.append((report.notes, np.asarray(report.left_out), *bits, int(report.broken), int(report.bad_client)))
            carry = after
        notes, left_out, *columns = zip(*reports, strict=True)
        down, up, broken, bad = (np.asarray(values, np.int64) for values in columns)
        return (carry, worked), Log(stack_notes(notes), down, up, broken, bad, pad_client_sets(left_out))

    def observe(self, states: Any, observers: Sequence[Observer], done: int) -> list[dict[str, np.ndarray]]:
        clients, dtype = self.setup.population.clients, self.setup.layout.dtype
        seen = [
            self.metrics(run, carry, (worked or empty_cohort(0, dtype)).padded(clients), tuple(observers))
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
    def metrics(self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]) -> dict[str, Any]:
        """The metrics of one run's observers; `run` is its place in `runs`."""

    @abstractmethod
    def own(self, run: int, carry: RunCarry) -> Float[Array, "clients dim"]:
        """The models that the clients use themselves."""


def evaluate_observers(observers: Sequence[Observer], view: View) -> dict[str, Any]:
    """The metrics of all observers."""
    return joined([observer(view) for observer in observers])
