"""`fedax.run` and `fedax.run_grid`: check the arguments, build one program for all runs, and hand
it to the loop over rounds.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex, Unpack, cast

import numpy as np
import optax

from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.history import History
from fedax.core.hyper import bound_to, symbolic
from fedax.core.task import Task
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import EarlyStopping as EarlyStopping
from fedax.engine.driver.loop import RoundLoop, open_checkpoints, rounds_done
from fedax.engine.driver.options import Divergence as Divergence
from fedax.engine.driver.options import Options, RunOptions, check_kind, require_concrete, solver_of
from fedax.engine.driver.options import Progress as Progress
from fedax.engine.driver.progress_bar import progress_hook
from fedax.engine.driver.resolve import has_symbolic
from fedax.engine.driver.session import Grid
from fedax.engine.driver.session import program_key as program_key
from fedax.errors import InvalidInput, RunFailed, shown
from fedax.utils.arguments import checked_call


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
        seed: of every random stream; the same seed gives the same result on every engine, up to
            rounding.
        resume: a history whose run is continued up to `rounds`, with the same arguments otherwise.
            Another method, seed, data or privacy is refused.
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
        params: the model to start from, with every seed: a pytree of the task's structure, or the
            path of a file that `fedax.load_params` reads; by default the task's own.
        rounds: how many in all, at least 0 (0 only observes the initial model); 100 by default.
        observe: observers from `fedax.observe`; by default the training loss and, where the task
            scores it, accuracy (on test examples if there are any), and nothing with
            `on_bad_client="drop"`. An empty list watches nothing.
        observe_every: rounds between observations, at least 1. The initial and the final model are
            always observed.
        stop: ends the run early: `Divergence`, `EarlyStopping`, `Budget`, or a list of them.
        keep_best: a metric of the observers; `History.best` is the model with its best finite
            value. By default that of early stopping, if there is one.
        mode: of `keep_best`, `"max"` if more is better, `"min"` if less is; needed where neither
            the observer nor the task states it.
        progress: called with a `Progress` after every observation; `print` will do. True shows a
            bar.
        checkpoint: a folder for checkpoints of this run. If it holds some, the run continues from
            the newest whole one, to the same bits as without a break (on the same engine, devices
            and versions).
        checkpoint_every: rounds between checkpoints, at least 1, 10 by default; the last round is
            kept too.
        personal: whether the history also has the clients' own models, which take clients x dim
            numbers.
        on_bad_client: of a client whose upload, or whose memory after the work, is not finite.
            `"stop"`, the default: the run ends after the round, and the outcome names the client.
            `"drop"`: the client is left out of the phase as if it had not been drawn, its memory
            stays as it was, `History.notes["dropped"]` names it, and the run goes on; what it sent
            counts as traffic. A round in which all clients are left out leaves the state as it was.
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
    if isinstance(solver := options.get("solver"), list):
        check_kind("run(solver=...)", solver, Solver)
    if isinstance(seed, Sequence | np.ndarray):
        several = "Several seeds are a grid: run_grid([algorithm], task, seed=[...])."
        raise InvalidInput.because(
            "run(seed=...)", f"got {shown(seed)}, allowed: one whole number", several
        )
    (history,) = run_grid(
        [algorithm], task, seed=seed, resume=None if resume is None else [resume], **options
    )
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
    """Runs a grid of real hyperparameters of one method and of its solver, with the same seeds, as
    one program.

    Members with the same seed see the same cohorts and minibatches. A member that diverges keeps
    its history up to there, and the others go on. `progress` hears of the first member.

    Args:
        algorithms: of one class, with equal choices, switches and counts.
        task: what is learned.
        seed: of every member, or several for each.
        resume: the histories of all members, which are continued.
        options: those of `run`. `solver` may also be a list: a solver for each algorithm, or for
            the only one. Solvers that differ in real hyperparameters such as the learning rate are
            one program in the simulation; others are compiled one after the other, as on other
            engines.

    Returns:
        The histories of the first algorithm with all seeds, then of the next, or of the next
        solver.

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

    Raises:
        InvalidInput: as `run`; also members that differ in more than real hyperparameters, no seed,
            or one twice.
    """
    if not isinstance(algorithms, Sequence):
        raise InvalidInput.of("run_grid(algorithms=...)", algorithms, "a list of algorithms")
    for member in algorithms:
        check_kind("run_grid(algorithms=...)", member, Algorithm)
    check_kind("run_grid(task=...)", task, Task)
    algorithms = [bound_to(member, task.names, task.train.clients) for member in algorithms]
    if len({program_key(member) for member in algorithms}) != 1:
        names = ", ".join(repr(member) for member in algorithms)
        allowed = "at least one algorithm, all alike but for real hyperparameters"
        raise InvalidInput.of(
            "run_grid(algorithms=...)", names, allowed, "Call it once for each method."
        )
    seeds = list(seed) if isinstance(seed, Sequence | np.ndarray) else [cast(int, seed)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput.of("run_grid(seed=...)", seed, "a seed, or several different ones")
    require_concrete("run", algorithms, task, options)
    # `Grid` checks everything and builds the program, so that a wrong argument costs no compilation
    algorithms, solvers, options = _with_solvers(algorithms, options)
    settings, before = (
        dataclasses.replace(RunOptions.of(options), solvers=solvers),
        list(resume or ()),
    )
    with progress_hook(settings.progress, type(algorithms[0]).__name__) as hook:
        settings = dataclasses.replace(settings, progress=hook)
        histories = _run_grid(algorithms, task, seeds, settings, before)
    return [dataclasses.replace(history, predictor=task.as_predictor) for history in histories]


def _run_grid(
    algorithms: list[Algorithm[Any]],
    task: Task,
    seeds: list[Any],
    settings: RunOptions,
    before: list[History],
) -> list[History]:
    """Runs a grid whose arguments are checked, by as many programs as it needs."""
    solvers = settings.solvers
    for history in before:
        check_kind("run(resume=...)", history, History)
    with settings.engine.process_group.abort_on_error():
        if solvers and not _is_one_program(settings):
            histories = _run_each_solver(algorithms, task, seeds, settings, before)
        elif len(seeds) > 1 and has_symbolic(algorithms, settings):
            histories = _run_each_seed(algorithms, task, seeds, settings, before)
        else:
            histories = _run(Grid(algorithms, task, seeds, settings, rounds_done(before)), before)
    return [history.named(task.names) for history in histories]


def _with_solvers(
    algorithms: list[Algorithm[Any]], options: Options
) -> tuple[list[Algorithm[Any]], tuple[Solver, ...], Options]:
    """Returns the algorithms with a solver for each, and the options with the first; no solvers if
    all have the same.

    Raises:
        InvalidInput: another number of solvers than of algorithms, or something else than solvers.
    """
    given: Any = options.get("solver")
    # which is a tuple
    if not isinstance(given, list | tuple) or isinstance(given, optax.GradientTransformation):
        return algorithms, (), options
    solvers = tuple(map(solver_of, given))
    for solver in solvers:
        check_kind("run_grid(solver=...)", solver, Solver)
    members = algorithms * len(solvers) if len(algorithms) == 1 else algorithms
    if len(members) != len(solvers) or not solvers:
        allowed = (
            f"one solver, or {len(algorithms)}, one for each algorithm"
            if len(algorithms) > 1
            else "at least one solver"
        )
        raise InvalidInput.found("run_grid(solver=...)", f"{len(solvers)} solvers", allowed)
    first: Options = {**options, "solver": solvers[0]}
    return members, () if len(solvers) == 1 else solvers, first


def _is_one_program(options: RunOptions) -> bool:
    """Returns whether solvers differ in real hyperparameters only, which the simulation takes as
    inputs.
    """
    alike = len({program_key(solver) for solver in options.solvers}) == 1
    return (
        alike
        and isinstance(options.engine, Simulation)
        and not any(symbolic(solver) for solver in options.solvers)
    )


def _run_each_solver(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    seeds: Sequence[int],
    options: RunOptions,
    before: list[History],
) -> list[History]:
    """Runs each algorithm with its solver as its own program."""
    found: list[History] = []
    for i, (algorithm, solver) in enumerate(zip(algorithms, options.solvers, strict=True)):
        folder = None if options.checkpoint is None else Path(options.checkpoint) / f"solver-{i}"
        own = dataclasses.replace(options, solver=solver, solvers=(), checkpoint=folder)
        past = before[i * len(seeds) : (i + 1) * len(seeds)]
        if len(seeds) > 1 and has_symbolic([algorithm], own):
            found += _run_each_seed([algorithm], task, seeds, own, past)
        else:
            found += _run(Grid([algorithm], task, seeds, own, rounds_done(past)), past)
    return found


def _run_each_seed(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    seeds: Sequence[int],
    options: RunOptions,
    before: list[History],
) -> list[History]:
    """Runs each seed as its own program.

    Symbolic hyperparameters resolve to other numbers at another initial model, and they are
    constants of a program.
    """
    columns: list[list[History]] = []
    for i, seed in enumerate(seeds):
        folder = (
            None if options.checkpoint is None else Path(options.checkpoint) / f"seed-{int(seed)}"
        )
        seed_options, past = (
            dataclasses.replace(options, checkpoint=folder),
            before[i :: len(seeds)],
        )
        columns.append(_run(Grid(algorithms, task, [seed], seed_options, rounds_done(past)), past))
    return [history for row in zip(*columns, strict=True) for history in row]


def _run(grid: Grid, resume: list[History]) -> list[History]:
    """Runs the rounds of a grid, while no other process may use the folder of its checkpoints."""
    checkpoints = open_checkpoints(grid)
    with checkpoints.locked() if checkpoints else contextlib.nullcontext():
        return RoundLoop(grid, resume, checkpoints).run()
