"""Selects one model of a run directory, for `fedax export` and `fedax predict`."""

import warnings

from fedax.core import InvalidInput, Task
from fedax.examples.encoding import Encoding
from fedax.experiments.config.plan import data_hashes
from fedax.experiments.results.planned import data_seed, read_study
from fedax.experiments.results.store import RunDirectory
from fedax.results import Record
from fedax.results.versions import differing_versions, versions
from fedax.tasks import task


def model_kind(best: bool, client: str | None) -> str:
    """Returns which model the options `--best` and `--client` ask for, see `model_path`."""
    if client is None:
        return "best" if best else ""
    if best:
        raise InvalidInput.because("--best and --client", "of clients, final models are kept")
    return "personal"


def task_of(directory: RunDirectory, run: str, trust: bool = False) -> Task:
    """Returns the task of a run, made again from its experiment, without the engine of the run.

    Args:
        directory: with the run.
        run: its id.
        trust: whether the user code that the directory names may be run.
    """
    planned = next(planned for planned in directory.planned if planned.id == run)
    # not the whole plan: a deployment's engine exists only in its server, and the cohort of a
    # deployment may be larger than its stand-in task
    return next(
        task(experiment.task.name, **experiment.task.options)
        for experiment in read_study(directory, trust)
        if (experiment.name, data_seed(experiment)) == (planned.task, planned.draw)
    )


def check_examples(directory: RunDirectory, run: str, task: Task) -> None:
    """Refuses a task whose examples are others than those that a run was made with.

    Examples that another machine or version computed may differ in their last bits: then there is a
    warning, unless they were read from tables without means and deviations of their own, which are
    the same everywhere.

    Args:
        directory: with the run.
        run: its id.
        task: of the run, made again; see `task_of`.

    Raises:
        InvalidInput: other examples.
    """
    record = directory.runs[run]
    then = (record.settings or {}).get("data", {}).get("examples")
    if then in (None, data_hashes(task)["examples"]):
        return
    is_computed = task.encoding is None or task.data.measured
    if is_computed and differing_versions(record.versions or {}, versions()):
        warnings.warn(
            f"task {task.name!r}: its examples are not to the bit those of run {run}, by other "
            "versions or machines. Predictions may be for other examples.",
            stacklevel=2,
        )
        return
    raise InvalidInput.because(
        f"task {task.name!r}",
        f"its examples are not those that run {run} was made with",
        "Put the files back as they were.",
    )


def encoding_of(record: Record) -> Encoding | None:
    """Returns the encoding of the tables that a run was made with, None if there were none."""
    text = (record.settings or {}).get("encoding")
    return None if text is None else Encoding.from_json(text)


def select_run(directory: RunDirectory, name: str | None) -> str:
    """Returns the id of an existing run: the one whose id begins so or whose title ends so, or the
    only run that is reported.

    Raises:
        InvalidInput: no such run, or several to choose from.
    """
    # a reported member of a grid has two titles: its own, and that of its algorithm
    reported = directory.pairs(directory.reported())
    # without a name only reported runs count; with one, also those that select
    pairs = reported if name is None else [*directory.pairs(), *reported]
    matching = {
        run.id: record
        for run, record in pairs
        if run.id.startswith(name or "") or run.title.endswith(f", {name}")
    }
    if len(matching) == 1:
        run, record = matching.popitem()
        if record.outcome.kind == "interrupted":
            warnings.warn(
                f"run {run}: {record.ending}; its model is not the final one", stacklevel=2
            )
        return run
    if not directory.runs:
        # a directory without runs may have checkpoints that can be continued
        raise InvalidInput.because(
            str(directory.path),
            f"no run is done yet ({directory.status})",
            "`fedax resume`, or `flwr run` of a deployment, continues it.",
        )
    choices = "; ".join(f"{run.id}: {run.title}" for run, _ in reported)
    raise InvalidInput.found("--run", name or "none", f"one of the runs {choices}")
