"""The one loop of the library: rounds, observations, stopping, history."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.core.algorithm import Algorithm
from fedax.core.channel import Traffic
from fedax.core.errors import InvalidInput, RunFailed
from fedax.core.history import History, Outcome
from fedax.core.layout import Layout
from fedax.core.schedule import Schedule
from fedax.core.solver import SGD, Solver
from fedax.core.task import Task
from fedax.core.view import Observer
from fedax.engines.base import Engine, Log, Session, starting_point
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
    stop: Divergence | None = None,
    progress: Callable[[Progress], bool | None] | None = None,
    resume: History | None = None,
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
        stop: ends the run early; see `Divergence`.
        progress: called after every observation.
        resume: a history whose run is continued up to `rounds`, with the same arguments otherwise.
        throw: raises `RunFailed` if the outcome is not ok.

    Returns:
        A `History`: `metrics`, `rounds`, `params`, `bits`, `outcome`. A keyboard interrupt ends the run with what it has, and
        the outcome says so.

    Raises:
        InvalidInput: an argument out of range, before anything is compiled.
    """
    for name, value, low in (("rounds", rounds, 0), ("observe_every", observe_every, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise InvalidInput.of(f"run({name}=...)", value, f"whole numbers >= {low}")
    schedule, solver, engine = schedule or Schedule(), solver or SGD(), engine or Simulation()
    schedule.check_population(task.train.clients)
    for observer in observe:
        observer.check(task)

    params, root = starting_point(task, seed)
    layout = Layout.of(params)
    session = engine.session(algorithm, task, solver, schedule, layout, root, min(observe_every, max(rounds, 1)))
    history = _Recorder(session, observe, type(algorithm).__name__, resume)
    with np.errstate(invalid="ignore"):
        state = session.start(layout.ravel(params)) if resume is None else jax.tree.map(jnp.array, resume.state)
        outcome, done = Outcome(), int(resume.rounds[-1]) if resume else 0
        try:
            if resume is None:
                history.observe(state, 0)
                _tell(progress, history, 0, rounds)
            while done < rounds and outcome.ok:
                count = min(observe_every - done % observe_every, rounds - done)
                state, log = session.advance(state, done, count)
                done += count
                outcome = history.add(log, done - count)
                history.observe(state, done)
                if stop and outcome.ok and stop.fires(history.rounds, history.losses(stop)):
                    outcome = Outcome("diverged", done - 1)
                if _tell(progress, history, done, rounds) and outcome.ok and done < rounds:
                    outcome = Outcome("interrupted", done - 1)
        except KeyboardInterrupt:
            outcome = Outcome("interrupted", done)
        result = history.finish(layout.unravel(algorithm.model(state)), outcome, state)
    if throw and not outcome.ok:
        raise RunFailed(f"{type(algorithm).__name__}: {outcome}")
    return result


def _tell(progress: Callable[[Progress], bool | None] | None, history: "_Recorder", done: int, rounds: int) -> bool:
    latest = {name: values[-1] for name, values in history.metrics.items()}
    return bool(progress and progress(Progress(done, rounds, history.seconds[-1], latest)))


class _Recorder:
    """Grows a history."""

    def __init__(self, session: Session, observers: Sequence[Observer], algorithm: str, before: History | None) -> None:
        self.session, self.observers, self.algorithm, self.before = session, observers, algorithm, before
        self.rounds: list[int] = list(before.rounds) if before else []
        self.seconds: list[float] = list(before.seconds) if before else []
        self.metrics: dict[str, list[Any]] = {k: list(v) for k, v in before.metrics.items()} if before else {}
        self.logs: list[Log] = []
        self.begun, self.compiled = time.perf_counter() - (self.seconds[-1] if before else 0.0), 0.0

    def observe(self, state: Any, done: int) -> None:
        for name, value in self.session.observe(state, self.observers).items():
            self.metrics.setdefault(name, []).append(value)
        self.rounds.append(done)
        self.seconds.append(time.perf_counter() - self.begun)

    def add(self, log: Log, first: int) -> Outcome:
        self.logs.append(log)
        bad = np.flatnonzero(log.bad_client >= 0)
        return Outcome("non-finite", first + int(bad[0]), int(log.bad_client[bad[0]])) if len(bad) else Outcome()

    def losses(self, stop: Divergence) -> list[float]:
        if "train_loss" not in self.metrics:
            raise InvalidInput.of("run(stop=...)", stop, "None, or observers that give train_loss")
        return [float(value) for value in self.metrics["train_loss"]]

    def finish(self, params: Any, outcome: Outcome, state: Any) -> History:
        before = self.before
        notes, down, up = {}, *(np.concatenate([getattr(log, way) for log in self.logs] or [np.zeros(0, np.int64)]) for way in ("down", "up"))
        for name in self.logs[0].notes if self.logs else ():
            notes[name] = np.concatenate([log.notes[name] for log in self.logs])
        if before:
            down, up = np.concatenate([before.bits.down, down]), np.concatenate([before.bits.up, up])
            notes = {name: np.concatenate([before.notes[name], values]) for name, values in notes.items()} or before.notes
        metrics = {name: np.stack(values) for name, values in self.metrics.items()}
        arrays = np.asarray(self.rounds), np.asarray(self.seconds)
        return History(
            self.algorithm, arrays[0], metrics, notes, params, Traffic(down, up), outcome, arrays[1], self.compiled, state
        )
