"""The one loop of the library: rounds, observations, stopping, history."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, SupportsIndex, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedax.core.algorithm import Algorithm
from fedax.core.bound import looked_at
from fedax.core.channel import Traffic
from fedax.core.errors import InvalidInput, RunFailed, shown
from fedax.core.federation import Memory, with_memories
from fedax.core.history import Best, History, Outcome, more_is_better
from fedax.core.hyper import as_arrays
from fedax.core.layout import Layout
from fedax.core.task import Task
from fedax.engines.base import Carried, Log, merged, observed
from fedax.engines.checkpoint import Checkpoints
from fedax.engines.options import Divergence as Divergence
from fedax.engines.options import Options, RunOptions, check_kind, require_concrete
from fedax.engines.options import Progress as Progress
from fedax.engines.programs import compiling
from fedax.engines.rows import Rows
from fedax.engines.session import Grid
from fedax.engines.stopping import EarlyStopping as EarlyStopping


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
        resume: a history whose run is continued up to `rounds`, with the same arguments otherwise.
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
        keep_best: a metric of the observers; `History.best` is the model with its best value (the lowest, of accuracies, AUC
            and F1 the highest). By default that of early stopping, if there is one.
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
        A `History`: `metrics`, `rounds`, `params`, `bits`, `outcome`. A keyboard interrupt ends the run with what it has, and
        the outcome says so.

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
    with settings.engine.team.watched():
        return _run(Grid(algorithms, task, seeds, settings, _done(before)), before)


def _done(histories: Sequence[History]) -> int:
    return max((len(history.bits.down) for history in histories), default=0)


def _run(grid: Grid, resume: list[History]) -> list[History]:
    checkpoints = _checkpoints(grid)
    with checkpoints.locked() if checkpoints else contextlib.nullcontext():
        return _advance(grid, resume, checkpoints)


def _advance(grid: Grid, resume: list[History], checkpoints: Checkpoints | None) -> list[History]:
    options, program, layout, team = grid.options, grid.program, grid.layout, grid.options.engine.team
    rounds, every = grid.rounds, options.observe_every
    states = None if resume else grid.init()
    if checkpoints and not resume:
        resume = checkpoints.load(program.split(states), grid.each, layout, options.rounds) or []
    if resume:
        states = program.join(
            [Carried(history.state, history.lost, history.model_state, history.bounds) for history in resume]
        )
    clock = _Clock(resume[0] if resume else None)
    names = [type(algorithm).__name__ for algorithm in grid.algorithms for _ in grid.seeds]
    drops = options.on_bad_client == "drop"
    recorders = [_Recorder(name, clock, drops, resume[i] if resume else None) for i, name in enumerate(names)]
    done, settled = _done(resume), bool(resume)

    def look() -> bool:
        nonlocal settled
        spent = {} if (epsilon := grid.private and grid.private.spent(done)) is None else {"epsilon": np.asarray(epsilon)}
        seen = [found | spent for found in observed(program, states, options.observe or (), done, grid.task)]
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
        asked = options.progress and options.progress(report)
        return team.any(bool(asked))

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

    try:
        asked = look() if not resume else False
        while done < rounds and not asked and any(recorder.goes_on for recorder in recorders):
            count = min([period - done % period for period in options.periods] + [rounds - done])
            settled = False
            states, logs = program.advance(states, done, count)
            for recorder, log in zip(recorders, logs, strict=True):
                recorder.add(log, done)
            done += count
            ends = done == rounds or not any(recorder.goes_on for recorder in recorders)
            if ends or done % every == 0:
                asked = look()
            settled = True
            if checkpoints and (ends or done % checkpoints.every == 0):
                checkpoints.save(done, finished(whole()))
        if asked and done < rounds:
            raise KeyboardInterrupt
        for recorder in recorders if rounds < options.rounds else ():
            recorder.stop(done)
    except KeyboardInterrupt:
        if team.size > 1 and not asked:
            raise  # the other ranks do not know of it
        if checkpoints and settled:
            checkpoints.save(done, finished(whole()))
        for recorder in recorders:
            recorder.interrupt(done)
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(states)):
            raise  # in the middle of a program that had taken the state over: there is nothing to keep
    ended = zip(finished(parts()), grid.fitted, strict=True)
    histories = [dataclasses.replace(history, fitted=fitted) for history, fitted in ended]
    if not options.personal:
        return histories
    return [_with_personal(history, rows, layout) for history, rows in zip(histories, program.personal(states), strict=True)]


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
    return Checkpoints(Path(options.checkpoint), options.checkpoint_every, grid.identity(), options.engine.team)


def likeness(algorithm: Algorithm[Any]) -> Any:
    """Equal for algorithms that one program can serve, as `run_grid` asks for."""
    leaves, structure = jax.tree.flatten(as_arrays(algorithm, np.float32))
    return structure, tuple(leaf if isinstance(leaf, str) else np.shape(leaf) for leaf in leaves)


LOSSES = ("train_loss", "objective")
"""Metrics that are finite in a run that is ok."""


class _Clock:
    """Seconds of the run, those before a resumption included."""

    def __init__(self, before: History | None) -> None:
        self._begun, self._compiled = time.perf_counter(), compiling().seconds
        if before is not None:
            self._begun, self._compiled = self._begun - before.seconds[-1], self._compiled - before.compiling[-1]

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begun

    @property
    def compiling(self) -> float:
        """Of these, the seconds of compiling."""
        return compiling().seconds - self._compiled


class _Recorder:
    """Grows the history of one algorithm, until it ends."""

    def __init__(self, algorithm: str, clock: _Clock, drops: bool, before: History | None) -> None:
        self.algorithm, self.clock, self.drops, self.before, self.outcome = algorithm, clock, drops, before, Outcome()
        self.rounds: list[int] = [int(t) for t in before.rounds] if before else []
        self.seconds: list[float] = list(before.seconds) if before else []
        self.compiling: list[float] = list(before.compiling) if before else []
        self.metrics: dict[str, Rows] = {k: Rows(v) for k, v in before.metrics.items()} if before else {}
        self.logs: list[Log] = []
        self.ended, self.final, self.best = False, None, before.best if before else None
        if before and before.outcome.kind in ("stopped", "diverged", "non-finite"):
            self.outcome, self.ended, self.final = (
                before.outcome,
                True,
                Carried(before.state, before.lost, before.model_state),
            )

    @property
    def goes_on(self) -> bool:
        return self.outcome.kind == "ok"

    @property
    def latest(self) -> dict[str, Any]:
        return {name: values.last for name, values in self.metrics.items()}

    def add(self, log: Log, first: int) -> None:
        if self.ended:
            return
        self.logs.append(jax.tree.map(np.array, log))  # not the device's buffers
        while len(self.logs) > 1 and len(self.logs[-2].down) <= len(self.logs[-1].down):
            self.logs[-2:] = [merged(self.logs[-2:])]
        self.outcome = log.failure(first)

    def observe(self, metrics: dict[str, np.ndarray], done: int, options: RunOptions) -> bool:
        """Takes the metrics after some rounds; whether they are those of a better model than the best so far."""
        if self.ended:
            return False
        for name, value in metrics.items():
            self.metrics.setdefault(name, Rows()).append(value)
        self.rounds.append(done)
        self.seconds.append(self.clock.now)
        self.compiling.append(self.clock.compiling)
        for rule in options.rules:
            values = self._values(rule.metric, f"run(stop=...), {rule}")
            if self.goes_on and done and rule.fires(self.rounds, values):
                self.outcome = Outcome(rule.kind, done - 1)
        broken = [name for name in LOSSES if name in metrics and not np.isfinite(metrics[name])]
        if self.goes_on and done and broken:
            self.outcome = Outcome("non-finite", done - 1, part=broken[0])
        self.ended = not self.goes_on
        if (metric := options.best_by) is None:
            return False
        value = self._values(metric, "run(keep_best=...)")[-1]
        sign = -1 if more_is_better(metric) else 1
        if not math.isfinite(value) or (self.best is not None and sign * value >= sign * self.best.value):
            return False
        self.best = Best(metric, done, value, None)
        return True

    def keep(self, params: Any, state: Any) -> None:
        """The model that has just become the best."""
        assert self.best is not None, "nothing was better"
        self.best = dataclasses.replace(self.best, params=params, state=state)

    def stop(self, done: int) -> None:
        """The end of the budget of privacy."""
        if self.goes_on:
            self.outcome = Outcome("stopped", done - 1)

    def interrupt(self, done: int) -> None:
        if self.goes_on:
            self.outcome = Outcome("interrupted", done)

    def _values(self, metric: str, field: str) -> list[float]:
        if metric not in self.metrics or self.metrics[metric].all().ndim != 1:
            raise InvalidInput.of(field, metric, f"None, or observers that give {metric}, one number each")
        return self.metrics[metric].all().astype(float).tolist()

    def finish(self, params: Any, carried: Carried) -> History:
        known = self.before if self.before and len(self.before.bits.up) else None
        past: list[Log] = []
        if known:
            notes = {name: values for name, values in known.notes.items() if name != "dropped"}
            left_out, nothing = known.notes.get("dropped", np.zeros((len(known.bits.up), 0))), np.zeros(0)
            past.append(Log(notes, known.bits.down, known.bits.up, nothing, nothing, left_out))
        log = merged([*past, *self.logs])
        notes = log.notes | ({"dropped": log.left_out} if self.drops else {})
        metrics = {name: values.all() for name, values in self.metrics.items()}
        rounds, seconds, compiled = (np.asarray(values) for values in (self.rounds, self.seconds, self.compiling))
        books = Traffic(log.down, log.up), self.outcome, seconds, compiled
        return History(self.algorithm, rounds, metrics, notes, params, *books, **carried._asdict(), best=self.best)
