"""`fedax export`: writes the model of a run to a file."""

from pathlib import Path
from typing import Annotated

from typer import Argument, echo

from fedax.cli.command import next_step
from fedax.cli.options import Best, Client, Folder, Run, TrustCode
from fedax.errors import InvalidInput


def export(
    folder: Folder,
    out: Annotated[Path, Argument(help="File for the model.", metavar="FILE.safetensors")],
    name: Run = None,
    best: Best = False,
    client: Client = None,
    trust: TrustCode = False,
) -> None:
    """Write the model of a run to a file of safetensors.

    It has arrays by the names of the model's leaves.

    Example: `fedax export runs/digits model.safetensors --run 'seed 0'`
    """
    from fedax.cli.models import model_kind, select_run, task_of
    from fedax.experiments.results.models import kept_model, own_model
    from fedax.experiments.results.store import RunDirectory
    from fedax.models.storage import named_arrays, read_weights, to_bytes
    from fedax.utils.files import write

    if out.suffix != ".safetensors":
        raise InvalidInput.of("FILE", str(out), "names that end in .safetensors")
    directory = RunDirectory.load(folder)
    run = select_run(directory, name)
    path = kept_model(folder / "runs" / run, model_kind(best, client))
    arrays, facts = read_weights(path)
    # the file of personal models has all clients'; the task says how they are laid out
    if client is not None:
        client_params, task = own_model(path, client, task_of(directory, run, trust))
        arrays = named_arrays(client_params, task.state)
        facts = facts | {"client": client}
    write(out, to_bytes(arrays, facts))
    echo(f"Model: {out}")
    next_step(f'`fedax.load_params("{out}", like=task)` reads it in Python.')
