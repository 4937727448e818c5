"""The one loop of the library: rounds, observations, stopping, history."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedax.core.algorithm import Algorithm
from fedax.core.channel import Traffic
from fedax.core.errors import InvalidInput, RunFailed
from fedax.core.history import History, Outcome
from fedax.core.hyper import as_arrays, check_population
from fedax.core.layout import Layout
from fedax.core.schedule import Schedule
from fedax.core.solver import SGD, Solver
from fedax.core.task import Task
from fedax.core.view import Observer
from fedax.engines.base import Engine, Log, stacked, starting_point
from fedax.engines.checkpoint import Checkpoints
from fedax.engines.coding import Channel, Coded
from fedax.engines.identity import identity
from fedax.engines.simulation import Simulation


class Progress(NamedTuple):
    """What a progress hook gets after every observation; returning True asks the run to stop."""

    round: int
    rounds: int
    seconds: float
    metrics: dict[str, Any]


class Divergence(NamedTuple):
    r"""Stops a run once the training loss has risen: $f_t - f_{t-\text{window}} > \text{rise}$, or is not finite.

    Needs the metric `train_loss`. The defaults are FedProx's rule (Li et al. 2020, App. C.3.2).
    """

    rise: float = 1.0
    window: int = 10

    def fires(self, rounds: Sequence[int], losses: Sequence[float]) -> bool:
        """Whether it fires at the last of these observations."""
        if not np.isfinite(losses[-1]):
            return True
        before = [loss for t, loss in zip(rounds, losses, strict=True) if t <= rounds[-1] - self.window]
        return bool(before) and losses[-1] - before[-1] > self.rise


def run(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    rounds: int = 100,
    seed: int = 0,
    observe: Sequence[Observer] = (),
    observe_every: int = 1,
    engine: Engine | None = None,
    channel: Channel | None = None,
    stop: Divergence | None = None,
    progress: Callable[[Progress], bool | None] | None = None,
    resume: History | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    personal: bool = False,
    throw: bool = False,
) -> History:
    """Runs a federated algorithm on a task.

    Args:
        algorithm: the method, such as `fedax.FedDANE(mu=0.1)`.
        task: what is learned, from `fedax.tasks`.
        solver: how a client minimises; `SGD(0.01)` by default.
        schedule: who works how much; everyone, one epoch, batches of 32 by default.
        rounds: how many in all, at least 0 (0 only observes the initial model).
        seed: of every random stream; the same seed gives the same result on every engine, up to rounding.
        observe: observers from `fedax.observe`.
        observe_every: rounds between observations, at least 1. The initial and the final model are always observed.
        engine: where it runs; the compiled `Simulation()` by default.
        channel: codecs of what is sent up and down; nothing is coded by default. See `Channel`.
        stop: ends the run early; see `Divergence`.
        progress: called after every observation.
        resume: a history whose run is continued up to `rounds`, with the same arguments otherwise.
        checkpoint: a folder for checkpoints of this run. If it holds some, the run continues from the newest whole one, to the
            same bits as without a break (on the same engine, devices and versions).
        checkpoint_every: rounds between checkpoints, at least 1; the last round is kept too.
        personal: whether the history also has the clients' own models, which take clients x dim numbers.
        throw: raises `RunFailed` if the outcome is not ok.

    Returns:
        A `History`: `metrics`, `rounds`, `params`, `bits`, `outcome`. A keyboard interrupt ends the run with what it has, and
        the outcome says so.

    Raises:
        InvalidInput: an argument out of range, before anything is compiled; checkpoints of another run.
        WriteFailed: a checkpoint that cannot be written; those before are whole.
    """
    before = None if resume is None else [resume]
    keep = None if checkpoint is None else (Path(checkpoint), checkpoint_every)
    history = _run(
        [algorithm],
        task,
        solver,
        schedule,
        rounds,
        [seed],
        observe,
        observe_every,
        engine,
        channel,
        stop,
        progress,
        before,
        keep,
        personal,
    )[0]
    if throw and not history.outcome.ok:
        raise RunFailed(f"{history.algorithm}: {history.outcome}")
    return history


def run_grid(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    rounds: int = 100,
    seed: int | Sequence[int] = 0,
    observe: Sequence[Observer] = (),
    observe_every: int = 1,
    engine: Engine | None = None,
    channel: Channel | None = None,
    stop: Divergence | None = None,
    progress: Callable[[Progress], bool | None] | None = None,
    resume: Sequence[History] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    personal: bool = False,
) -> list[History]:
    """Runs a grid of real hyperparameters of one method, each with the same seeds, as one compiled program.

    Members with the same seed see the same cohorts and minibatches. A member that diverges keeps its history up to there, and
    the others go on. `progress` hears of the first member. All other arguments are those of `run`.

    Args:
        algorithms: of one class, with equal choices, switches and counts.
        seed: of every member, or several for each.

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
    kinds = {likeness(member) for member in algorithms}
    if len(kinds) != 1:
        names = ", ".join(repr(member) for member in algorithms)
        raise InvalidInput.of(
            "run_grid(algorithms=...)", names, "at least one algorithm, all alike but for real hyperparameters"
        )
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput.of("run_grid(seed=...)", seed, "a seed, or several different ones")
    before = None if resume is None else list(resume)
    keep = None if checkpoint is None else (Path(checkpoint), checkpoint_every)
    return _run(
        list(algorithms),
        task,
        solver,
        schedule,
        rounds,
        seeds,
        observe,
        observe_every,
        engine,
        channel,
        stop,
        progress,
        before,
        keep,
        personal,
    )


