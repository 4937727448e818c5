"""Traces a round of a method whose clients are known before training, and refuses methods that have
more than one phase of drawn clients.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.communication.channel import bits_of, decode, encode
from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, Memory, Upload
from fedax.core.validation.own_methods import call_init, call_round, call_work
from fedax.engine.round.backend import PhaseResult, PhaseWork, vectors
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.footprint import Probe, RecordingBackend
from fedax.engine.round.model_state import Sent, shared_state
from fedax.errors import InvalidInput


class OnlyPhase(NamedTuple):
    """The only phase of a method's rounds.

    Attributes:
        near: number of the vector sent down whose changes go up; None if the upload is a change
            itself.
        problem: why an upload loses its meaning when it is late; None if it does not.
        form: arrays of what is sent down, as shapes and types.
        bits: of one message down and up, with the run's channel.
        gradients: minibatch gradients of a local step, and gradients over all the client's
            examples.
    """

    near: int | None
    problem: InvalidInput | None
    form: PyTree
    bits: tuple[int, int]
    gradients: tuple[int, int] = (0, 0)


def only_phase(algorithm: Algorithm[Any], setup: Setup, field: str) -> OnlyPhase:
    """Traces the only phase of a method.

    Args:
        algorithm: the method.
        setup: of its rounds.
        field: the option that needs it, for messages.

    Raises:
        InvalidInput: another number of phases than one, or a phase whose clients the schedule has
            not drawn.
    """
    refusal = f"{field}, {type(algorithm).__name__}"
    backend = _InspectionBackend(dataclasses.replace(setup, channel=None), setup.channel, refusal)

    def one_round() -> None:
        root, w = jax.random.key(0), jnp.zeros(setup.layout.dim, setup.layout.dtype)
        fed = RoundContext(RecordingBackend(backend.setup), 0, root)
        state = call_init(algorithm, fed, w)
        solver_state = setup.solver.initial_state(setup.layout.unravel(w))
        states = (
            shared_state(setup.task),
            None if solver_state is None else backend.memory(solver_state),
        )
        context = _InspectionContext(
            backend, 1, root, model_state=states[0], solver_states=states[1]
        )
        call_round(algorithm, context, state)

    jax.eval_shape(one_round)
    if backend.traced is None:
        raise InvalidInput.because(refusal, "a round without any phase has no arrivals")
    (phase,) = backend.phases
    return backend.traced._replace(gradients=(phase.step_gradients, phase.full_gradients))


class _InspectionContext(RoundContext):
    """A round that remembers the clients of its draw."""

    def sample(self, weights: Float[Array, "clients"] | None = None) -> Cohort:
        backend: Any = self.backend
        if weights is not None:
            reason = "it draws its clients by weights, which are not known before training"
            raise InvalidInput.because(backend.refusal, reason)
        cohort = super().sample()
        backend.drawn = cohort.ids
        return cohort


class _InspectionBackend(RecordingBackend):
    """Traces a round, and refuses methods whose clients are not known before training."""

    def __init__(self, setup: Setup, channel: Any, refusal: str) -> None:
        super().__init__(setup)
        self.channel, self.refusal = channel, refusal
        self.drawn: Any = None
        self.traced: OnlyPhase | None = None

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        reason = "a method without a server has no cohort, its nodes wait for each other"
        raise InvalidInput.because(self.refusal, reason)

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        self._require_first(phase_work)
        # by identity: a cohort keeps the ids of its draw
        if cohort.ids is not self.drawn:
            reason = (
                f"phase {phase_work.name} asks clients that the schedule has not drawn, "
                "such as everyone"
            )
            raise InvalidInput.because(self.refusal, reason)
        down = decode(phase_work.down)[0]
        rows = [client_states["own"].of(cohort.ids[0])] if "own" in client_states else []
        upload = call_work(phase_work.work, Probe(self.setup, phase_work), (*down, *rows))
        near, problem = self._find_reference(upload, down, phase_work.name)
        result = super().work(phase_work, cohort, client_states, gather)
        form, (down_bits, up_bits) = self._measure_messages(phase_work, upload)
        # the model's state travels beside the messages, without a codec
        if phase_work.model_state is not None:
            down_bits += bits_of(phase_work.model_state)
        if isinstance(result.upload.value, Sent):
            up_bits += bits_of(result.upload.value.state)
        self.traced = OnlyPhase(near, problem, form, (down_bits, up_bits))
        return result

    def _require_first(self, phase_work: PhaseWork) -> None:
        """Refuses a second phase."""
        if self.traced is not None:
            reason = (
                f"phase {phase_work.name} follows another one, and between the two the server "
                "would wait for all clients"
            )
            raise InvalidInput.because(self.refusal, reason)

    def _find_reference(
        self, upload: Upload[Any], down: PyTree, phase: str
    ) -> tuple[int | None, InvalidInput | None]:
        """Returns which vector sent down an upload is near to, and what is wrong with that."""
        if upload.is_change:
            return None, None
        if upload.reference is None:
            reason = (
                f"uploads of phase {phase} say neither where their model started nor that "
                "they are changes"
            )
            hint = "Write Upload(model, reference=w), or Upload(change, is_change=True)."
            return None, InvalidInput.because(self.refusal, reason, hint)
        # by identity: while tracing, a vector that was sent down is the very object that the work
        # function saw
        near = next((i for i, v in enumerate(vectors(down)) if v is upload.reference), None)
        if near is not None:
            return near, None
        reason = (
            f"the reference of uploads of phase {phase} is none of the vectors sent down, "
            "whose newest version is known"
        )
        return None, InvalidInput.because(self.refusal, reason)

    def _measure_messages(
        self, phase_work: PhaseWork, upload: Upload[Any]
    ) -> tuple[PyTree, tuple[int, int]]:
        """Returns the arrays sent down as shapes and types, and the bits of one message down and
        up.
        """
        down, up, key = phase_work.down, upload.value, jax.random.key(0)
        if self.channel is not None and self.channel.down is not None:
            down = encode(down, self.channel.down, key)[0]
        if self.channel is not None and self.channel.up is not None:
            codec = self.channel.up
            memories = None
            if codec.shares_memory:  # which has no messages without one
                dtype = self.setup.layout.dtype
                memories = [codec.initial_memory(v.shape[0], dtype) for v in vectors(up)]
            up = encode(up, codec, key, upload.reference, memories)[0]
        weight = 0 if upload.weight is None else bits_of(upload.weight)
        form = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            eqx.filter(down, eqx.is_array),
        )
        return form, (bits_of(down), bits_of(up) + weight)
