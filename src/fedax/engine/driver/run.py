"""The one loop of the library: rounds, observations, stopping, history."""

import contextlib
import dataclasses
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, SupportsIndex, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedax.core.algorithm import Algorithm
from fedax.core.bound_model import looked_at
from fedax.core.federation import Memory, with_memories
from fedax.core.history import History, Outcome
from fedax.core.hyper import bound_to
from fedax.core.task import Task
from fedax.engine.driver.checkpoint import Checkpoints
from fedax.engine.driver.early_stopping import EarlyStopping as EarlyStopping
from fedax.engine.driver.interrupts import CallLength, Interrupts, is_intact
from fedax.engine.driver.options import Divergence as Divergence
from fedax.engine.driver.options import Options, RunOptions, check_kind, require_concrete
from fedax.engine.driver.options import Progress as Progress
from fedax.engine.driver.recorder import Clock, Recorder
from fedax.engine.driver.resolve import has_symbolic
from fedax.engine.driver.resume import check_resumed
from fedax.engine.driver.session import Grid
from fedax.engine.driver.session import likeness as likeness
from fedax.engine.round.engine import Carried, observed
from fedax.errors import InvalidInput, RunFailed, shown
from fedax.observe.base import joined, modes_of
from fedax.utils.arguments import checked_call
from fedax.utils.layout import Layout


@checked_call
def run(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    seed: SupportsIndex = 0,
    resume: History | None = None,
    throw: bool = False,
    **options: Unpack[Options],
) -> History:
    """Runs a federated algorithm on a task.

    Args:
        algorithm: the method, such as `fedax.FedDANE(mu=0.1)`.
        task: what is learned, from `fedax.tasks`.
        seed: of every random stream; the same seed gives the same result on every engine, up to rounding.
        resume: a history whose run is continued up to `rounds`, with the same arguments otherwise. Another method, seed, data or
            privacy is refused.
        throw: raises `RunFailed` if the outcome is not ok.
        options: by keyword, see below; None stands for the default.

    Options:
        solver: how a client minimises; `SGD(0.01)` by default.
        schedule: who works how much; everyone, one epoch, batches of 32 by default.
        engine: where it runs; the compiled `Simulation()` by default.
        channel: codecs of what is sent up and down; nothing is coded by default. See `Channel`.
        params: the model to start from, with every seed: a pytree of the task's structure, or the path of a file that
            `fedax.load_params` reads; by default the task's own.
        rounds: how many in all, at least 0 (0 only observes the initial model); 100 by default.
        observe: observers from `fedax.observe`; by default the training loss and, where the task scores it, accuracy (on test
            examples if there are any), and nothing with `on_bad_client="drop"`. An empty list watches nothing.
        observe_every: rounds between observations, at least 1. The initial and the final model are always observed.
        stop: ends the run early: `Divergence`, `EarlyStopping`, or a list of them.
        keep_best: a metric of the observers; `History.best` is the model with its best finite value. By default that of early
            stopping, if there is one.
        mode: of `keep_best`, `"max"` if more is better, `"min"` if less is; needed where neither the observer nor the task states
            it.
        progress: called with a `Progress` after every observation; `print` will do.
        checkpoint: a folder for checkpoints of this run. If it holds some, the run continues from the newest whole one, to the
            same bits as without a break (on the same engine, devices and versions).
        checkpoint_every: rounds between checkpoints, at least 1, 10 by default; the last round is kept too.
        personal: whether the history also has the clients' own models, which take clients x dim numbers.
        on_bad_client: of a client whose upload, or whose memory after the work, is not finite. `"stop"`, the default: the run
            ends after the round, and the outcome names the client. `"drop"`: the client is left out of the phase as if it had
            not been drawn, its memory stays as it was, `History.notes["dropped"]` names it, and the run goes on; what it sent
            counts as traffic. A round of which everybody is left out leaves the state as it was. Not for methods without a
            server.

    Returns:
        A `History`: `metrics`, `rounds`, `params`, `bits`, `outcome`. Ctrl-C ends the run with all rounds that are finished, within
        a few seconds or after the round that is running, and the outcome says so. Before the initial model is observed there is
        nothing to keep: it raises `KeyboardInterrupt`, as a second Ctrl-C does.

    Raises:
        InvalidInput: an argument out of range, before anything is compiled; checkpoints of another run.
        RunExists: another process works in the folder of checkpoints.
        WriteFailed: a checkpoint that cannot be written; those before are whole.
    """
    if isinstance(algorithm, Task) and isinstance(task, Algorithm):
        raise InvalidInput.because(
            "run(algorithm, task)", "got the task first", "Write run(algorithm, task), in this order."
        )
    check_kind("run(algorithm=...)", algorithm, Algorithm)
    if isinstance(seed, Sequence | np.ndarray):
        several = "Several seeds are a grid: run_grid([algorithm], task, seed=[...])."
        raise InvalidInput.because("run(seed=...)", f"got {shown(seed)}, allowed: one whole number", several)
    (history,) = run_grid([algorithm], task, seed=seed, resume=None if resume is None else [resume], **options)
    if throw and not history.outcome.ok:
        raise RunFailed(f"{history.algorithm}: {history.outcome}")
    return history


