"""A client's side of a sum under masks: four orders, of which the third is the work itself."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from fedax.flower.client.disk import Outbox
from fedax.flower.protocol.masks import Keys, Member, PublicKeys, to_fixed_point
from fedax.flower.protocol.records import Refused
from fedax.utils.files import OWNER, write

KEYS = "keys"
DEAL = "deal"
HIDE = "hide"
SHOW = "show"
"""The stages: public keys; shares of secrets, in letters to the others; the upload under masks;
shares of those who are needed."""


def read_keys(record: Any) -> PublicKeys:
    """Returns the public keys of all members."""
    parts = (record[name] for name in Keys._fields)
    return {k: Keys(*keys) for k, *keys in zip(record["members"], *parts, strict=True)}


def keys_to_facts(keys: PublicKeys) -> dict[str, Any]:
    """Returns the fields of a record with the keys."""
    parts = {name: [getattr(key, name) for key in keys.values()] for name in Keys._fields}
    return {"members": list(keys), **parts}


def answer_stage(
    content: Any,
    partition: int,
    outbox: Outbox,
    secret: bytes,
    work: Callable[[], PyTree],
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Returns the answer to a stage's order: its facts, and the upload under masks.

    The keys follow from the client's own secret, the session and the order's name, which is a hash
    of all that the work depends on. The masks also depend on the members, so that an order with
    another list has other masks. The upload of a session is made and stored once, and shares are
    shown for one list of members.

    Args:
        content: the order.
        partition: the client's number.
        outbox: of the client.
        secret: its own.
        work: gives its upload.

    Raises:
        Refused: an order that is not as it should be.
    """
    masks = content["masks"]
    name = content["order"]["order"]
    member = Member(partition, secret, f"{masks['session']} {name}")
    if masks["stage"] == KEYS:
        return {"keys": list(member.public)}, None
    keys = read_keys(masks)
    if masks["stage"] == DEAL:
        letters = member.deal(keys, masks["threshold"])
        return {"letters": list(letters.values())}, None
    if masks["stage"] == SHOW:
        question = repr((sorted(keys), sorted(masks["there"])))
        _require_same_question(outbox.folder / "shown" / name, question)
        received = dict(zip(keys, masks["received"], strict=True))
        shares = member.shares(received, keys, masks["there"])
        return {"shares": list(shares.values())}, None

    def hide() -> np.ndarray:
        leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(work())]
        scaled = masks["factor"] * np.concatenate(leaves)
        return member.hide(to_fixed_point(scaled, masks["largest"]), keys)

    # one content under the masks of a session: a second one would give the difference of both away
    session = hashlib.sha256(str(masks["session"]).encode()).hexdigest()[:32]
    return {}, outbox.send_once(f"hidden-{session}", content, hide)


def _require_same_question(path: Path, question: str) -> None:
    """Keeps a question, and takes no other one in its place."""
    if not path.exists():
        write(path, question, OWNER)
    if path.read_text("utf-8") != question:
        raise Refused("secrets of other members than were asked for before")
