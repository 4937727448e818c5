"""MPI peers: one rank, one client, whose data never leave it.

Every rank runs the same rounds and does the work of its own client.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from fedax.communication.channel import decode
from fedax.core.federation import ClientStates, Cohort
from fedax.core.task import Task
from fedax.engine.backends.python_rounds import PythonBackend, PythonProgram, stack
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.round.client import CompiledClient, Setup
from fedax.engine.round.engine import Engine, ProgramInputs, RunCarry
from fedax.engine.round.evaluation import CompiledView, PersonalModels, view_of, wide_gradient
from fedax.engine.round.phase import ClientResult, PhaseResult, PhaseWork
from fedax.engine.round.single_client import run_single_client, single_client_task, with_sizes
from fedax.errors import FedaxError, InvalidInput, install_hint
from fedax.examples.ragged import Population
from fedax.graphs import mixed
from fedax.observe.base import Gradients, Observer, OfClients, Split, compute_all


def allgather(comm: Any, tree: PyTree) -> PyTree:
    """Returns the values of all ranks, stacked along a first axis (clients,)."""
    return jax.tree.map(stack, *comm.allgather(jax.tree.map(np.asarray, tree)))


class PeerStates(ClientStates):
    """State of this rank's client, as the only row; other clients' states stay on their ranks."""

    comm: Any = eqx.field(static=True)

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        return super().take(ids - self.comm.rank)

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> ClientStates:
        return super().put(jnp.where(ids == self.comm.rank, 0, 1), rows)

    def all(self) -> PyTree:
        return jax.tree.map(lambda rows: rows[:, 0], allgather(self.comm, self._rows))

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        # a collective, which gives the rows of all ranks to rank 0 alone
        gathered = [self.comm.gather(np.asarray(rows)) for rows in jax.tree.leaves(self._rows)]
        return None, [np.concatenate(rows) for rows in gathered if rows is not None]

    def _with(self, rows: PyTree) -> ClientStates:
        return PeerStates(rows, self.comm)


class MPIBackend(PythonBackend):
    """Gathers the uploads on all ranks, each of which computes the server's part itself."""

    def __init__(self, setup: Setup, comm: Any) -> None:
        self.setup = setup
        self.comm = comm

    def client_states(self, initial: PyTree) -> ClientStates:
        row = initial(jnp.int32(self.comm.rank)) if callable(initial) else initial
        return PeerStates(jax.tree.map(lambda x: jnp.asarray(x)[None], row), self.comm)

    def run_clients(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates]
    ) -> list[ClientResult]:
        ids = np.asarray(cohort.ids).tolist()
        own = None
        rows: dict[str, PyTree] = {}
        if self.comm.rank in ids:
            upload, rows, broken = self._run_work(phase_work, states)
            own = jax.tree.map(np.asarray, upload), int(broken)
        # all ranks take part, also those whose clients do not work
        gathered = self.comm.allgather(own)
        # of the rows, `PeerStates.put` takes this rank's
        return [
            ClientResult(jax.tree.map(jnp.asarray, upload), rows, broken)
            for upload, broken in (gathered[k] for k in ids)
        ]

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        states: dict[str, ClientStates],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, ClientStates]:
        comm = self.comm
        rank = self.comm.rank
        upload, new_rows, broken = self._run_work(phase_work, states)
        # of the rows, which are the same for all, `PeerStates.put` takes this rank's
        stored = jax.tree.map(lambda row: row[None], new_rows)
        # a row has the node itself and its neighbours, who alone get the message
        nodes = np.asarray(neighbours)
        message = jax.tree.map(np.asarray, upload.value)
        received = comm.alltoall([message if rank in row else None for row in nodes])
        values = [decode(jax.tree.map(jnp.asarray, received[k])) for k in nodes[rank]]
        place = jnp.arange(len(values))[None]
        mean = mixed(jax.tree.map(stack, *values), place, weights[rank][None])
        broken = jnp.asarray(comm.allgather(int(broken)), jnp.int32)
        result = PhaseResult(upload, None, None, stored, broken)
        return result, PeerStates(mean, comm)

    def _run_work(self, phase_work: PhaseWork, states: dict[str, ClientStates]) -> ClientResult:
        """Runs the work of this rank's client."""
        # traced, so that all rounds are one program
        phase_work = dataclasses.replace(phase_work, round=jnp.int32(phase_work.round))
        rows = {name: memory.of(self.comm.rank) for name, memory in states.items()}
        return self.setup.task.programs.call(
            run_single_client, phase_work, self.setup, rows, jnp.int32(self.comm.rank)
        )


class Ranks(ProcessGroup):
    """Group of the ranks of an MPI communicator.

    Args:
        comm: an mpi4py communicator.
    """

    name = "MPI engine"
    splits_data = True

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        is_real = type(comm).__module__.startswith("mpi4py") and comm.size > 1
        if is_real and comm not in _reporting:
            _reporting.append(comm)
            self.report_exit()

    def abort(self, code: int) -> None:
        time.sleep(0.2)  # the launcher needs a moment to forward the output
        self.comm.Abort(code)

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows[self.rank : self.rank + 1]

    def allgather(self, value: Any) -> list[Any]:
        # sleeps until all ranks are here: MPI's own wait is busy, and with more ranks than cores it
        # takes the core from the rank that it waits for
        barrier = self.comm.Ibarrier()
        while not barrier.Test():
            time.sleep(_PAUSE)
        return self.comm.allgather(value)


_PAUSE = 0.001
"""Seconds between two looks for the other ranks."""
_reporting: list[Any] = []
"""Communicators whose ranks report when they end."""


