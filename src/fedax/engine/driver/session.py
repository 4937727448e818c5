"""Checks the arguments of runs and builds their program (`Grid`), and steps one run by hand
(`start`, `Session`).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex, Unpack

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from fedax.communication.attacks import Collusion
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.history import History, Outcome
from fedax.core.hyper import Hyper, as_arrays, bound_to, check_population
from fedax.core.scheduling.schedule import Schedule, as_inputs
from fedax.core.task import Given, Task, initial_params
from fedax.core.validation.own_methods import call_model
from fedax.engine.backends.simulation import Simulation
from fedax.engine.compilation.fingerprint import run_fingerprint
from fedax.engine.driver.early_stopping import Budget, rules_of
from fedax.engine.driver.options import (
    RunOptions,
    Setting,
    check_kind,
    require_concrete,
)
from fedax.engine.driver.recorder import Clock, has_ended
from fedax.engine.driver.resume import (
    CLIENTS,
    check_lengths,
    check_resumed,
    check_solver_states,
    data_of,
    origin,
)
from fedax.engine.driver.settings import settings_of
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import Engine, compute_metrics, trace_programs
from fedax.engine.round.evaluation import trace_metrics
from fedax.engine.round.footprint import trace_footprint
from fedax.engine.round.privacy import private_of
from fedax.engine.round.timing.asynchronous import server_steps_of
from fedax.engine.round.timing.clock import clock_of
from fedax.engine.round.timing.deadline import cutoff_of
from fedax.errors import InvalidInput, short
from fedax.models.storage import initial_model
from fedax.observe.base import Observer
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


def program_key(owner: Algorithm[Any] | Solver | Schedule) -> Any:
    """Returns a key that is equal for algorithms, solvers or schedules that one compiled program
    can serve.
    """
    leaves, structure = jax.tree.flatten(as_arrays(owner, np.float32))
    return structure, tuple(map(np.shape, leaves))


class Grid:
    """Runs that one program serves: the first algorithm with all seeds, then the next.

    Construction checks everything before anything is compiled, in steps: resolve the arguments,
    check that all ranks got the same ones, put the setup of a round together, and make the engine's
    program of rounds.

    Args:
        algorithms: of one class, which differ in real hyperparameters only.
        task: what is learned.
        seeds: of every algorithm, at least 0.
        options: of the runs.
        done: rounds that they have completed.

    Attributes:
        clock: runs since the construction began.
        identity: makes the values that its checkpoints are known by.
        seen_task: the task with the training examples that the clients see, which an attack may
            have poisoned.
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
        self.clock = Clock()
        engine = options.engine
        with engine.process_group.raise_on_all_ranks():
            setup, roots = self._resolve(algorithms, task, seeds, options)
        self.identity = engine.process_group.check_same_config(
            functools.partial(self._fingerprint, setup), **self._rank_config(done)
        )
        # on several ranks the setup has this rank's examples only
        setup = engine.prepared(setup)
        with engine.process_group.raise_on_all_ranks():
            setup = self._check_setup(setup)
        self.private = setup.private
        self.published = setup.published
        # metrics on the host see the examples that the clients see, which an attack may poison
        self.seen_task = setup.task
        self.rounds = (
            self.options.rounds
            if self.private is None
            else self.private.affordable_rounds(self.options.rounds)
        )
        self.algorithms_by_run = [algorithm for algorithm in self.algorithms for _ in self.seeds]
        # the static number of rows that a call's log has
        longest = min(self.options.observe_every, max(self.options.rounds, 1))
        self.program = engine.program(
            as_arrays(self.algorithms, self.layout.dtype), setup, roots, longest
        )
        self.program.check(self.options.observe or (), self.options.personal)
        self.settings = [
            settings_of(algorithm, self._options_of(i))
            for i, algorithm in enumerate(self.algorithms_by_run)
        ]

    @classmethod
    def check(cls, algorithm: Algorithm[Any], task: Task, options: RunOptions) -> None:
        """Refuses what a run refuses, without its models and its program.

        Raises:
            InvalidInput: what does not fit together.
        """
        grid = cls.__new__(cls)
        # without seeds no initial model is made
        setup, _ = grid._resolve([algorithm], task, [], options)
        grid._check_setup(setup)

    def _resolve(
        self,
        algorithms: Sequence[Algorithm[Any]],
        task: Task,
        seeds: Sequence[SupportsIndex],
        options: RunOptions,
    ) -> tuple[Setup, Sequence[Key[Array, ""]]]:
        """Checks the arguments and resolves what they leave open.

        These are observers, directions of metrics and initial models.

        Returns:
            The setup of a round, and the root key of each seed.
        """
        check_kind("run(task=...)", task, Task)
        # clients of a deployment, of which the task may be a stand-in
        task = task.for_clients(getattr(options.engine, "clients", None))
        observed = options.with_default_observers(task)
        # as they were asked for, before metrics get their directions
        self._stop, self._mode = observed.stop, observed.mode
        for observer in observed.observe or ():
            observer.check(task)
        self.options = options = observed.with_directions(task)
        for algorithm in algorithms:
            check_kind("run(algorithm=...)", algorithm, Algorithm)
        check_seeds(seeds)
        schedule = options.schedule.with_devices(options.devices)
        self.algorithms = [
            bound_to(algorithm, task.names, task.train.clients) for algorithm in algorithms
        ]
        _check_one_program(self.algorithms, options)
        self.task = with_initial_params(task, options.params)
        self.layout = Layout.of(jax.eval_shape(self.task.start, jax.random.key(0)))
        self.seeds = [int(seed) for seed in seeds]
        starts = [initial_params(self.task, seed) for seed in self.seeds]
        self.models, roots = [model for model, _ in starts], [root for _, root in starts]
        return Setup(
            self.task,
            as_arrays(options.solver, self.layout.dtype),
            schedule,
            self.layout,
            self.task.train.population,
            options.channel,
            solvers=as_arrays(options.solvers, self.layout.dtype),
            schedules=as_inputs(options.schedules),
        ), roots

    def _options_of(self, run: int) -> RunOptions:
        """Returns the options of one run, with its own solver and schedule."""
        member, options = run // len(self.seeds), self.options
        lists = {"solver": options.solvers, "schedule": options.schedules}
        return dataclasses.replace(
            options, **{name: values[member] for name, values in lists.items() if values}
        )

    def _check_setup(self, setup: Setup) -> Setup:
        """Checks that algorithm, schedule, data and model fit; adds attacks and privacy."""
        setup = dataclasses.replace(setup, drop=self.options.on_bad_client == "drop")
        clients, channel = setup.population.clients, self.options.channel
        if channel is not None and channel.attack is not None:
            setup = dataclasses.replace(
                setup, task=channel.attack.poison(setup.task, setup.first, clients)
            )
            channel.attack.check_share(clients)
        sizes = np.asarray(setup.population.sizes).tolist()
        schedules = self.options.schedules or (setup.schedule,) * len(self.algorithms)
        for algorithm, schedule in zip(self.algorithms, schedules, strict=True):
            schedule.check_population(sizes, setup.task.couples)
            check_population(algorithm, len(sizes))
            algorithm.check(schedule, sizes)
            algorithm.check_model(self.task, self.layout)
        # members of a grid differ in real hyperparameters only, so one of them has the phases of
        # all
        member, engine = as_arrays(self.algorithms[0], self.layout.dtype), self.options.engine
        steps = server_steps_of(member, setup, self.options.rounds)
        if channel is not None and isinstance(channel.attack, Collusion):
            _check_collusion(member, setup, engine)
        devices = self.options.devices
        timed = {
            "Schedule(asynchronous=...)": steps is not None,
            setup.schedule.cutoff_field: setup.schedule.cutoff_field is not None,
            "run(devices=...)": devices is not None,
        }
        for field, is_given in timed.items():
            if is_given and not engine.is_asynchronous:
                reason = f"the engine {type(engine).__name__} has no virtual clock"
                raise InvalidInput.because(field, reason, "Simulation and Eager have one.")
        if devices is not None:
            devices.check(clients)
        timing = {
            "asynchronous": steps,
            "clock": clock_of(member, setup, devices),
            "cutoff": cutoff_of(member, setup, devices),
        }
        private = private_of(member, setup)
        if private is not None and self.options.personal:
            raise _personal_refusal("run(personal=...)")
        return dataclasses.replace(setup, private=private, **timing)

    def check_resumed(self, histories: Sequence[History]) -> list[bool]:
        """Refuses histories that these runs cannot continue.

        Returns which of them have ended by themselves.
        """
        ended = [has_ended(history, self.options.rules) for history in histories]
        check_resumed(histories, self.origins(), self.private is not None, self.options.rounds)
        check_lengths("run_grid(resume=...)", histories, ended)
        check_solver_states(histories, self.options.solver, self.layout)
        return ended

    def origins(self) -> list[dict[str, Any]]:
        """Returns for each run what its history continues from, see `History.origin`."""
        options = self.options
        privacy = None if options.channel is None else options.channel.privacy
        data = (
            data_of(self.task, privacy is not None) if options.engine.has_all(self.task) else None
        )
        clients = options.engine.describe_clients()
        elsewhere = {CLIENTS: clients} if clients else {}
        members = [(algorithm, seed) for algorithm in self.algorithms for seed in self.seeds]
        # an asynchronous server may have the devices of the run
        schedules = [
            self._options_of(run).schedule.with_devices(options.devices)
            for run in range(len(members))
        ]
        return [
            origin(algorithm, data, seed, self.layout, schedule, options.channel) | elsewhere
            for (algorithm, seed), schedule in zip(members, schedules, strict=True)
        ]

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """The arguments of each run, as texts and numbers for reports.

        Leaves out those that are not used.
        """
        options, train = self.options, self.task.train
        shared = {
            "task": f"{self.task.name or 'own'}: {train.clients} clients, {train.total} "
            "training examples",
            "channel": options.channel and short(repr(options.channel)),
            "engine": type(options.engine).__name__,
            "devices": options.devices and short(repr(options.devices)),
            "rounds": options.rounds,
            "observe_every": options.observe_every,
            "stop": ", ".join(map(repr, options.rules)) or None,
            "keep_best": options.keep_best,
            "mode": options.mode,
            "on_bad_client": options.on_bad_client,
        }
        used = {name: value for name, value in shared.items() if value is not None}
        runs = [(algorithm, seed) for algorithm in self.algorithms for seed in self.seeds]
        options_by_run = [self._options_of(run) for run in range(len(runs))]
        return [
            {
                "algorithm": short(repr(algorithm)),
                "seed": seed,
                "task": shared["task"],
                "solver": short(repr(run_options.solver)),
                "schedule": short(repr(run_options.schedule)),
            }
            | used
            for (algorithm, seed), run_options in zip(runs, options_by_run, strict=True)
        ]

    def _fingerprint(self, setup: Setup) -> dict[str, Any]:
        names = ("solver", "schedule", "channel", "devices")
        names += ("observe_every", "keep_best", "on_bad_client")
        settings = {name: getattr(self.options, name) for name in names}
        settings["observers"] = list(self.options.observe or ())
        settings["mode"] = self._mode
        # as they were given: other directions of metrics follow from observers and task; budgets
        # apart, because a run may be continued with other ones
        rules = rules_of(self._stop)
        budgets = [rule for rule in rules if isinstance(rule, Budget)]
        others = [rule for rule in rules if not isinstance(rule, Budget)]
        settings["stop"] = others
        settings |= {"budget": budgets} if budgets else {}
        for field in ("solvers", "schedules"):
            if values := getattr(self.options, field):
                settings[field] = list(values)
        # a rank or a server without the clients' examples does not know the whole setup
        is_whole = self.options.engine.has_all(self.task)
        rounds = [self._trace(i, setup) for i in range(len(self.algorithms))] if is_whole else []
        return run_fingerprint(
            self.algorithms, self.task, self.models, self.seeds, rounds, **settings
        )

    def _trace(self, member: int, setup: Setup) -> list[Any]:
        """Returns the programs of a round of one of the algorithms, with its own options, and that
        of its metrics.
        """
        options = self._options_of(member * len(self.seeds))
        setup = dataclasses.replace(
            setup,
            solver=as_arrays(options.solver, self.layout.dtype),
            schedule=options.schedule.with_devices(options.devices),
        )
        algorithm = as_arrays(self.algorithms[member], self.layout.dtype)
        observers = self.options.observe or ()
        return [*trace_programs(algorithm, setup), trace_metrics(observers, algorithm, setup)]

    def _rank_config(self, done: int) -> dict[str, Any]:
        """Returns what ranks must have in common beside the identity."""
        options, splits = (
            self.options,
            {name: getattr(self.task, name) for name in ("train", "validation", "test")},
        )
        return {
            "dtype": self.layout.dtype,
            "rounds": options.rounds,
            "rounds done": done,
            "personal": options.personal,
            "checkpoint_every": None if options.checkpoint is None else options.checkpoint_every,
            "examples": {
                split: {name: [str(a.dtype), list(a.shape[1:])] for name, a in data.arrays.items()}
                if data
                else None
                for split, data in splits.items()
            },
        }

    def init(self) -> Any:
        """Returns the states of all runs before round 0."""
        return self.program.start([self.layout.ravel(params) for params in self.models])


