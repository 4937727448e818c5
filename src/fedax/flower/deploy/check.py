"""Check of an experiment before it is deployed: what deployed runs cannot do is refused, with the
field's name and line.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedax.core import Algorithm, InvalidInput, SpecError
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from fedax.engine.round.client import Setup
from fedax.experiments.config.experiment import Experiment, Plan
from fedax.experiments.config.toml import KeyPath, Source
from fedax.flower.server import Flower
from fedax.flower.server.engine import use_engine
from fedax.flower.server.roster import Roster, Sizes
from fedax.utils.plugins import is_reference

CLIENTS = 5
"""The clients of a deployment whose task does not say how many there are."""
PATH_TABLES = "task", "solver", "schedule", "algorithm", "channel", "grid"
"""The tables of an experiment whose options may be paths of files that a run reads."""
PATH_KEYS = ("task", "folder"), ("task", "params"), ("task", "table"), ("availability", "file")
"""The ends of the places of texts that are always paths."""


class Rehearsal(Flower):
    """The engine of a deployment without a server: it makes the programs of runs, and asks no
    client.
    """

    def prepared(self, setup: Setup) -> Setup:
        train_size, test_split = setup.task.train.total // setup.task.train.clients, setup.task.test
        test_size = -1 if test_split is None else test_split.total // test_split.clients
        self.roster = ExpectedRoster(
            self.grid, self.clients or setup.population.clients, self.deadline
        )
        self.roster.sizes = {k: Sizes(train_size, test_size) for k in range(self.roster.clients)}
        return super().prepared(setup)


class ExpectedRoster(Roster):
    """Clients that need not be there, with the sizes that the experiment's task has in the mean."""

    def gather(self, patience: float) -> None:
        """Waits for nobody."""


def check_experiment(
    path: Path, changes: Sequence[str], clients: int | None, secure: float
) -> tuple[Experiment, int]:
    """Reads an experiment that is to be deployed, and makes the programs of its runs as the server
    will.

    Args:
        path: of the file.
        changes: of its values, as `--set` takes them.
        clients: how many there are; None for as many as the task has, or `CLIENTS` if it has one.
        secure: see `Flower`; 0 for uploads in the open.

    Returns:
        The experiment, and the number of clients.

    Raises:
        InvalidInput: something that deployed runs cannot do; a `SpecError` that names the field,
            with the file's line.
    """
    experiment = Experiment.read(path, [*changes, 'engine="flower"'])
    for name in ("simulation", "audit"):
        if getattr(experiment, name) is not None:
            experiment.refuse(
                (name,), InvalidInput.found(name, f"a table [{name}]", "none, in a deployment")
            )
    source = Source.read(path)
    for change in changes:
        source.override(change)
    _refuse_relative_paths(experiment, source.find(("task",)))
    rehearsed = experiment.model_copy(update={"engine": "simulation"})
    task_clients = rehearsed.plan(clients=clients or CLIENTS).task.train.clients
    if clients is not None and task_clients not in (1, clients):
        hint = f"Its task has {task_clients}; --clients {task_clients} fits."
        raise InvalidInput.of("--clients", clients, "as many as the experiment's task has", hint)
    clients = clients or (CLIENTS if task_clients == 1 else task_clients)
    with use_engine(Rehearsal(None, clients=clients, secure=secure or None)):
        plan = experiment.plan()
        for position, label in enumerate(plan.algorithms):
            _check_run(experiment, plan, position, label)
    return experiment, clients


def _refuse_relative_paths(experiment: Experiment, written: dict[str, Any]) -> None:
    """Refuses paths of data that begin at the experiment file, which every program of a deployment
    has in another folder.

    Code is copied, see `copy_code`. Names of the experiment's own are no paths.
    """
    document = experiment.resolved()
    # the experiment has absolute paths where `[task]` was written with relative ones
    document["task"] |= written
    tables = {name: document[name] for name in PATH_TABLES if name in document}
    for key_path, value in _iterate_texts(tables):
        if key_path[-1] in ("name", "label") or is_reference(value):
            continue
        is_path = key_path[-2:] in PATH_KEYS or _looks_like_a_path(value)
        if not is_path or Path(value).is_absolute():
            continue
        hint = (
            "A folder is not copied to the clients. A stand-in task keeps the examples with them: "
            'see "Stand-in data" in the guide "Running a federation" of the documentation.'
            if key_path in (("task", "folder"), ("task", "table"))
            else "The file is not copied to the folder of the deployment."
        )
        field = ".".join(map(str, key_path))
        experiment.refuse(
            key_path, InvalidInput.of(field, value, "an absolute path on every machine", hint)
        )


def _looks_like_a_path(text: str) -> bool:
    """Returns whether a text is the path of something that exists. A bare word such as `iid` is a
    name, also beside a file of that name.
    """
    has_form = len(Path(text).parts) > 1 or Path(text).suffix != ""
    try:
        return has_form and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def _iterate_texts(value: Any, key_path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yields the texts of a document with their places."""
    if isinstance(value, str):
        yield key_path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iterate_texts(item, (*key_path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iterate_texts(item, (*key_path, index))


def _check_run(experiment: Experiment, plan: Plan, position: int, label: str) -> None:
    """Refuses a method, an observer, or models that stay with the clients, each under the name of
    its field.
    """
    algorithm, arguments = (
        plan.algorithms[label],
        plan.arguments_of(label) | {"observe": [], "stop": [], "keep_best": None},
    )
    with _prefix_errors(experiment, "algorithm", min(position, len(experiment.algorithm) - 1)):
        program = Grid(
            [algorithm], plan.task, experiment.seeds[:1], RunOptions.of(arguments)
        ).program
    for index, observer in enumerate(plan.arguments["observe"]):
        with _prefix_errors(
            experiment, "observe", *([] if experiment.observe is None else [index])
        ):
            program.check([observer], False)
    if experiment.keep_models == "personal" and type(algorithm).personal is not Algorithm.personal:
        with _prefix_errors(experiment, "keep_models"):
            program.check([], True)


@contextlib.contextmanager
def _prefix_errors(experiment: Experiment, *field: str | int) -> Iterator[None]:
    """Puts the name of a field of the file, and its line, in front of what is refused."""
    try:
        yield
    except SpecError:
        raise
    except InvalidInput as error:
        experiment.refuse(field, InvalidInput(f"{'.'.join(map(str, field))}: {error}"))
