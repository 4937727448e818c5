"""The engine: rounds in the process of a ServerApp, work in the clients' own."""

import contextlib
import dataclasses
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Key

from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort
from fedax.core.scheduling.local_work import counts, real
from fedax.core.task import Population, Task
from fedax.engine.backends.python_rounds import PythonProgram
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import Engine, PersonalModels, RunCarry
from fedax.engine.round.single_client import sizes_only
from fedax.errors import FedaxError, InvalidInput
from fedax.flower.protocol.quiet import need_flower
from fedax.observe.base import Observer, compute_all

REMEMBERED = 20
"""Rounds after which clients drop versions of their memories, where no checkpoint tells which are
needed."""


class Flower(Engine):
    """Clients on their own machines, over Flower; the same rounds as everywhere, to the same
    numbers.

    A client is a node of the grid whose app answers with a `fedax.flower.client.device.Device`; it
    tells its number and its sizes when it is first seen. The task needs nobody's examples here: its
    model, its loss and the form of its examples count, and its clients' number. Which clients are
    drawn follows from the seed, as everywhere, but for runs whose privacy counts on sampling: their
    cohorts come from `secret`.

    A client whose upload does not come before the deadline, or is not what it has to be (form,
    size, finite numbers), counts as one that is not finite: with `on_bad_client="drop"` it is left
    out of the phase as if it had not been drawn, and its memory stays as it was; with `"stop"` the
    run ends with an error that names it. The same holds for the sums that observers ask for. With
    `"drop"`, the metric `measured_clients` says of how many clients the other metrics of an
    observation are.

    `History.notes` has `answers`, `absent`, `refused` and `message_bytes` of every round;
    `History.bits` are those of the arrays that were sent.

    Args:
        grid: of Flower, as a ServerApp gets it.
        clients: how many there are; by default as many as the task has.
        run: a name under which clients keep their states and messages; a run that is to be
            continued has the same, and every other run another one, also after the results of an
            earlier run were removed. By default a new one.
        deadline: seconds for the answers of a phase, above 0; 600 by default.
        minimum: the fewest uploads of a phase that count, at least 1; a round with fewer leaves the
            state as it was.
        patience: seconds to wait for all clients at the start, at least 0; 600 by default.
        secure: the largest size of an entry of an upload, above 0: uploads are added up under masks
            (SecAgg+), and the server sees their mean alone, which has to be all that the method
            needs. By default they are sent in the open.
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
        InvalidInput: an argument out of range.
    """

    is_simulated: ClassVar[bool] = False
    checkpoint_seconds = 60.0

    def __init__(
        self,
        grid: Any,
        *,
        clients: int | None = None,
        run: str | None = None,
        deadline: float = 600.0,
        minimum: int = 1,
        patience: float = 600.0,
        secure: float | None = None,
        secret: bytes | None = None,
        most_examples: int | None = None,
        registered: Callable[[], Mapping[int, int]] | None = None,
    ) -> None:
        need_flower()
        whole = {"clients": clients, "minimum": minimum, "most_examples": most_examples}
        for name, value in whole.items():
            if value is not None and not counts(value):
                raise InvalidInput.of(f"Flower({name}=...)", value, "whole numbers >= 1")
        for name, value in {"deadline": deadline, "secure": secure}.items():
            if value is not None and not (real(value) and 0 < value < math.inf):
                raise InvalidInput.of(f"Flower({name}=...)", value, "numbers above 0")
        self.grid, self.clients, self.run = grid, clients, run or uuid.uuid4().hex
        self.deadline, self.minimum, self.patience = deadline, minimum, patience
        self.secure = secure
        self.secret = secret or os.urandom(32)
        self.most_examples, self.registered = most_examples, registered
        self.roster: Any = None

    def has_all(self, task: Task) -> bool:
        return False

    @property
    def client_sizes(self) -> list[int] | None:
        """The number of training examples of each client, None before the clients were asked."""
        sizes = {} if self.roster is None else self.roster.sizes
        return [sizes[k].train for k in sorted(sizes)] or None

    def describe_clients(self) -> dict[str, str]:
        sizes = {} if self.roster is None else self.roster.sizes
        return {f"client {k}": str(sizes[k]) for k in sorted(sizes)}

    def prepared(self, setup: Setup) -> Setup:
        from fedax.flower.server.roster import Roster

        clients = self.clients or setup.population.clients
        if self.roster is None or self.roster.clients != clients:
            self.roster = Roster(
                self.grid, clients, self.deadline, self.most_examples, self.registered
            )
        self.roster.gather(self.patience)
        sizes = [self.roster.sizes[k] for k in range(self.roster.clients)]
        population = Population.of([client_sizes.train for client_sizes in sizes])
        return dataclasses.replace(setup, population=population)

    def program(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        longest: int,
    ) -> "FlowerProgram":
        return FlowerProgram(algorithms, setup, roots, self)


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