class Session:
    """One run, stepped by hand. `start` returns it.

    Args:
        grid: the one run that it steps.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._program = grid, grid.program

    def init(self) -> RunState:
        """Returns the state before round 0."""
        return RunState(0, self._grid.init())

    def step(self, state: RunState) -> tuple[RunState, Report]:
        """Takes one round.

        The given state stays as it is, and the same state gives the same next one. With
        `Simulation(memory="host")` or `"disk"` a step takes the given state over: JAX refuses its
        deleted arrays afterwards.

        Raises:
            InvalidInput: the round would exceed the budget of `Privacy`, or the synchronisation
                times of the schedule.
        """
        max_rounds = self._grid.options.schedule.rounds
        if max_rounds is not None and state.round >= max_rounds:
            allowed = f"at most {max_rounds} rounds, the number of synchronisation times"
            raise InvalidInput.found("Session.step", f"round {state.round + 1}", allowed)
        # before the round: what it would release cannot be taken back
        if self._grid.private is not None:
            self._grid.private.check_budget(state.round + 1)
        # the program consumes its input, and the caller may step the same state again
        copied = self._program.copy(state.value)
        value, (log,) = self._program.advance(copied, state.round, 1)
        notes = {name: values[0] for name, values in log.notes.items()}
        report = Report(
            state.round, notes, int(log.down[0]), int(log.up[0]), log.failure(state.round)
        )
        return RunState(state.round + 1, value), report

    def spent(self, state: RunState) -> float | None:
        """Returns the epsilon that the rounds up to a state have spent.

        Returns None without noise, which has no guarantee.
        """
        return None if self._grid.private is None else self._grid.private.epsilon_after(state.round)

    def observe(self, state: RunState, *observers: Observer) -> dict[str, Any]:
        """Computes the metrics of some observers, by name."""
        for observer in observers:
            observer.check(self._grid.task)
        task = self._grid.seen_task
        return compute_metrics(self._program, state.value, observers, state.round, task)[0]

    def params(self, state: RunState) -> PyTree:
        """Returns the global model as the user's own pytree."""
        (carry,) = self._program.split(state.value)
        layout = self._grid.layout
        state = self._grid.published(carry.state)
        model = call_model(self._grid.algorithms_by_run[0], state, layout.dim)
        return self._grid.task.assembled(layout.unravel(model))

    def personal(self, state: RunState) -> PyTree:
        """Returns the models that the clients use: the user's pytree with a first axis
        (clients,).
        """
        if self._grid.private is not None:
            raise _personal_refusal("Session.personal")
        return jax.vmap(self._grid.layout.unravel)(self._program.personal(state.value)[0].models)


