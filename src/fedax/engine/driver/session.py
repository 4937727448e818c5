"""Rounds by hand: what `run` does between two observations, for notebooks and loops of one's own."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.bound_model import takes
from fedax.core.history import Outcome
from fedax.core.hyper import as_arrays, bound_to, check_population
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Given, Task
from fedax.engine.compilation.cache import evict_programs, retain_freed_memory
from fedax.engine.compilation.fingerprint import run_fingerprint
from fedax.engine.driver.options import RunOptions, Setting, check_count, check_kind, require_concrete
from fedax.engine.driver.resolve import fit
from fedax.engine.driver.resume import data_of, origin
from fedax.engine.driver.settings import settings_of
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import observed, starting_point
from fedax.engine.round.privacy import private_of
from fedax.errors import InvalidInput, short
from fedax.models.storage import leaf_names, placed, read_weights, state_in
from fedax.observe.base import Observer
from fedax.utils.arguments import checked_call
from fedax.utils.layout import Layout
from fedax.utils.random import MOST_SEED


class RunState(NamedTuple):
    """A run between two rounds.

    Attributes:
        round: rounds completed.
        value: what the engine carries from round to round.
    """

    round: int
    value: Any


class Report(NamedTuple):
    """A round's report.

    Attributes:
        round: its number, from 0.
        notes: what the algorithm reported with `note`, by name.
        down, up: bits sent by all participants, see `Traffic`.
        outcome: ok, or the first part of the round that is not finite.
    """

    round: int
    notes: dict[str, np.ndarray]
    down: int
    up: int
    outcome: Outcome


def likeness(algorithm: Algorithm[Any]) -> Any:
    """Equal for algorithms that one program can serve, as `run_grid` asks for."""
    leaves, structure = jax.tree.flatten(as_arrays(algorithm, np.float32))
    return structure, tuple(leaf if isinstance(leaf, str) else np.shape(leaf) for leaf in leaves)


class Grid:
    """Runs that one program serves: of every algorithm with every seed, in this order.

    Args:
        algorithms: of one class, which differ in real hyperparameters only.
        task: what is learned.
        seeds: of every algorithm, at least 0.
        options: of the runs.
        done: how many rounds they have behind them.

    Attributes:
        identity: makes the values that its checkpoints are known by.
        fitted: for each run, the numbers that stand for words, see `History.fitted`.
        settings: for each run, see `History.settings`.

    Raises:
        InvalidInput: what does not fit together, before anything is compiled; ranks that disagree.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm[Any]],
        task: Task,
        seeds: Sequence[SupportsIndex],
        options: RunOptions,
        done: int = 0,
    ) -> None:
        evict_programs()
        retain_freed_memory()
        schedule, engine, longest = options.schedule, options.engine, min(options.observe_every, max(options.rounds, 1))
        with engine.process_group.raise_on_all_ranks():
            check_kind("run(task=...)", task, Task)
            given = options.watching(task)
            for observer in given.observe or ():
                observer.check(task)
            options = given.directed(task)
            for algorithm in algorithms:
                check_kind("run(algorithm=...)", algorithm, Algorithm)
            for seed in seeds:
                check_count("seed", seed, 0, MOST_SEED)
            schedule = schedule.bound_to(task.names, task.train.clients)
            algorithms = [bound_to(algorithm, task.names, task.train.clients) for algorithm in algorithms]
            task = started(task, options.params)
            self.layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
            self._asked = [algorithm for algorithm in algorithms for _ in seeds]
            self.models, roots = zip(*(starting_point(task, int(seed)) for seed in seeds), strict=True)
            algorithms, options, found = fit(algorithms, task, options, self.models)
            self._stop = given.stop
            solver = as_arrays(options.solver, self.layout.dtype)
            self.algorithms, self.task, self.seeds, self.options = list(algorithms), task, [int(s) for s in seeds], options
            self.fitted = [numbers for numbers in found for _ in seeds]
        self.identity = engine.process_group.check_same_config(self._facts, **self._course(done))
        setup = engine.prepared(Setup(task, solver, schedule, self.layout, task.train.population, options.channel))
        setup = dataclasses.replace(setup, drop=options.on_bad_client == "drop")
        with engine.process_group.raise_on_all_ranks():
            if options.channel is not None and options.channel.attack is not None:
                poisoned = options.channel.attack.poisoned(setup.task, setup.first, setup.population.clients)
                setup = dataclasses.replace(setup, task=poisoned)
                options.channel.attack.check_share(setup.population.clients)
            sizes = np.asarray(setup.population.sizes).tolist()
            schedule.check_population(sizes)
            _check_padding(task, schedule, sizes)
            for algorithm in algorithms:
                check_population(algorithm, len(sizes))
                algorithm.check(schedule, sizes)
                algorithm.check_model(task, self.layout)
            self.private = private_of(as_arrays(self.algorithms[0], self.layout.dtype), setup)
        setup = dataclasses.replace(setup, private=self.private)
        self.rounds = options.rounds if self.private is None else self.private.affordable(options.rounds)
        self.each = [algorithm for algorithm in self.algorithms for _ in self.seeds]
        self.program = engine.program(as_arrays(self.algorithms, self.layout.dtype), setup, roots, longest)
        self.program.check(options.observe or (), options.personal)
        self.fitted = [numbers | dict(self.program.fitted) for numbers in self.fitted]
        self.settings = [settings_of(algorithm, options) for algorithm in self.each]

    def origins(self) -> list[dict[str, Any]]:
        """Returns for each run what its history continues from, see `History.origin`."""
        options = self.options
        privacy = None if options.channel is None else options.channel.privacy
        data = data_of(self.task, privacy is not None) if options.engine.has_all(self.task) else None
        members = zip(self._asked, self.seeds * len(self.algorithms), strict=True)
        return [origin(algorithm, data, seed, self.layout, options.schedule, privacy) for algorithm, seed in members]

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """The arguments of each run, as texts and numbers for reports; without those that are not used."""
        options, train = self.options, self.task.train
        common = {
            "task": f"{self.task.name or 'own'}: {train.clients} clients, {train.total} training examples",
            "solver": short(repr(options.solver)),
            "schedule": short(repr(options.schedule)),
            "channel": options.channel and short(repr(options.channel)),
            "engine": type(options.engine).__name__,
            "rounds": options.rounds,
            "observe_every": options.observe_every,
            "stop": ", ".join(map(repr, options.rules)) or None,
            "keep_best": options.keep_best,
            "on_bad_client": options.on_bad_client,
        }
        used = {name: value for name, value in common.items() if value is not None}
        runs = [(algorithm, seed) for algorithm in self.algorithms for seed in self.seeds]
        return [{"algorithm": short(repr(algorithm)), "seed": seed} | used for algorithm, seed in runs]

    def _facts(self) -> dict[str, Any]:
        names = ("solver", "schedule", "channel", "observe_every")
        watched = {name: getattr(self.options, name) for name in names} | {"observers": list(self.options.observe or ())}
        watched |= {"stop": self._stop}  # as it was given: directions of metrics follow from observers and task
        watched |= {} if self.options.on_bad_client == "stop" else {"on_bad_client": self.options.on_bad_client}
        watched |= {} if self.options.keep_best is None else {"keep_best": self.options.keep_best}
        return run_fingerprint(self.algorithms, self.task, self.models, self.seeds, **watched)

    def _course(self, done: int) -> dict[str, Any]:
        """Beside the identity, whatever ranks must have in common."""
        options, splits = self.options, {name: getattr(self.task, name) for name in ("train", "validation", "test")}
        return {
            "dtype": self.layout.dtype,
            "rounds": options.rounds,
            "rounds done": done,
            "personal": options.personal,
            "checkpoint_every": None if options.checkpoint is None else options.checkpoint_every,
            "examples": {
                split: {name: [str(a.dtype), list(a.shape[1:])] for name, a in data.arrays.items()} if data else None
                for split, data in splits.items()
            },
        }

    def init(self) -> Any:
        """The state of all before round 0."""
        return self.program.start([self.layout.ravel(params) for params in self.models])


