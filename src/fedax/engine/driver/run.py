"""`fedax.run` and `fedax.run_grid`: check the arguments, build one program for all runs, and hand
it to the loop over rounds.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex, Unpack, cast

import jax
import numpy as np
import optax

from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.history import History
from fedax.core.hyper import bound_to
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import EarlyStopping as EarlyStopping
from fedax.engine.driver.loop import RoundLoop, open_checkpoints, rounds_done
from fedax.engine.driver.options import Divergence as Divergence
from fedax.engine.driver.options import (
    Options,
    RunOptions,
    as_solver,
    check_kind,
    require_concrete,
)
from fedax.engine.driver.options import Progress as Progress
from fedax.engine.driver.progress_bar import progress_hook
from fedax.engine.driver.session import Grid, check_seeds
from fedax.engine.driver.session import program_key as program_key
from fedax.errors import InvalidInput, RunFailed, shown
from fedax.utils.random import MOST_SEED


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
            the same arguments otherwise. Another method, seed, data or privacy is refused, with
            privacy only data of other sizes. A run
            that a budget ended goes on with a larger one; any other end by itself is final. With
            other observers, metrics are NaN where they were not observed.
        throw: raises `RunFailed` if the outcome is not ok.
        options: by keyword, see below; None stands for the default.

    Options:
        solver: how a client minimises; `SGD(0.01)` by default. An Optax optimizer is taken as it
            is, with a fresh state in every round.
        schedule: who works how much; everyone, one epoch, batches of 32 by default.
        engine: where it runs; the compiled `Simulation()` by default.
        channel: codecs of what is sent up and down; nothing is coded by default. See `Channel`.
        devices: the clients' `Devices`: `History.clock` then has the seconds and joules that the
            rounds take on a virtual clock. They do not change the training, but the arrivals of an
            asynchronous server without its own follow from them. On `Simulation` and `Eager`.
        params: the model to start from, with every seed: a pytree of the task's structure (or a
            `state_dict` for tasks of `from_torch`), a history, or the path of a file that
            `fedax.load_params` reads; by default the task's own. Histories and files bring the
            model's state, such as batch statistics; a pytree without it gives a warning.
        rounds: how many in all, at least 0 (0 only observes the initial model); 100 by default.
        observe: observers from `fedax.observe`; by default the training loss and the scores of the
            task, such as accuracy (on test examples if there are any), and nothing with
            `on_bad_client="drop"`. An empty list watches nothing.
        observe_every: rounds between observations, at least 1. The initial and the final model are
            always observed.
        stop: ends the run early: `Divergence`, `EarlyStopping`, `Budget`, or a list of them.
        keep_best: a metric of the observers; `History.best` is the model with its best finite
            value. By default that of early stopping, if there is one. Where the history of
            `resume` has no best model by this metric, the first candidate is its last model.
        mode: of `keep_best`, `"max"` if more is better, `"min"` if less is; needed where neither
            the observer nor the task states it.
        progress: called with a `Progress` after every observation; `print` will do. True shows a
            bar.
        checkpoint: a folder for checkpoints of this run. If it holds some, the run continues from
            the newest whole one, to the same bits as without a break (on the same engine, devices
            and versions). With `resume` too, if that is newer than the history; checkpoints of
            another run are refused. Another budget is the same run.
        checkpoint_every: rounds between checkpoints, at least 1, 10 by default; the last round is
            kept too.
        personal: whether the history also has the clients' own models, which take clients x dim
            numbers.
        on_bad_client: of a client whose upload, or whose memory after the work, is not finite.
            `"stop"`, the default: the outcome names the round and the client, and the run ends at
            the next observation, or checkpoint if that comes first; rounds until then are in `bits`
            and in the final state. `"drop"`: the client is left out of the phase as if it had not
            been drawn, its memory stays as it was, `History.notes["dropped"]` names it, and the run
            goes on; what it sent counts as traffic. A round in which all clients are left out
            leaves the state as it was.
            Not for methods without a server.

    Returns:
        A `History`: `metrics`, `rounds`, `params`, `bits`, `outcome`. Ctrl-C ends the run with all
        rounds that are finished, within a few seconds or after the round that is running, and the
        outcome says so. Before the initial model is observed there is nothing to keep: it raises
        `KeyboardInterrupt`, as a second Ctrl-C does.

    Raises:
        InvalidInput: an argument out of range, before anything is compiled; checkpoints of another
            run.
        RunExists: another process works in the folder of checkpoints.
        WriteFailed: a checkpoint that cannot be written; those before are whole.
    """
    if isinstance(algorithm, Task) and isinstance(task, Algorithm):
        raise InvalidInput.because(
            "run(algorithm, task)",
            "got the task first",
            "Write run(algorithm, task), in this order.",
        )
    check_kind("run(algorithm=...)", algorithm, Algorithm)
    check_kind("run(task=...)", task, Task)
    for name, kind in (("solver", Solver), ("schedule", Schedule)):
        if isinstance(value := options.get(name), list):
            check_kind(f"run({name}=...)", value, kind)
    if isinstance(seed, Sequence | np.ndarray):
        hint = "Several seeds are a grid: run_grid([algorithm], task, seed=[...])."
        raise InvalidInput.because(
            "run(seed=...)", f"got {shown(seed)}, allowed: one whole number", hint
        )
    (history,) = run_grid(
        [algorithm], task, seed=seed, resume=None if resume is None else [resume], **options
    )
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
    """Runs a grid of real hyperparameters of one method, its solver and its schedule, with the
    same seeds, as one program.

    Members with the same seed see the same cohorts and minibatches. A member that diverges keeps
    its history up to there, and the others go on. `progress` hears of the first member. An
    interruption, by Ctrl-C or by `progress`, ends all members; those of programs that have not
    begun have the initial model alone.

    Args:
        algorithms: of one class, with equal choices, switches and counts.
        task: what is learned.
        seed: of every member, or several for each.
        resume: the histories of all members, which are continued. Those of one program have equally
            many rounds, unless they ended by themselves.
        options: those of `run`. `solver` and `schedule` may also be lists: one for each algorithm,
            or for the only one. Solvers that differ in real hyperparameters such as the learning
            rate, and schedules that differ in probabilities (`dropouts`, `stragglers`,
            `sync_probability`), are one program in the simulation. Others are compiled one after
            the other, as on other engines. So are all schedules with `devices`, privacy or an
            asynchronous server.

    Returns:
        The histories of the first algorithm with all seeds, then of the next, or of the next
        solver or schedule.

    >>> import fedax
    >>> task = fedax.tasks.from_loss(
    ...     lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0, 2.0], [5.0, 6.0]]
    ... )
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
    >>> work = [fedax.Schedule(steps=2), fedax.Schedule(steps=3)]
    >>> histories = fedax.run_grid(
    ...     [fedax.FedAvg()], task, solver=fedax.SGD(0.5), schedule=work, rounds=1
    ... )
    >>> [round(float(history.params), 4) for history in histories]
    [2.625, 3.0625]

    Raises:
        InvalidInput: as `run`; also members that differ in more than real hyperparameters, no seed,
            or one twice.
    """
    if not isinstance(algorithms, Sequence):
        raise InvalidInput.of("run_grid(algorithms=...)", algorithms, "a list of algorithms")
    for member in algorithms:
        check_kind("run_grid(algorithms=...)", member, Algorithm)
    check_kind("run_grid(task=...)", task, Task)
    # clients of a deployment, of which the task may be a stand-in
    task = task.for_clients(getattr(options.get("engine"), "clients", None))
    algorithms = [bound_to(member, task.names, task.train.clients) for member in algorithms]
    if len({program_key(member) for member in algorithms}) != 1:
        names = ", ".join(repr(member) for member in algorithms)
        allowed = "at least one algorithm, all alike but for real hyperparameters"
        raise InvalidInput.of(
            "run_grid(algorithms=...)", names, allowed, "Call it once for each method."
        )
    seeds = list(seed) if isinstance(seed, Sequence | np.ndarray) else [cast(int, seed)]
    # their range is checked where all ranks of MPI learn of a refusal
    for value in seeds:
        if isinstance(value, jax.Array):
            hint = "A run makes its random keys itself. Write seed=0."
            allowed = f"whole numbers from 0 to {MOST_SEED}"
            raise InvalidInput.found("run(seed=...)", "an array of JAX", allowed, hint)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput.of("run_grid(seed=...)", seed, "a seed, or several different ones")
    require_concrete("run", algorithms, task, options)
    # `Grid` checks everything and builds the program, so that a wrong argument costs no compilation
    algorithms, list_options, options = _expand_lists(algorithms, options)
    settings, resumed = (
        dataclasses.replace(RunOptions.of(options), **list_options),
        list(resume or ()),
    )
    runs = len(algorithms) * len(seeds)
    if resumed and len(resumed) != runs:
        allowed = f"as many as there are runs, {runs}"
        raise InvalidInput.found("run_grid(resume=...)", f"{len(resumed)} histories", allowed)
    with progress_hook(settings.progress, type(algorithms[0]).__name__) as hook:
        settings = dataclasses.replace(settings, progress=hook)
        return _run_grid(algorithms, task, seeds, settings, resumed)


