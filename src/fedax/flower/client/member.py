"""A client's side of a sum under masks: four orders, of which the third is the work itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import PyTree

from fedax.flower.protocol.masks import Keys, Member, PublicKeys, to_fixed_point
from fedax.flower.protocol.records import Refused, order_name
from fedax.utils.files import write, writing

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
    folder: Path,
    secret: bytes,
    work: Callable[[], tuple[PyTree, dict[str, Any]]],
) -> RecordDict:
    """Returns the answer to a stage's order.

    The keys follow from the client's own secret, the session and the order's name, which is a hash
    of all that the work depends on. The masks also depend on the members, so that an order with
    another list has other masks. The caller makes and stores the upload of a session once, and
    shares are shown for one list of members.

    Args:
        content: the order.
        partition: the client's number.
        folder: of the client, where it stores what it was asked to show.
        secret: its own.
        work: gives its upload, and facts about it.

    Raises:
        Refused: an order that is not as it should be.
    """
    order = content["order"]
    masks = content["masks"]
    name = str(order["order"])
    stage = str(masks["stage"])
    member = Member(partition, secret, f"{masks['session']} {name}")

    def reply(up: ArrayRecord | None = None, **facts: Any) -> RecordDict:
        answer = ConfigRecord({"partition": partition, "order": name, **facts})
        records: dict[str, Any] = {} if up is None else {"up": up}
        return RecordDict({"answer": answer, **records})

    if stage == KEYS:
        return reply(keys=list(member.public))
    keys = read_keys(masks)
    if stage == DEAL:
        letters = member.deal(keys, int(masks["threshold"]))
        return reply(to=list(letters), letters=list(letters.values()))
    if stage == SHOW:
        present, dropped = ([int(k) for k in masks[group]] for group in ("there", "gone"))
        if set(present) & set(dropped) or set(present) | set(dropped) != set(keys):
            raise Refused("members of whom both secrets are asked for, or none")
        _require_same_question(folder / "shown" / name, repr((sorted(present), sorted(dropped))))
        shares = member.shares(
            dict(zip(keys, masks["received"], strict=True)), keys, present, dropped
        )
        return reply(of=list(shares), shares=list(shares.values()))
    if stage != HIDE:
        raise Refused(f"no stage {stage!r}")
    if order_name(partition, order, content["down"]) != name:
        raise Refused("an order whose name is not that of its content")
    value, facts = work()
    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(value)])
    factor = float(masks["factor"])
    hidden = member.hide(to_fixed_point(factor * flat, float(masks["largest"])), keys)
    return reply(ArrayRecord({"0": Array(hidden.view(np.uint8))}), **facts)


def _require_same_question(path: Path, question: str) -> None:
    """Keeps a question, and takes no other one in its place."""
    with writing(path):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, question.encode(), 0o600)
        if path.read_text("utf-8") != question:
            raise Refused("secrets of other members than were asked for before")
