"""Messages on the wire, in exact bits."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.attacks import Attack
from fedax.communication.privacy import Privacy
from fedax.core.hyper import check_declared
from fedax.errors import InvalidInput


class Codec(eqx.Module):
    r"""Turns a vector into what a network carries, and back; see `fedax.codecs` for the known ones.

    `message` and `restore` run inside compiled programs; `encode` and `decode` are the bytes of a
    real network.

    A codec Q is unbiased, $E\,Q(v) = v$ for every v, or biased. Means of many unbiased messages are
    right, however coarse each one is. The error of a biased codec adds up over the rounds unless
    clients store it and correct later messages: with `feedback=True`, or by
    `fedax.codecs.EF21(codec)`.
    """

    def __check_init__(self) -> None:
        check_declared(self)

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean of the messages for a vector is that vector, up to 32-bit rounding."""
        return False

    def relative_error(self, dim: int) -> float | None:
        r"""Returns a constant c with $E \lVert Q(v) - v \rVert^2 \le c \lVert v \rVert^2$ for every
        v of `dim` numbers, up to 32-bit rounding; None if none is known.

        Of an unbiased codec it is the variance $\omega$ of the literature. A codec with c < 1 is
        contractive, with $\delta = 1 - c$.
        """
        return None

    @property
    def has_memory(self) -> bool:
        """Whether clients store something between their messages."""
        return bool(getattr(self, "feedback", False))

    @property
    def shares_memory(self) -> bool:
        """Whether the receiver stores the client's memory as well, and adds messages to it."""
        return False

    def initial_memory(self, dim: int, dtype: Any) -> PyTree:
        """Returns what a client stores before its first message of `dim` numbers."""
        return jnp.zeros(dim, dtype)

    @abstractmethod
    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> PyTree:
        """Returns the parts sent for v."""

    @abstractmethod
    def restore(self, parts: PyTree, dim: int, dtype: Any) -> Float[Array, "dim"]:
        """Returns the vector that the receiver makes of the parts."""

    @abstractmethod
    def bits(self, dim: int, width: int = 32) -> int:
        """Returns the bits of a message for `dim` numbers of `width` bits uncompressed."""

    @abstractmethod
    def encode(self, parts: PyTree, dim: int) -> bytes:
        """Returns the bytes of a message: its bits, rounded up to whole bytes."""

    @abstractmethod
    def decode(self, data: bytes, dim: int) -> PyTree:
        """Inverts `encode`."""

    def message(
        self, v: Float[Array, "dim"], key: Key[Array, ""], near: Float[Array, "dim"] | None = None
    ) -> "Message":
        """Returns the message for v, or for its difference to a vector that both sides know."""
        parts = self.compress(v if near is None else v - near, key)
        return Message(parts, self, v.shape[0], str(v.dtype), near)

    def message_and_memory(
        self,
        v: Float[Array, "dim"],
        memory: PyTree,
        key: Key[Array, ""],
        near: Float[Array, "dim"] | None = None,
    ) -> tuple["Message", PyTree]:
        """Returns the message for v of a client with this memory, and its memory afterwards.

        By default error feedback: the memory is what earlier messages lost, and is added to v.
        """
        # `due` and `message.value` both contain `near`, so that their difference is what was lost
        compensated = v + memory
        message = self.message(compensated, key, near)
        return message, compensated - message.value

    def roundtrip(self, key: Key[Array, ""], v: Float[Array, "dim"]) -> Float[Array, "dim"]:
        """Returns the vector that arrives if v is sent."""
        return self.message(v, key).value


class Message(eqx.Module):
    """A vector on its way, as a codec sends it.

    In an `Upload` it stands in place of the vector; the engine opens it.

    Attributes:
        parts: what the codec makes of the vector.
        codec: opens it.
        dim, dtype: of the vector.
        near: a vector that the receiver knows, to which the opened one is added; or None.
    """

    parts: PyTree
    codec: Codec
    dim: int = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    near: Float[Array, "dim"] | None = None

    @property
    def decoded(self) -> Float[Array, "dim"]:
        """The vector in the message, without `near`."""
        return self.codec.restore(self.parts, self.dim, self.dtype)

    @property
    def value(self) -> Float[Array, "dim"]:
        """The vector that arrives."""
        return self.decoded if self.near is None else self.near + self.decoded

    @property
    def bits(self) -> int:
        return self.codec.bits(self.dim, np.dtype(self.dtype).itemsize * 8)