def _run_grid(
    algorithms: list[Algorithm[Any]],
    task: Task,
    seeds: list[Any],
    settings: RunOptions,
    resumed: list[History],
) -> list[History]:
    """Runs a grid whose arguments are checked, by as many programs as it needs."""
    for history in resumed:
        check_kind("run(resume=...)", history, History)
    with settings.engine.process_group.abort_on_error():
        groups = _group_by_schedule(settings) or [list(range(len(algorithms)))]
        _check_later_programs(groups, algorithms, task, seeds, settings, resumed)
        if len(groups) > 1:
            return _run_each_schedule(groups, algorithms, task, seeds, settings, resumed)
        return _run_group(algorithms, task, seeds, settings, resumed)


def _check_later_programs(
    groups: list[list[int]],
    algorithms: list[Algorithm[Any]],
    task: Task,
    seeds: list[Any],
    options: RunOptions,
    resumed: list[History],
) -> None:
    """Refuses what the second program of a grid and those after it would refuse.

    They check it themselves, but only when the programs before them have run their rounds.
    """
    with options.engine.process_group.raise_on_all_ranks():
        check_seeds(seeds)
        programs = list[list[int]]()
        for members in groups:
            group_options = _select_members(options, members)
            is_one = not group_options.solvers or _is_one_program(group_options)
            programs += [members] if is_one else [[member] for member in members]
        # other engines learn of the clients' examples when a program begins
        for members in programs[1:] if options.engine.has_all(task) else ():
            past = _histories_of(members, resumed, len(seeds))
            Grid.check_program(
                [algorithms[k] for k in members],
                _task_of(task, past, options),
                seeds,
                _select_members(options, members),
                past,
            )


