"""Codecs on the way up and down, for any algorithm and any engine: an algorithm that codes what another one sends."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.algorithm import Algorithm, Card, Personal, Phase
from fedax.core.channel import Codec, is_message, opened
from fedax.core.client import Client
from fedax.core.errors import InvalidInput
from fedax.core.federation import Cohort, Federation, Memory, Upload


class Channel(eqx.Module):
    """What crosses the wire between clients and server, or between neighbours: every vector as a codec's message.

    Single numbers stay as they are, and so do messages that the algorithm has coded itself.

    Args:
        up: codec of what clients send; one with feedback adds what a client's last message lost to its next one.
        down: codec of what the server sends; the same message goes to everybody. No feedback.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(up=fedax.codecs.TopK(0.05), down=fedax.codecs.Quantizer(b=8))
    """

    up: Any = None
    down: Any = None

    def __check_init__(self) -> None:
        for name, codec in (("up", self.up), ("down", self.down)):
            if codec is not None and not isinstance(codec, Codec):
                raise InvalidInput.of(f"Channel({name}=...)", codec, "a codec of fedax.codecs, or None")

    @property
    def feedback(self) -> bool:
        """Whether clients keep what their messages lost."""
        return bool(getattr(self.up, "feedback", False))


class CodedState(eqx.Module):
    """The state of the coded algorithm, and for each of its phases what the clients' last messages lost."""

    inner: Any
    lost: tuple[Memory, ...]


class Coded(Algorithm[CodedState]):
    """`algorithm` over a channel."""

    algorithm: Algorithm[Any]
    channel: Channel

    card: ClassVar[Card] = Card("Coded", "-", "-", ())

    def __check_init__(self) -> None:
        if self.channel.feedback and not self.phases:
            allowed = "algorithms whose card has phases, if the codec has feedback"
            raise InvalidInput.of("run(channel=...)", type(self.algorithm).__name__, allowed)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.algorithm.phases

    def init(self, fed: Federation, w: Float[Array, "dim"]) -> CodedState:
        phases = self.phases if self.channel.feedback else ()
        lost = tuple(fed.memory((jnp.zeros_like(w),) * phase.up[0]) for phase in phases)
        return CodedState(self.algorithm.init(fed, w), lost)

    def round(self, fed: Federation, state: CodedState) -> CodedState:
        coding = CodingFederation(fed, self.channel, self.phases, list(state.lost))
        inner = self.algorithm.round(coding, state.inner)
        return CodedState(inner, tuple(coding.lost))

    def model(self, state: CodedState) -> Float[Array, "dim"]:
        return self.algorithm.model(state.inner)

    def personal(self, state: CodedState) -> Personal | None:
        return self.algorithm.personal(state.inner)

    def nodes(self, state: CodedState) -> Memory | None:
        return self.algorithm.nodes(state.inner)

    def gradients(self, steps: float, epoch: float) -> float:
        return self.algorithm.gradients(steps, epoch)

    @property
    def equal_weights(self) -> bool:
        return self.algorithm.equal_weights

    def weights(self, state: CodedState) -> Memory | None:
        return self.algorithm.weights(state.inner)


