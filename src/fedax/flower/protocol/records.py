"""Pytrees as Flower's records, and back.

A record has one array: the bytes of all leaves, one after the other. Both sides know shapes and
types before a record arrives, so the number of its bytes is all that can be wrong.
"""

import hashlib
import io
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord
from jaxtyping import PyTree

from fedax.communication.channel import Message, is_message
from fedax.errors import FedaxError

NEVER = "0" * 32
"""The version of a memory before its first change."""
LEAVES = "leaves"
"""The name of the array of a record."""
SETTINGS = frozenset({"floor"})
"""Fields of an order on which the content of the answer does not depend: which memories are still
needed. They may change before a run is resumed.
An order that is repeated then needs its old name, because under another name a client with local
privacy would make, and pay for, a second noisy message."""


class Refused(FedaxError):
    """A message that is not taken, with the reason."""


def record_of(tree: PyTree) -> ArrayRecord:
    """Returns the bytes of the leaves of a pytree, with messages of a codec as they are coded."""
    leaves = jax.tree.leaves(tree, is_leaf=is_message)
    content = b"".join(
        leaf.codec.encode(leaf.parts, leaf.dim) if is_message(leaf) else np.asarray(leaf).tobytes()
        for leaf in leaves
    )
    return ArrayRecord({LEAVES: Array("uint8", (len(content),), "bytes", content)})


def content_of(record: Any, size: int, what: str) -> bytes:
    """Returns the bytes of a record.

    Raises:
        Refused: another number of bytes.
    """
    content = record[LEAVES].data
    if len(content) != size:
        raise Refused(f"{what}: {len(content)} bytes, expected {size}")
    return content


def bits_of(record: Any) -> int:
    """Returns the bits of a record."""
    return 8 * len(record[LEAVES].data)


def _size_of(leaf: Any) -> int:
    """Returns the bytes that a leaf takes in a record."""
    if is_message(leaf):
        return -(-leaf.bits // 8)
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize


def tree_of(record: Any, forms: PyTree, what: str, reference: Any = None) -> PyTree:
    """Returns the pytree in a record, messages unopened.

    Args:
        record: as it arrived.
        forms: shapes and types of the pytree.
        what: for the reason of a refusal.
        reference: the vector to which a message is the difference; None for none.

    Raises:
        Refused: see `content_of`.
    """
    leaves, structure = jax.tree.flatten(forms, is_leaf=is_message)
    file = io.BytesIO(content_of(record, sum(map(_size_of, leaves)), what))
    decoded = []
    for leaf in leaves:
        content = file.read(_size_of(leaf))
        if not is_message(leaf):
            decoded.append(jnp.asarray(np.frombuffer(content, leaf.dtype).reshape(leaf.shape)))
            continue
        if leaf.near is not None and reference is None:
            raise Refused(f"{what}: a difference to a vector that is not known")
        parts = jax.tree.map(jnp.asarray, leaf.codec.decode(content, leaf.dim))
        near = None if leaf.near is None else reference
        decoded.append(Message(parts, leaf.codec, leaf.dim, leaf.dtype, near))
    return jax.tree.unflatten(structure, decoded)


def check_names(order: Any) -> None:
    """Refuses names of an order that cannot be parts of a path."""
    names = [order.get("run", "a"), order.get("order", "a")]
    names += [*order.get("slots", ()), *order.get("bases", ())]
    if not all(re.fullmatch("[a-z0-9-]{1,64}", name) for name in names):
        raise Refused("an order without valid names")


def order_name(k: int, facts: Any, down: str) -> str:
    """Returns the name of an order to client k: a hash of all that the answer depends on.

    `SETTINGS` are not part of it, nor is the name itself. `down` is the digest of what is sent
    down.
    """
    named = {name: value for name, value in facts.items() if name != "order"}
    return digest_of({"order": named | {"client": k, "down": down}})[: len(NEVER)]


def digest_of(content: Any) -> str:
    """Returns a hash of all records of an order, without the `SETTINGS` in its facts."""
    digest = hashlib.sha256()
    for name in sorted(content):
        record = content[name]
        if isinstance(record, ArrayRecord):
            facts = []
            data = record[LEAVES].data
        else:
            facts = sorted((key, value) for key, value in record.items() if key not in SETTINGS)
            data = b""
        digest.update(repr((name, facts, len(data))).encode() + data)
    return digest.hexdigest()
