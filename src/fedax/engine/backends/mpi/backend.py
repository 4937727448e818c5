"""Backend of the MPI engine: every rank runs the same round and does the work of its own client."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.communication.channel import decode
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.engine.backends.python_rounds import ClientResult, PythonBackend, stack
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import PhaseResult, PhaseWork
from fedax.engine.round.single_client import run_single_client
from fedax.graphs import mixed


def allreduce(comm: Any, tree: PyTree) -> PyTree:
    """Returns the sum over all ranks, leaf by leaf."""
    return jax.tree.map(lambda leaf: jnp.asarray(comm.allreduce(np.asarray(leaf))), tree)


def allgather(comm: Any, tree: PyTree) -> PyTree:
    """Returns the values of all ranks, stacked along a first axis (clients,)."""
    return jax.tree.map(stack, *comm.allgather(jax.tree.map(np.asarray, tree)))


class PeerStates(ClientStates):
    """State of this rank's client, as the only row; other clients' states stay on their ranks."""

    in_process: ClassVar[bool] = False
    comm: Any = eqx.field(static=True)

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        return super().take(ids - self.comm.rank)

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> ClientStates:
        return super().put(jnp.where(ids == self.comm.rank, 0, 1), rows)

    def mean(self, default: PyTree = None) -> PyTree:
        return jax.tree.map(
            lambda total: total[0] / self.comm.size, allreduce(self.comm, self._rows)
        )

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
        self.setup, self.comm = setup, comm

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
            own = jax.tree.map(np.asarray, upload), broken
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
        comm, rank = self.comm, self.comm.rank
        neighbour_ids, shares = np.asarray(neighbours)[rank], np.asarray(weights)[rank]
        upload, new_rows, broken = self._run_work(phase_work, states)
        new_states = {
            name: states[name].put(jnp.asarray([rank]), jax.tree.map(lambda x: x[None], row))
            for name, row in new_rows.items()
        }
        # the first column is the node itself, which is also the padding
        linked = neighbour_ids != neighbour_ids[0]
        linked_ranks = neighbour_ids[linked].tolist()
        links = comm.Create_dist_graph_adjacent(linked_ranks, linked_ranks)
        received = links.neighbor_allgather(jax.tree.map(np.asarray, upload.value))
        links.Free()  # MPI allows a process some thousand communicators only

        others = [decode(jax.tree.map(jnp.asarray, message)) for message in received]
        rows = jax.tree.map(stack, decode(upload.value), *others)
        mix = jnp.asarray([shares[0], *shares[linked]])[None]
        received_mean = mixed(rows, jnp.arange(1 + len(others))[None], mix)
        broken = jnp.asarray(comm.allgather(broken), jnp.int32)
        result = PhaseResult(upload, None, None, states | new_states, broken)
        return result, PeerStates(received_mean, comm)

    def _run_work(
        self, phase_work: PhaseWork, states: dict[str, ClientStates]
    ) -> tuple[Upload[Any], dict[str, PyTree], int]:
        """Returns this rank's upload, its client's new states, and `PhaseWork.broken_part`."""
        # traced, so that all rounds are one program
        phase_work = dataclasses.replace(phase_work, round=jnp.int32(phase_work.round))
        rows = {name: memory.of(self.comm.rank) for name, memory in states.items()}
        upload, new_rows, broken = self.setup.task.programs.call(
            run_single_client, phase_work, self.setup, rows, jnp.int32(self.comm.rank)
        )
        return upload, new_rows, int(broken)
