"""Runs experiments into a run directory; an interruption leaves it valid, and it can be taken up
again.
"""

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedax.core import FedaxError, InvalidInput, RunExists, WriteFailed
from fedax.engine.compilation.identity import random_settings
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.driver.options import Progress
from fedax.errors import printable
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import Plan, data_hashes
from fedax.experiments.config.sections import ClusterSection
from fedax.experiments.config.user_code import hash_sources
from fedax.experiments.results.planned import read_study, study_of
from fedax.experiments.results.runs import Run
from fedax.experiments.results.store import RunDirectory, open_folder, slug
from fedax.experiments.running.batches import Batch, batches_of, client_sizes, plan_of
from fedax.experiments.running.interruption import Interruption
from fedax.experiments.running.pools import Done, run_in_processes, run_on_cluster
from fedax.experiments.running.progress import Display
from fedax.experiments.running.ranks import receive_directory, team_of
from fedax.experiments.running.trackers import Tracking, check_installed
from fedax.results.tables.summary import counted
from fedax.results.versions import differing_versions, packages
from fedax.utils.lock import held

Directory = TypeVar("Directory", bound=RunDirectory)


def run_experiment(
    experiment: Experiment,
    out: Path,
    display: Display,
    jobs: int = 1,
    cluster: ClusterSection | None = None,
) -> RunDirectory:
    """Runs every algorithm with every seed, and keeps each run on disk as soon as it is done.

    Args:
        experiment: what to run.
        out: the run directory: new, empty, or with some of the runs.
        display: where progress is shown.
        jobs: processes.
        cluster: whose jobs do the work, instead of processes here.

    Returns:
        The directory, with status `finished`, or `interrupted` after Ctrl-C.

    Raises:
        RunExists: `out` is not empty, and holds none of these runs; nothing is overwritten.
        InvalidInput: the experiment does not fit its task.
        WriteFailed: a full disk, for example; what was kept before is whole, and `resume`
            continues.

    Example:
        >>> experiment = Experiment.read(Path("examples/digits.toml"))  # doctest: +SKIP
        >>> run_experiment(experiment, Path("runs/digits"), Display()).status  # doctest: +SKIP
        'finished'
    """
    return run_experiments([experiment], out, experiment.name, display, jobs, cluster=cluster)


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    title: str,
    display: Display,
    jobs: int = 1,
    *,
    cluster: ClusterSection | None = None,
    make: Callable[..., Directory] = RunDirectory,
) -> Directory:
    """Runs several experiments into one directory, as `run_experiment` does one.

    `out` may hold some of the runs, also nothing but the folders of runs that were copied to
    `out/runs`: then only the others are made.

    Args:
        experiments: what to run.
        out, display, jobs, cluster: as for `run_experiment`.
        title: of the directory.
        make: its class.
    """
    # what can be refused is refused before the folder exists
    ranks = team_of(experiments, jobs)
    earlier = open_folder(out)
    if changed := differing_versions(earlier.versions, packages() | random_settings()):
        hint = "Install those of then, or run in another folder."
        reason = f"begun with other versions: {'; '.join(changed)}"
        raise InvalidInput.because(str(out), reason, hint)
    check_installed(experiments[0].trackers)
    experiments, notes = _prepare(experiments)
    directory = make(
        path=out,
        title=printable(title),
        notes=notes,
        versions=earlier.versions,
        **study_of(experiments),
    )
    known = {run.id for run in earlier.planned}
    if known and known.isdisjoint(run.id for run in directory.planned):
        raise RunExists(
            f"{out} holds runs of other settings or data; nothing was overwritten. Choose another "
            "folder, or put back what has changed."
        )
    # interrupted ones go on
    directory.runs = {
        name: run for name, run in earlier.runs.items() if run.outcome.kind != "interrupted"
    }
    if present := sum(run.id in directory.runs for run in directory.planned):
        display.say(f"There already, with the models that were kept: {counted(present, 'run')}.")
    # the lock is held until the last run is written
    with held(out):
        directory.begin()
        # ranks that follow get the experiments and the finished runs by this call
        ranks.broadcast((experiments, directory.runs))
        return _run_missing(directory, ranks, display, jobs, cluster)


def _prepare(
    experiments: Sequence[Experiment],
) -> tuple[list[Experiment], dict[str, str]]:
    """Returns experiments with hashes of their code and data, and the notes on their tasks.

    It shows before anything is compiled what is missing or does not fit.
    """
    prepared = list[Experiment]()
    notes = dict[str, str]()
    # the plan of the first is kept for its runs
    for experiment in reversed(experiments):
        sources = hash_sources(experiment.resolved())
        experiment = experiment.model_copy(update={"sources": sources})
        plan = plan_of(experiment)
        notes = {experiment.name: describe(experiment, plan)} | notes
        prepared.append(experiment.model_copy(update={"data": data_hashes(plan.task)}))
    return prepared[::-1], notes


def resume(
    out: Path,
    display: Display,
    jobs: int = 1,
    trust: bool = False,
    cluster: ClusterSection | None = None,
    load: Callable[[Path, bool], RunDirectory] = RunDirectory.load,
) -> RunDirectory:
    """Continues a directory whose process was interrupted or killed: finished runs stay, the others
    go on where they were.

    The results are those of a run without a break, bit for bit (on the same machine with the same
    versions and the same number of jobs: sums over other devices may differ in the last bits).
    Damaged files of runs are made again.

    Args:
        out: the run directory.
        display: where progress is shown.
        jobs: processes.
        cluster: as in `run_experiment`.
        trust: whether the user code that the directory names may be run.
        load: reads the directory and leaves out damaged runs.

    Raises:
        RunExists: another process works in the folder, or its runs are of other data.
        InvalidInput: no run directory, or one without experiments; one that began with other
            versions or other random settings of JAX.
    """
    directory = open_folder(out, load)
    if not directory.planned:
        hint = "Remove the folder, and run again."
        raise InvalidInput.because(str(out), "no run was begun there", hint)
    return run_experiments(
        read_study(directory, trust),
        out,
        directory.title,
        display,
        jobs,
        cluster=cluster,
        make=functools.partial(dataclasses.replace, directory),
    )


