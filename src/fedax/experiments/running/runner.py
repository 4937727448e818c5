"""Runs experiments into a run directory; an interruption leaves it valid, and it can be taken up
again.
"""

import contextlib
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedax.core import FedaxError, InvalidInput, RunExists, WriteFailed
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.driver.run import Progress
from fedax.experiments.config.experiment import Experiment, Plan
from fedax.experiments.config.plan import merge_settings
from fedax.experiments.config.run_ids import data_seed, list_run_ids
from fedax.experiments.config.sections import ClusterSection
from fedax.experiments.config.user_code import with_code
from fedax.experiments.results.provenance import packages
from fedax.experiments.results.reuse import import_runs
from fedax.experiments.results.settings import check_configurations, check_data
from fedax.experiments.results.store import RunDirectory, is_archive, refuse_if_taken, slug
from fedax.experiments.results.study import Study
from fedax.experiments.running.batches import (
    Batch,
    batches_of,
    client_sizes,
    plan_of,
)
from fedax.experiments.running.interruption import Interruption
from fedax.experiments.running.pools import run_in_processes, run_on_cluster
from fedax.experiments.running.progress import Display
from fedax.experiments.running.ranks import receive_directory, team_of
from fedax.experiments.running.trackers import Tracking, check_installed
from fedax.results import Record
from fedax.utils.files import write, writing
from fedax.utils.lock import held, holder


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
        out: the run directory, new or empty.
        display: where progress is shown.
        jobs: processes.
        cluster: whose jobs do the work, instead of processes here.

    Returns:
        The directory, with status `finished`, or `interrupted` after Ctrl-C.

    Raises:
        RunExists: `out` is not empty; checked before anything is made or compiled.
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
    study: Study | None = None,
    reuse: Sequence[Path] = (),
    elsewhere: bool = False,
    *,
    cluster: ClusterSection | None = None,
) -> RunDirectory:
    """Runs several experiments into one directory, as `run_experiment` does one.

    `study` is of the paper that they come from.

    Runs that are finished in one of the folders `reuse` are taken from there (see `import_runs`),
    `elsewhere` also those that were made with other versions or on another machine.
    """
    # what can be refused is refused before the folder exists
    team_of(experiments, jobs)
    refuse_if_taken(out)
    check_installed(experiments[0].trackers)
    experiments = [experiment.with_step_sizes() for experiment in experiments]
    imported = import_runs(
        experiments,
        reuse,
        elsewhere,
        hashes_of=lambda experiment: plan_of(experiment).data_hashes,
        say=display.say,
    )
    for experiment in reversed(
        _first_of_each_kind(experiments)
    ):  # the plan of the first is kept for its runs
        plan_of(experiment)
    with writing(out):
        directory = RunDirectory.create(out, title, jobs)
    # the lock is held until the last run is written
    with held(out):
        with writing(out):
            if study is not None:
                directory.study = study
                write(out / "recipe.toml", study.text)
            directory.configure(experiments)
        return _run_missing(directory, display, jobs, imported if reuse else None, cluster)


