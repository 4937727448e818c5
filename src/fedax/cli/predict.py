"""`fedax predict`: predictions of a run's model as a table."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from fedax.cli.command import next_step
from fedax.cli.options import Best, Client, Folder, Run, TrustCode
from fedax.errors import InvalidInput


def predict(
    folder: Folder,
    examples: Annotated[
        str,
        Argument(
            help="A .csv or .parquet file with the task's columns, an .npz file with its arrays, "
            "or a split of the task: train, validation, test, central or unseen."
        ),
    ],
    out: Annotated[
        Path | None, Option(help="File for the table.", show_default="the terminal")
    ] = None,
    name: Run = None,
    best: Best = False,
    client: Client = None,
    trust: TrustCode = False,
) -> None:
    """Predict with the model of a run.

    The table in CSV has one line for each example: of a classifier the label with the largest
    probability, the true one where it is known, and all probabilities; of others `prediction`.

    Lines for a file are in its order, with a table's other columns (its own `label` is
    `given_label`). Those for a split have the client and its row among the client's, from 0.

    Example: `fedax predict runs/digits test --run 'seed 0' --out predictions.csv`
    """
    from fedax.cli.models import check_examples, encoding_of, model_kind, select_run, task_of
    from fedax.experiments.results.models import kept_model, own_model
    from fedax.experiments.results.planned import read_study
    from fedax.experiments.results.store import RunDirectory
    from fedax.experiments.running.predictions import examples_of, of_split, predictions_csv
    from fedax.models.storage import place_model, read_weights
    from fedax.utils.files import write

    # a name without an ending is that of a split
    file = Path(examples) if Path(examples).suffix else None
    directory = RunDirectory.load(folder)
    run = select_run(directory, name)
    path = kept_model(folder / "runs" / run, model_kind(best, client))
    task = task_of(directory, run, trust)
    # a file is read by the encoding of the run, whatever the task's examples are now
    if file is None:
        is_deployed = read_study(directory, trust)[0].engine == "flower"
        if is_deployed and task.is_single and examples != "central":
            raise InvalidInput.because("EXAMPLES", "those of a stand-in", "Give a file.")
        check_examples(directory, run, task)
    # the task comes back in the state of the model, such as statistics of its layers
    if client is None:
        params, task = place_model(read_weights(path).arrays, task, str(path))
    else:
        params, task = own_model(path, client, task)
    if file is None:
        chosen = of_split(task, examples, client)
    else:
        chosen = examples_of(file, encoding_of(directory.runs[run]))
    if client is not None:
        echo(f"The model of {client} predicts all rows.", err=True)
    elif path.with_name("model-personal.safetensors").exists():
        echo("The global model predicts; --client NAME takes a client's own.", err=True)
    table = predictions_csv(task, params, chosen)
    if out is None:
        echo(table, nl=False)
    else:
        write(out, table)
        echo(f"Predictions: {out}")
    same = ["--best"] * best + ["--client", client or ""] * (client is not None)
    next_step("keeps this model.", "export", folder, "model.safetensors", "--run", run, *same)