def _histories_of(
    members: Sequence[int], histories: Sequence[History], seeds: int
) -> list[History]:
    """Returns the histories of some members of a grid, with all seeds."""
    return [history for k in members for history in histories[k * seeds : (k + 1) * seeds]]


def _task_of(task: Task, resumed: Sequence[History], options: RunOptions) -> Task:
    """Returns the task with the fixed state that came with `params` of the run before."""
    return task.at(resumed[0].fixed_state) if resumed and options.params is None else task


def _run_group(
    algorithms: list[Algorithm[Any]],
    task: Task,
    seeds: list[Any],
    settings: RunOptions,
    resumed: list[History],
    is_interrupted: bool = False,
) -> list[History]:
    """Runs members whose schedules one program can serve.

    After an interruption of one program the others run no round; `is_interrupted` says that it
    happened before.
    """
    task = _task_of(task, resumed, settings)
    if settings.solvers and not _is_one_program(settings):
        histories = _run_each_solver(algorithms, task, seeds, settings, resumed, is_interrupted)
    else:
        grid = Grid(algorithms, task, seeds, settings, rounds_done(resumed))
        histories = _run(grid, resumed, is_interrupted)
    return [history.named(task.names) for history in histories]


def _expand_lists(
    algorithms: list[Algorithm[Any]], options: Options
) -> tuple[list[Algorithm[Any]], dict[str, tuple[Any, ...]], Options]:
    """Returns the algorithms with lists of solvers and schedules, one for each, and the options
    with the first of them; no list where all have the same.

    Raises:
        InvalidInput: lists of other lengths than there are algorithms, or of something else.
    """
    lists = dict[str, tuple[Any, ...]]()
    for name, kind in (("solver", Solver), ("schedule", Schedule)):
        option: Any = options.get(name)
        # which is a tuple
        if not isinstance(option, list | tuple) or isinstance(option, optax.GradientTransformation):
            continue
        lists[name] = tuple(map(as_solver, option))
        for value in lists[name]:
            check_kind(f"run_grid({name}=...)", value, kind)
    counts = [len(algorithms), *map(len, lists.values())]
    length = max(counts) if len(algorithms) == 1 else len(algorithms)
    for name, values in lists.items():
        if len(values) != length:
            expected = f"{length}, one for each algorithm" if len(algorithms) > 1 else f"{length}"
            allowed = f"one {name}, or {expected}" if length > 1 else f"at least one {name}"
            raise InvalidInput.found(f"run_grid({name}=...)", f"{len(values)} {name}s", allowed)
    first_options: Any = {**options, **{name: values[0] for name, values in lists.items()}}
    list_options = {f"{name}s": values for name, values in lists.items() if length > 1}
    return algorithms * (length // len(algorithms)), list_options, first_options


def _group_by_schedule(options: RunOptions) -> list[list[int]]:
    """Returns the places of the members whose schedules one program can serve.

    The simulation takes probabilities as inputs, all else of a schedule is part of a program.
    """
    groups = dict[Any, list[int]]()
    private = options.channel is not None and options.channel.privacy is not None
    is_separate = (
        not isinstance(options.engine, Simulation) or private or options.devices is not None
    )
    for index, schedule in enumerate(options.schedules):
        key = index if is_separate or schedule.server is not None else program_key(schedule)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _run_each_schedule(
    groups: list[list[int]],
    algorithms: list[Algorithm[Any]],
    task: Task,
    seeds: list[Any],
    options: RunOptions,
    resumed: list[History],
) -> list[History]:
    """Runs the members of each group as its own programs."""
    histories_by_member, is_interrupted = dict[int, list[History]](), False
    for i, members in enumerate(groups):
        folder = None if options.checkpoint is None else Path(options.checkpoint) / f"schedule-{i}"
        group_options = dataclasses.replace(_select_members(options, members), checkpoint=folder)
        past = _histories_of(members, resumed, len(seeds))
        histories = _run_group(
            [algorithms[k] for k in members], task, seeds, group_options, past, is_interrupted
        )
        is_interrupted = is_interrupted or _any_interrupted(histories)
        for j, k in enumerate(members):
            histories_by_member[k] = histories[j * len(seeds) : (j + 1) * len(seeds)]
    return [
        history for member in sorted(histories_by_member) for history in histories_by_member[member]
    ]


def _select_members(options: RunOptions, members: Sequence[int]) -> RunOptions:
    """Returns the options of some members of a grid, with their solvers and schedules."""
    changed = dict[str, Any]()
    for name in ("solver", "schedule"):
        values = [getattr(options, f"{name}s")[k] for k in members if getattr(options, f"{name}s")]
        if values:
            changed |= {name: values[0], f"{name}s": tuple(values) if len(values) > 1 else ()}
    return dataclasses.replace(options, **changed)


def _is_one_program(options: RunOptions) -> bool:
    """Returns whether solvers differ in real hyperparameters only, which the simulation takes as
    inputs.
    """
    alike = len({program_key(solver) for solver in options.solvers}) == 1
    return alike and isinstance(options.engine, Simulation)


def _run_each_solver(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    seeds: Sequence[int],
    options: RunOptions,
    resumed: list[History],
    is_interrupted: bool,
) -> list[History]:
    """Runs each algorithm with its solver as its own program."""
    histories: list[History] = []
    for i, algorithm in enumerate(algorithms):
        folder = None if options.checkpoint is None else Path(options.checkpoint) / f"solver-{i}"
        solver_options = dataclasses.replace(_select_members(options, [i]), checkpoint=folder)
        past = _histories_of([i], resumed, len(seeds))
        is_interrupted = is_interrupted or _any_interrupted(histories)
        grid = Grid([algorithm], task, seeds, solver_options, rounds_done(past))
        histories += _run(grid, past, is_interrupted)
    return histories


def _any_interrupted(histories: Sequence[History]) -> bool:
    return any(history.outcome.kind == "interrupted" for history in histories)


def _run(grid: Grid, resume: list[History], is_interrupted: bool) -> list[History]:
    """Runs the rounds of a grid, while no other process may use the folder of its checkpoints.

    Runs none if another program was interrupted.
    """
    checkpoints = open_checkpoints(grid)
    with checkpoints.lock() if checkpoints else contextlib.nullcontext():
        loop = RoundLoop(grid, resume, checkpoints)
        histories = loop.run_none() if is_interrupted else loop.run()
    # the grid's task: in the state that came with `params`
    is_fixed = grid.task.state_policy == "frozen" or grid.private is not None
    fixed = grid.task.state if is_fixed else None
    predictor_fields = {"predictor": grid.task.as_predictor, "fixed_state": fixed}
    return [dataclasses.replace(history, **predictor_fields) for history in histories]