def _first_of_each_kind(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Returns the first experiment of each data set, and of each that is audited.

    Their plans show before anything is compiled what is missing or does not fit.
    """
    first_experiments: dict[Any, Experiment] = {}
    for experiment in experiments:
        first_experiments.setdefault((experiment.task.name, experiment.audit is None), experiment)
    return list(first_experiments.values())


def resume(
    out: Path,
    display: Display,
    jobs: int = 1,
    trust: bool = False,
    cluster: ClusterSection | None = None,
) -> RunDirectory:
    """Continues a directory whose process was interrupted or killed: finished runs stay, the others
    go on where they were.

    The results are those of a run without a break, bit for bit (on the same machine with the same
    versions and the same number of jobs; another number is said, because sums over other devices
    may differ in the last bits). Damaged files of runs are made again.

    Args:
        out: the run directory.
        display: where progress is shown.
        jobs: processes.
        cluster: as in `run_experiment`.
        trust: whether the directory's copies of user code may be run where the files are not there
            any more.

    Raises:
        RunExists: another process works in the folder.
        InvalidInput: no run directory, or one without experiments; one whose finished runs were
            made with another configuration, with other versions, other random settings of JAX or
            other data.
    """
    if who := holder(out):
        raise RunExists(f"{out} is in use by {who}. Wait until it ends.")
    if is_archive(out):
        hint = (
            f"`fedax reproduce ... --reuse {shlex.quote(str(out))}` makes the runs that it lacks, "
            "in another folder."
        )
        raise InvalidInput.because(
            str(out),
            "a copy made by `fedax report --keep`, which cannot be continued in place",
            hint,
        )
    directory = RunDirectory.load(out, repair=True)
    if not directory.experiments:
        raise InvalidInput.because(
            str(out), "no run was begun there", "Remove the folder, and run again."
        )
    directory.experiments = [
        with_code(experiment, out, trust) for experiment in directory.experiments
    ]
    check_configurations(directory.experiments, directory.runs, going_on=True)
    # by package, the version at the beginning and now
    package_versions = {
        name: (directory.versions.get(name), now) for name, now in packages().items()
    }
    if changed := [
        f"{name} {then} then, {now} now"
        for name, (then, now) in package_versions.items()
        if then != now
    ]:
        hint = "Install those of then, or run in another folder."
        raise InvalidInput.because(
            str(out), f"begun with other versions: {'; '.join(changed)}", hint
        )
    # finished runs that still stand where the files say; all others run again
    run_ids = {run_id.number: run_id for run_id in list_run_ids(directory.experiments)}
    directory.runs = {
        number: record
        for number, record in directory.runs.items()
        if number in run_ids
        and run_ids[number].is_of(record)
        and record.outcome.kind != "interrupted"
    }
    _check_data(directory)
    with held(out):
        return _run_missing(directory, display, jobs, cluster=cluster)


def _check_data(directory: RunDirectory) -> None:
    """Checks the data of the experiments that have finished runs and lack others."""
    experiments = directory.experiments
    batches = batches_of(experiments) + batches_of(experiments, directory.selections())
    incomplete = {
        batch.experiment for batch in batches if not set(batch.numbers) <= directory.runs.keys()
    }
    runs: dict[int, dict[int, Record]] = {}
    for run_id in list_run_ids(experiments):
        record = directory.runs.get(run_id.number)
        # data are made, which takes time, only for runs that say with which they were made
        if run_id.experiment in incomplete and record and (record.settings or {}).get("data"):
            runs.setdefault(run_id.experiment, {})[run_id.number] = record
    for position, records in runs.items():
        experiment = experiments[position]
        check_data(experiment, records, plan_of(experiment).data_hashes)


def follow(ranks: ProcessGroup) -> None:
    """Works as a rank other than 0 on what rank 0 runs or resumes; stores nothing and shows
    nothing.

    Args:
        ranks: of the job.
    """
    _run_missing(receive_directory(ranks), Display(), 1)


def _run_missing(
    directory: RunDirectory,
    display: Display,
    jobs: int,
    imported: dict[int, Record] | None = None,
    cluster: ClusterSection | None = None,
) -> RunDirectory:
    """Runs what a directory does not have yet: first what selects among the members of grids, then
    what is reported.

    `imported` are runs, by number, that were made elsewhere.
    """
    ranks = team_of(directory.experiments, jobs)
    if ranks.rank == 0:
        # ranks that follow get the experiments and the finished runs by this call
        ranks.broadcast((directory.experiments, directory.runs))
    directory.status, directory.reason = "running", ""
    checkpoints = directory.path / "checkpoints"
    with display, Interruption(display, jobs > 1 or cluster is not None, ranks) as interruption:
        if directory.jobs != jobs:
            change = f"Begun with --jobs {directory.jobs}, continued with --jobs {jobs}"
            display.say(
                f"{change}: numbers may differ in the last bits from those of a run "
                "without a break."
            )
            directory.jobs = jobs
        try:
            # selection comes first, because it decides which runs are reported
            if selecting := batches_of(directory.experiments):
                _run_stage(directory, selecting, display, interruption, jobs, imported, cluster)
                if interruption.asked:
                    raise KeyboardInterrupt
                for task, selection in directory.selections().items():
                    members = [label for method, label in selection.items() if label != method]
                    display.say(f"Selected for {task}: {'; '.join(members)}.")
                for warning in directory.warnings():
                    display.say(f"At the edge of the grid: {warning}")
            reported = batches_of(directory.experiments, directory.selections())
            _run_stage(directory, reported, display, interruption, jobs, imported, cluster)
        except KeyboardInterrupt:
            # checkpoints stay for `resume`
            directory.close("interrupted")
        except OSError as error:
            reason = error.strerror or str(error)
            raise WriteFailed(
                f"{directory.path}: cannot be written: {reason}. What was kept is whole."
            ) from error
        except WriteFailed:
            raise
        except FedaxError as error:
            # `resume` takes up a failed run as well
            directory.close("failed", str(error))
            raise
        else:
            directory.close("finished")
            # every run is finished: checkpoints are no longer needed
            shutil.rmtree(checkpoints, ignore_errors=True)
    return directory


def _run_stage(
    directory: RunDirectory,
    batches: Sequence[Batch],
    display: Display,
    interruption: Interruption,
    jobs: int,
    imported: dict[int, Record] | None,
    cluster: ClusterSection | None,
) -> None:
    if imported is not None:
        # only runs of this stage: `imported` also has those of the other one
        stage_numbers = {number for batch in batches for number in batch.numbers}
        stage_runs = {
            number: record for number, record in imported.items() if number in stage_numbers
        }
        directory.take(stage_runs, imported=True)
        display.say(f"{len(stage_runs)} runs are taken over.")
    # a batch runs as a whole, even if only one of its runs is missing
    batches = [batch for batch in batches if not set(batch.numbers) <= directory.runs.keys()]
    if jobs == 1 and cluster is None:
        done = _run_in_turn(directory, batches, display, interruption)
    else:
        done = _run_in_processes(directory, batches, display, jobs, cluster)
    for batch, records in done:
        for number, record in zip(batch.numbers, records, strict=True):
            directory.add(record, number)
        if any(record.outcome.kind == "interrupted" for record in records):
            raise KeyboardInterrupt
        # not before the records are on disk: until then the checkpoint is the only copy
        shutil.rmtree(batch.folder(directory.path), ignore_errors=True)
        # Ctrl-C in the last batch leaves nothing to interrupt
        if interruption.asked and batch is not batches[-1]:
            raise KeyboardInterrupt


def _run_in_turn(
    directory: RunDirectory, batches: Sequence[Batch], display: Display, interruption: Interruption
) -> Iterator[tuple[Batch, list[Record]]]:
    for position, batch in enumerate(batches, start=1):
        experiment = directory.experiments[batch.experiment]
        heading = (
            f"[{position}/{len(batches)}] "
            f"{batch.heading(experiment, len(directory.experiments) > 1)}"
        )
        directory.notes.setdefault(experiment.name, describe(experiment, plan_of(experiment)))
        # a batch of several runs is sent to trackers when it has ended
        live = _make_tracking(experiment, batch, 0, directory.path) if batch.is_single else None

        def hook(observation: Progress, live: Tracking | None = live) -> bool:
            display.observe(observation)
            if live:
                live(observation)
            return interruption.asked

        # runs that select show the metric that decides
        display.metric = experiment.select if batch.selecting else "train_loss"
        display.begin(heading, experiment.rounds)
        # all ranks get rank 0's records, and stop together
        with live or contextlib.nullcontext():
            records = interruption.synchronize(batch.run(experiment, directory.path, hook))
        if (
            experiment.engine == "flower"
        ):  # by now the clients have said how many examples they have
            directory.notes[experiment.name] = describe(experiment, plan_of(experiment))
        display.end(heading, records)
        if live is None:
            _replay(experiment, batch, records, directory.path)
        yield batch, records


def _run_in_processes(
    directory: RunDirectory,
    batches: Sequence[Batch],
    display: Display,
    jobs: int,
    cluster: ClusterSection | None,
) -> Iterator[tuple[Batch, list[Record]]]:
    """Yields batches as processes of this machine, or jobs of a cluster, have worked on them."""
    experiments = directory.experiments
    for experiment in experiments:
        if experiment.name not in directory.notes:
            # only for the note: processes make their own plans
            directory.notes[experiment.name] = describe(experiment, plan_of(experiment))
    if cluster is None:
        done = run_in_processes(batches, experiments, directory.path, jobs)
    else:
        done = run_on_cluster(batches, experiments, directory.path, cluster)
    for position, (batch, records) in enumerate(done, start=1):
        experiment = experiments[batch.experiment]
        display.metric = experiment.select if batch.selecting else "train_loss"
        display.end(
            f"[{position}/{len(batches)}] {batch.heading(experiment, len(experiments) > 1)}",
            records,
        )
        _replay(experiment, batch, records, directory.path)
        yield batch, records


def _make_tracking(experiment: Experiment, batch: Batch, position: int, folder: Path) -> Tracking:
    label, seed = (
        batch.labels[position // len(batch.seeds)],
        batch.seeds[position % len(batch.seeds)],
    )
    draw = data_seed(experiment)
    name = slug(f"{experiment.name} {label.replace('.', 'p')} draw {draw} seed {seed}")
    member = next(member for member in experiment.members() if member.label == label)
    options = {
        "algorithm": member.algorithm.name,
        "label": label,
        "seed": seed,
        "draw": draw,
        "rounds": experiment.rounds,
    }
    config = (
        options
        | {"task": experiment.task.name}
        | merge_settings(member.algorithm.options, member.solver.options, member.schedule)
    )
    return Tracking(experiment.trackers, config, project=experiment.name, name=name, folder=folder)


def _replay(experiment: Experiment, batch: Batch, records: Sequence[Record], folder: Path) -> None:
    for position, record in enumerate(records if experiment.trackers else ()):
        tracking = _make_tracking(experiment, batch, position, folder)
        tracking.replay(record)
        tracking.finish()


def describe(experiment: Experiment, plan: Plan) -> str:
    """Returns one line about task, schedule and solver, for reports."""

    def list_options(options: dict[str, Any]) -> str:
        return (
            ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in options.items())
            or "the defaults"
        )

    task, sizes = experiment.task, client_sizes(plan)
    counts = "" if sizes is None else f": {len(sizes)} clients, {sum(sizes)} training examples"
    data = f"{task.name} ({list_options(task.options)}){counts}."
    solver = f"{experiment.solver.name}, {list_options(experiment.solver.options)}"
    audit = (
        " Membership inference: target and shadow model have a quarter of them each."
        if experiment.audit
        else ""
    )
    return f"{data} Schedule: {list_options(experiment.schedule)}. Solver: {solver}.{audit}"
