"""`fedax predict`: predictions of a run's model as a table."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Best, Client, Folder, Run, TrustCode
from fedax.errors import InvalidInput


def predict(
    folder: Folder,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Examples: .csv or .parquet with the task's columns, or .npz with its arrays."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Examples of the task: train, validation, test, central or unseen."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the table.", show_default="the terminal")
    ] = None,
    number: Run = None,
    best: Best = False,
    client: Client = None,
    trust: TrustCode = False,
) -> None:
    """Predict with the model of a run: a CSV table with one line for each example.

    Of a classifier it has the label with the largest probability and the probabilities of all
    classes, in columns such as `probability_healthy` where the labels have names; beside them the
    client and the true label, where they are known. Other models have columns `prediction`.

    The task is made again from its files, which have to be those of the run.

    Example: `fedax predict runs/digits --run 3 --split test --out predictions.csv`
    """
    from fedax.cli.models import check_examples, model_kind, select_run, task_of
    from fedax.experiments.results.models import kept_model, own_model
    from fedax.experiments.results.settings import encoding_of
    from fedax.experiments.results.store import RunDirectory
    from fedax.experiments.running.predictions import examples_of, of_split, predictions_csv
    from fedax.models.storage import place_model, read_weights
    from fedax.utils.files import write, writing

    # exactly one of the two
    if (data is None) == (split is None):
        raise InvalidInput.because("predict", "needs either --data or --split")
    # before anything is computed
    if out is not None:
        if out.is_dir():
            raise InvalidInput.of("--out", str(out), "the name of a file, not of a folder")
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory.load(folder)
    run_number = select_run(directory, number)
    path, task = (
        kept_model(folder, run_number, model_kind(best, client)),
        task_of(directory, run_number, trust),
    )
    # a file is read by the encoding of the run, whatever the task's examples are now
    if data is None:
        check_examples(directory, run_number, task)
    # the task comes back in the state of the model, such as statistics of its layers
    params, task = (
        place_model(read_weights(path).arrays, task, str(path))
        if client is None
        else own_model(path, client, task)
    )
    examples = (
        of_split(task, split, client)
        if data is None
        else examples_of(task, data, encoding_of(directory.runs[run_number]))
    )
    table = predictions_csv(task, params, examples)
    if out is None:
        typer.echo(table, nl=False)
        return
    with writing(out):
        write(out, table)
    typer.echo(f"Predictions: {out}")
