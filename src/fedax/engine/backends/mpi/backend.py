"""Backend of the MPI engine: every rank runs the same round and does the work of its own client."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fedax.communication.channel import decode
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.engine.backends.mpi.peer import Peers, PeerStates, decode_tree, encode_tree
from fedax.engine.round.backend import Backend
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import PhaseResult, PhaseWork, zeros
from fedax.engine.round.single_client import run_single_client


class MPIBackend(Backend):
    """Averages uploads by allreduce.

    Each rank computes the server's part itself, with the same result on all.
    """

    def __init__(self, setup: Setup, peers: Peers) -> None:
        self.setup, self.peers = setup, peers

    def client_states(self, initial: PyTree) -> ClientStates:
        row = initial(jnp.int32(self.peers.rank)) if callable(initial) else initial
        return PeerStates(jax.tree.map(lambda x: jnp.asarray(x)[None], row), self.peers.comm)

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates], gather: bool
    ) -> PhaseResult:
        peers = self.peers
        # several places if the cohort was drawn with replacement, none if this client does not work
        positions = np.flatnonzero(np.asarray(cohort.ids) == peers.rank).tolist()
        # all ranks take part in the collectives below, so one that does not work needs the shapes
        # too
        form = eqx.filter_eval_shape(run_single_client, *self._work_inputs(phase_work, states))[0]
        shapes = eqx.filter_eval_shape(
            lambda sent: (
                phase_work.open(decode(sent.value)[0]),
                decode(sent.value)[1],
                sent.weight,
            ),
            form,
        )
        value, clipped, own_weight = zeros(shapes)
        broken = 0
        if positions:
            upload, new_states, broken = self._run_work(phase_work, states)
            if broken and self.setup.drop:
                positions = []  # neither its upload nor its new state counts
            else:
                (value, clipped), own_weight, states = (
                    decode(upload.value),
                    upload.weight,
                    new_states,
                )
                value = phase_work.open(value)
        broken = jnp.asarray(peers.comm.allgather(broken), jnp.int32)[cohort.ids]
        clipped = None if clipped is None else peers.sum(clipped)
        if phase_work.receives:
            return PhaseResult(form, None, None, states, broken)
        if gather:
            rows = jax.tree.map(lambda leaf: leaf[cohort.ids], peers.allgather(value))
            weights = (
                cohort.weights
                if own_weight is None
                else jnp.asarray(peers.allgather(own_weight))[cohort.ids]
            )
            weights = jnp.where(broken > 0, 0, weights) if self.setup.drop else weights
            return PhaseResult(form, None, (rows, weights), states, broken, clipped)
        sums = self._weighted_sum(value, own_weight, [cohort.weights[i] for i in positions])
        return PhaseResult(form, sums, None, states, broken, clipped)

    def _weighted_sum(
        self, value: PyTree, own_weight: Array | None, defaults: list[Array]
    ) -> tuple[PyTree, Array]:
        """Returns the weighted sum of all ranks' uploads, and the sum of the weights.

        Args:
            value: this rank's upload, zeros if its client does not work.
            own_weight: the upload's own weight, None if it has none.
            defaults: the cohort's weights of this client, one for each of its places.
        """
        weight = default = sum(defaults, jnp.zeros((), self.setup.layout.dtype))
        if own_weight is not None:
            weight = len(defaults) * own_weight.astype(default.dtype)
            # checked before the uploads are summed, so that one allreduce of uploads is enough
            if not float(self.peers.sum(weight)) > 0:
                weight = default
        # a value that is not finite must not count with weight 0
        terms = jax.tree.map(lambda x: jnp.where(weight > 0, weight.astype(x.dtype) * x, 0), value)
        return self.peers.sum((terms, weight))

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        states: dict[str, ClientStates],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, ClientStates]:
        rank, comm = self.peers.rank, self.peers.comm
        neighbour_ids, shares = np.asarray(neighbours)[rank], np.asarray(weights)[rank]
        upload, new_states, broken = self._run_work(phase_work, states)
        # the first column is the node itself, which is also the padding
        linked = neighbour_ids != neighbour_ids[0]
        linked_ranks = neighbour_ids[linked].tolist()
        links = comm.Create_dist_graph_adjacent(linked_ranks, linked_ranks)
        payload = encode_tree(upload.value)
        received_payloads = links.neighbor_allgather(payload)
        links.Free()  # MPI allows a process some thousand communicators only
        logged = {
            "wire_bytes": np.int64(comm.allreduce(sum(map(len, payload)) * len(linked_ranks)))
        }

        terms = [(shares[0], decode_tree(payload, upload.value))]
        terms += [
            (w, decode_tree(data, upload.value))
            for w, data in zip(shares[linked], received_payloads, strict=True)
        ]
        scaled = [
            jax.tree.map(lambda u, w=w: jnp.asarray(w, u.dtype) * u, value) for w, value in terms
        ]
        received = jax.tree.map(
            lambda *summands: jnp.asarray(sum(summands[1:], summands[0]))[None], *scaled
        )
        clipped = decode(upload.value)[1]
        broken = jnp.asarray(comm.allgather(broken), jnp.int32)
        clipped = None if clipped is None else self.peers.sum(clipped)
        return PhaseResult(upload, None, None, new_states, broken, clipped, logged), PeerStates(
            received, self.peers.comm
        )

    def _run_work(
        self, phase_work: PhaseWork, states: dict[str, ClientStates]
    ) -> tuple[Upload[Any], dict[str, ClientStates], int]:
        """Returns this rank's upload, the new client states, and `PhaseWork.broken_part`."""
        inputs = self._work_inputs(phase_work, states)
        upload, new_rows, broken = self.setup.task.programs.call(run_single_client, *inputs)
        rank = jnp.asarray([self.peers.rank])
        new_states = {
            name: states[name].put(rank, jax.tree.map(lambda x: x[None], row))
            for name, row in new_rows.items()
        }
        return upload, states | new_states, int(broken)

    def _work_inputs(
        self, phase_work: PhaseWork, states: dict[str, ClientStates]
    ) -> tuple[PhaseWork, Setup, dict[str, PyTree], Array]:
        phase_work = eqx.tree_at(
            lambda phase_work: phase_work.round, phase_work, jnp.int32(phase_work.round)
        )  # traced, so that all rounds are one program
        rows = {name: memory.of(self.peers.rank) for name, memory in states.items()}
        return phase_work, self.setup, rows, jnp.int32(self.peers.rank)