@checked_call
def run_grid(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    *,
    seed: SupportsIndex | Sequence[int] = 0,
    resume: Sequence[History] | None = None,
    **options: Unpack[Options],
) -> list[History]:
    """Runs a grid of real hyperparameters of one method, each with the same seeds, as one compiled program.

    Members with the same seed see the same cohorts and minibatches. A member that diverges keeps its history up to there, and
    the others go on. `progress` hears of the first member.

    Args:
        algorithms: of one class, with equal choices, switches and counts.
        task: what is learned.
        seed: of every member, or several for each.
        resume: the histories of all members, which are continued.
        options: those of `run`.

    Returns:
        The histories of the first algorithm with all seeds, then of the next.

    >>> import fedax
    >>> task = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0, 2.0], [5.0, 6.0]])
    >>> grid = [fedax.FedProx(mu=mu) for mu in (0.0, 1.0)]
    >>> histories = fedax.run_grid(grid, task, solver=fedax.SGD(0.5), schedule=fedax.Schedule(steps=2), rounds=1)
    >>> [round(float(history.params), 4) for history in histories]
    [2.625, 1.75]

    Raises:
        InvalidInput: as `run`; also members that differ in more than real hyperparameters, no seed, or one twice.
    """
    if not isinstance(algorithms, Sequence):
        raise InvalidInput.of("run_grid(algorithms=...)", algorithms, "a list of algorithms")
    for member in algorithms:
        check_kind("run_grid(algorithms=...)", member, Algorithm)
    check_kind("run_grid(task=...)", task, Task)
    algorithms = [bound_to(member, task.names, task.train.clients) for member in algorithms]
    if len({likeness(member) for member in algorithms}) != 1:
        names = ", ".join(repr(member) for member in algorithms)
        allowed = "at least one algorithm, all alike but for real hyperparameters"
        raise InvalidInput.of("run_grid(algorithms=...)", names, allowed, "Call it once for each method.")
    seeds = list(seed) if isinstance(seed, Sequence | np.ndarray) else [cast(int, seed)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput.of("run_grid(seed=...)", seed, "a seed, or several different ones")
    require_concrete("run", algorithms, task, options)
    settings, before = RunOptions.of(options), list(resume or ())
    for history in before:
        check_kind("run(resume=...)", history, History)
    with settings.engine.process_group.abort_on_error():
        if len(seeds) > 1 and has_symbolic(algorithms, settings):
            histories = _run_each_seed(algorithms, task, seeds, settings, before)
        else:
            histories = _run(Grid(algorithms, task, seeds, settings, _done(before)), before)
    return [history.named(task.names) for history in histories]


def _run_each_seed(
    algorithms: Sequence[Algorithm[Any]], task: Task, seeds: Sequence[int], options: RunOptions, before: list[History]
) -> list[History]:
    """One program for each seed, whose symbolic hyperparameters may become other numbers as it starts elsewhere."""
    columns: list[list[History]] = []
    for i, seed in enumerate(seeds):
        folder = None if options.checkpoint is None else Path(options.checkpoint) / f"seed-{int(seed)}"
        own, past = dataclasses.replace(options, checkpoint=folder), before[i :: len(seeds)]
        columns.append(_run(Grid(algorithms, task, [seed], own, _done(past)), past))
    return [history for row in zip(*columns, strict=True) for history in row]


def _done(histories: Sequence[History]) -> int:
    return max((len(history.bits.down) for history in histories), default=0)


def _run(grid: Grid, resume: list[History]) -> list[History]:
    checkpoints = _checkpoints(grid)
    with checkpoints.locked() if checkpoints else contextlib.nullcontext():
        return _advance(grid, resume, checkpoints)


def _advance(grid: Grid, resume: list[History], checkpoints: Checkpoints | None) -> list[History]:
    options, program, layout, group = grid.options, grid.program, grid.layout, grid.options.engine.process_group
    rounds, every = grid.rounds, options.observe_every
    states = None if resume else grid.init()
    if resume:
        check_resumed(resume, grid.origins(), grid.private is not None)
    if checkpoints and not resume:
        resume = checkpoints.load(program.split(states), grid.each, layout, options.rounds) or []
    if resume:
        states = program.join(
            [Carried(history.state, history.lost, history.model_state, history.bounds) for history in resume]
        )
    clock = Clock(resume[0] if resume else None)
    names = [type(algorithm).__name__ for algorithm in grid.algorithms for _ in grid.seeds]
    drops, modes = options.on_bad_client == "drop", modes_of(options.observe or (), grid.task)
    recorders = [Recorder(name, clock, drops, modes, resume[i] if resume else None) for i, name in enumerate(names)]
    done, settled = _done(resume), bool(resume)

    def look() -> bool:
        nonlocal settled
        spent = {} if (epsilon := grid.private and grid.private.spent(done)) is None else {"epsilon": np.asarray(epsilon)}
        seen = [joined([found, spent]) for found in observed(program, states, options.observe or (), done, grid.task)]
        better = [recorder.observe(metrics, done, options) for recorder, metrics in zip(recorders, seen, strict=True)]
        if any(better):
            now = parts()
            for recorder, w, carried in compress(zip(recorders, models(now), now, strict=True), better):
                state = _copied(looked_at(carried.model_state))
                recorder.keep(grid.task.assembled(layout.unravel(jnp.array(w))), state)
        if any(recorder.ended and not recorder.final for recorder in recorders) and not all(r.ended for r in recorders):
            for recorder, carried in zip(recorders, parts(), strict=True):  # the others go on, and this one with them
                recorder.final = _copied(carried) if recorder.ended and not recorder.final else recorder.final
        settled = True
        report = Progress(done, rounds, clock.now, recorders[0].latest, clock.compiling)
        with interrupts.allowed(states):
            asked = options.progress and options.progress(report)
        return group.any(bool(asked))

    def parts() -> list[Carried]:
        return [recorder.final or carried for recorder, carried in zip(recorders, program.split(states), strict=True)]

    def whole() -> list[Carried]:
        """Everybody's carry for a file, of runs that have ended as it was then."""
        return program.whole(program.join(parts()) if any(recorder.final for recorder in recorders) else states)

    def models(finals: list[Carried]) -> list[Array]:
        return [algorithm.model(carried.state) for algorithm, carried in zip(grid.each, finals, strict=True)]

    def finished(finals: list[Carried]) -> list[History]:
        each = zip(recorders, models(finals), finals, strict=True)
        return [recorder.finish(grid.task.assembled(layout.unravel(w)), carried) for recorder, w, carried in each]

    def save() -> None:
        assert checkpoints is not None, "there is no folder for checkpoints"
        checkpoints.save(done, finished(whole()))

    def advance_to(end: int) -> None:
        """Runs the rounds before `end`, or fewer if there is a Ctrl-C, in calls that return every few seconds."""
        nonlocal states, done, settled
        while done < end and not interrupts.asked:
            timed = checkpoints is not None and checkpoints.seconds is not None
            count = 1 if timed else min(calls.rounds, end - done)  # a checkpoint may be due after any round
            with interrupts.allowed(states), calls.timed(count):
                advanced = program.advance(states, done, count)
            settled = False  # until state, logs and `done` fit together again
            states, logs = advanced
            for recorder, log in zip(recorders, logs, strict=True):
                recorder.add(log, done)
            done += count
            settled = done < end  # at the end there may be an observation to make
            if checkpoints and settled and checkpoints.is_due():
                save()

    calls = CallLength(bounded=group.size == 1)
    with Interrupts(enabled=group.size == 1) as interrupts:
        try:
            asked = look() if not resume else False
            while done < rounds and not (asked or interrupts.asked) and any(recorder.goes_on for recorder in recorders):
                end = min(rounds, *(done + period - done % period for period in options.periods))
                advance_to(end)
                ends = done == rounds or not any(recorder.goes_on for recorder in recorders)
                if ends or done % every == 0:
                    asked = look()
                settled = True
                if checkpoints and (ends or done % checkpoints.every == 0 or checkpoints.is_due()):
                    save()
            if interrupts.asked or (asked and done < rounds):
                raise KeyboardInterrupt
            for recorder in recorders if rounds < options.rounds else ():
                recorder.stop(done)
        except KeyboardInterrupt:
            if (group.size > 1 and not asked) or not is_intact(states) or not recorders[0].rounds:
                raise  # other ranks do not know of it, a program has the state, or there is nothing to keep yet
            if checkpoints and settled:
                save()
            for recorder in recorders:
                recorder.interrupt(done)
        ended = zip(finished(parts()), grid.fitted, grid.settings, grid.origins(), grid.arguments, strict=True)
        histories = [
            dataclasses.replace(history, fitted=fitted, settings=plain, origin=origin, arguments=arguments)
            for history, fitted, plain, origin, arguments in ended
        ]
        if not options.personal:
            return histories
        personal = zip(histories, program.personal(states), strict=True)
        return [_with_personal(history, rows, layout) for history, rows in personal]


def _copied(tree: Any) -> Any:
    """A copy that later rounds do not change."""
    arrays = jax.tree.map(
        lambda leaf: jnp.array(leaf) if isinstance(leaf, jax.Array) else leaf,
        tree,
        is_leaf=lambda node: isinstance(node, Memory),
    )
    return with_memories(arrays, lambda memory: memory.copied())


def _with_personal(history: History, rows: Float[Array, "clients dim"], layout: Layout) -> History:
    """With the clients' own models, which have to be finite if the run was."""
    broken, outcome = np.flatnonzero(~np.asarray(jnp.isfinite(rows).all(1))), history.outcome
    if outcome.ok and len(broken) and len(history.bits.up):
        outcome = Outcome("non-finite", len(history.bits.up) - 1, int(broken[0]), "the personal model")
    return dataclasses.replace(history, outcome=outcome, personal=jax.vmap(layout.unravel)(rows))


def _checkpoints(grid: Grid) -> Checkpoints | None:
    options = grid.options
    if options.checkpoint is None:
        return None
    engine, folder = options.engine, Path(options.checkpoint)
    return Checkpoints(folder, options.checkpoint_every, grid.identity(), engine.process_group, engine.checkpoint_seconds)