def _personal_refusal(field: str) -> InvalidInput:
    """Returns the error of a run with privacy whose clients' own models are asked for."""
    reason = "with privacy, what clients keep for themselves is not published"
    return InvalidInput.because(field, reason, "Observers tell how good their models are.")


def start(
    algorithm: Algorithm[Any], task: Task, *, seed: SupportsIndex = 0, **setting: Unpack[Setting]
) -> Session:
    """Starts a run that is stepped by hand: the same rounds as those of `run`, to the same bits.

    Args:
        algorithm, task, seed: as `run`.
        setting: `solver`, `schedule`, `engine`, `channel`, `devices` and `params` of `run`.

    Example:
        >>> import fedax
        >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
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
    # a session has no number of rounds, but a schedule with synchronisation times bounds it
    schedule = setting.get("schedule")
    rounds = schedule.rounds if isinstance(schedule, Schedule) else None
    return Session(Grid([algorithm], task, [seed], RunOptions.of({**setting, "rounds": rounds})))


def check_seeds(seeds: Sequence[SupportsIndex]) -> None:
    """Refuses seeds that are no whole numbers, or out of range."""
    for seed in seeds:
        Hyper("seed", 0, low=0, high=MOST_SEED).check("run", seed)


def _check_one_program(algorithms: Sequence[Algorithm[Any]], options: RunOptions) -> None:
    """Refuses members that differ in more than what one program takes as inputs."""
    is_private = options.channel is not None and options.channel.privacy is not None
    # these use numbers of the schedule before the program runs
    is_fixed = is_private or options.devices is not None or options.schedule.server is not None
    simulates = isinstance(options.engine, Simulation)
    reals = "real hyperparameters"
    lists: tuple[tuple[str, Sequence[Any], bool, str], ...] = (
        ("algorithms", algorithms, True, reals),
        ("solver", options.solvers, simulates, f"{reals}, in a simulation"),
        (
            "schedule",
            options.schedules,
            simulates and not is_fixed,
            "probabilities, in a simulation without devices, privacy and an asynchronous server",
        ),
    )
    for name, values, are_inputs, inputs in lists:
        keys = {program_key(value) for value in values}
        if values and (len(keys) > 1 or not are_inputs):
            hint = "Call it once for each. An experiment file has grids of several programs."
            allowed = f"all alike but for {inputs}"
            raise InvalidInput.of(f"run_grid({name}=...)", list(values), allowed, hint)


def _check_collusion(algorithm: Algorithm[Any], setup: Setup, engine: Engine) -> None:
    """Refuses a collusion where the uploads of a cohort do not meet as their clients made them."""
    channel, phases = setup.channel, trace_footprint(algorithm, setup).phases
    assert channel is not None
    others = [name for name in ("up", "down", "privacy") if getattr(channel, name) is not None]
    refusals = {
        "runs in this process: Simulation, Eager or MPI": not engine.is_simulated,
        f"a channel without {others[0] if others else ''}=...": others,
        "methods with a server": any(phase.links for phase in phases),
        "a server that waits for its cohorts": setup.schedule.asynchronous is not None,
    }
    for allowed, is_refused in refusals.items():
        if is_refused:
            raise InvalidInput.of("Channel(attack=...)", channel.attack, f"{allowed}, for this one")


def with_initial_params(task: Task, params: Any) -> Task:
    """Returns the task with other initial parameters, whatever the seed; the same task for None."""
    if params is None:
        return task
    start, task = initial_model(task, params, "run")
    return dataclasses.replace(task, start=Given(start))
