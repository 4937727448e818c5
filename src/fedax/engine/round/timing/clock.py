"""The virtual clock of rounds in which the server waits for its cohort.

A compiled round reports who took part in every phase. Seconds and joules follow from that on the
host: from the bits of the traffic ledger, the counted local work, and the devices. The training
does not depend on them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from fedax.core.algorithm import Algorithm
from fedax.core.history import JOULES, SECONDS
from fedax.core.scheduling.devices import Devices
from fedax.core.traffic import unpack
from fedax.engine.round.client import Setup, local_work
from fedax.engine.round.footprint import trace_footprint
from fedax.errors import InvalidInput
from fedax.utils.random import Index


@dataclasses.dataclass(frozen=True)
class VirtualClock:
    """Computes what rounds cost on the devices, static.

    Compiled programs only depend on whether there is one: all clocks are equal to them.

    Attributes:
        devices: bound to the clients.
        gradients: for each phase, minibatch gradients of a local step, and gradients over all the
            client's examples.
    """

    devices: Devices = dataclasses.field(compare=False)
    gradients: tuple[tuple[int, int], ...] = dataclasses.field(compare=False)

    def costs(
        self, work: "WorkCount", first: int, traffic: Sequence[dict[str, Any]], rounds: int
    ) -> dict[str, np.ndarray]:
        """Returns the seconds and the joules of some rounds, as notes of shape (rounds,).

        Args:
            work: of the run.
            first: number of the first round.
            traffic: of each phase, with a first axis over the rounds.
            rounds: how many.
        """
        totals = {name: np.zeros(rounds) for name in (SECONDS, JOULES)}
        # an abandoned round in Python has fewer
        for phase, gradients in zip(traffic, self.gradients, strict=False):
            phase = jax.tree.map(np.asarray, phase)
            down, up = (np.asarray(unpack(*phase[direction])) for direction in ("down", "up"))
            for i in range(rounds):
                clients = phase["clients"][i][: int(phase["asked"][i])]
                if not len(clients):
                    continue
                received, sent = down[i], up[i]
                # every node sends its message to its neighbours, and receives theirs
                if "links" in phase:
                    incoming, outgoing = phase["links"][i].astype(np.int64)[:, clients]
                    received, sent = down[i] + incoming * up[i], outgoing * up[i]
                examples = work(clients, first + i, gradients, self.devices.passes)
                arguments = clients, first + i, received, sent, examples
                seconds, joules = self.devices.seconds(*arguments), self.devices.joules(*arguments)
                # a client that was drawn twice does both jobs, one after the other
                _, client_index = np.unique(clients, return_inverse=True)
                totals[SECONDS][i] += np.bincount(client_index, seconds).max()
                totals[JOULES][i] += joules.sum()
                if "links" not in phase:
                    totals[SECONDS][i] += self.devices.seconds_at_server(
                        len(clients) * float(up[i])
                    )
        return totals


class WorkCount:
    """Counts the examples that clients process in a phase.

    Args:
        setup: of the run.
        root: its root key.
    """

    def __init__(self, setup: Setup, root: Key[Array, ""]) -> None:
        self.setup, self.root, self.sizes = (
            setup,
            root,
            np.asarray(setup.population.sizes, np.int64),
        )
        schedule = setup.schedule
        changes = (
            schedule.drawn or schedule.times is not None or schedule.sync_probability is not None
        )
        self.fixed = None if changes else self._count_step_examples(np.arange(len(self.sizes)), 0)

    def __call__(
        self,
        clients: Int[np.ndarray, "some"],
        round: int,
        gradients: tuple[int, int],
        passes: float | None = None,
    ) -> np.ndarray:
        """Returns the examples of each client.

        Args:
            clients: their numbers.
            round: the number of the round.
            gradients: minibatch gradients of a local step, and gradients over all examples.
            passes: over the examples in place of what is counted, where the work depends on the
                data.
        """
        (step, full), sizes = gradients, self.sizes[clients]
        if passes is not None:
            return passes * sizes * float(step + full > 0)
        if not step:
            return full * sizes
        steps = (
            self._count_step_examples(clients, round) if self.fixed is None else self.fixed[clients]
        )
        return step * steps + full * sizes

    def _count_step_examples(self, clients: Int[np.ndarray, "some"], round: int) -> np.ndarray:
        """Returns the examples in the minibatches of each client's steps; the last one of an epoch
        may be short.
        """
        # rounded up to powers of two, so that few programs serve all numbers of clients
        padded = np.resize(clients, 1 << max(len(clients) - 1, 0).bit_length())
        columns = self.setup.task.programs.call(
            _draw_local_work,
            self.setup,
            self.root,
            jnp.int32(round),
            jnp.asarray(padded, jnp.int32),
        )
        steps, batch = (np.asarray(column, np.int64)[: len(clients)] for column in columns)
        sizes = self.sizes[clients]
        epochs, remaining = np.divmod(steps, -(-sizes // batch))
        return epochs * sizes + np.minimum(remaining * batch, sizes)


def _draw_local_work(
    setup: Setup, root: Key[Array, ""], round: Index, clients: Int[Array, "some"]
) -> tuple[Int[Array, "some"], Int[Array, "some"]]:
    def draw_work(k: Index, size: Index) -> tuple[Array, Array]:
        steps, batch = local_work(setup, root, round, k, size)
        return jnp.asarray(steps, jnp.int32), jnp.asarray(batch, jnp.int32)

    return jax.vmap(draw_work)(clients, setup.population.sizes_of(clients))


def clock_of(
    algorithm: Algorithm[Any], setup: Setup, devices: Devices | None
) -> VirtualClock | None:
    """Returns the virtual clock of a method's rounds; None without devices.

    Raises:
        InvalidInput: a solver whose work is not counted.
    """
    schedule = setup.schedule
    # with an asynchronous server, or a deadline, a timetable has the clock
    if devices is None or schedule.server is not None or schedule.cutoff_field is not None:
        return None
    check_counted(setup, devices)
    phases = trace_footprint(algorithm, setup).phases
    return VirtualClock(
        devices, tuple((phase.step_gradients, phase.full_gradients) for phase in phases)
    )


def check_counted(setup: Setup, devices: Devices) -> None:
    """Refuses a solver whose work depends on the data, without a declared cost.

    Raises:
        InvalidInput: names the solver.
    """
    uncounted = [solver for solver in (setup.solver, *setup.solvers) if not solver.is_counted]
    if uncounted and devices.passes is None:
        reason = f"how long {type(uncounted[0]).__name__} works depends on the data"
        hint = "Declare its cost: Devices(passes=...), in passes over the examples."
        raise InvalidInput.because("run(devices=...)", reason, hint)
