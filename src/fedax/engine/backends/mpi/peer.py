"""Ranks of an MPI run: this rank's examples, the sizes of all clients, and the communicator."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.communication.channel import Message, is_message
from fedax.core.federation import ClientStates
from fedax.core.task import Task
from fedax.engine.round.single_client import single_client_task, sizes_only
from fedax.errors import InvalidInput


class Peers(eqx.Module):
    """Ranks of a communicator; rank k is client k.

    Attributes:
        comm: an mpi4py communicator.
        population: the task with the sizes of all clients, without their examples.
    """

    comm: Any = eqx.field(static=True)
    population: Task

    @classmethod
    def of(cls, comm: Any, task: Task) -> "tuple[Peers, Task]":
        """Returns the peers, and the task with only this rank's examples.

        `task` holds either the examples of all clients, of which the rank takes its own, or only
        the rank's own.
        """
        if task.train.clients not in (1, comm.size):
            allowed = f"{comm.size}, the number of ranks, or 1, the rank's own"
            raise InvalidInput.found(
                "MPI engine", f"a task of {task.train.clients} clients", allowed
            )
        local_task = task if task.train.clients == 1 else single_client_task(task, comm.rank)
        # sizes are exchanged, examples are not
        population = local_task
        for split in ("train", "validation", "test"):
            data = getattr(local_task, split)
            sizes = comm.allgather(None if data is None else int(data.sizes[0]))
            if data is not None:
                population = eqx.tree_at(
                    lambda t, s=split: getattr(t, s), population, sizes_only(data, sizes)
                )
        return cls(comm, population), local_task

    @property
    def rank(self) -> int:
        return self.comm.rank

    def sum(self, tree: PyTree) -> PyTree:
        """Returns the sum over all ranks, leaf by leaf."""
        return _allreduce(self.comm, tree)

    def allgather(self, tree: PyTree) -> PyTree:
        """Returns the values of all ranks, stacked along a first axis (clients,)."""
        return _allgather(self.comm, tree)


def _allreduce(comm: Any, tree: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    # MPI reads and writes host buffers, which must be writable
    host = [np.array(leaf) for leaf in leaves]
    sums = [np.empty_like(leaf) for leaf in host]
    for leaf, total in zip(host, sums, strict=True):
        comm.Allreduce(leaf, total)
    return jax.tree.unflatten(structure, [jnp.asarray(total) for total in sums])


def _allgather(comm: Any, tree: PyTree) -> PyTree:
    gathered = comm.allgather(jax.tree.map(np.asarray, tree))
    return jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *gathered
    )


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
            lambda total: total[0] / self.comm.size, _allreduce(self.comm, self._rows)
        )

    def all(self) -> PyTree:
        return jax.tree.map(lambda rows: rows[:, 0], _allgather(self.comm, self._rows))

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        # a collective, which gives the rows of all ranks to rank 0 alone
        gathered = [self.comm.gather(np.asarray(rows)) for rows in jax.tree.leaves(self._rows)]
        return None, [np.concatenate(rows) for rows in gathered if rows is not None]

    def _with(self, rows: PyTree) -> ClientStates:
        return PeerStates(rows, self.comm)


def encode_tree(tree: PyTree) -> list[bytes]:
    """Encodes a pytree to bytes: messages by their codec, arrays as they are in memory."""

    def encode_leaf(leaf: Any) -> bytes:
        return (
            leaf.codec.encode(leaf.parts, leaf.dim)
            if is_message(leaf)
            else np.asarray(leaf).tobytes()
        )

    return [encode_leaf(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_message)]


def decode_tree(payloads: Sequence[bytes], like: PyTree) -> PyTree:
    """Decodes received bytes, given a pytree of the same structure, shapes and types."""
    leaves, structure = jax.tree.flatten(like, is_leaf=is_message)

    def decode_leaf(data: bytes, leaf: Any) -> Array:
        if is_message(leaf):
            parts = jax.tree.map(jnp.asarray, leaf.codec.decode(data, leaf.dim))
            return Message(parts, None, leaf.codec, leaf.dim, leaf.dtype).value
        return jnp.asarray(np.frombuffer(data, leaf.dtype).reshape(leaf.shape))

    return jax.tree.unflatten(
        structure, [decode_leaf(data, leaf) for data, leaf in zip(payloads, leaves, strict=True)]
    )
