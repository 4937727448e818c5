"""The MPI engine: each rank is one client, and all ranks run the same rounds."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, Memory
from fedax.core.task import Population, Task
from fedax.core.validation.own_methods import call_model
from fedax.engine.backends.mpi.backend import MPIBackend
from fedax.engine.backends.mpi.peer import Peers, gather_states
from fedax.engine.backends.mpi.ranks import Ranks
from fedax.engine.backends.python_rounds import PythonProgram
from fedax.engine.round.client import CompiledClient, Setup
from fedax.engine.round.engine import Engine, PersonalModels, RunCarry
from fedax.engine.round.evaluation import (
    CompiledView,
    evaluate_unseen,
    personal_models,
    set_run,
)
from fedax.engine.round.model_state import task_as_evaluated
from fedax.errors import FedaxError, InvalidInput, install_hint
from fedax.observe.base import Gradients, Observer, OfClients, Split, View, compute_all


class MPI(Engine):
    """One rank, one client, whose examples never leave it; there is no server process.

    A mean is an allreduce, an exchange goes to the neighbours on a distributed graph as the bytes
    that its codec makes. Every rank calls `run` with the same arguments and gets the same history.
    The task is either the same everywhere, of as many clients as there are ranks, or holds the
    rank's own examples alone (one client); then nothing but sizes, messages and metrics is ever
    exchanged. Start it with `mpiexec -n 5 python script.py`, or `mpiexec -n 5 fedax run FILE
    --engine mpi`.

    Args:
        comm: an mpi4py communicator; `MPI.COMM_WORLD` by default.

    Raises:
        FedaxError: mpi4py is not installed, or finds no MPI.
        InvalidInput: the task has another number of clients.
    """

    def __init__(self, comm: Any = None) -> None:
        if comm is not None and not (hasattr(comm, "rank") and hasattr(comm, "size")):
            raise InvalidInput.of("MPI(comm=...)", comm, "an mpi4py communicator, or None")
        self.comm = comm if comm is not None else _comm_world()
        self.process_group = Ranks(self.comm)

    def check_clients(self, clients: int) -> None:
        """Refuses a task with another number of clients than ranks, before its data are made."""
        if clients != self.comm.size:
            hint = (
                f"Start it with `mpiexec -n {clients}`, or make a task of {self.comm.size} clients."
            )
            allowed = f"{self.comm.size}, the number of ranks"
            raise InvalidInput.found("MPI engine", f"a task of {clients} clients", allowed, hint)

    def has_all(self, task: Task) -> bool:
        return task.train.clients == self.comm.size

    def prepared(self, setup: Setup) -> Setup:
        peers, local_task = Peers.of(self.comm, setup.task)
        population = Population.of(np.asarray(peers.population.train.sizes))
        return dataclasses.replace(
            setup, task=local_task, population=population, first=self.comm.rank
        )

    def program(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        longest: int,
    ) -> "MPIProgram":
        return MPIProgram(algorithms, setup, roots, Peers.of(self.comm, setup.task)[0])


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

    def __init__(
        self,
        algorithms: Sequence[Algorithm[Any]],
        setup: Setup,
        roots: Sequence[Key[Array, ""]],
        peers: Peers,
    ) -> None:
        super().__init__(algorithms, setup, roots, lambda *_: MPIBackend(setup, peers))
        self.peers = peers

    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        return compute_all(
            observers, PeerView(self.setup, self.peers, self.runs[run][0], carry, worked)
        )

    def gather_carries(self, states: Any) -> list[RunCarry]:
        return [gather_states(carry) for carry in self.split(states)]

    def models_of_run(self, run: int, carry: RunCarry) -> PersonalModels:
        return jax.tree.map(self.peers.allgather, own_model(self.setup, self.runs[run][0], carry))


def own_model(setup: Setup, algorithm: Algorithm[Any], carry: RunCarry) -> PersonalModels:
    """Returns the model that this rank's client uses itself, and its state."""
    w = call_model(algorithm, carry.state, setup.layout.dim)
    return personal_models(setup, algorithm, carry, w)(jnp.int32(setup.first))


