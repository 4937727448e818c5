"""Pytrees as Flower's records, and back; nothing is taken from a record whose name, shape, type or
size is not as it must be.
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
from fedax.flower.protocol.store import NEVER

HEADER = 4096
"""The most bytes that an array may have beside its numbers."""
SETTINGS = frozenset({"floor", "version"})
"""Fields of an order on which the content of the answer does not depend: which memories are still
needed, and the protocol's version. They may change before a run is resumed.
An order that is repeated then needs its old name, because under another name a client with local
privacy would make, and pay for, a second noisy message."""


class Refused(FedaxError):
    """A message that is not taken, with the reason."""


def record_of(tree: PyTree) -> ArrayRecord:
    """Returns the leaves of a pytree as arrays named by number, messages of a codec as their
    bytes.
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_message)
    return ArrayRecord({str(i): Array(_payload(leaf)) for i, leaf in enumerate(leaves)})


def _payload(leaf: Any) -> np.ndarray:
    if is_message(leaf):
        return np.frombuffer(leaf.codec.encode(leaf.parts, leaf.dim), np.uint8)
    array = np.asarray(leaf)
    # float types that NumPy's files do not know travel as their bytes
    return array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array


def arrays_of(record: Any, forms: PyTree, what: str) -> list[np.ndarray]:
    """Returns the arrays of a record, once all of them are what they must be.

    Raises:
        Refused: another number of arrays, another shape, type or size, or not-a-number of an array.
    """
    leaves = jax.tree.leaves(forms, is_leaf=is_message)
    if not isinstance(record, ArrayRecord) or list(record) != [str(i) for i in range(len(leaves))]:
        got = f"{len(record)} arrays" if isinstance(record, ArrayRecord) else "no arrays"
        raise Refused(f"{what}: {got}, expected {len(leaves)}")
    return [
        _read_array(record[str(i)], leaf, f"{what}, array {i}") for i, leaf in enumerate(leaves)
    ]


def _read_array(sent: Array, leaf: Any, what: str) -> np.ndarray:
    shape, dtype = _sent_form(leaf)
    if (tuple(sent.shape), sent.dtype) != (shape, dtype.name):
        raise Refused(
            f"{what}: {sent.dtype} of shape {tuple(sent.shape)}, expected "
            f"{dtype.name} of shape {shape}"
        )
    if len(sent.data) > (limit := math.prod(shape) * dtype.itemsize + HEADER):
        raise Refused(f"{what}: {len(sent.data)} bytes, expected at most {limit}")
    # the header of the bytes says how much memory it takes to read them
    file = io.BytesIO(sent.data)
    try:
        np.lib.format.read_magic(file)
        header_shape, _, header_dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise Refused(f"{what}: cannot be read ({error})") from error
    if (header_shape, header_dtype) != (shape, dtype):
        raise Refused(
            f"{what}: holds {header_dtype} of shape {header_shape}, expected "
            f"{dtype.name} of shape {shape}"
        )
    return sent.numpy()


def _sent_form(leaf: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and the type with which a leaf travels."""
    if is_message(leaf):
        return (-(-leaf.bits // 8),), np.dtype(np.uint8)
    dtype = np.dtype(leaf.dtype)
    if dtype.kind == "V":
        return (math.prod(leaf.shape) * dtype.itemsize,), np.dtype(np.uint8)
    return tuple(leaf.shape), dtype


def tree_of(
    record: Any, forms: PyTree, what: str, reference: Any = None, clipped: int = 0
) -> PyTree:
    """Returns the pytree in a record, messages unopened.

    Args:
        record: as it arrived.
        forms: shapes and types of the pytree.
        what: for the reason of a refusal.
        reference: the vector to which a message is the difference; None for none.
        clipped: entries that the codecs clipped; the first message that counts them has all.

    Raises:
        Refused: see `arrays_of`.
    """
    arrays = arrays_of(record, forms, what)
    leaves, structure = jax.tree.flatten(forms, is_leaf=is_message)
    decoded = []
    for array, leaf in zip(arrays, leaves, strict=True):
        if not is_message(leaf):
            decoded.append(jnp.asarray(array.view(leaf.dtype).reshape(leaf.shape)))
            continue
        if leaf.near is not None and reference is None:
            raise Refused(f"{what}: a difference to a vector that is not known")
        parts = jax.tree.map(jnp.asarray, leaf.codec.decode(array.tobytes(), leaf.dim))
        count, clipped = (None, clipped) if leaf.clipped is None else (jnp.int32(clipped), 0)
        near = None if leaf.near is None else reference
        decoded.append(Message(parts, count, leaf.codec, leaf.dim, leaf.dtype, near))
    return jax.tree.unflatten(structure, decoded)


def check_names(order: Any) -> None:
    """Refuses names of an order that cannot be parts of a path."""
    names = [order[field] for field in ("run", "order") if field in order]
    names += [name for field in ("slots", "bases") for name in order.get(field, ())]
    if not all(re.fullmatch(r"[a-z0-9-]{1,64}", name) for name in names):
        raise Refused("an order without valid names")


def order_name(k: int, facts: Any, down: ArrayRecord) -> str:
    """Returns the name of an order to client k: a hash of all that the answer depends on.

    `SETTINGS` are not part of it, nor is the name itself.
    """
    named = {name: value for name, value in facts.items() if name != "order"}
    return digest_of({"order": named | {"client": k}, "down": down})[: len(NEVER)]


def digest_of(content: Any) -> str:
    """Returns a hash of all records of an order, without the `SETTINGS` in its facts."""
    digest = hashlib.sha256()
    for name in sorted(content):
        record = content[name]
        if not isinstance(record, ArrayRecord):
            facts = sorted((key, value) for key, value in record.items() if key not in SETTINGS)
            digest.update(repr((name, facts)).encode())
            continue
        for key, array in record.items():
            form = name, key, array.dtype, tuple(array.shape), len(array.data)
            digest.update(repr(form).encode() + array.data)
    return digest.hexdigest()


def bits_sent(record: ArrayRecord) -> int:
    """Returns the bits of all numbers in a record."""
    return sum(
        8 * math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in record.values()
    )


def bytes_of(records: Any) -> int:
    """Returns the bytes of all arrays in a message, with what describes them."""
    return sum(
        len(array.data) for record in records.array_records.values() for array in record.values()
    )
