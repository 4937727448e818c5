"""Secure aggregation: the server learns only the sum of the uploads, not single ones.

Follows SecAgg with pairwise and personal masks and secret shares (see
`fedax.flower.protocol.masks`). A sum takes four orders to each client: KEYS (public keys), DEAL
(encrypted shares of the client's secrets for the others), HIDE (the masked upload) and SHOW (shares
that remove the masks, also those of clients that dropped out).
"""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedax.communication.channel import is_message
from fedax.core.federation import Cohort, Memory
from fedax.engine.round.backend import PhaseResult, PhaseWork
from fedax.errors import InvalidInput
from fedax.flower.client.member import DEAL, HIDE, KEYS, SHOW, keys_as
from fedax.flower.protocol.masks import Keys, from_fixed_point, open_secrets, remove_masks
from fedax.flower.protocol.plan import Phase
from fedax.flower.protocol.records import Refused, arrays_of, bits_sent, record_of
from fedax.flower.server.backend import ABSENT, LOG, FlowerBackend, empty_upload
from fedax.utils.layout import accumulator

FEWEST = 3
"""Least number of clients of a sum: with two, each could compute the other's upload."""


class SecureBackend(FlowerBackend):
    """Sends four orders for each phase, see the module's description; `fedax.flower.client.member`
    is the client's side.

    Uploads are scaled by the client's weight over the largest weight, so that no entry under a mask
    exceeds `secure`. More than half of the clients that sent their keys have to stay until the end.

    Args:
        secure: the largest absolute value of an entry of an upload.
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
            reason = (
                f"uploads of {place} have weights of their own, which the server would have to see"
            )
        elif any(map(is_message, leaves)):
            reason = f"uploads of {place} are coded, and codes do not add up"
        elif not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            reason = f"uploads of {place} are not all real numbers"
        else:
            return
        raise InvalidInput.because(
            "Flower(secure=...)", reason, "Methods whose uploads are means can be summed so."
        )

    def _phase_of(
        self, phase_work: PhaseWork, cohort: Cohort, held: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        phase, places = self._phase(phase_work, held), [int(k) for k in cohort.ids]
        given = np.asarray(cohort.weights, np.float64)
        weights = {
            k: float(given[[place == k for place in places]].sum()) for k in dict.fromkeys(places)
        }
        if len(weights) < FEWEST:
            raise InvalidInput.of(
                f"{self._place(phase_work)}, its clients",
                len(weights),
                f"whole numbers >= {FEWEST} with secure=...",
            )
        sum_, there = self._sum(phase_work, phase, weights, held)
        weight = jnp.asarray(sum(weights[k] for k in there), accumulator(cohort.weights.dtype))
        broken = np.array([0 if k in there else ABSENT for k in places], np.int32)
        ids = jnp.asarray([k for k in dict.fromkeys(places) if k in there], jnp.int32)
        versions = jnp.stack([self._version(there[int(k)]) for k in ids]) if len(there) else None
        kept = (
            {} if versions is None else {name: held[name].put(ids, versions) for name in phase.kept}
        )
        return PhaseResult(
            empty_upload(phase), (sum_, weight), None, held | kept, jnp.asarray(broken)
        )

    def _version(self, name: str) -> Any:
        return jnp.asarray(np.frombuffer(bytes.fromhex(name), np.uint8))

    def _sum(
        self,
        phase_work: PhaseWork,
        phase: Phase,
        weights: dict[int, float],
        held: dict[str, Memory],
    ) -> tuple[Any, dict[int, str]]:
        """Runs the four stages of one sum.

        Args:
            phase_work: the phase's work.
            phase: shapes and types of its messages.
            weights: each client's weight in the sum.
            held: the clients' states.

        Returns:
            The weighted sum of the uploads, and the order names of the clients in it.
        """
        down, largest_weight = record_of(phase_work.down), max(weights.values()) or 1.0
        orders = {k: self._order(k, phase_work, down, held) for k in weights}
        names = {k: str(order["order"]["order"]) for k, order in orders.items()}
        session = hashlib.sha256(repr(sorted(names.items())).encode()).hexdigest()
        self._sent[0] = len(orders) * bits_sent(down)

        keys, commitments = self._collect_keys(phase_work, orders, session)
        # a majority, so that two disjoint groups cannot both open masks
        threshold = len(keys) // 2 + 1
        session_facts = {"session": session, "threshold": threshold, "largest": self.secure}
        secure_sum = _SecureSum(phase_work, orders, session_facts, threshold)

        letters = self._deal(secure_sum, keys)
        # clients that have dealt; only they can be masked against
        keys = {k: keys[k] for k in letters}
        factors = {k: weights[k] / largest_weight for k in keys}
        size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(phase.up[0]))
        uploads = self._collect_masked(secure_sum, keys, factors, size)
        shown = self._show(secure_sum, keys, letters, uploads)
        secrets = self._open_secrets(phase_work, shown, keys, commitments, uploads, threshold)

        if len(secrets) < len(keys) or len(uploads) < self.minimum:
            LOG.warning(
                "%s: %d uploads and %d who open them, too few",
                self._place(phase_work),
                len(uploads),
                len(shown),
            )
            uploads, total = {}, np.zeros(size)
        else:
            # modulo 2^64, where pairwise masks cancel
            masked = sum(uploads.values(), np.zeros(size, np.uint64))
            total = from_fixed_point(
                remove_masks(masked, keys, uploads, secrets, factors), self.secure
            )
        self._books["answers"] += len(uploads)
        return _as_tree(largest_weight * total, phase), {k: names[k] for k in uploads}

    def _collect_keys(
        self, phase_work: PhaseWork, orders: dict[int, RecordDict], session: str
    ) -> tuple[Keys, dict[int, bytes]]:
        """Asks all clients for their public keys and the commitment to their seed (stage KEYS)."""
        answers = self._stage(
            phase_work, orders, {k: {"stage": KEYS, "session": session} for k in orders}, _read_keys
        )
        keys: Keys = {k: pair for k, (pair, _) in answers.items()}
        return keys, {k: commitment for k, (_, commitment) in answers.items()}

    def _deal(self, secure_sum: "_SecureSum", keys: Keys) -> Any:
        """Asks the clients with keys for shares of their secrets, encrypted for each other client
        (stage DEAL).

        Returns:
            For each client that has dealt, its letters by recipient.
        """
        asked = {k: {"stage": DEAL, **secure_sum.facts, **keys_as(keys)} for k in keys}
        return self._stage(
            secure_sum.phase_work, secure_sum.orders, asked, _reader(keys, "to", "letters")
        )

    def _collect_masked(
        self, secure_sum: "_SecureSum", keys: Keys, factors: dict[int, float], size: int
    ) -> Any:
        """Asks for the masked uploads, arrays (size,) of uint64 (stage HIDE)."""
        asked = {
            k: {"stage": HIDE, **secure_sum.facts, **keys_as(keys), "factor": factors[k]}
            for k in keys
        }
        # the only stage that sends the model down
        return self._stage(
            secure_sum.phase_work,
            secure_sum.orders,
            asked,
            lambda facts, records: self._read_masked(records, size),
            down=True,
        )

    def _show(self, secure_sum: "_SecureSum", keys: Keys, letters: Any, uploads: Any) -> Any:
        """Asks the clients in the sum for the shares that open its masks (stage SHOW).

        Of a client in the sum they show the share of its own mask's seed, of one that has gone the
        share of its key, never both.
        """
        parts = {"there": list(uploads), "gone": [k for k in keys if k not in uploads]}
        facts = {"stage": SHOW, **secure_sum.facts, **keys_as(keys), **parts}
        asked = {k: facts | {"letters": [letters[j][k] for j in sorted(keys)]} for k in uploads}
        if len(uploads) < secure_sum.threshold:  # too few to open the masks
            asked = {}
        return self._stage(
            secure_sum.phase_work, secure_sum.orders, asked, _reader(keys, "of", "shares")
        )

    def _open_secrets(
        self,
        phase_work: PhaseWork,
        shown: Any,
        keys: Keys,
        commitments: dict[int, bytes],
        there: Any,
        threshold: int,
    ) -> dict[int, bytes]:
        """Returns the secrets of all members, as far as enough shares fit; members whose shares do
        not are named.
        """
        if len(shown) < threshold:
            return {}
        found = open_secrets(shown, keys, commitments, there, threshold)
        for j, members in sorted(found.liars.items()):
            told = (
                f"its shares of the secrets of clients {', '.join(map(str, members))} do not "
                "fit and are left out"
            )
            LOG.warning("%s, client %d: %s", self._place(phase_work), j, told)
        for k in sorted(set(keys) - set(found.secrets)):
            LOG.warning(
                "%s, client %d: no %d shares of its secret fit together",
                self._place(phase_work),
                k,
                threshold,
            )
        return found.secrets

    def _stage(
        self,
        phase_work: PhaseWork,
        orders: dict[int, RecordDict],
        masks: dict[int, Any],
        read: Any,
        down: bool = False,
    ) -> Any:
        """Sends one of the four orders and reads the answers; clients that do not result are
        logged.

        Args:
            phase_work: the phase's work.
            orders: each client's order.
            masks: the stage's facts, by client that is asked.
            read: reads an result's facts and records.
            down: whether the order carries the model.

        Returns:
            What `read` returns, by client that answered.
        """
        asked = {}
        for k, facts in masks.items():
            kept = dict(orders[k]) if down else {"order": orders[k]["order"]}
            asked[k] = RecordDict({**kept, "masks": ConfigRecord(facts)})
        found, reasons = self._read(
            phase_work, asked, lambda k, records: read(records["answer"], records)
        )
        self._tell(self._place(phase_work), reasons, {})
        return found

    def _read_masked(self, records: Any, size: int) -> np.ndarray:
        (sent,) = arrays_of(records["up"], (jax.ShapeDtypeStruct((8 * size,), np.uint8),), "upload")
        self._sent[1] += bits_sent(records["up"])
        return sent.view(np.uint64)


class _SecureSum(NamedTuple):
    """One sum under masks.

    Attributes:
        phase_work: the phase's work.
        orders: each client's order.
        facts: what all stages after KEYS have in common: session, threshold, largest entry.
        threshold: shares that are needed to open a secret.
    """

    phase_work: PhaseWork
    orders: dict[int, RecordDict]
    facts: dict[str, Any]
    threshold: int


def _read_keys(facts: Any, records: Any) -> tuple[tuple[bytes, bytes], bytes]:
    masks, letters = facts["keys"]
    return (bytes(masks), bytes(letters)), bytes(facts["commitment"])


def _reader(keys: Keys, whom: str, what: str) -> Any:
    """Returns a function that reads letters or shares, one for each member."""

    def read(facts: Any, records: Any) -> dict[int, bytes]:
        found = dict(zip(facts[whom], facts[what], strict=True))
        if set(found) != set(keys):
            raise Refused(f"{what} {whom} clients {sorted(found)}, expected {sorted(keys)}")
        return found

    return read


def _as_tree(total: np.ndarray, phase: Phase) -> Any:
    leaves, structure = jax.tree.flatten(phase.up[0])
    parts = np.split(total, np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1])
    wide = [
        jnp.asarray(part.reshape(leaf.shape), accumulator(leaf.dtype))
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, wide)
