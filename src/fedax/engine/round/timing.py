"""How the rounds of a run are timed: what a phase costs on the devices, and what is taken late."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fedax.core.carry import RunCarry
from fedax.core.scheduling.clock import Clock
from fedax.core.scheduling.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class LateUploads:
    """What an asynchronous server takes for uploads of earlier versions.

    Attributes:
        near: number of the vector sent down whose changes go up; None if the upload is a change
            itself.
        uploads: see `Asynchronous`.
        form: arrays of what is sent down, as shapes and types.
        rounds: server steps that the run is to have.
    """

    near: int | None
    uploads: str
    form: PyTree = dataclasses.field(compare=False)
    rounds: int = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Timing:
    """The devices of a run, and what its phases ask of them; static.

    Compiled programs depend on what is compared: the others are read between the rounds.

    Attributes:
        clock: of the run.
        gradients: for each phase, minibatch gradients of a local step, and gradients over all the
            client's examples.
        bits: of one message of the only phase down and up, where the clients that count follow
            from the devices; (0, 0) where the traffic of a round tells.
        late: with an asynchronous server.
    """

    clock: Clock = dataclasses.field(compare=False)
    gradients: tuple[tuple[int, int], ...] = dataclasses.field(compare=False)
    bits: tuple[int, int] = dataclasses.field(default=(0, 0), compare=False)
    late: LateUploads | None = None


def with_slots(
    timing: Timing | None,
    carry: RunCarry,
    timelines: Sequence[Timeline],
    steps: int = 0,
    axis: int = 0,
) -> RunCarry:
    """Returns a carry whose downlinks have the slots that some server steps need, and those that
    the whole run will need.

    Args:
        timing: of the run.
        carry: of one run, or of all runs of a program.
        timelines: of the runs.
        steps: server steps from the beginning.
        axis: of the slots in the arrays.
    """
    if timing is None or timing.late is None:
        return carry
    slots = max(timeline.slots(max(steps, timing.late.rounds)) for timeline in timelines)

    def pad(leaf: Array) -> Array:
        missing = max(slots - leaf.shape[axis], 0)
        if not missing:
            return leaf
        return jnp.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)])

    return carry._replace(downlinks=jax.tree.map(pad, carry.downlinks))
