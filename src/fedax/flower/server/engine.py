"""The engine: rounds in the process of a ServerApp, work in the clients' own."""

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from fedax.engine.round.client import Setup
from fedax.engine.round.engine import Engine, Program, ProgramInputs
from fedax.errors import FedaxError
from fedax.examples.ragged import Population
from fedax.flower.protocol.quiet import need_flower


class Flower(Engine):
    """Clients on their own machines, over Flower; the same rounds as everywhere, to the same
    numbers.

    A client is a node of the grid whose app answers with a `fedax.flower.client.worker.Worker`; it
    tells its number and its sizes when it is first seen. The task needs nobody's examples here: its
    model, its loss and the form of its examples count, and its clients' number. Which clients are
    drawn follows from the seed, as everywhere, but for runs whose privacy counts on sampling: their
    cohorts come from `secret`.

    A client whose upload does not come before the deadline, or is not what it has to be (form,
    size, finite numbers), counts as one that is not finite: with `on_bad_client="drop"` it is left
    out of the phase as if it had not been drawn, and its state stays as it was; with `"stop"` the
    run ends with an error that names it. The same holds for the sums that observers ask for. With
    `"drop"`, the metric `measured_clients` counts the clients that answered all measurements of an
    observation; one without examples of a split is not missing there.

    `History.logged` has `answers`, `absent` and `refused` of every round. `History.bits` are those
    of messages and uploads, as in a simulation; a client's first states are not counted.

    Args:
        grid: of Flower, as a ServerApp gets it.
        clients: how many there are; by default as many as the task has.
        run: a name under which clients keep their states and messages; a run that is to be
            continued has the same, and every other run another one, also after the results of an
            earlier run were removed. By default a new one for this engine: a second run of equal
            settings and seed needs another engine.
        deadline: seconds for the answers of a phase, above 0; 600 by default. A client delays a
            phase by up to one deadline, under masks by up to four.
        minimum: with `on_bad_client="drop"` the fewest uploads of a phase that count, at least 1; a
            round with fewer leaves the state as it was.
        patience: seconds to wait for all clients at the start, at least 0; 600 by default.
        secure: the largest size of an entry of an upload, above 0: uploads are added up under masks
            (SecAgg+), and the server sees their mean alone, which has to be all that the method
            needs. By default, and with 0, they are sent in the open.
        most_examples: the most training or test examples that a client may claim, at least 1. Its
            weight depends on them. By default so many that those of all clients can be counted.
        registered: a function that gives, by Flower's node, the client whose key the node holds. A
            node that says it is another one is refused. Without it clients are believed;
            `fedax deploy` has one.
        secret: from which the noise of `Privacy` at the server is drawn, and the cohorts where its
            epsilon counts on sampling. Nobody else may have it, and a run that is continued has the
            same; by default a new one. `fedax deploy` keeps it in `keys/noise.key`, which only its
            owner may read.

    Raises:
        FedaxError: Flower is not installed.
    """

    is_simulated: ClassVar[bool] = False

    def __init__(
        self,
        grid: Any,
        *,
        clients: int | None = None,
        run: str | None = None,
        deadline: float = 600.0,
        minimum: int = 1,
        patience: float = 600.0,
        secure: float = 0.0,
        secret: bytes | None = None,
        most_examples: int | None = None,
        registered: Callable[[], Mapping[int, int]] | None = None,
    ) -> None:
        need_flower()
        self.grid = grid
        self.clients = clients
        self.run = run or uuid.uuid4().hex
        self.deadline = deadline
        self.minimum = minimum
        self.patience = patience
        self.secure = secure
        self.secret = secret or os.urandom(32)
        self.most_examples = most_examples
        self.registered = registered
        self.roster: Any = None
        self.sizes: list[Any] = []

    @property
    def client_sizes(self) -> list[int] | None:
        """The number of training examples of each client, None before the clients were asked."""
        return [sizes.train for sizes in self.sizes] or None

    def describe_clients(self) -> dict[str, str]:
        return {f"client {k}": str(sizes) for k, sizes in enumerate(self.sizes)}

    def prepared(self, setup: Setup) -> Setup:
        self.sizes = self.meet(setup)
        population = Population.of([sizes.train for sizes in self.sizes])
        return dataclasses.replace(setup, population=population)

    def meet(self, setup: Setup) -> list[Any]:
        """Waits for all clients, and returns their sizes."""
        from fedax.flower.server.roster import Roster

        clients = self.clients or setup.population.clients
        if self.roster is None or self.roster.clients != clients:
            self.roster = Roster(self, clients)
        self.roster.gather(self.patience)
        return [self.roster.sizes[k] for k in range(clients)]

    def program(self, inputs: ProgramInputs) -> Program:
        from fedax.flower.server.program import FlowerProgram

        return FlowerProgram(inputs, self)


_engines: list[Flower] = []


@contextlib.contextmanager
def use_engine(engine: Flower) -> Iterator[None]:
    """Makes an engine that of this process, by the name `flower`, while the block runs."""
    _engines.append(engine)
    try:
        yield
    finally:
        _engines.remove(engine)


def current_engine() -> Flower:
    """Returns the engine of this process.

    Raises:
        FedaxError: it is not a server of Flower.
    """
    if not _engines:
        hint = "`fedax deploy init FILE` writes the app of one"
        raise FedaxError(f'engine = "flower" runs in a server of Flower: {hint}.')
    return _engines[-1]
