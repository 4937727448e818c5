"""`fedax.run`, `fedax.run_grid` and `fedax.start`: check the arguments, build one program for all
runs, and hand it to the loop over rounds, or step it by hand.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex, Unpack, cast

import numpy as np
import optax
from jaxtyping import PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.history import History, Outcome
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.loop import run_rounds
from fedax.engine.driver.options import Options, RunOptions, Setting, with_named_options
from fedax.engine.round.engine import compute_metrics
from fedax.errors import InvalidInput, RunFailed
from fedax.observe.base import Observer


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
        logged: what the algorithm reported with `log`, by name.
        down, up: bits sent by all participants, see `Traffic`.
        outcome: ok, or the first part of the round that is not finite.
    """

    round: int
    logged: dict[str, np.ndarray]
    down: int
    up: int
    outcome: Outcome


class Session:
    """One run, stepped by hand. `start` returns it.

    Args:
        grid: the one run that it steps.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._program = grid.program

    def init(self) -> RunState:
        """Returns the state before round 0."""
        return RunState(0, self._grid.init())

    def step(self, state: RunState) -> tuple[RunState, Report]:
        """Takes one round.

        A simulation takes the given state over: JAX refuses its deleted arrays afterwards.

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
        value, (log,) = self._program.advance(state.value, state.round, 1)
        logged = {name: values[0] for name, values in log.logged.items()}
        bits = log.bits
        report = Report(state.round, logged, int(bits.down[0]), int(bits.up[0]), log.outcome)
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
        return compute_metrics(self._program, state.value, observers, task)[0]

    def params(self, state: RunState) -> PyTree:
        """Returns the global model as the user's own pytree."""
        (carry,) = self._program.split(state.value)
        return self._grid.params(self._grid.members[0], carry)


@with_named_options
def start(
    algorithm: Algorithm[Any], task: Task, *, seed: SupportsIndex = 0, **setting: Unpack[Setting]
) -> Session:
    """Starts a run that is stepped by hand: the same rounds as those of `run`, to the same bits.

    Args:
        algorithm, task, seed: as `run`.
        setting: `solver`, `schedule`, `engine`, `channel`, `clock` and `params` of `run`.

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
    # a session has no number of rounds, but a schedule with synchronisation times bounds it
    schedule = setting.get("schedule")
    rounds = schedule.rounds if isinstance(schedule, Schedule) else None
    return Session(Grid([algorithm], task, [seed], RunOptions.of({**setting, "rounds": rounds})))


@with_named_options
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
        seed: of every random stream; the same seed gives the same result on every engine, up to
            rounding.
        resume: a history whose run is continued up to `rounds`, at least those that it has, with
            the same arguments otherwise. Others are refused, with privacy only data of other sizes.
            What functions compute is not compared: a loss, a decay, a device of a clock. A run that
            a budget ended goes on with a larger one; any other end by itself is final.
        throw: raises `RunFailed` if the outcome is not ok.
        options: by keyword, see below; None stands for the default.

    Keyword Args:
        solver (Solver): how a client minimises; `SGD(0.01)` by default. An Optax optimizer is taken
            as it is, with a fresh state in every round.
        schedule (Schedule): who works how much; everyone, one epoch, batches of 32 by default.
        engine (Engine): where it runs; the compiled `Simulation()` by default.
        channel (Channel): codecs of what is sent up and down; nothing is coded by default. See
            `Channel`.
        clock (Clock): the clients' `Clock`: `History.clock` then has the seconds and joules
            that the rounds take on a virtual clock. They do not change the training, but the
            arrivals of an asynchronous server without its own follow from them. On `Simulation` and
            `Eager`.
        params (pytree): the model to start from, with every seed: a pytree of the task's structure
            (or a `state_dict` for a module of PyTorch), a history, or the path of a file that
            `fedax.load_params` reads; by default the task's own. Histories and files bring the
            model's state, such as batch statistics; a pytree without it gives a warning.
        rounds (int): how many in all, at least 0 (0 only observes the initial model); 100 by
            default.
        observe (list of observers): observers from `fedax.observe`; by default the training loss
            and the scores of the task, such as accuracy (on test examples if there are any), for
            methods with models of the clients' own also theirs (`ClientAccuracy(personal=True)`),
            and nothing with `on_bad_client="drop"`. An empty list watches nothing.
        observe_every (int): rounds between observations, at least 1. The initial and the final
            model are always observed.
        stop (rule or list of rules): ends the run early: `Divergence`, `EarlyStopping`, `Budget`,
            or a list of them.
        keep_best (str): a metric of the observers; `History.best` is the model with its best finite
            value, by the direction that its observer or the task states. By default that of early
            stopping, if there is one.
        progress (function, bool or str): called with a `Progress` after every observation; `print`
            will do. True shows a bar, `"plot"` in a notebook the curve of the training loss.
        checkpoint (path): a folder for checkpoints of this run. If it holds some, the run continues
            from the newest one, to the same bits as without a break (on the same engine, devices
            and versions); a damaged one, and those of another run, are refused. What functions
            compute counts, but for those of a clock. Another budget is the same run. With `resume`,
            a folder without checkpoints.
        checkpoint_every (int): rounds between checkpoints, at least 1, 10 by default; the last
            round is kept too. With `Flower` a checkpoint follows every round.
        personal (bool): whether the history also has the clients' own models, which take clients x
            dim numbers.
        on_bad_client (str): of a client whose upload, or whose state after the work, is not
            finite. `"stop"`, the default: the outcome names the round and the client, and the run
            ends at the next observation, or checkpoint if that comes first; rounds until then are
            in `bits` and in the final state. `"drop"`: the client is left out of the phase as if it
            had not been drawn, its state stays as it was, `History.logged["dropped"]` names it,
            and the run goes on; what it sent counts as traffic. A round in which all clients are
            left out leaves the state as it was. Not for methods without a server.

    Returns:
        A `History`: `metrics`, `rounds`, `params`, `bits`, `outcome`. Ctrl-C ends the run within a
        few seconds or after the round that is running, with all rounds that are finished, and the
        outcome says so; a second one raises `KeyboardInterrupt`.

    Raises:
        InvalidInput: an argument out of range, before anything is compiled; checkpoints of another
            run.
        RunExists: another process works in the folder of checkpoints.
        WriteFailed: a checkpoint that cannot be written; those before are whole.
    """
    resumed = [] if resume is None else [resume]
    (history,) = run_rounds([algorithm], task, [seed], RunOptions.of(options), resumed)
    if throw and not history.outcome.ok:
        raise RunFailed(f"{history.algorithm}: {history.outcome}")
    return history


