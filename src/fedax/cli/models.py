"""Selects one model of a run directory, for `fedax export` and `fedax predict`."""

import warnings

from fedax.core import InvalidInput, Task
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import Plan
from fedax.experiments.config.run_ids import list_run_ids
from fedax.experiments.config.user_code import with_code
from fedax.experiments.results.provenance import versions
from fedax.experiments.results.settings import data_differences, jax_differences
from fedax.experiments.results.store import RunDirectory
from fedax.tasks import task


def model_kind(best: bool, client: int | None) -> str:
    """Returns a key of `fedax.experiments.results.models.KINDS` for the options `--best` and
    `--client`.
    """
    if best and client is not None:
        raise InvalidInput.because(
            "--best and --client",
            "exclude each other: clients' own models are kept at the end alone",
        )
    return "best" if best else "" if client is None else "personal"


def task_of(directory: RunDirectory, number: int, trust: bool = False) -> Task:
    """Returns the task of a run, made again from its experiment, without the engine of the run.

    Args:
        directory: with the run.
        number: of the run.
        trust: whether copies of user code in the directory may be run.
    """
    experiment = with_code(_experiment_of(directory, number), directory.path, trust)
    # not the whole plan: a deployment's engine exists only in its server, and the cohort of a
    # deployment may be larger than its stand-in task
    return task(experiment.task.name, **experiment.task.options)


def check_examples(directory: RunDirectory, number: int, task: Task) -> None:
    """Refuses a task whose examples are others than those that a run was made with.

    Runs of versions that kept no hash of them are passed over. Examples that another machine or
    version computed may differ in their last bits: then there is a warning, unless they were read
    from tables without means and deviations of their own, which are the same everywhere.

    Args:
        directory: with the run.
        number: of the run.
        task: of the run, made again; see `task_of`.

    Raises:
        InvalidInput: other examples.
    """
    record = directory.runs[number]
    if "examples" not in data_differences(record, Plan(task, {}, {}).data_hashes):
        return
    # a run that was imported says itself with which versions it was made
    run_versions, field = record.versions or directory.versions, f"task {task.name!r}"
    has_same_versions = all(run_versions.get(name) == value for name, value in versions().items())
    is_computed = task.encoding is None or task.encoding.measured
    if is_computed and (not has_same_versions or jax_differences(record)):
        reason = (
            f"its examples are not to the bit those that runs/{number:04d}.npz was made with, by "
            "other versions or on another machine"
        )
        warnings.warn(f"{field}: {reason}. Predictions may be for other examples.", stacklevel=2)
        return
    reason = f"its examples are not those that runs/{number:04d}.npz was made with"
    hint = "Put the files back as they were."
    raise InvalidInput.because(field, reason, hint)


def _experiment_of(directory: RunDirectory, number: int) -> Experiment:
    # numbers are unique in a directory
    (slot,) = (slot for slot in list_run_ids(directory.experiments) if slot.number == number)
    return directory.experiments[slot.experiment]


def select_run(directory: RunDirectory, number: int | None) -> int:
    """Returns the number of an existing run: `number`, or the only run that is reported.

    Raises:
        InvalidInput: no such run, or several to choose from.
    """
    # by identity: `shown` returns the directory's objects
    shown = {id(record) for record in directory.shown()}
    # without a number only reported runs count; with one, also those that select
    runs = {
        i: record
        for i, record in directory.runs.items()
        if number is not None or id(record) in shown
    }
    if number in runs:
        return number
    if number is None and len(runs) == 1:
        return next(iter(runs))
    choices = "; ".join(
        f"{i}: {record.task}, {record.label}, seed {record.seed}"
        for i, record in sorted(runs.items())
    )
    if not directory.runs:
        # a directory without runs may have checkpoints that can be continued
        newest = max(directory.path.glob("checkpoints/*/round-*"), key=lambda p: p.name, default="")
        choices = f"none of {directory.path}, where no run is done yet ({directory.status})"
        choices += f"; its newest checkpoint is {newest}" if newest else ""
        choices += ". `fedax resume`, or `fedax deploy resume` of a deployment, continues it"
    raise InvalidInput.found(
        "--run",
        "none" if number is None else str(number),
        f"one of the runs {choices or 'of a later time'}",
    )
