"""`fedax export` and `fedax predict`: the models of a run directory, as files of their own and on examples."""

from pathlib import Path

import jax
import numpy as np
import typer

from fedax.core import InvalidInput, Task
from fedax.experiments.config.slots import slots_of
from fedax.experiments.results.models import kept_model, own_model
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.batches import plan_of
from fedax.experiments.running.predictions import examples_of, of_split, predictions_csv
from fedax.models.storage import FORMATS, leaf_names, load_params, read_weights, to_bytes
from fedax.utils.files import write, writing


def export(folder: Path, out: Path, format: str | None, number: int | None, best: bool, client: int | None) -> None:
    """Writes the model of a run, or of one of its clients, to a file."""
    directory = RunDirectory.load(folder)
    which = _run(directory, number)
    path = kept_model(folder, which, _kind(best, client))
    source = read_weights(path)
    chosen = out.suffix.removeprefix(".") if format is None else format
    if chosen not in FORMATS:
        raise InvalidInput.of("--format", chosen, "one of " + ", ".join(FORMATS))
    facts = {name: value for name, value in source.about.items() if name not in ("leaves", "sha256")}
    arrays = source.arrays
    if client is not None:
        own = own_model(path, client, _task_of(directory, which))
        arrays, facts = (
            dict(zip(leaf_names(own), map(np.asarray, jax.tree.leaves(own)), strict=True)),
            facts | {"client": client},
        )
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, to_bytes(arrays, chosen, about=facts))
    typer.echo(f"Model: {out}")


def predict(
    folder: Path,
    data: Path | None,
    split: str | None,
    out: Path | None,
    number: int | None,
    best: bool,
    client: int | None,
) -> None:
    """Writes predictions of a run's model as a table; with a client, those of its own model on its own examples, or on a file's."""
    if (data is None) == (split is None):
        raise InvalidInput.because("predict", "needs either --data or --split")
    directory = RunDirectory.load(folder)
    which = _run(directory, number)
    path, task = kept_model(folder, which, _kind(best, client)), _task_of(directory, which)
    params = load_params(path, like=task) if client is None else own_model(path, client, task)
    chosen = of_split(task, split, client) if data is None else examples_of(task, data)
    table = predictions_csv(task, params, chosen)
    if out is None:
        typer.echo(table, nl=False)
        return
    with writing(out):
        write(out, table)
    typer.echo(f"Predictions: {out}")


def _kind(best: bool, client: int | None) -> str:
    """Which of a run's models, see `fedax.experiments.results.models.KINDS`."""
    if best and client is not None:
        raise InvalidInput.because(
            "--best and --client", "exclude each other: clients' own models are kept at the end alone"
        )
    return "best" if best else "" if client is None else "personal"


def _task_of(directory: RunDirectory, number: int) -> Task:
    (slot,) = (slot for slot in slots_of(directory.experiments) if slot.number == number)
    return plan_of(directory.experiments[slot.experiment]).task


def _run(directory: RunDirectory, number: int | None) -> int:
    """A run that is there: the given one, or the only one to report."""
    shown = {id(record) for record in directory.shown()}
    runs = {i: record for i, record in directory.runs.items() if number is not None or id(record) in shown}
    if number in runs:
        return number
    if number is None and len(runs) == 1:
        return next(iter(runs))
    listed = "; ".join(f"{i}: {record.task}, {record.label}, seed {record.seed}" for i, record in sorted(runs.items()))
    raise InvalidInput.found(
        "--run", "none" if number is None else str(number), f"one of the runs {listed or 'of a later time'}"
    )