class MPI(Engine):
    """One rank, one client, whose examples never leave it; there is no server process.

    Every rank gathers the uploads of a phase and makes their mean itself. An exchange goes to the
    neighbours alone. Every rank calls `run` with the same arguments and gets the same history. The
    task is either the same everywhere, of as many clients as there are ranks, or holds the rank's
    own examples alone (one client); then nothing but sizes, messages and metrics is ever exchanged.
    Start it with `mpiexec -n 5 python script.py`, or `mpiexec -n 5 fedax run FILE --engine mpi`.

    Args:
        comm: an mpi4py communicator; `MPI.COMM_WORLD` by default.

    Raises:
        FedaxError: mpi4py is not installed, or finds no MPI.
        InvalidInput: the task has another number of clients.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm if comm is not None else _comm_world()
        self.process_group = Ranks(self.comm)

    def check_clients(self, clients: int) -> None:
        """Refuses a task with another number of clients than ranks."""
        if clients != self.comm.size:
            hint = (
                f"Start it with `mpiexec -n {clients}`, or make a task of {self.comm.size} clients."
            )
            allowed = f"{self.comm.size}, the number of ranks, or 1, the rank's own"
            raise InvalidInput.found("MPI engine", f"a task of {clients} clients", allowed, hint)

    def prepared(self, setup: Setup) -> Setup:
        task = setup.task
        comm = self.comm
        # of all clients' examples, the rank takes its own
        if task.train.clients > 1:
            self.check_clients(task.train.clients)
            task = single_client_task(task, comm.rank)
        # sizes are exchanged, examples are not
        own = {name: int(part.sizes[0]) for name, part in task.data.parts.items()}
        sizes = comm.allgather(own)
        self.population = with_sizes(task, {name: [each[name] for each in sizes] for name in own})
        population = Population.of(np.asarray(self.population.train.sizes))
        return dataclasses.replace(setup, task=task, population=population, first=comm.rank)

    def program(self, inputs: ProgramInputs) -> "MPIProgram":
        return MPIProgram(inputs, self.comm, self.population)


def _comm_world() -> Any:
    try:
        import mpi4py.MPI
    except (ImportError, RuntimeError) as error:
        hint = f"{install_hint('mpi')}, or mpi4py built against the MPI of the cluster"
        raise FedaxError(
            f"the MPI engine needs mpi4py with an MPI library ({error}). Try: {hint}."
        ) from error
    return mpi4py.MPI.COMM_WORLD


class MPIProgram(PythonProgram):
    """Rounds in Python with compiled client work; see `MPIBackend`."""

    def __init__(self, inputs: ProgramInputs, comm: Any, population: Task) -> None:
        super().__init__(inputs, lambda setup, _: MPIBackend(setup, comm))
        self.comm = comm
        self.population = population

    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        kind = functools.partial(PeerView, self.comm, self.population)
        return compute_all(observers, view_of(self.runs[run][0].setup, carry, worked, kind))


def _sums(setup: Setup, w: Float[Array, "dim"], split: str) -> dict[str, Float[Array, "1"]]:
    """Returns sums over this rank's examples, or over the central test set."""
    return CompiledView(setup, w).sums(split)


class PeerView(CompiledView):
    """View of the MPI engine: each rank evaluates its examples, and sums are gathered."""

    def __init__(self, comm: Any, population: Task, setup: Setup, w: Float[Array, "dim"]) -> None:
        super().__init__(setup, w)
        self.comm = comm
        self.task = population

    def sums(self, split: str) -> dict[str, Array]:
        if split not in self._sums:
            sums = self.setup.task.programs.call(_sums, self.setup, self.w, split)
            if split != "central":
                sums = {name: rows[:, 0] for name, rows in allgather(self.comm, sums).items()}
            self._sums[split] = sums
        return self._sums[split]

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._own_view.per_client(split, score)

    def models_of_clients(self) -> PersonalModels:
        return allgather(self.comm, self.own(jnp.int32(self.setup.first)))

    @functools.cached_property
    def _own_view(self) -> "PeerView":
        """The view of the models that the ranks' clients use themselves."""
        if not self.is_personal:
            return self
        w, state = self.own(jnp.int32(self.setup.first))
        return self._view_of(w, state)

    def _view_of(self, w: Float[Array, "dim"], state: PyTree) -> "PeerView":
        """Returns the view of another model, in its state."""
        setup = dataclasses.replace(self.setup, task=self.setup.task.at(state))
        return PeerView(self.comm, self.task, setup, w)

    def per_node(self, score: str) -> Float[Array, "clients"]:
        states = None if self.states is None else self.states.all()
        means = []
        for k in range(self.task.train.clients):
            w = self.w if self.nodes is None else self.nodes[k]
            state = jax.tree.map(lambda rows, k=k: rows[k], states)
            means.append(self._view_of(w, state).overall("central", score))
        return jnp.stack(means)

    def predictions(self, split: Split) -> Shaped[Array, "examples ..."]:
        if split != "central" or self.setup.task.central is None:
            hint = "Give the task a central test set."
            raise InvalidInput.because(
                "observe", "predictions of examples that clients own do not leave their ranks", hint
            )
        return super().predictions(split)

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        client = CompiledClient(self.setup, self.setup.first)
        return allgather(self.comm, look(client, *(row[self.comm.rank] for row in rows)))

    def _compute_gradients(self) -> Gradients:
        share = self.share[self.comm.rank]
        setup = self.setup
        gradient = setup.task.programs.call(wide_gradient, setup, setup.first, self.w)
        terms = Gradients.terms(gradient, share, self.task.train.clients)
        return jax.tree.map(lambda rows: rows.sum(0), allgather(self.comm, terms))
