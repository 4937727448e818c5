"""`fedax export`: writes the model of a run to a file."""

from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.options import Best, Client, Folder, Run, TrustCode
from fedax.errors import InvalidInput


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File for the model.")],
    format: Annotated[
        str | None,
        typer.Option(help="safetensors or npz.", show_default="the ending of the file"),
    ] = None,
    number: Run = None,
    best: Best = False,
    client: Client = None,
    trust: TrustCode = False,
) -> None:
    """Write the model of a run to a file: arrays by the names of the model's leaves.

    `fedax.load_params(FILE, like=task)` reads it.

    Example: `fedax export runs/digits --run 3 --out model.safetensors`
    """
    from fedax.cli.models import model_kind, select_run, task_of
    from fedax.experiments.results.models import kept_model, own_model
    from fedax.experiments.results.store import RunDirectory
    from fedax.models.storage import FORMATS, named_arrays, read_weights, to_bytes
    from fedax.utils.files import write, writing

    # the ending says to readers what the file is
    ending = out.suffix.removeprefix(".")
    chosen = ending if format is None else format
    if chosen not in FORMATS:
        raise InvalidInput.of("--format", chosen, "one of " + ", ".join(FORMATS))
    if chosen != ending.lower() and ending.lower() in FORMATS:
        raise InvalidInput.of("--out", str(out), f"names that end in .{chosen}, the --format")
    directory = RunDirectory.load(folder)
    run_number = select_run(directory, number)
    path = kept_model(folder, run_number, model_kind(best, client))
    source = read_weights(path)
    # the checksum and the list of arrays are made again for the new file
    facts = {
        name: value for name, value in source.about.items() if name not in ("leaves", "sha256")
    }
    arrays = source.arrays
    # the file of personal models has all clients'; the task says how they are laid out
    if client is not None:
        client_params, task = own_model(path, client, task_of(directory, run_number, trust))
        arrays, facts = named_arrays(client_params, task.state), facts | {"client": client}
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, to_bytes(arrays, chosen, about=facts))
    typer.echo(f"Model: {out}")