@with_named_options
def run_grid(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    *,
    seed: SupportsIndex | Sequence[int] = 0,
    resume: Sequence[History] | None = None,
    **options: Unpack[Options],
) -> list[History]:
    """Runs a grid of real hyperparameters of one method, its solver and its schedule, with the
    same seeds, as one program.

    Members with the same seed see the same cohorts and minibatches. A member that diverges keeps
    its history up to there, and the others go on. `progress` hears of the first member. An
    interruption, by Ctrl-C or by `progress`, ends all members. The grid of an experiment file may
    take several programs.

    Args:
        algorithms: of one class, with equal choices, switches and counts.
        task: what is learned.
        seed: of every member, or several for each.
        resume: the histories of all members, which are continued. They have equally many rounds,
            unless they ended by themselves. Those that a budget ended after different rounds are
            continued with a larger one by `run(resume=history)`, each by itself.
        options: those of `run`: `engine`, `channel`, `clock`, `params`, `rounds`, `observe`,
            `observe_every`, `stop`, `keep_best`, `progress`, `checkpoint`,
            `checkpoint_every`, `personal`, `on_bad_client`, `solver` and `schedule`. The last two
            may also be lists: one for each algorithm,
            or for the only one, in the simulation. Solvers may differ in real hyperparameters such
            as the learning rate, schedules in probabilities (`dropouts`, `stragglers`,
            `sync_probability`). With `clock`, privacy or an asynchronous server there is one
            schedule.

    Returns:
        The histories of the first algorithm with all seeds, then of the next, or of the next
        solver or schedule.

    >>> import fedax
    >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
    >>> grid = [fedax.FedProx(mu=mu) for mu in (0.0, 1.0)]
    >>> histories = fedax.run_grid(
    ...     grid, task, solver=fedax.SGD(0.5), schedule=fedax.Schedule(steps=2), rounds=1
    ... )
    >>> [round(float(history.params), 4) for history in histories]
    [2.625, 1.75]
    >>> rates = [fedax.SGD(0.25), fedax.SGD(0.5)]
    >>> histories = fedax.run_grid(
    ...     [fedax.FedAvg()], task, solver=rates, schedule=fedax.Schedule(steps=2), rounds=1
    ... )
    >>> [round(float(history.params), 4) for history in histories]
    [1.5312, 2.625]

    Raises:
        InvalidInput: as `run`; also members that need several programs, no algorithm or no seed.
    """
    seeds = list(seed) if isinstance(seed, Sequence | np.ndarray) else [cast(int, seed)]
    columns: dict[str, list[Any]] = {}
    for name in ("solver", "schedule"):
        given: Any = options.get(name)
        # an optimizer is a tuple
        is_list = isinstance(given, list | tuple) and not isinstance(
            given, optax.GradientTransformation
        )
        values = given if is_list and given else [given]
        # each as the options have it, which check it
        columns[name] = [
            getattr(RunOptions.of({name: value, "rounds": options.get("rounds")}), name)
            for value in values
        ]
    first = RunOptions.of({**options, **{name: values[0] for name, values in columns.items()}})
    lists = [[*algorithms], *columns.values()]
    lengths = [*map(len, lists)]
    count = max(lengths)
    if not seeds or {*lengths} - {1, count}:
        got = "{} algorithms, {} solvers, {} schedules and {} seeds"
        allowed = "one or equally many of the first three, and at least one seed"
        raise InvalidInput.found("run_grid", got.format(*lengths, len(seeds)), allowed)
    methods, solvers, schedules = (values * (count // len(values)) for values in lists)
    return run_rounds(
        methods, task, seeds, first, resume or (), solvers=solvers, schedules=schedules
    )