class FlowerProgram(PythonProgram):
    """Rounds in Python; see `FlowerBackend`."""

    def __init__(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        engine: Flower,
    ) -> None:
        from fedax.flower.server.backend import FlowerBackend
        from fedax.flower.server.secure import SecureBackend

        def backend(algorithm: Algorithm[Any], root: Key[Array, ""]) -> FlowerBackend:
            arguments = (
                setup,
                algorithm,
                root,
                engine.roster,
                engine.run,
                engine.minimum,
                engine.secret,
            )
            return (
                FlowerBackend(*arguments)
                if engine.secure is None
                else SecureBackend(engine.secure, *arguments)
            )

        super().__init__(algorithms, setup, roots, backend)
        self.task = _without_examples(setup.task, engine.roster.sizes)
        self._rounds_done = 0
        self._checkpoint_rounds: list[int] = []

    def advance(self, states: Any, first: int, count: int) -> Any:
        # continued from a checkpoint, which may be needed again
        if first and not self._checkpoint_rounds and not self._rounds_done:
            self._checkpoint_rounds.append(first)
        self._rounds_done = first + count
        floor = self._checkpoint_rounds[0] if self._checkpoint_rounds else first - REMEMBERED
        for _, backend, _ in self.runs:
            backend.floor = max(floor, 0)
        return super().advance(states, first, count)

    def gather_carries(self, states: Any) -> list[RunCarry]:
        """Returns the states for a checkpoint, of which the last two are kept; clients keep their
        states.
        """
        self._checkpoint_rounds = [*self._checkpoint_rounds, self._rounds_done][-2:]
        return self.split(states)

    def check(self, observers: Sequence[Observer], personal: bool) -> None:
        from fedax.flower.server.evaluation import check_observers

        if personal:
            allowed = "False with the Flower engine: the clients' own models stay with them"
            raise InvalidInput.of("run(personal=...)", True, allowed)
        for algorithm, _, root in self.runs:
            check_observers(observers, self.setup, self.task, algorithm, root)

    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        from fedax.flower.server.evaluation import FlowerView

        algorithm, backend, _ = self.runs[run]
        view = FlowerView(self.setup, self.task, backend.measure, algorithm, carry.state, worked)
        metrics = compute_all(observers, view)
        if self.setup.drop and view.measured_clients is not None:
            metrics["measured_clients"] = np.asarray(view.measured_clients)
        return metrics

    def models_of_run(self, run: int, carry: RunCarry) -> PersonalModels:
        raise AssertionError("refused by check")


def _without_examples(task: Task, sizes: Any) -> Task:
    """Returns the task with the sizes of all clients."""
    client_sizes = [sizes[k] for k in sorted(sizes)]
    train = sizes_only(task.train, [client.train for client in client_sizes])
    test = None
    if task.test is not None and all(client.test >= 0 for client in client_sizes):
        test = sizes_only(task.test, [client.test for client in client_sizes])
    data = eqx.tree_at(
        lambda data: (data.train, data.test), task.data, (train, test), is_leaf=lambda x: x is None
    )
    return task.with_data(data)
