"""Check of an experiment before it is deployed: what deployed runs cannot do is refused."""

from collections.abc import Sequence
from pathlib import Path

from fedax.core import Algorithm, InvalidInput
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from fedax.engine.round.client import Setup
from fedax.experiments.config.experiment import Experiment
from fedax.flower.server import Flower
from fedax.flower.server.engine import use_engine
from fedax.flower.server.roster import Sizes

CLIENTS = 5
"""The clients of a deployment whose task does not say how many there are."""


class Rehearsal(Flower):
    """The engine of a deployment without a server: it makes the programs of runs, and asks no
    client. All have the sizes that the experiment's task has in the mean.
    """

    def meet(self, setup: Setup) -> list[Sizes]:
        parts = setup.task.data.parts
        means = [
            parts[split].total // parts[split].clients if split in parts else 0
            for split in Sizes._fields
        ]
        return [Sizes(*means)] * (self.clients or setup.population.clients)


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
        InvalidInput: something that deployed runs cannot do.
    """
    experiment = Experiment.read(path, [*changes, 'engine="flower"'])
    for name in ("simulation", "audit"):
        if getattr(experiment, name) is not None:
            experiment.refuse(
                (name,), InvalidInput.found(name, f"a table [{name}]", "none, in a deployment")
            )
    rehearsed = experiment.model_copy(update={"engine": "simulation"})
    task_clients = rehearsed.plan(clients=clients or CLIENTS).task.train.clients
    if clients is not None and task_clients not in (1, clients):
        hint = f"Its task has {task_clients}; --clients {task_clients} fits."
        raise InvalidInput.of("--clients", clients, "as many as the experiment's task has", hint)
    clients = clients or (CLIENTS if task_clients == 1 else task_clients)
    with use_engine(Rehearsal(None, clients=clients, secure=secure or None)):
        plan = experiment.plan()
        for label, algorithm in plan.algorithms.items():
            arguments = plan.arguments_of(label) | {"stop": [], "keep_best": None}
            options = RunOptions.of(arguments)
            program = Grid([algorithm], plan.task, experiment.seeds[:1], options).program
            has_models = type(algorithm).personal is not Algorithm.personal
            personal = experiment.keep_models == "personal" and has_models
            program.check(plan.arguments["observe"], personal)
    return experiment, clients