def _run(
    algorithms: list[Algorithm[Any]],
    task: Task,
    solver: Solver | None,
    schedule: Schedule | None,
    rounds: int,
    seeds: list[int],
    observe: Sequence[Observer],
    observe_every: int,
    engine: Engine | None,
    channel: Channel | None,
    stop: Divergence | None,
    progress: Callable[[Progress], bool | None] | None,
    resume: list[History] | None,
    keep: tuple[Path, int] | None,
    personal: bool,
) -> list[History]:
    whole = [("rounds", rounds, 0), ("observe_every", observe_every, 1), *(("seed", seed, 0) for seed in seeds)]
    for name, value, low in whole:
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise InvalidInput.of(f"run({name}=...)", value, f"whole numbers >= {low}")
    schedule, solver, engine = schedule or Schedule(), solver or SGD(), engine or Simulation()
    sizes = engine.sizes(task)
    schedule.check_population(len(sizes))
    for algorithm in algorithms:
        check_population(algorithm, len(sizes))
        algorithm.check(schedule, sizes)
    if schedule.rounds is not None and rounds > schedule.rounds:
        raise InvalidInput.of("run(rounds=...)", rounds, f"at most {schedule.rounds}, the number of synchronisation times")
    for observer in observe:
        observer.check(task)
    models, roots = zip(*(starting_point(task, seed) for seed in seeds), strict=True)
    layout = Layout.of(models[0])
    plain, coded = (
        algorithms,
        [Coded(algorithm=a, channel=channel) for a in algorithms] if channel is not None else algorithms,
    )
    members = [algorithm for algorithm in coded for _ in seeds]
    checkpoints = None
    if keep:
        watched = {"observe_every": observe_every, "observers": list(observe), "stop": stop, "channel": channel}
        checkpoints = Checkpoints(*keep, identity(plain, task, solver, schedule, models, seeds, **watched))
    session = engine.session(coded, task, solver, schedule, layout, roots, min(observe_every, max(rounds, 1)))
    states = None if resume else session.start([layout.ravel(params) for params in models])
    if checkpoints and not resume:
        resume = checkpoints.load(session.split(states), members, layout, rounds)
    if resume:
        states = session.join([history.state for history in resume])
    clock = _Clock(resume[0].seconds[-1] if resume else 0.0)
    names = [type(algorithm).__name__ for algorithm in plain for _ in seeds]
    courses = [_Course(name, clock, resume[i] if resume else None) for i, name in enumerate(names)]
    done, settled = max(len(history.bits.down) for history in resume) if resume else 0, bool(resume)

    def look() -> bool:
        nonlocal settled
        for course, metrics in zip(courses, session.observe(states, observe, done), strict=True):
            course.observe(metrics, done, stop)
        settled = True
        return bool(progress and progress(Progress(done, rounds, clock.now, courses[0].latest)))

    def finished() -> list[History]:
        finals = session.split(states)
        models = [algorithm.model(state) for algorithm, state in zip(members, finals, strict=True)]
        return [c.finish(layout.unravel(w), state) for c, w, state in zip(courses, models, finals, strict=True)]

    try:
        asked = look() if not resume else False
        while done < rounds and not asked and any(course.outcome.ok for course in courses):
            count = min([period - done % period for period in (observe_every, *(keep or ())[1:])] + [rounds - done])
            settled = False
            states, logs = session.advance(states, done, count)
            for course, log in zip(courses, logs, strict=True):
                course.add(log, done)
            done += count
            ends = done == rounds or not any(course.outcome.ok for course in courses)
            if ends or done % observe_every == 0:
                asked = look()
            settled = True
            if checkpoints and (ends or done % checkpoints.every == 0):
                checkpoints.save(done, finished())
        if asked and done < rounds:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if checkpoints and settled:
            checkpoints.save(done, finished())
        for course in courses:
            course.interrupt(done)
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(states)):
            raise  # in the middle of a program that had taken the state over: there is nothing to keep
    own = [jax.vmap(layout.unravel)(rows) for rows in session.personal(states)] if personal else [None] * len(members)
    return [dataclasses.replace(history, personal=models) for history, models in zip(finished(), own, strict=True)]


