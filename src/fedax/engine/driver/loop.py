"""The loop over rounds: calls the compiled rounds, and observes, stops and saves between the calls.

The Python code here touches a run only every few rounds. `Program.advance` does the rounds
themselves, several in one call.
"""

import dataclasses
import os
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedax.core.bound_model import evaluated_state
from fedax.core.federation import is_memory
from fedax.core.history import History, Outcome
from fedax.core.validation.own_methods import call_model
from fedax.engine.driver.checkpoint import Checkpoints
from fedax.engine.driver.interrupts import CallLength, Interrupts, is_intact
from fedax.engine.driver.options import Progress
from fedax.engine.driver.recorder import Recorder, has_ended, was_ended_by_budget
from fedax.engine.driver.resume import CLIENTS, check_continued, check_lengths, total_rounds
from fedax.engine.driver.session import Grid
from fedax.engine.round.engine import PersonalModels, RunCarry, compute_metrics
from fedax.observe.base import merge_metrics, modes_of
from fedax.utils.layout import Layout


class RoundLoop:
    """Runs the rounds of a grid from where it stands to its last round.

    Args:
        grid: the runs, which one program serves.
        resume: histories to continue, one for each run; empty for runs that start from round 0 or
            from a checkpoint.
        checkpoints: where the runs are saved; None if they are not. The caller holds their lock.

    Attributes:
        states: what the engine carries from round to round, for all runs. A call of the program
            consumes its buffers.
        done: rounds completed.
        recorders: the histories as they grow, one for each run.
        can_save: whether `states`, `done` and the recorders belong to the same round, so that a
            checkpoint may be written.
        stop_requested: whether the progress hook asked for the end.
    """

    def __init__(self, grid: Grid, resume: list[History], checkpoints: Checkpoints | None) -> None:
        self.grid = grid
        self.options = grid.options
        self.program = grid.program
        self.checkpoints = checkpoints
        self.process_group = grid.options.engine.process_group
        self.states, resume, ended = self._initial_states(resume)
        self._is_resumed = bool(resume)  # then the model that they start from has been observed
        # those that go on have rounds in common; if all have ended, no round follows
        going_on = [history for history, is_over in zip(resume, ended, strict=True) if not is_over]
        self.done = rounds_done(going_on or resume)
        self.can_save = self._is_resumed
        self.stop_requested = False
        # which runs since the grid was made: data were placed and programs compiled before
        self.clock = grid.clock
        if resume:
            self.clock.continue_from((going_on or resume)[0])
        drops = self.options.on_bad_client == "drop"
        modes = modes_of(self.options.observe or (), grid.task)
        names = [type(algorithm).__name__ for algorithm in grid.algorithms_by_run]
        before = list(zip(resume, ended, strict=True)) or [(None, False)] * len(names)
        self.recorders = [
            Recorder(name, self.clock, drops, modes, history, is_over)
            for name, (history, is_over) in zip(names, before, strict=True)
        ]
        # ranks run one program together, so neither a signal nor a clock of one rank may change
        # what it calls
        self.interrupts = Interrupts(enabled=self.process_group.size == 1)
        self.calls = CallLength(bounded=self.process_group.size == 1)

    def _initial_states(self, resume: list[History]) -> tuple[Any, list[History], list[bool]]:
        """Returns the states to start from, the given or stored histories before them, and which
        of these have ended.
        """
        grid = self.grid
        ended = self.grid.check_resumed(resume) if resume else []
        states = grid.init() if self.checkpoints or not resume else None
        stored = self.checkpoints and self.checkpoints.load(
            self.program.split(states),
            grid.algorithms_by_run,
            grid.layout,
            self.options.rounds,
            self._to_params,
        )
        if stored:
            histories = [history for history, _ in stored]
            # the budget may be a larger one now
            stored_ended = [
                has_ended(history, self.options.rules) if was_ended_by_budget(history) else is_over
                for history, is_over in stored
            ]
            if resume:
                assert self.checkpoints is not None, "of the folder that was read"
                check_continued(histories, resume, self.checkpoints.folder)
            # the folder may be ahead of the given histories, whose continuation it has then
            if not resume or total_rounds(histories) > total_rounds(resume):
                check_lengths("run_grid(checkpoint=...)", histories, stored_ended)
                resume = histories
                ended = stored_ended
        if resume:
            states = self.program.join([RunCarry.of(history) for history in resume])
        return states, resume, ended

    def run(self) -> list[History]:
        """Runs all rounds and returns the histories."""
        with self.interrupts:
            try:
                self._run_rounds()
            except KeyboardInterrupt:
                if not self._has_result():
                    raise
                self._end_early()
            return self._histories()

    def _run_rounds(self) -> None:
        """Alternates rounds with observations and checkpoints until all runs have ended."""
        if self._is_resumed:
            self._begin_resumed()
        else:
            # the initial model counts as an observation after 0 rounds
            self._observe()
            self._report_progress()
        while self._has_rounds_left() and not (self.stop_requested or self.interrupts.asked):
            # up to the next multiple of `observe_every` or `checkpoint_every`: nothing in Python
            # touches the run before. One that is not finite runs on to there: a call returns the
            # state after its last round only, and the runs of a grid go through it together
            self._advance_to(
                min(
                    self.grid.rounds, *(self.done + p - self.done % p for p in self.options.periods)
                )
            )
            if not self._has_rounds_left() or self.done % self.options.observe_every == 0:
                self._observe()
                self._report_progress()
            self.can_save = True
            # after the observation, so that a run that continues from here has it, and one that a
            # rule has just ended is saved
            if self.checkpoints and (
                not self._has_rounds_left()
                or self.done % self.checkpoints.every == 0
                or self.checkpoints.is_due()
            ):
                self._save()
        if self.interrupts.asked or (self.stop_requested and self.done < self.grid.rounds):
            raise KeyboardInterrupt
        if self.grid.rounds < self.options.rounds:  # as many as the budget of privacy allows
            for recorder in self.recorders:
                recorder.end_by_budget(self.done)

    def _begin_resumed(self) -> None:
        """Chooses the best model so far, and observes a final model that was not."""
        improved = [
            recorder.reconsider_best(self.done, self.options) for recorder in self.recorders
        ]
        if any(improved):
            self._store_best(improved)
        # of a run that was interrupted, or saved, between two observations
        is_unobserved = any(
            not recorder.ended and recorder.rounds[-1] < self.done for recorder in self.recorders
        )
        if is_unobserved and not self._has_rounds_left():
            self._observe()
            self._report_progress()
            if self.checkpoints:
                self._save()

    def _has_rounds_left(self) -> bool:
        return self.done < self.grid.rounds and self._has_running()

    def _has_running(self) -> bool:
        return any(recorder.is_running for recorder in self.recorders)

    def _advance_to(self, end: int) -> None:
        """Runs the rounds before `end`, in calls that return every few seconds.

        After a Ctrl-C it stops between two calls.
        """
        while self.done < end and not self.interrupts.asked:
            is_timed = self.checkpoints is not None and self.checkpoints.seconds is not None
            # a checkpoint may be due after any round
            count = 1 if is_timed else min(self.calls.rounds, end - self.done)
            # The program takes over the buffers of `states`. Until its result is assigned, Ctrl-C
            # must not raise, or the run would be lost.
            with self.interrupts.allow(self.states), self.calls.measure(count):
                result = self.program.advance(self.states, self.done, count)
            self.can_save = False  # until states, logs and `done` fit together again
            self.states, logs = result
            for recorder, log in zip(self.recorders, logs, strict=True):
                recorder.add(log, self.done)
            self.done += count
            self.can_save = self.done < end  # at the end an observation may be missing
            if self.checkpoints and self.can_save and self.checkpoints.is_due():
                self._save()

    def _observe(self) -> None:
        """Observes the current models and keeps the best ones."""
        metrics = compute_metrics(
            self.program, self.states, self.options.observe or (), self.done, self.grid.seen_task
        )
        epsilon = self.grid.private and self.grid.private.epsilon_after(self.done)
        privacy_metrics = {} if epsilon is None else {"epsilon": np.asarray(epsilon)}
        improved = [
            recorder.observe(merge_metrics([observed, privacy_metrics]), self.done, self.options)
            for recorder, observed in zip(self.recorders, metrics, strict=True)
        ]
        if any(improved):
            self._store_best(improved)
        self._freeze_ended()
        self.can_save = True

    def _store_best(self, improved: list[bool]) -> None:
        """Copies the models of the runs whose metric has just improved."""
        carries = self.grid.published(self._carries())
        for recorder, w, carry in compress(
            zip(self.recorders, self._models(carries), carries, strict=True), improved
        ):
            state = _copy(evaluated_state(carry.model_state))
            recorder.store_best(self._to_params(jnp.array(w)), state)

    def _freeze_ended(self) -> None:
        """Copies the carry of runs that have just ended, which the program keeps advancing."""
        has_ended = [recorder.ended for recorder in self.recorders]
        if all(has_ended) or not any(
            recorder.ended and not recorder.final for recorder in self.recorders
        ):
            return
        for recorder, carry in zip(self.recorders, self._carries(), strict=True):
            if recorder.ended and not recorder.final:
                recorder.final = _copy(carry)

    def _report_progress(self) -> None:
        """Calls the progress hook; on several ranks, all stop if the hook of one says so."""
        progress = Progress(
            self.done,
            self.grid.rounds,
            self.clock.now,
            self.recorders[0].latest,
            self.clock.compiling,
            len(self.recorders),
        )
        with self.interrupts.allow(self.states):
            wants_stop = callable(self.options.progress) and self.options.progress(progress)
        self.stop_requested = self.process_group.any(bool(wants_stop))

    def _save(self) -> None:
        """Writes a checkpoint. A run that has ended is saved as it was then."""
        assert self.checkpoints is not None, "there is no folder for checkpoints"
        histories = self._finish(self.program.gather_carries(self._final_states()))
        marked = [
            dataclasses.replace(history, origin=recorder.mark_origin({}))
            for history, recorder in zip(histories, self.recorders, strict=True)
        ]
        ended = [recorder.ended for recorder in self.recorders]
        self.checkpoints.save(self.done, marked, ended, self.grid.layout)

    def _has_result(self) -> bool:
        """Returns whether an interrupted run has a result to keep.

        Other ranks do not know of a Ctrl-C at this one. The program may hold the buffers of the
        states. And before the first observation there is nothing yet.
        """
        is_known_to_all = self.process_group.size == 1 or self.stop_requested
        return is_known_to_all and is_intact(self.states) and bool(self.recorders[0].rounds)

    def _end_early(self) -> None:
        """Ends the runs after a Ctrl-C or at the wish of the progress hook."""
        if self.checkpoints and self.can_save:
            self._save()
        for recorder in self.recorders:
            recorder.interrupt(self.done)

    def _carries(self) -> list[RunCarry]:
        """Returns the carry of each run: of those that have ended, the one they ended with."""
        return [
            r.final or carry
            for r, carry in zip(self.recorders, self.program.split(self.states), strict=True)
        ]

    def _final_states(self) -> Any:
        """Returns the states as the program has them, with runs that ended earlier as they were
        then.
        """
        has_final = any(recorder.final for recorder in self.recorders)
        return self.program.join(self._carries()) if has_final else self.states

    def _models(self, carries: list[RunCarry]) -> list[Float[Array, "dim"]]:
        return [
            call_model(algorithm, carry.state, self.grid.layout.dim)
            for algorithm, carry in zip(self.grid.algorithms_by_run, carries, strict=True)
        ]

    def _to_params(self, w: Float[Array, "dim"]) -> Any:
        """Returns a flat model as the user's own pytree."""
        return self.grid.task.assembled(self.grid.layout.unravel(w))

    def _finish(self, carries: list[RunCarry]) -> list[History]:
        runs = zip(self.recorders, self._models(carries), carries, strict=True)
        return [recorder.finish(self._to_params(w), carry) for recorder, w, carry in runs]

    def _histories(self) -> list[History]:
        """Returns the histories with what the grid knows of each run."""
        grid = self.grid
        histories = self._finish(grid.published(self._carries()))
        origins = [
            recorder.mark_origin(origin)
            for recorder, origin in zip(self.recorders, grid.origins(), strict=True)
        ]
        runs = zip(histories, grid.settings, origins, grid.arguments, strict=True)
        histories = [
            dataclasses.replace(history, settings=settings, origin=origin, arguments=arguments)
            for history, settings, origin, arguments in runs
        ]
        if not self.options.personal:
            return histories
        personal = zip(histories, self.program.personal(self._final_states()), strict=True)
        return [_with_personal(history, own, grid.layout) for history, own in personal]


