"""Server steps of an asynchronous server: whether a method fits one, and when its clients arrive.

`Schedule(asynchronous=...)` asks for it. A method's round stays as it is written: `sample` returns
the clients whose uploads a server step takes, each works on the downlink that it received, and the
server takes its upload as a change of the current model
(`fedax.engine.round.backend.PastVersions`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.scheduling.asynchronous import Arrivals, Asynchronous, Timetable
from fedax.core.scheduling.deadline import Answers
from fedax.core.scheduling.devices import Devices
from fedax.engine.round.client import Setup
from fedax.engine.round.timing.clock import WorkCount
from fedax.engine.round.timing.inspection import only_phase
from fedax.errors import InvalidInput
from fedax.utils.memory_check import bytes_of, check_room
from fedax.utils.random import Index, stream

FIELD = "Schedule(asynchronous=...)"


@dataclasses.dataclass(frozen=True)
class ServerSteps:
    """A method's only phase under an asynchronous server, static.

    Compiled programs depend on what is compared: the others are read between the rounds.

    Attributes:
        server: as it was asked for.
        near: number of the vector sent down whose changes go up; None if the upload is a change
            itself.
        form: arrays of what is sent down, as shapes and types.
        bits: of one message down and up.
        gradients: minibatch gradients of a local step, and gradients over all the client's
            examples.
        rounds: server steps that the run is to have.
    """

    server: Asynchronous = dataclasses.field(compare=False)
    uploads: str
    near: int | None
    form: PyTree = dataclasses.field(compare=False)
    bits: tuple[int, int] = dataclasses.field(compare=False)
    gradients: tuple[int, int] = dataclasses.field(compare=False)
    rounds: int = dataclasses.field(compare=False)

    def timetable(self, setup: Setup, root: Key[Array, ""]) -> Timetable:
        """Returns the timetable of the run with a root key."""
        schedule, sizes = setup.schedule, np.asarray(setup.population.sizes, np.int64)
        offsets = jnp.asarray(setup.population.offsets)
        cohort = schedule.capacity(len(sizes))
        down, up = self.bits

        server, passes = self.server, _passes_per_client(self.server)

        def amounts(clients: np.ndarray, version: int) -> tuple[Any, ...]:
            return (
                clients,
                version,
                down,
                up,
                count_examples(clients, version, self.gradients, passes),
            )

        def seconds(clients: np.ndarray, version: int) -> np.ndarray:
            return server.devices.seconds(*amounts(clients, version))

        def joules(clients: np.ndarray, version: int) -> np.ndarray:
            return server.devices.joules(*amounts(clients, version))

        call = setup.task.programs.call

        def draw(version: int) -> np.ndarray:
            return np.asarray(call(_draw_cohort, schedule, root, jnp.int32(version), offsets))

        count_examples = WorkCount(setup, root)
        seed = np.asarray(jax.random.key_data(stream(root, "dispatch"))).tolist()
        has_joules = isinstance(server.devices, Devices)
        weights = sizes if schedule.rule.by_size else np.ones_like(sizes)
        if not has_joules:
            return Timetable(server, cohort, weights, seconds, draw, seed)
        busy = server.devices.seconds_at_server(cohort * up)
        return Timetable(server, cohort, weights, seconds, draw, seed, joules, busy)

    def initial_downlinks(self) -> PyTree:
        """Returns the stored downlinks of a run before its first step, with one slot."""
        return jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), self.form)

    def grow_downlinks(
        self, downlinks: PyTree, timetables: list[Timetable], steps: int, axis: int = 0
    ) -> PyTree:
        """Returns stored downlinks with the slots that some server steps need, and those that the
        whole run will need.

        Args:
            downlinks: of all runs of a program.
            timetables: of the runs.
            steps: server steps from the beginning.
            axis: of the slots in the arrays.
        """
        slots = max(timetable.slots(max(steps, self.rounds)) for timetable in timetables)
        if steps > self.rounds:  # of a session: another number of slots is another program
            slots = 1 << (slots - 1).bit_length()
        check_room(
            FIELD,
            slots,
            slots * len(timetables) * bytes_of(self.form),
            "versions of the model that are in use",
        )

        def pad(leaf: Array) -> Array:
            missing = max(slots - leaf.shape[axis], 0)
            return (
                jnp.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)])
                if missing
                else leaf
            )

        return jax.tree.map(pad, downlinks)


def _draw_cohort(
    schedule: Any, root: Key[Array, ""], round: Index, offsets: Int[Array, "bounds"]
) -> Int[Array, "cohort"]:
    """Draws the cohort of a synchronous round, see `RoundContext.sample`."""
    return schedule.draw(stream(root, "cohort", round, 0), offsets)[0]


def server_steps_of(algorithm: Algorithm[Any], setup: Setup, rounds: int) -> ServerSteps | None:
    """Returns the server steps of a method; None if its server waits for its cohorts.

    Raises:
        InvalidInput: a method, a solver, a channel or a task that does not fit, with the reason; no
            devices.
    """
    server, name, channel = setup.schedule.server, type(algorithm).__name__, setup.channel
    if server is None:
        return None
    if channel is not None and channel.privacy is not None:
        reason = "no account of privacy is known for uploads of several versions"
        raise InvalidInput.because(FIELD, f"{reason}, which Channel(privacy=...) asks for")
    if setup.task.state is not None and setup.task.state_policy == "average":
        reason = (
            "the model's state, such as batch statistics, is averaged, and a mean of stale ones "
            "would discard newer ones"
        )
        raise InvalidInput.because(FIELD, reason, "Freeze it.")
    if not setup.solver.is_counted and _passes_per_client(server) is None:
        reason = f"how long {type(setup.solver).__name__} works depends on the data"
        raise InvalidInput.because(
            FIELD,
            reason,
            "Declare its cost: Asynchronous(passes=...) or Devices(passes=...), in passes over "
            "the examples.",
        )
    phase = only_phase(algorithm, setup, FIELD)
    if phase.problem is not None:
        raise phase.problem
    if phase.near is None and server.uploads == "models":
        reason = 'uploads="models" mixes models, and its uploads are changes'
        raise InvalidInput.because(f"{FIELD}, {name}", reason, 'Write uploads="changes".')
    return ServerSteps(
        server,
        server.uploads,
        phase.near,
        phase.form,
        phase.bits,
        phase.gradients,
        rounds,
    )


def _passes_per_client(server: Asynchronous) -> float | None:
    """Returns the passes that a client's work counts as, None where it is counted."""
    return getattr(server.devices, "passes", None) if server.passes is None else server.passes


def row_of(arrivals: Arrivals | Answers | None, step: Index) -> Any:
    """Returns one row of some arrivals or answers."""
    return jax.tree.map(lambda rows: rows[step], arrivals)