def is_message(node: Any) -> bool:
    return isinstance(node, Message)


def decode(tree: PyTree) -> PyTree:
    """Decodes the messages of a pytree."""
    return jax.tree.map(
        lambda leaf: leaf.value if is_message(leaf) else leaf, tree, is_leaf=is_message
    )


def bits_of(tree: PyTree) -> int:
    """Counts the bits of a pytree as it is sent: messages as coded, arrays without compression."""

    def bits(leaf: Any) -> int:
        return (
            leaf.bits
            if is_message(leaf)
            else math.prod(np.shape(leaf)) * jnp.result_type(leaf).itemsize * 8
        )

    return sum(bits(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_message))


class Channel(eqx.Module):
    """The wire between clients and server, or between neighbours: every vector as a codec's
    message.

    Single numbers stay as they are, and so do messages that the algorithm has coded itself.

    Args:
        up: codec of what clients send; one with memory corrects a client's next message by what
            earlier ones lost.
        down: codec of what the server sends; the same message goes to everybody. No feedback, and
            neither `EF21` nor `DIANA`.
        attack: harm that a part of the clients does, before anything is coded; see `fedax.attacks`.
            Single numbers, and what a client keeps for itself, are honest.
        privacy: clipping and noise that hide which clients took part, for methods whose uploads are
            means; see `Privacy`.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(up=fedax.codecs.TopK(0.05), down=fedax.codecs.Quantizer(b=8))
        >>> hostile = fedax.Channel(attack=fedax.attacks.SignFlip(share=0.2))
    """

    up: Any = None
    down: Any = None
    attack: Any = None
    privacy: Any = None

    def __check_init__(self) -> None:
        kinds = {"up": Codec, "down": Codec, "attack": Attack, "privacy": Privacy}
        for name, kind in kinds.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                allowed = f"an instance of {kind.__name__}, or None"
                raise InvalidInput.of(f"Channel({name}=...)", part, allowed)
        if self.down is not None and self.down.has_memory:
            allowed = "a codec with no memory, feedback=False: all clients get the same message"
            raise InvalidInput.of("Channel(down=...)", self.down, allowed)

    @property
    def has_memory(self) -> bool:
        """Whether clients store something between their messages, see `Codec.has_memory`."""
        return self.up is not None and self.up.has_memory

    @property
    def shares_memory(self) -> bool:
        """Whether the receiver stores the clients' memories as well, see `Codec.shares_memory`."""
        return self.up is not None and self.up.shares_memory


def encode(
    tree: PyTree,
    codec: Codec,
    key: Key[Array, ""],
    near: Float[Array, "dim"] | None = None,
    memories: Any = None,
) -> tuple[PyTree, Any]:
    """Encodes every vector of a pytree; returns the messages and the memories after them.

    `memories` has what the client stores for each vector; without, the messages are those of a
    codec without memory.

    Of the first vector its difference to `near` is sent.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_message)
    indices = [i for i, leaf in enumerate(leaves) if is_vector(leaf)]
    new_memories = []
    # `memories` has an entry for each vector, not for each leaf
    for number, index in enumerate(indices):
        v = leaves[index]
        vector_key = jax.random.fold_in(key, number)
        reference = None if number else near
        if memories is None:
            leaves[index] = codec.message(v, vector_key, reference)
        else:
            leaves[index], memory = codec.message_and_memory(
                v, memories[number], vector_key, reference
            )
            new_memories.append(memory)
    return jax.tree.unflatten(structure, leaves), tuple(new_memories)


def is_vector(leaf: Any) -> bool:
    """Returns whether a leaf is a vector, which a channel codes."""
    return (
        not is_message(leaf)
        and jnp.ndim(leaf) == 1
        and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    )