class CodingFederation(Federation):
    """A federation whose messages are coded; everything else is that of `fed`."""

    def __init__(self, fed: Federation, channel: Channel, phases: Sequence[Phase], lost: list[Memory]) -> None:
        self.fed, self.channel, self.phases, self.lost = fed, channel, phases, lost
        self.round, self.clients = fed.round, fed.clients
        self._phase = -1

    @property
    def everyone(self) -> Cohort:
        return self.fed.everyone

    def sample(self, odds: Float[Array, "clients"] | None = None) -> Cohort:
        return self.fed.sample(odds)

    def memory(self, initial: PyTree) -> Memory:
        return self.fed.memory(initial)

    def note(self, **values: Array | float) -> None:
        self.fed.note(**values)

    def key(self, purpose: str) -> Key[Array, ""]:
        return self.fed.key(purpose)

    def average(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        return self._called(self.fed.average, work, cohort, down, memory)

    def gather(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        return self._called(self.fed.gather, work, cohort, down, memory)

    def exchange(self, graph: Any, send: Callable[..., Upload[Any]], receive: Callable[..., Any], memory: Memory) -> Memory:
        coding = self._coding(send, 0, True)
        if not coding.feedback:
            return self.fed.exchange(graph, coding, receive, memory)
        both = self.fed.exchange(graph, coding, Keeping(receive), memory.joined(self.lost[self._phase]))
        own, self.lost[self._phase] = both.parted()
        return own

    def _coding(self, work: Callable[..., Upload[Any]], downs: int, remembers: bool) -> "Coding":
        self._phase += 1
        models = self._phase < len(self.phases) and self.phases[self._phase].models
        return Coding(work, self.channel.up, downs, remembers, self.channel.feedback, models)

    def _called(self, verb: Any, work: Any, cohort: Cohort, down: tuple[Any, ...], memory: Memory | None) -> Any:
        coding = self._coding(work, len(down), memory is not None)
        if self.channel.down is not None:
            down = coded(down, self.channel.down, self.key(f"downlink {self._phase}"))[0]
        if not coding.feedback:
            return verb(coding, cohort, *down) if memory is None else verb(coding, cohort, *down, memory=memory)
        lost = self.lost[self._phase]
        result, after = verb(coding, cohort, *down, memory=lost if memory is None else memory.joined(lost))
        if memory is None:
            self.lost[self._phase] = after
            return result
        own, self.lost[self._phase] = after.parted()
        return result, own


class Coding(eqx.Module):
    """A work function that opens what comes down and codes what goes up; with feedback, what was lost goes along in memory."""

    work: Callable[..., Upload[Any]]
    codec: Codec | None
    downs: int = eqx.field(static=True)
    remembers: bool = eqx.field(static=True)
    feedback: bool = eqx.field(static=True)
    models: bool = eqx.field(static=True)

    @property
    def __name__(self) -> str:
        return self.work.__name__

    def __call__(self, client: Client, *arguments: Any) -> Upload[Any]:
        down, held = opened(arguments[: self.downs])[0], arguments[self.downs :]
        own, lost = held, None
        if self.feedback:
            own, lost = (held[0][:1], held[0][1]) if self.remembers else ((), held[0])
        upload = self.work(client, *down, *own)
        if self.codec is None:
            return upload
        near = next((leaf for leaf in jax.tree.leaves(down) if _is_vector(leaf)), None) if self.models else None
        value, missed = coded(upload.value, self.codec, client.key("uplink"), near, lost)
        memory = upload.memory
        if self.feedback:
            kept = own[0] if own and memory is None else memory
            memory = (kept, missed) if self.remembers else missed
        return Upload(value, upload.weight, memory)


class Keeping(eqx.Module):
    """The receiving half of an exchange, past what messages lost."""

    receive: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return self.receive.__name__

    def __call__(self, client: Client, held: tuple[PyTree, PyTree], received: PyTree) -> tuple[PyTree, PyTree]:
        return self.receive(client, held[0], received), held[1]


def coded(
    tree: PyTree, codec: Codec, key: Key[Array, ""], near: Float[Array, "dim"] | None = None, lost: Any = None
) -> tuple[PyTree, Any]:
    """A pytree with a message in place of every vector, and what these lost; what was lost before is added to them.

    Of the first one its difference to `near` is sent.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_message)
    missed = []
    for i, leaf in enumerate(leaves):
        if is_message(leaf) or not _is_vector(leaf):
            continue
        if lost is not None and len(missed) == len(lost):
            allowed = f"{len(lost)} vectors, as the algorithm's card says, if the codec has feedback"
            raise InvalidInput.found("run(channel=...)", "an upload of more vectors", allowed)
        v = leaf if lost is None else leaf + lost[len(missed)]
        leaves[i] = codec.message(v, jax.random.fold_in(key, len(missed)), None if missed else near)
        missed.append(v - leaves[i].value)
    return jax.tree.unflatten(structure, leaves), tuple(missed)


def _is_vector(leaf: Any) -> bool:
    return jnp.ndim(leaf) == 1 and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
