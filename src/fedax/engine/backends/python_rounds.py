"""Rounds that run in Python, one after the other, for backends that reach each client on its own.

The reference engine, MPI and Flower share them. Cohorts have concrete sizes here, without padding.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.communication.channel import decode
from fedax.core.federation import ClientStates, Cohort
from fedax.core.scheduling.timeline import row_at
from fedax.core.validation.misuse import explained
from fedax.engine.backends.simulation.host import to_device
from fedax.engine.round.backend import Backend
from fedax.engine.round.client import Setup
from fedax.engine.round.context import EmptyPhaseError, RoundContext
from fedax.engine.round.engine import (
    Log,
    Program,
    ProgramInputs,
    RunCarry,
    merge_logs,
)
from fedax.engine.round.evaluation import empty_cohort
from fedax.engine.round.phase import ClientResult, PhaseResult, PhaseWork
from fedax.engine.round.timeline import timeline_of
from fedax.engine.round.timing import with_slots
from fedax.engine.round.trace import initial_carry
from fedax.observe.base import Observer


class PythonBackend(Backend):
    """Backend with one upload per client, added up in the cohort's order."""

    @abstractmethod
    def run_clients(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates]
    ) -> list[ClientResult]:
        """Runs the work of every client of a cohort and returns the results in its order."""

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates], gather: bool
    ) -> PhaseResult:
        results = self.run_clients(phase_work, cohort, states)
        values = [
            phase_work.for_slot(position).open(decode(result.upload.value))
            for position, result in enumerate(results)
        ]
        broken = jnp.asarray([result.broken for result in results], jnp.int32)
        weights = cohort.weights
        given = [result.upload.weight for result in results]
        own_weights = [weight for weight in given if weight is not None]
        if own_weights:
            weights = jnp.stack(own_weights).astype(weights.dtype)
        rows = [result.states for result in results]
        if self.setup.drop:
            # no row of a client that is left out is stored; it may have none
            counting = [result.states for result in results if not result.broken] or [{}]
            rows = [counting[0] if result.broken else result.states for result in results]
            # zero the values too: a weight of 0 does not remove what is not finite
            values = [
                jax.tree.map(jnp.zeros_like, v) if result.broken else v
                for v, result in zip(values, results)
            ]
            weights = jnp.where(broken > 0, 0, weights)
        return PhaseResult(
            results[0].upload,
            None,
            (jax.tree.map(stack, *values), weights),
            jax.tree.map(stack, *rows),
            broken,
        )


def stack(*rows: Array | np.ndarray) -> Array:
    """Stacks rows to one array."""
    return jnp.stack(rows)


class PythonProgram(Program):
    """Rounds in Python.

    The states are a list with a pair for each run: its carry, and the cohort that worked last.

    Args:
        inputs: see `Engine.program`; all have one solver and one schedule.
        backend: a function of the setup of a setting and a root key that returns their backend.
    """

    def __init__(
        self,
        inputs: ProgramInputs,
        backend: Callable[[Setup, Key[Array, ""]], Backend],
    ) -> None:
        settings, setup, roots, _ = inputs
        self.setup = setup
        self.seeds = len(roots)
        self.runs: list[tuple[Any, Key[Array, ""]]] = [
            (backend(setting.of(setup), root), root) for setting in settings for root in roots
        ]
        self.timelines = [timeline_of(setup, root) for _, root in self.runs]

    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        per_run = [*models] * (len(self.runs) // self.seeds)
        runs = zip(self.runs, per_run, strict=True)
        return [(initial_carry(*run, w), None) for run, w in runs]

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        rounds = range(first, first + count)
        results = [
            self._advance(i, carry, last_cohort, rounds)
            for i, (carry, last_cohort) in enumerate(states)
        ]
        new_states, logs = zip(*results, strict=True)
        return [*new_states], [*logs]

    def _advance(
        self, run: int, carry: RunCarry, last_cohort: Cohort | None, rounds: range
    ) -> tuple[Any, Log]:
        """Runs some rounds of one run; returns its new state and the log of the rounds."""
        backend, root = self.runs[run]
        algorithm = backend.setup.algorithm
        timeline = self.timelines[run]
        rows = jax.tree.map(jnp.asarray, timeline.rows(rounds.start, len(rounds)))
        carry = with_slots(self.setup.timing, carry, [timeline], rounds.stop)
        logs = []
        for t in rounds:
            fed = RoundContext(backend, t, root, carry, row_at(rows, t - rounds.start))
            try:
                with explained(algorithm.round):
                    new_carry = fed.end(algorithm.round(fed, carry.state))
                last_cohort = fed.last
            except EmptyPhaseError:
                # abandoned: the carry stays as it was, but for what the server step sent down,
                # whose receivers arrive later
                new_carry = carry._replace(downlinks=fed.carry.downlinks)
                fed.is_abandoned = True
                last_cohort = None
            report = fed.report(new_carry.state)
            report = jax.tree.map(lambda leaf: np.asarray(leaf)[None], report)
            logs.append(Log.of(report, timeline, t))
            carry = new_carry
        return (carry, last_cohort), merge_logs(logs)

    def observe(self, states: Any, observers: Sequence[Observer]) -> list[dict[str, Any]]:
        # padded to all clients, so that observers are compiled once whatever the cohort
        clients = self.setup.population.clients
        dtype = self.setup.layout.dtype
        return [
            self.metrics(
                run,
                carry,
                (last_cohort or empty_cohort(0, dtype)).padded(clients),
                tuple(observers),
            )
            for run, (carry, last_cohort) in enumerate(states)
        ]

    def split(self, states: Any) -> list[RunCarry]:
        return [carry for carry, _ in states]

    def join(self, carry: Sequence[RunCarry]) -> Any:
        return [(to_device(run_carry), None) for run_carry in carry]

    @abstractmethod
    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        """Computes the metrics of one run; `run` is its place in `runs`."""