def _check_padding(task: Task, schedule: Schedule, sizes: list[int]) -> None:
    """Refuses short minibatches, which are padded, for a loss that may couple examples and does not see the padding."""
    if task.couples and "mask" not in takes(task.loss) and not schedule.full_batches(sizes):
        hint = (
            "Let the loss take `mask`, shape (batch,), False for padding, and leave those rows out of batch statistics (norms of"
            " Flax do, by from_flax); or choose a batch_size that divides every client's examples."
        )
        got = f"{schedule.batch_size!r}, with which some minibatches are shorter, of a model with a state"
        raise InvalidInput.found("Schedule(batch_size=...)", got, "minibatches of one size", hint)


class Session:
    """One run, stepped by hand. `start` makes it, with the `grid` of one run that it steps."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._program = grid, grid.program

    @checked_call
    def init(self) -> RunState:
        """The state before round 0."""
        return RunState(0, self._grid.init())

    @checked_call
    def step(self, state: RunState) -> tuple[RunState, Report]:
        """Takes one round. The given state stays as it is, and the same state gives the same next one.

        Raises:
            InvalidInput: the round would exceed the budget of `Privacy`.
        """
        if self._grid.private is not None:
            self._grid.private.check_budget(state.round + 1)
        kept = jax.tree.map(lambda leaf: jnp.array(leaf) if isinstance(leaf, jax.Array) else leaf, state.value)
        value, (log,) = self._program.advance(kept, state.round, 1)
        notes = {name: values[0] for name, values in log.notes.items()}
        report = Report(state.round, notes, int(log.down[0]), int(log.up[0]), log.failure(state.round))
        return RunState(state.round + 1, value), report

    @checked_call
    def spent(self, state: RunState) -> float | None:
        """Returns the epsilon that the rounds up to a state have spent; None without noise, which has no guarantee."""
        return None if self._grid.private is None else self._grid.private.spent(state.round)

    @checked_call
    def observe(self, state: RunState, *observers: Observer) -> dict[str, Any]:
        """The metrics of some observers, by name."""
        for observer in observers:
            observer.check(self._grid.task)
        return observed(self._program, state.value, observers, state.round, self._grid.task)[0]

    @checked_call
    def params(self, state: RunState) -> PyTree:
        """The global model, in the user's own pytree."""
        (own,) = self._program.split(state.value)
        return self._grid.task.assembled(self._grid.layout.unravel(self._grid.each[0].model(own.state)))

    @checked_call
    def personal(self, state: RunState) -> PyTree:
        """The models that the clients use themselves, in the user's own pytree with a first axis (clients,)."""
        return jax.vmap(self._grid.layout.unravel)(self._program.personal(state.value)[0])