def _sums(setup: Setup, w: Float[Array, "dim"], split: str, score: str) -> Float[Array, ""]:
    """Returns the sum of a score over this rank's examples, or over the central test set."""
    return CompiledView(setup, w).sums(split)[score][0]


class PeerView(View):
    """View of the MPI engine: each rank evaluates its examples, and sums run over all ranks."""

    def __init__(
        self,
        setup: Setup,
        peers: Peers,
        algorithm: Algorithm[Any],
        carry: RunCarry,
        last_cohort: Cohort,
    ) -> None:
        state, states = carry.state, carry.model_state
        self.peers, self.task, self._worked = peers, peers.population, last_cohort
        published = setup.published(carry)
        task = task_as_evaluated(setup.task, published.model_state)
        self.setup = dataclasses.replace(setup, task=task)
        self.states = states.all() if isinstance(states, Memory) else None
        set_run(self, setup, algorithm, state)
        self.w = call_model(algorithm, published.state, setup.layout.dim)
        self.own, own_state = own_model(setup, algorithm, carry)
        self.personal_setup = dataclasses.replace(setup, task=setup.task.at(own_state))

    def cohort(self) -> Cohort:
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means_by_client(self.setup, self.w, split, score)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means_by_client(self.personal_setup, self.own, split, score)

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        return self._overall_mean(self.setup, self.w, split, score)

    def per_node(self, score: str) -> Float[Array, "clients"]:
        clients = range(self.task.train.clients)
        models = [self.w for _ in clients] if self.nodes is None else list(self.nodes)
        setups = [self.setup for _ in clients] if self.states is None else [
            dataclasses.replace(
                self.setup,
                task=self.setup.task.at(jax.tree.map(lambda rows, k=k: rows[k], self.states)),
            )
            for k in clients
        ]  # fmt: skip
        return jnp.stack(
            [
                self._overall_mean(setup, w, "central", score)
                for setup, w in zip(setups, models, strict=True)
            ]
        )

    def _means_by_client(
        self, setup: Setup, w: Float[Array, "dim"], split: OfClients, score: str
    ) -> Float[Array, "clients"]:
        sizes = jnp.asarray(getattr(self.task, split).sizes)
        sums = self.peers.allgather(
            setup.task.programs.call(_sums, setup, w, split, score)
            if sizes[self.peers.rank]
            else jnp.zeros((), w.dtype)
        )
        return sums / sizes.astype(sums.dtype)

    def _overall_mean(
        self, setup: Setup, w: Float[Array, "dim"], split: Split, score: str
    ) -> Float[Array, ""]:
        central = setup.task.central
        if split == "central" and central is not None:
            return setup.task.programs.call(_sums, setup, w, split, score) / len(
                next(iter(central.values()))
            )
        split = "test" if split == "central" else split
        sizes = jnp.asarray(getattr(self.task, split).sizes)
        has_examples = bool(sizes[self.peers.rank])
        total = self.peers.sum(
            setup.task.programs.call(_sums, setup, w, split, score)
            if has_examples
            else jnp.zeros((), w.dtype)
        )
        return total / sizes.sum().astype(total.dtype)

    def predictions(self, split: Split) -> Shaped[Array, "examples ..."]:
        if split != "central" or self.setup.task.central is None:
            hint = "Give the task a central test set."
            raise InvalidInput.because(
                "observe", "predictions of examples that clients own do not leave their ranks", hint
            )
        return CompiledView(self.setup, self.w).predictions(split)

    def unseen(self, score: str, steps: int | None) -> Float[Array, "others"]:
        return evaluate_unseen(self.setup, self.w, score, steps)

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        client = CompiledClient(self.setup, self.setup.first, 0, jax.random.key(0), 0)
        return jax.tree.map(
            self.peers.allgather, look(client, *(row[self.peers.rank] for row in rows))
        )

    def gradients(self) -> Gradients:
        share = self.share[self.peers.rank]
        gradient = self.setup.task.programs.call(_gradient, self.setup, self.w)
        return self.peers.sum(Gradients.terms(gradient, share, self.task.train.clients))


def _gradient(setup: Setup, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
    return CompiledClient(setup, setup.first, 0, jax.random.key(0), 0).gradient(w)