def rounds_done(histories: Sequence[History]) -> int:
    """Returns the rounds that the longest of some histories has; 0 for none."""
    return max((len(history.bits.down) for history in histories), default=0)


def open_checkpoints(grid: Grid) -> Checkpoints | None:
    """Returns the checkpoints in the folder that the options name, or None."""
    options = grid.options
    if options.checkpoint is None:
        return None
    engine = options.engine
    folder = Path(os.path.expanduser(options.checkpoint))
    # the fingerprint has the task's data, which are not those of clients elsewhere
    clients = engine.describe_clients()
    identity = grid.identity() | ({CLIENTS: clients} if clients else {})
    return Checkpoints(
        folder,
        options.checkpoint_every,
        identity,
        engine.process_group,
        engine.checkpoint_seconds,
    )


def _copy(tree: Any) -> Any:
    """Copies arrays and clients' memories, because later rounds reuse the buffers."""

    def copy(leaf: Any) -> Any:
        return (
            leaf.copied()
            if is_memory(leaf)
            else jnp.array(leaf)
            if isinstance(leaf, jax.Array)
            else leaf
        )

    return jax.tree.map(copy, tree, is_leaf=is_memory)


def _with_personal(history: History, personal: PersonalModels, layout: Layout) -> History:
    """Adds the clients' own models, with their states.

    One that is not finite makes the outcome of a run that was ok non-finite.
    """
    models, states = personal
    broken = np.flatnonzero(~np.asarray(jnp.isfinite(models).all(1)))
    outcome = history.outcome
    if outcome.ok and len(broken) and len(history.bits.up):
        outcome = Outcome(
            "non-finite", len(history.bits.up) - 1, int(broken[0]), "the personal model"
        )
    return dataclasses.replace(
        history,
        outcome=outcome,
        personal=jax.vmap(layout.unravel)(models),
        personal_state=states,
    )