@checked_call
def start(algorithm: Algorithm[Any], task: Task, *, seed: SupportsIndex = 0, **setting: Unpack[Setting]) -> Session:
    """A run to be stepped by hand: the same rounds, to the same bits, as `run` takes.

    Args:
        algorithm, task, seed: as `run`.
        setting: `solver`, `schedule`, `engine`, `channel` and `params` of `run`.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0, 2.0], [5.0, 6.0]])
        >>> session = fedax.start(fedax.FedAvg(), task, solver=fedax.SGD(0.5))
        >>> state = session.init()
        >>> for _ in range(3):
        ...     state, report = session.step(state)
        >>> state.round, report.outcome.ok, round(float(session.params(state)), 4)
        (3, True, 3.0625)
        >>> round(float(session.observe(state, fedax.observe.TrainLoss())["train_loss"]), 4)
        2.2207

    Raises:
        InvalidInput: as `run`.
    """
    require_concrete("start", algorithm, task, setting)
    return Session(Grid([algorithm], task, [seed], RunOptions.of(setting)))


def started(task: Task, params: Any) -> Task:
    """The task with another starting point, whatever the seed; the same task for None.

    Args:
        task: of the run.
        params: a pytree with leaves of the task's names and shapes, or the path of a file with such a model, and perhaps its state.

    Raises:
        InvalidInput: a model that is not the task's; the message names the leaf.
    """
    if params is None:
        return task
    if isinstance(params, str | Path):
        held = read_weights(Path(params)).arrays
        start = Given(placed(held, task, str(params)))
        return dataclasses.replace(task.at(state_in(held, task, str(params))), start=start)
    arrays = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    return dataclasses.replace(task, start=Given(placed(arrays, task, "run(params=...)")))