def follow(ranks: ProcessGroup) -> None:
    """Works as a rank other than 0 on what rank 0 runs or resumes; stores nothing and shows
    nothing.

    Args:
        ranks: of the job.
    """
    _run_missing(receive_directory(ranks), ranks, Display(), 1)


def _run_missing(
    directory: Directory,
    ranks: ProcessGroup,
    display: Display,
    jobs: int,
    cluster: ClusterSection | None = None,
) -> Directory:
    """Runs what a directory does not have yet: first what selects among the members of grids, then
    what is reported.
    """
    directory.status = "running"
    directory.reason = ""
    elsewhere = jobs > 1 or cluster is not None
    with display, Interruption(display, elsewhere, ranks) as interruption:
        run_stage = functools.partial(_run_stage, directory, interruption, jobs, cluster)
        try:
            # selection comes first, because it decides which runs are reported
            if any(run.selects for run in directory.planned):
                run_stage(None)
                if interruption.asked:
                    raise KeyboardInterrupt
                for task, selection in directory.selections().items():
                    members = [label for method, label in selection.items() if label != method]
                    display.say(
                        f"Selected for {task} by {directory.selects[task]}: {'; '.join(members)}."
                    )
                for warning in directory.warnings():
                    display.say(f"Grid: {warning}")
            run_stage(directory.selections())
        except KeyboardInterrupt:
            # checkpoints stay for `resume`
            directory.close("interrupted")
        except WriteFailed:
            # a full disk; what was kept is whole
            raise
        except FedaxError as error:
            # `resume` takes up a failed run as well
            directory.close("failed", str(error))
            raise
        else:
            directory.close("finished")
            # every run is finished: checkpoints are no longer needed
            shutil.rmtree(directory.path / "checkpoints", ignore_errors=True)
    return directory


def _run_stage(
    directory: RunDirectory,
    interruption: Interruption,
    jobs: int,
    cluster: ClusterSection | None,
    chosen: Mapping[str, Mapping[str, str]] | None,
) -> None:
    """Makes the missing runs that select, or, with what is `chosen`, those to report."""
    folder = directory.path
    batches = batches_of(directory.planned, chosen, directory.runs)
    if cluster is not None:
        done = run_on_cluster(batches, folder, cluster)
    elif jobs > 1:
        done = run_in_processes(batches, folder, jobs)
    else:
        done = _run_in_turn(batches, folder, interruption)
    for position, (batch, records) in enumerate(done, start=1):
        experiment = batch.experiment
        interruption.display.end(f"[{position}/{len(batches)}] {batch.title}", records)
        # by now the clients have said how many examples they have
        if experiment.engine == "flower":
            directory.notes[experiment.name] = describe(experiment, plan_of(experiment))
        if experiment.trackers and (interruption.later or len(batch.runs) > 1):
            for run, record in zip(batch.runs, records, strict=True):
                with _make_tracking(run, folder) as tracking:
                    tracking.replay(record)
        directory.take(dict(zip(batch.ids, records, strict=True)))
        if any(record.outcome.kind == "interrupted" for record in records):
            raise KeyboardInterrupt
        # not before the records are on disk: until then the checkpoint is the only copy
        shutil.rmtree(batch.folder(folder), ignore_errors=True)
        # after the last batch too, so that a loop of the shell ends
        if interruption.asked:
            raise KeyboardInterrupt


def _run_in_turn(batches: Sequence[Batch], folder: Path, interruption: Interruption) -> Done:
    display = interruption.display
    for position, batch in enumerate(batches, start=1):
        experiment = batch.experiment
        live = None
        # a batch of several runs is sent to trackers when it has ended
        if experiment.trackers and len(batch.runs) == 1:
            live = _make_tracking(batch.runs[0], folder)

        def hook(observation: Progress, live: Tracking | None = live) -> bool:
            display.observe(observation)
            if live:
                live(observation)
            return interruption.asked

        display.begin(f"[{position}/{len(batches)}] {batch.title}", experiment.rounds)
        # all ranks get rank 0's records, and stop together
        with live or contextlib.nullcontext():
            records = interruption.synchronize(batch.run(folder, hook))
        yield batch, records


def _make_tracking(run: Run, folder: Path) -> Tracking:
    # what tells runs apart comes first, because long names are cut
    name = slug(f"{run.id} seed {run.seed} {run.task} {run.label}")
    config = {"label": run.label, "draw": run.draw} | run.made_with
    return Tracking(run.experiment.trackers, config, project=run.task, name=name, folder=folder)


def describe(experiment: Experiment, plan: Plan) -> str:
    """Returns one line about task, schedule and solver, for reports."""

    def list_options(options: dict[str, Any]) -> str:
        texts = (f"{key.replace('_', ' ')} {options[key]}" for key in options)
        return ", ".join(texts) or "the defaults"

    sizes = client_sizes(plan)
    counts = "" if sizes is None else f": {len(sizes)} clients, {sum(sizes)} training examples"
    return (
        f"{experiment.task.name} ({list_options(experiment.task.options)}){counts}. "
        f"Schedule: {list_options(experiment.schedule)}. "
        f"Solver: {experiment.solver.name}, {list_options(experiment.solver.options)}."
    )
