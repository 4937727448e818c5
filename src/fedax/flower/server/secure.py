"""Uploads that the server sees as a sum alone (SecAgg+), for methods whose uploads are means."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedax.communication.channel import is_message
from fedax.core.federation import Cohort, Memory
from fedax.engine.round.backend import PhaseResult, PhaseWork
from fedax.errors import InvalidInput
from fedax.flower.client.member import DEAL, HIDE, KEYS, SHOW, keys_as
from fedax.flower.protocol.masks import Keys, numbers, opened, unmasked
from fedax.flower.protocol.plan import Phase
from fedax.flower.protocol.records import Refused, arrays_of, bits_sent, record_of
from fedax.flower.server.backend import ABSENT, LOG, FlowerBackend, nothing_of
from fedax.utils.layout import accumulator

FEWEST = 3
"""Clients of a sum: with two, each could tell the other's upload from it."""


class SecureBackend(FlowerBackend):
    """Four orders for a phase in place of one; see `fedax.flower.client.member`.

    Every client counts with its weight over the largest one, so that nothing under a mask is above `secure`. More than half of
    those who gave their keys have to stay until the end.

    Args:
        secure: the largest size of an entry of an upload.
        given: see `FlowerBackend`.

    Raises:
        InvalidInput: a method whose server needs single uploads, with the reason.
    """

    def __init__(self, secure: float, *given: Any) -> None:
        super().__init__(*given)
        self.secure = secure
        for name, phases in self.plan.phases.items():
            for phase in phases:
                self._check(f"{self.algorithm}.{name}", phase)
        if self.setup.private is not None and self.setup.private.central:
            reason = "privacy at the server clips single uploads, which it does not see"
            raise InvalidInput.because("Flower(secure=...)", reason, 'Choose where="client".')

    def _enough(self, orders: int) -> int | None:
        enough = super()._enough(orders)
        return None if enough is None else max(enough, FEWEST, orders // 2 + 1)

    def _check(self, place: str, phase: Phase) -> None:
        leaves = jax.tree.leaves(phase.up[0], is_leaf=is_message)
        if phase.gather:
            reason = f"{place} gathers single uploads, and there is a sum alone"
        elif phase.up[1] is not None:
            reason = f"uploads of {place} have weights of their own, which the server would have to see"
        elif any(map(is_message, leaves)):
            reason = f"uploads of {place} are coded, and codes do not add up"
        elif not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            reason = f"uploads of {place} are not all real numbers"
        else:
            return
        raise InvalidInput.because("Flower(secure=...)", reason, "Methods whose uploads are means can be summed so.")

    def _phase_of(self, phase_work: PhaseWork, cohort: Cohort, held: dict[str, Memory], gather: bool) -> PhaseResult:
        phase, places = self._phase(phase_work, held), [int(k) for k in cohort.ids]
        given = np.asarray(cohort.weights, np.float64)
        weights = {k: float(given[[place == k for place in places]].sum()) for k in dict.fromkeys(places)}
        if len(weights) < FEWEST:
            raise InvalidInput.of(
                f"{self._place(phase_work)}, its clients", len(weights), f"whole numbers >= {FEWEST} with secure=..."
            )
        sum_, there = self._sum(phase_work, phase, weights, held)
        weight = jnp.asarray(sum(weights[k] for k in there), accumulator(cohort.weights.dtype))
        broken = np.array([0 if k in there else ABSENT for k in places], np.int32)
        ids = jnp.asarray([k for k in dict.fromkeys(places) if k in there], jnp.int32)
        versions = jnp.stack([self._version(there[int(k)]) for k in ids]) if len(there) else None
        kept = {} if versions is None else {name: held[name].put(ids, versions) for name in phase.kept}
        return PhaseResult(nothing_of(phase), (sum_, weight), None, held | kept, jnp.asarray(broken))

    def _version(self, name: str) -> Any:
        return jnp.asarray(np.frombuffer(bytes.fromhex(name), np.uint8))

    def _sum(
        self, phase_work: PhaseWork, phase: Phase, weights: dict[int, float], held: dict[str, Memory]
    ) -> tuple[Any, dict[int, str]]:
        """The weighted sum of the uploads, and the names of the orders of those who are in it."""
        down, top = record_of(phase_work.down), max(weights.values()) or 1.0
        orders = {k: self._order(k, phase_work, down, held) for k in weights}
        names = {k: str(order["order"]["order"]) for k, order in orders.items()}
        session = hashlib.sha256(repr(sorted(names.items())).encode()).hexdigest()
        self._sent[0] = len(orders) * bits_sent(down)
        first = {k: {"stage": KEYS, "session": session} for k in orders}
        given = self._stage(phase_work, orders, first, _keys_of)
        keys: Keys = {k: pair for k, (pair, _) in given.items()}
        commitments = {k: commitment for k, (_, commitment) in given.items()}
        threshold = len(keys) // 2 + 1
        common = {"session": session, "threshold": threshold, "largest": self.secure}
        letters = self._stage(
            phase_work, orders, {k: {"stage": DEAL, **common, **keys_as(keys)} for k in keys}, _letters_of(keys)
        )
        keys = {k: keys[k] for k in letters}
        factors = {k: weights[k] / top for k in keys}
        asked = {k: {"stage": HIDE, **common, **keys_as(keys), "factor": factors[k]} for k in keys}
        size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(phase.up[0]))
        uploads = self._stage(phase_work, orders, asked, lambda facts, records: self._hidden(records, size), down=True)
        gone = [k for k in keys if k not in uploads]
        last = {
            k: {"stage": SHOW, **common, **keys_as(keys), "there": list(uploads), "gone": gone}
            | {"letters": [letters[j][k] for j in sorted(keys)]}
            for k in uploads
        }
        shown = self._stage(phase_work, orders, last if len(uploads) >= threshold else {}, _shares_of(keys))
        secrets = self._opened(phase_work, shown, keys, commitments, uploads, threshold)
        if len(secrets) < len(keys) or len(uploads) < self.minimum:
            LOG.warning("%s: %d uploads and %d who open them, too few", self._place(phase_work), len(uploads), len(shown))
            uploads, total = {}, np.zeros(size)
        else:
            hidden = sum(uploads.values(), np.zeros(size, np.uint64))
            total = numbers(unmasked(hidden, keys, uploads, secrets, factors), self.secure)
        self._books["answers"] += len(uploads)
        return _as_tree(top * total, phase), {k: names[k] for k in uploads}

    def _opened(
        self, phase_work: PhaseWork, shown: Any, keys: Keys, commitments: dict[int, bytes], there: Any, threshold: int
    ) -> dict[int, bytes]:
        """Returns the secrets of all members, as far as enough shares fit; members whose shares do not are named."""
        if len(shown) < threshold:
            return {}
        found = opened(shown, keys, commitments, there, threshold)
        for j, members in sorted(found.liars.items()):
            told = f"its shares of the secrets of clients {', '.join(map(str, members))} do not fit and are left out"
            LOG.warning("%s, client %d: %s", self._place(phase_work), j, told)
        for k in sorted(set(keys) - set(found.secrets)):
            LOG.warning("%s, client %d: no %d shares of its secret fit together", self._place(phase_work), k, threshold)
        return found.secrets

    def _stage(
        self, phase_work: PhaseWork, orders: dict[int, RecordDict], masks: dict[int, Any], read: Any, down: bool = False
    ) -> Any:
        """The parts read from the answers to one of the four orders; clients that do not answer are named."""
        asked = {}
        for k, facts in masks.items():
            kept = dict(orders[k]) if down else {"order": orders[k]["order"]}
            asked[k] = RecordDict({**kept, "masks": ConfigRecord(facts)})
        found, reasons = self._read(phase_work, asked, lambda k, records: read(records["answer"], records))
        self._tell(self._place(phase_work), reasons, {})
        return found

    def _hidden(self, records: Any, size: int) -> np.ndarray:
        (sent,) = arrays_of(records["up"], (jax.ShapeDtypeStruct((8 * size,), np.uint8),), "upload")
        self._sent[1] += bits_sent(records["up"])
        return sent.view(np.uint64)


def _keys_of(facts: Any, records: Any) -> tuple[tuple[bytes, bytes], bytes]:
    masks, letters = facts["keys"]
    return (bytes(masks), bytes(letters)), bytes(facts["commitment"])


def _letters_of(keys: Keys) -> Any:
    def read(facts: Any, records: Any) -> dict[int, bytes]:
        return _complete(dict(zip(facts["to"], facts["letters"], strict=True)), keys, "letters to")

    return read


def _shares_of(keys: Keys) -> Any:
    def read(facts: Any, records: Any) -> dict[int, bytes]:
        return _complete(dict(zip(facts["of"], facts["shares"], strict=True)), keys, "shares of")

    return read


def _complete(found: dict[int, bytes], keys: Keys, what: str) -> dict[int, bytes]:
    if set(found) != set(keys):
        raise Refused(f"{what} clients {sorted(found)}, expected {sorted(keys)}")
    return found


def _as_tree(total: np.ndarray, phase: Phase) -> Any:
    leaves, structure = jax.tree.flatten(phase.up[0])
    parts = np.split(total, np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1])
    wide = [jnp.asarray(part.reshape(leaf.shape), accumulator(leaf.dtype)) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, wide)
