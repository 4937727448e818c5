"""`fedax export` and `fedax predict`: the models of a run directory, as files of their own and on examples."""

from pathlib import Path

import typer

from fedax.core import InvalidInput
from fedax.experiments.config.slots import slots_of
from fedax.experiments.results.models import kept_model
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.batches import plan_of
from fedax.experiments.running.predictions import examples_of, of_split, predictions_csv
from fedax.files import write, writing
from fedax.params import FORMATS, load_params, read_weights, to_bytes


def export(folder: Path, out: Path, format: str | None, number: int | None, best: bool) -> None:
    """Writes the model of a run to a file."""
    source = read_weights(kept_model(folder, _run(RunDirectory.load(folder), number), "best" if best else ""))
    chosen = out.suffix.removeprefix(".") if format is None else format
    if chosen not in FORMATS:
        raise InvalidInput.of("--format", chosen, "one of " + ", ".join(FORMATS))
    facts = {name: value for name, value in source.about.items() if name not in ("leaves", "sha256")}
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, to_bytes(source.arrays, chosen, about=facts))
    typer.echo(f"Model: {out}")


def predict(folder: Path, data: Path | None, split: str | None, out: Path | None, number: int | None, best: bool) -> None:
    """Writes predictions of a run's model as a table."""
    if (data is None) == (split is None):
        raise InvalidInput.because("predict", "needs either --data or --split")
    directory = RunDirectory.load(folder)
    which = _run(directory, number)
    path = kept_model(folder, which, "best" if best else "")
    (slot,) = (slot for slot in slots_of(directory.experiments) if slot.number == which)
    task = plan_of(directory.experiments[slot.experiment]).task
    chosen = of_split(task, split) if data is None else examples_of(task, data)
    table = predictions_csv(task, load_params(path, like=task), chosen)
    if out is None:
        typer.echo(table, nl=False)
        return
    with writing(out):
        write(out, table)
    typer.echo(f"Predictions: {out}")


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
