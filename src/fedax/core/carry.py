"""What a run carries from round to round."""

from typing import NamedTuple

from jaxtyping import PyTree

from fedax.core.federation import ClientStates


class RunCarry(NamedTuple):
    """What a run carries from round to round, the carry of the scan over rounds.

    Attributes:
        state: the algorithm's own.
        lost: for each phase, what the clients store for the codec, if that has memory: with error
            feedback what their messages lost.
        model_state: the model's (such as batch statistics), or a memory with one for each client;
            None if none changes.
        bounds: of adaptive clipping; None where there is none.
        downlinks: of an asynchronous server, what was sent down with the versions in use; None
            where there is none.
        solver_states: what the clients store for the solver; None where it starts afresh in every
            round.
    """

    state: PyTree = None
    lost: tuple[ClientStates, ...] = ()
    model_state: PyTree = None
    bounds: PyTree = None
    downlinks: PyTree = None
    solver_states: ClientStates | None = None


NOTHING = RunCarry()
"""What a method's `init` starts from."""