def likeness(algorithm: Algorithm[Any]) -> Any:
    """Equal for algorithms that one program can serve, as `run_grid` asks for."""
    leaves, structure = jax.tree.flatten(as_arrays(algorithm, np.float32))
    return structure, tuple(np.shape(leaf) for leaf in leaves)


class _Clock:
    """Seconds of the run, those before a resumption included."""

    def __init__(self, before: float) -> None:
        self._begun = time.perf_counter() - before

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begun


class _Course:
    """Grows the history of one algorithm, until it ends."""

    def __init__(self, algorithm: str, clock: _Clock, before: History | None) -> None:
        self.algorithm, self.clock, self.before, self.outcome = algorithm, clock, before, Outcome()
        self.rounds: list[int] = [int(t) for t in before.rounds] if before else []
        self.seconds: list[float] = list(before.seconds) if before else []
        self.metrics: dict[str, list[Any]] = {k: list(v) for k, v in before.metrics.items()} if before else {}
        self.logs: list[Log] = []
        self._ended = False
        if before and before.outcome.kind in ("diverged", "non-finite"):
            self.outcome, self._ended = before.outcome, True

    @property
    def latest(self) -> dict[str, Any]:
        return {name: values[-1] for name, values in self.metrics.items()}

    def add(self, log: Log, first: int) -> None:
        if self._ended:
            return
        self.logs.append(log)
        bad = np.flatnonzero(log.bad_client >= 0)
        if len(bad):
            self.outcome = Outcome("non-finite", first + int(bad[0]), int(log.bad_client[bad[0]]))

    def observe(self, metrics: dict[str, np.ndarray], done: int, stop: Divergence | None) -> None:
        if self._ended:
            return
        for name, value in metrics.items():
            self.metrics.setdefault(name, []).append(value)
        self.rounds.append(done)
        self.seconds.append(self.clock.now)
        if stop and self.outcome.ok and done and stop.fires(self.rounds, self._losses(stop)):
            self.outcome = Outcome("diverged", done - 1)
        self._ended = not self.outcome.ok

    def interrupt(self, done: int) -> None:
        if self.outcome.ok:
            self.outcome = Outcome("interrupted", done)

    def _losses(self, stop: Divergence) -> list[float]:
        if "train_loss" not in self.metrics:
            raise InvalidInput.of("run(stop=...)", stop, "None, or observers that give train_loss")
        return [float(value) for value in self.metrics["train_loss"]]

    def finish(self, params: Any, state: Any) -> History:
        known = self.before if self.before and len(self.before.bits.up) else None
        past = [Log(known.notes, known.bits.down, known.bits.up, np.zeros(0))] if known else []
        logs = [*past, *self.logs]
        down, up = (np.concatenate([getattr(log, way) for log in logs] or [np.zeros(0, np.int64)]) for way in ("down", "up"))
        notes = stacked(
            [{name: values[i] for name, values in log.notes.items()} for log in logs for i in range(len(log.down))]
        )
        metrics = {name: np.stack(values) for name, values in self.metrics.items()}
        rounds, seconds = np.asarray(self.rounds), np.asarray(self.seconds)
        return History(self.algorithm, rounds, metrics, notes, params, Traffic(down, up), self.outcome, seconds, state)
