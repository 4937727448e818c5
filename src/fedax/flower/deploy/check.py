"""Check of an experiment before it is deployed: what deployed runs cannot do is refused, with the
field's name and line.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedax.core import Algorithm, InvalidInput, SpecError
from fedax.engine.driver.options import RunOptions
from fedax.engine.driver.session import Grid
from fedax.engine.round.client import Setup
from fedax.experiments.config.experiment import Experiment, Plan
from fedax.flower.deploy.settings import Deployment
from fedax.flower.server import Flower
from fedax.flower.server.engine import use_engine
from fedax.flower.server.roster import Roster, Sizes

CLIENTS = 5
"""The clients of a deployment whose task does not say how many there are."""


class Rehearsal(Flower):
    """The engine of a deployment without a server: it makes the programs of runs, and asks no
    client.

    Args:
        deployment: its settings.
        clients: how many there are.
    """

    def __init__(self, deployment: Deployment, clients: int) -> None:
        secure = {"secure": deployment.secure or None, "largest": deployment.largest}
        super().__init__(None, clients=clients, minimum=deployment.minimum, **secure)

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
    path: Path, changes: Sequence[str], deployment: Deployment, clients: int | None
) -> tuple[Experiment, int]:
    """Reads an experiment that is to be deployed, and makes the programs of its runs as the server
    will.

    Args:
        path: of the file.
        changes: of its values, as `--set` takes them.
        deployment: its settings.
        clients: how many there are; None for as many as the task has, or `CLIENTS` if it has one.

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
    folder = experiment.task.options.get("folder")
    if isinstance(folder, str) and not Path(folder).is_absolute():
        hint = (
            "A folder is not copied to the clients. A stand-in task keeps the examples with them: "
            'see "Stand-in data" in the guide "Running a federation" of the documentation.'
        )
        experiment.refuse(
            ("task", "folder"),
            InvalidInput.of("task.folder", folder, "an absolute path on every machine", hint),
        )
    rehearsed = experiment.model_copy(update={"engine": "simulation"})
    task_clients = rehearsed.plan(clients=clients or CLIENTS).task.train.clients
    if clients is not None and task_clients not in (1, clients):
        hint = f"Its task has {task_clients}; --clients {task_clients} fits."
        raise InvalidInput.of("--clients", clients, "as many as the experiment's task has", hint)
    clients = clients or (CLIENTS if task_clients == 1 else task_clients)
    with use_engine(Rehearsal(deployment, clients)):
        plan = experiment.plan()
        for position, label in enumerate(plan.algorithms):
            _check_run(experiment, plan, position, label)
    return experiment, clients


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
