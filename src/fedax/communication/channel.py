"""Messages on the wire, in exact bits."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedax.communication.attacks import Attack
from fedax.communication.privacy import Privacy
from fedax.core.hyper import check_declared
from fedax.errors import InvalidInput
from fedax.utils.arguments import checked_arguments


@checked_arguments
class Codec(eqx.Module):
    """Turns a vector into what a network carries, and back; see `fedax.codecs` for the known ones.

    `message` and `restore` run inside compiled programs; `encode` and `decode` are the bytes of a
    real network.
    """

    def __check_init__(self) -> None:
        check_declared(self)

    @abstractmethod
    def compress(
        self, v: Float[Array, "dim"], key: Key[Array, ""]
    ) -> tuple[PyTree, Int[Array, ""] | None]:
        """Returns the parts sent for v, and how many entries were clipped (None if it cannot
        clip).
        """

    @abstractmethod
    def restore(self, parts: PyTree, dim: int, dtype: Any) -> Float[Array, "dim"]:
        """Returns the vector that the receiver makes of the parts."""

    @abstractmethod
    def bits(self, dim: int, width: int = 32) -> int:
        """Returns the bits of a message for `dim` numbers of `width` bits uncompressed."""

    @abstractmethod
    def bound(self, v: Float[Array, "dim"]) -> Float[Array, ""]:
        r"""Returns a bound on $E \lVert Q(v) - v \rVert^2$ that holds while nothing is clipped."""

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
        parts, clipped = self.compress(v if near is None else v - near, key)
        return Message(parts, clipped, self, v.shape[0], str(v.dtype), near)

    def roundtrip(self, key: Key[Array, ""], v: Float[Array, "dim"]) -> Float[Array, "dim"]:
        """Returns the vector that arrives if v is sent."""
        return self.message(v, key).value


class Message(eqx.Module):
    """A vector on its way, as a codec sends it.

    In an `Upload` it stands in place of the vector; the engine opens it.

    Attributes:
        parts: what the codec makes of the vector.
        clipped: entries that were beyond the codec's grid, or None.
        codec: opens it.
        dim, dtype: of the vector.
        near: a vector that the receiver knows, to which the opened one is added; or None.
    """

    parts: PyTree
    clipped: Int[Array, ""] | None
    codec: Codec
    dim: int = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    near: Float[Array, "dim"] | None = None

    @property
    def value(self) -> Float[Array, "dim"]:
        """The vector that arrives."""
        v = self.codec.restore(self.parts, self.dim, self.dtype)
        return v if self.near is None else self.near + v

    @property
    def bits(self) -> int:
        return self.codec.bits(self.dim, np.dtype(self.dtype).itemsize * 8)


def is_message(node: Any) -> bool:
    return isinstance(node, Message)


def decode(tree: PyTree) -> tuple[PyTree, Int[Array, ""] | None]:
    """Decodes the messages of a pytree, and counts clipped entries (None if no codec can clip)."""
    messages = [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_message) if is_message(leaf)]
    clipped = [message.clipped for message in messages if message.clipped is not None]
    value = jax.tree.map(
        lambda leaf: leaf.value if is_message(leaf) else leaf, tree, is_leaf=is_message
    )
    return value, jnp.stack(clipped).sum(dtype=jnp.int32) if clipped else None


def bits_of(tree: PyTree) -> int:
    """Counts the bits of a pytree as it is sent: messages as coded, arrays without compression."""

    def bits(leaf: Any) -> int:
        return (
            leaf.bits
            if is_message(leaf)
            else math.prod(np.shape(leaf)) * np.dtype(leaf.dtype).itemsize * 8
        )

    return sum(bits(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_message))


@checked_arguments
class Channel(eqx.Module):
    """The wire between clients and server, or between neighbours: every vector as a codec's
    message.

    Single numbers stay as they are, and so do messages that the algorithm has coded itself.

    Args:
        up: codec of what clients send; one with feedback adds what a client's last message lost to
            its next one.
        down: codec of what the server sends; the same message goes to everybody. No feedback.
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
        for name, codec in (("up", self.up), ("down", self.down)):
            if codec is not None and not isinstance(codec, Codec):
                raise InvalidInput.of(
                    f"Channel({name}=...)", codec, "a codec of fedax.codecs, or None"
                )
        if self.attack is not None and not isinstance(self.attack, Attack):
            raise InvalidInput.of(
                "Channel(attack=...)", self.attack, "an attack of fedax.attacks, or None"
            )
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise InvalidInput.of("Channel(privacy=...)", self.privacy, "a fedax.Privacy, or None")

    @property
    def feedback(self) -> bool:
        """Whether clients keep what their messages lost."""
        return bool(getattr(self.up, "feedback", False))


def encode(
    tree: PyTree,
    codec: Codec,
    key: Key[Array, ""],
    near: Float[Array, "dim"] | None = None,
    lost: Any = None,
) -> tuple[PyTree, Any]:
    """Encodes every vector of a pytree; returns the messages and what they lost.

    With feedback, `lost` is what earlier messages lost; it is added to the vectors first.

    Of the first one its difference to `near` is sent.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_message)
    missed = []
    for i, leaf in enumerate(leaves):
        if not is_vector(leaf):
            continue
        v = leaf if lost is None else leaf + lost[len(missed)]
        leaves[i] = codec.message(v, jax.random.fold_in(key, len(missed)), None if missed else near)
        missed.append(v - leaves[i].value)
    return jax.tree.unflatten(structure, leaves), tuple(missed)


def apply_attack(
    tree: PyTree,
    attack: Attack,
    hostile: Bool[Array, ""],
    key: Key[Array, ""],
    near: Float[Array, "dim"] | None = None,
) -> PyTree:
    """Replaces the vectors of an upload by the attack's if the client is hostile.

    The first vector is a change of `near`.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_message)
    if any(map(is_message, leaves)):
        raise InvalidInput.of(
            "Channel(attack=...)", attack, "None for methods that code their messages themselves"
        )
    for i, leaf in enumerate(leaves):
        if is_vector(leaf):
            wrong = attack.sent(
                leaf, jnp.zeros_like(leaf) if near is None else near, jax.random.fold_in(key, i)
            )
            leaves[i], near = jnp.where(hostile, wrong, leaf), None
    return jax.tree.unflatten(structure, leaves)


def is_vector(leaf: Any) -> bool:
    """Returns whether a leaf is a vector, which a channel codes."""
    return (
        not is_message(leaf)
        and jnp.ndim(leaf) == 1
        and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    )
