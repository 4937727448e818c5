"""The models of a run: files of safetensors beside its curves."""

from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from fedax.core import History, InvalidInput, Task, UnknownName
from fedax.models.storage import named_arrays, place_model, read_weights, to_bytes
from fedax.results import Record
from fedax.utils.files import write


def arrays_of(history: History) -> dict[str, dict[str, np.ndarray]]:
    """Returns the models of a run that are kept, with their states, as `Record.models` has them."""
    models = {"": (history.params, history.final_state)}
    if (best := history.best) is not None:
        models["best"] = best.params, history.final_state if best.state is None else best.state
    if history.personal is not None:
        models["personal"] = history.personal, _states_of_clients(history)
    return {which: named_arrays(*model) for which, model in models.items()}


def _states_of_clients(history: History) -> PyTree:
    """Returns the states in which the clients use their own models, with a first axis (clients,).

    They are copies of one state if training does not change it.
    """
    if (states := history.details.personal_state) is not None:
        return states
    clients = len(jax.tree.leaves(history.personal)[0])
    state = history.final_state
    return jax.tree.map(lambda leaf: np.stack([leaf] * clients), state)


def client_number(task: Task, name: str) -> int:
    """Returns the number of a client by its name, or its number where clients have no names.

    Raises:
        UnknownName: a client that there is not.
    """
    names = list(task.names or map(str, range(task.train.clients)))
    if name not in names:
        raise UnknownName.among("--client", name, names)
    return names.index(name)


def own_model(path: Path, client: str, task: Task) -> tuple[PyTree, Task]:
    """Returns the model of one client from the file of all, and the task in the model's state."""
    number = client_number(task, client)
    arrays = {name: rows[number] for name, rows in read_weights(path).arrays.items()}
    params, task = place_model(arrays, task, str(path))
    return task.assembled(params), task


def keep_models(folder: Path, record: Record) -> None:
    """Writes the models that a record comes with; before the record itself, so that a run that is
    there has its models.

    Args:
        folder: of the run, whose name is its id.
        record: the run.
    """
    facts = {name: getattr(record, name) for name in ("task", "label", "seed", "draw")}
    facts |= {"run": folder.name, "rounds": int(record.rounds[-1])}
    for which, model in record.models.items():
        about = facts | ({"which": which} if which else {})
        write(model_path(folder, which), to_bytes(model, about=about))


def model_path(folder: Path, which: str = "") -> Path:
    """Returns the file of one of the models of a run: the final one (`""`), the `"best"` on
    validation examples, or the `"personal"` ones of the clients, with a first axis over them.
    """
    return folder / f"model{which and '-'}{which}.safetensors"


def kept_model(folder: Path, which: str = "") -> Path:
    """Returns the file of a model that exists.

    Raises:
        InvalidInput: it is not.
    """
    path = model_path(folder, which)
    if path.exists():
        return path
    hint = (
        "Audits and runs that only select in a grid keep none, the best one takes a validation "
        "share in [task] or early stopping, and the clients' own take a method that has them and "
        'keep_models = "personal" from the start: use a new folder.'
    )
    raise InvalidInput.because(f"run {folder.name}", f"kept no {path.name}", hint)
