"""The loop over rounds: calls the compiled rounds, and observes, stops and saves between the calls.

The Python code here touches a run only every few rounds. `Program.advance` does the rounds
themselves, several in one call.
"""

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.core.algorithm import Algorithm
from fedax.core.federation import HiddenStates, is_states
from fedax.core.history import History, Outcome
from fedax.core.task import Task
from fedax.engine.compilation.identity import check_same, merge
from fedax.engine.driver.call_length import next_length
from fedax.engine.driver.checkpoint import Checkpoints
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import Progress, RunOptions
from fedax.engine.driver.progress_bar import progress_hook
from fedax.engine.driver.recorder import Recorder
from fedax.engine.round.engine import RunCarry, compute_metrics
from fedax.engine.round.evaluation import ModelsOfClients
from fedax.errors import InvalidInput
from fedax.observe.base import merge_metrics, modes_of


def run_rounds(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    seeds: Sequence[Any],
    options: RunOptions,
    resume: Sequence[History],
    **lists: Any,
) -> list[History]:
    """Runs the rounds of a grid, while no other process may use the folder of its checkpoints.

    Args:
        algorithms, task, seeds, options, lists: see `Grid`.
        resume: histories to continue, one for each run; empty for runs that start from round 0 or
            from a checkpoint.
    """
    with (
        progress_hook(options.progress, type(algorithms[0]).__name__) as hook,
        options.engine.process_group.abort_on_error(),
    ):
        options = dataclasses.replace(options, progress=hook)
        # checks everything and builds the program, so that a wrong argument costs no compilation
        grid = Grid(algorithms, task, seeds, options, **lists)
        checkpoints = None if options.checkpoint is None else Checkpoints(grid)
        with checkpoints.lock() if checkpoints else contextlib.nullcontext():
            return RoundLoop(grid, checkpoints, resume).run()


def _rounds_done(histories: Sequence[History]) -> int:
    """Returns the rounds that the longest of some histories has; 0 for none."""
    return max((len(history.bits.up) for history in histories), default=0)


class RoundLoop:
    """Runs the rounds of a grid from where it stands to its last round.

    Args:
        grid: the runs, which one program serves.
        checkpoints: where the runs are saved; None if they are not. The caller holds their lock.
        resume: histories to continue, one for each run, or none.

    Attributes:
        states: what the engine carries from round to round, for all runs. A call of the program
            consumes its buffers.
        done: rounds completed.
        recorders: the histories as they grow, one for each run.
        stop_requested: whether Ctrl-C or the progress hook asked for the end.
    """

    def __init__(
        self, grid: Grid, checkpoints: Checkpoints | None, resume: Sequence[History]
    ) -> None:
        self.grid = grid
        self.options = grid.options
        self.program = grid.program
        self.checkpoints = checkpoints
        self.process_group = grid.options.engine.process_group
        # before data were placed and programs compiled
        self.begun = grid.begun
        self.stop_requested = False
        # ranks run one program together, so no clock of one rank may change what it calls
        self.call_length = 1 if self.process_group.size == 1 else sys.maxsize
        modes = modes_of(self.options.observe or (), grid.task)
        self.recorders = [Recorder(self.options, modes) for _ in grid.members]
        self.done = 0
        self._start(resume)

    def _start(self, resume: Sequence[History]) -> None:
        """Begins with the given histories, with the newest checkpoint, or with round 0."""
        options = self.options
        if resume:
            self._check_resumed(resume)
            if self.checkpoints:
                self.checkpoints.check_empty()
        else:
            self.states = self.grid.init()
            if self.checkpoints:
                resume = self.checkpoints.load(self.program.split(self.states))
        if not resume:
            return
        runs = [*zip(self.recorders, resume, strict=True)]
        for recorder, history in runs:
            recorder.continue_from(history)
        going_on = [history for recorder, history in runs if not recorder.ended]
        with self.process_group.raise_on_all_ranks():
            if options.rounds < _rounds_done(resume):
                allowed = f"whole numbers >= {_rounds_done(resume)}, the rounds that are done"
                raise InvalidInput.of("run(rounds=...)", options.rounds, allowed)
            lengths = sorted({len(history.bits.up) for history in going_on})
            if len(lengths) > 1:
                allowed = "equally many rounds, but for histories that ended by themselves"
                hint = "Continue each by itself: run(resume=history)."
                raise InvalidInput.of("run_grid(resume=...), rounds", lengths, allowed, hint)
        # if all have ended, no round follows
        going_on = going_on or resume
        self.done = _rounds_done(going_on)
        self.states = self.program.join([history.carry for history in resume])
        self.begun -= going_on[0].seconds[-1]

    def _check_resumed(self, resume: Sequence[History]) -> None:
        """Refuses histories of other runs, whose states do not fit, and the privacy that was spent
        in them would not be counted.
        """
        carries = [history.carry for history in resume]
        nodes = jax.tree.leaves(carries, is_leaf=is_states)
        if any(isinstance(node, HiddenStates) for node in nodes):
            reason = "a history with privacy has nothing of what its clients store"
            raise InvalidInput.because("run(resume=...)", reason, "Continue from a checkpoint.")
        origins = merge([history.details.origin or {} for history in resume])
        check_same(merge(self.grid.identities()), origins, "run(resume=...)")

    def run(self) -> list[History]:
        """Runs all rounds and returns the histories."""
        with self._hearing_ctrl_c():
            end = self.done
            # the initial model counts as an observation after 0 rounds
            if not self.recorders[0].rounds:
                self._observe()
            # of a run that was stopped, or saved, between two observations
            elif self._is_over(end) and any(r.lacks(end) for r in self.recorders):
                self._observe()
                if self.checkpoints:
                    self._save()
            while not (self._is_over(end) or self.stop_requested):
                # up to the next pause, at which alone a run ends: a call returns the state after
                # its last round only, and the runs of a grid go through it together
                if self.done == end:
                    periods = self.options.periods
                    end = min(self.grid.rounds, *(self.done + p - self.done % p for p in periods))
                count = min(self.call_length, end - self.done)
                begun = time.perf_counter()
                # the program takes over the buffers of `states`
                self.states, logs = self.program.advance(self.states, self.done, count)
                if self.process_group.size == 1:
                    seconds = time.perf_counter() - begun
                    self.call_length = next_length(self.call_length, count, seconds)
                for recorder, log in zip(self.recorders, logs, strict=True):
                    recorder.add(log)
                self.done += count
                if self.done % self.options.observe_every == 0 or self._is_over(end):
                    self._observe()
                # after the observation, so that a run that continues from here has it, and one
                # that a rule has just ended is saved
                is_due = self.done % self.options.checkpoint_every == 0
                if self.checkpoints and (is_due or self._is_over(end) or self.stop_requested):
                    self._save()
        if self.stop_requested and self.done < self.grid.rounds:
            for recorder in self.recorders:
                recorder.end(Outcome("interrupted", self.done))
        if self.grid.rounds < self.options.rounds:  # as many as the budget of privacy allows
            for recorder in self.recorders:
                recorder.end(Outcome("stopped", self.done - 1, by_budget=True))
        return self._histories()

    @contextlib.contextmanager
    def _hearing_ctrl_c(self) -> Iterator[None]:
        """Takes the first Ctrl-C for a request to stop, because an exception within a call of the
        program, which takes over the buffers of `states`, would lose the run. A second one raises
        `KeyboardInterrupt`.
        """
        # other ranks do not know of a Ctrl-C at this one
        hears = (
            self.process_group.size == 1
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if hears:
            signal.signal(signal.SIGINT, self._stop)
        try:
            yield
        finally:
            if hears:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _stop(self, *_: object) -> None:
        self.stop_requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _is_over(self, pause: int) -> bool:
        """Returns whether no round follows the last pause."""
        is_running = any(recorder.is_running for recorder in self.recorders)
        return self.done == pause and not (is_running and self.done < self.grid.rounds)

    def _observe(self) -> None:
        """Observes the current models, keeps the best ones and calls the progress hook."""
        grid = self.grid
        options = self.options
        private = self.grid.private
        epsilon = None if private is None else private.epsilon_after(self.done)
        spent = {} if epsilon is None else {"epsilon": np.asarray(epsilon)}
        metrics = compute_metrics(self.program, self.states, options.observe or (), grid.seen_task)
        seconds = time.perf_counter() - self.begun
        improved = [
            recorder.observe(merge_metrics([observed, spent]), self.done, seconds)
            for recorder, observed in zip(self.recorders, metrics, strict=True)
        ]
        self._keep_models(improved)
        progress = Progress(self.done, grid.rounds, seconds, self.recorders[0].latest)
        wants_stop = callable(options.progress) and bool(options.progress(progress))
        # on several ranks, all stop if the hook of one says so
        self.stop_requested |= self.process_group.any(wants_stop)

    def _keep_models(self, improved: Sequence[bool]) -> None:
        """Copies what later rounds overwrite: models that have just become the best, and what runs
        carry that have ended before others, because the program keeps advancing them.
        """
        ended = [recorder for recorder in self.recorders if recorder.ended and not recorder.final]
        if all(recorder.ended for recorder in self.recorders):
            ended = []
        if not ended and not any(improved):
            return
        carries = self._carries(self.program.split(self.states))
        runs = zip(self.recorders, self.grid.members, carries, improved, strict=True)
        for recorder, member, carry, is_best in runs:
            best = recorder.best
            if best is not None and is_best:
                state = self.grid.evaluated_state(carry)
                params, state = _copy((self.grid.params(member, carry), state))
                recorder.best = dataclasses.replace(best, params=params, state=state)
            if recorder in ended:
                recorder.final = _copy(carry)

    def _save(self) -> None:
        """Writes a checkpoint. A run that has ended is saved as it was then."""
        assert self.checkpoints is not None, "there is no folder for checkpoints"
        carries = self._carries(self.program.gather_carries(self.states))
        runs = zip(self.recorders, carries, strict=True)
        histories = [recorder.finish(None, carry) for recorder, carry in runs]
        self.checkpoints.save(self.done, histories)

    def _carries(self, carries: Sequence[RunCarry]) -> list[RunCarry]:
        """Returns the carry of each run: of those that have ended, the one they ended with."""
        runs = zip(self.recorders, carries, strict=True)
        return [recorder.final or carry for recorder, carry in runs]

    def _histories(self) -> list[History]:
        """Returns the histories with what the grid knows of each run."""
        grid = self.grid
        task = grid.task
        carries = self._carries(self.program.split(self.states))
        published = grid.published(carries)
        runs = zip(self.recorders, grid.members, published, grid.facts(), strict=True)
        histories = [
            recorder.finish(
                grid.params(member, carry),
                carry,
                clients=task.names and tuple(task.names),
                predictor=task.without_examples,
                final_state=grid.evaluated_state(carry),
                **facts,
            )
            for recorder, member, carry, facts in runs
        ]
        if self.options.personal:
            has_final = any(recorder.final for recorder in self.recorders)
            states = self.program.join(carries) if has_final else self.states
            personal = self.program.observe(states, [ModelsOfClients()])
            histories = [
                _with_personal(history, grid, **models)
                for history, models in zip(histories, personal, strict=True)
            ]
        return histories


def _copy(tree: Any) -> Any:
    """Copies arrays and clients' states, because later rounds reuse the buffers."""

    def copy(leaf: Any) -> Any:
        if is_states(leaf):
            return leaf.copied()
        return jnp.array(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(copy, tree, is_leaf=is_states)


def _with_personal(history: History, grid: Grid, models: Any, states: Any) -> History:
    """Adds the clients' own models, with their states.

    One that is not finite makes the outcome of a run that was ok non-finite.
    """
    broken = np.flatnonzero(~np.asarray(jnp.isfinite(models).all(1)))
    outcome = history.outcome
    rounds = len(history.bits.up)
    if outcome.ok and len(broken) and rounds:
        outcome = Outcome("non-finite", rounds - 1, int(broken[0]), "the personal model")
    personal = jax.vmap(grid.layout.unravel)(models)
    details = history.details._replace(personal_state=states)
    return dataclasses.replace(history, outcome=outcome, personal=personal, details=details)
