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
from fedax.engine.round.trace import TracedPhase
from fedax.errors import InvalidInput
from fedax.flower.client.member import DEAL, HIDE, KEYS, SHOW, keys_to_facts
from fedax.flower.protocol.masks import (
    FEWEST,
    Keys,
    fewest_that_open,
    from_fixed_point,
    open_secrets,
    read_public_key,
    remove_masks,
)
from fedax.flower.protocol.records import Refused, arrays_of, bits_sent, record_of
from fedax.flower.server.backend import ABSENT, LOG, FlowerBackend, empty_upload
from fedax.flower.server.roster import TRAIN
from fedax.utils.layout import accumulator


class SecureBackend(FlowerBackend):
    """Sends four orders for each phase, see the module's description; `fedax.flower.client.member`
    is the client's side.

    Uploads are scaled by the client's weight over the largest weight, so that no entry under a mask
    exceeds `secure`. More than half of the clients that sent their keys, and at least three, have
    to stay until the end.

    Args:
        secure: the largest absolute value of an entry of an upload.
        arguments: see `FlowerBackend`.

    Raises:
        InvalidInput: a method whose server needs single uploads, with the reason.
    """

    def __init__(self, secure: float, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.secure = secure
        for name, phases in self.plan.phases.items():
            for phase in phases:
                self._check_phase(f"{self.algorithm}.{name}", phase)
        if self.setup.private is not None and self.setup.private.central:
            reason = "privacy at the server clips single uploads, which it does not see"
            raise InvalidInput.because("Flower(secure=...)", reason, 'Choose where="client".')

    def _quorum(self, orders: int) -> int | None:
        quorum = super()._quorum(orders)
        return None if quorum is None else max(quorum, fewest_that_open(orders))

    def _check_phase(self, name: str, phase: TracedPhase) -> None:
        leaves = jax.tree.leaves(phase.up[0], is_leaf=is_message)
        if phase.gather:
            reason = f"{name} gathers single uploads, and there is a sum alone"
        elif phase.up[1] is not None:
            reason = (
                f"uploads of {name} have weights of their own, which the server would have to see"
            )
        elif any(map(is_message, leaves)):
            reason = f"uploads of {name} are coded, and codes do not add up"
        elif not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            reason = f"uploads of {name} are not all real numbers"
        else:
            return
        raise InvalidInput.because(
            "Flower(secure=...)", reason, "Methods whose uploads are means can be summed so."
        )

    def _run_phase(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        phase, ids = self._find_phase(phase_work, client_states), [int(k) for k in cohort.ids]
        cohort_weights = np.asarray(cohort.weights, np.float64)
        weights = {
            k: float(cohort_weights[[client_id == k for client_id in ids]].sum())
            for k in dict.fromkeys(ids)
        }
        if len(weights) < FEWEST:
            raise InvalidInput.of(
                f"{self._phase_name(phase_work)}, its clients",
                len(weights),
                f"whole numbers >= {FEWEST} with secure=...",
            )
        upload_sum, order_names = self._sum_under_masks(phase_work, phase, weights, client_states)
        weight = jnp.asarray(
            sum(weights[k] for k in order_names), accumulator(cohort.weights.dtype)
        )
        broken = np.array([0 if k in order_names else ABSENT for k in ids], np.int32)
        summed_ids = jnp.asarray([k for k in dict.fromkeys(ids) if k in order_names], jnp.int32)
        versions = (
            jnp.stack([self._version_bytes(order_names[int(k)]) for k in summed_ids])
            if len(order_names)
            else None
        )
        new_states = (
            {}
            if versions is None
            else {name: client_states[name].put(summed_ids, versions) for name in phase.stored}
        )
        return PhaseResult(
            empty_upload(phase),
            (upload_sum, weight),
            None,
            client_states | new_states,
            jnp.asarray(broken),
        )

    def _version_bytes(self, name: str) -> Any:
        return jnp.asarray(np.frombuffer(bytes.fromhex(name), np.uint8))

    def _sum_under_masks(
        self,
        phase_work: PhaseWork,
        phase: TracedPhase,
        weights: dict[int, float],
        client_states: dict[str, Memory],
    ) -> tuple[Any, dict[int, str]]:
        """Runs the four stages of one sum.

        Args:
            phase_work: the phase's work.
            phase: shapes and types of its messages.
            weights: each client's weight in the sum.
            client_states: the clients' states.

        Returns:
            The weighted sum of the uploads, and the order names of the clients in it.
        """
        down, largest_weight = record_of(phase_work.down), max(weights.values()) or 1.0
        orders = {k: self._make_order(k, phase_work, down, client_states) for k in weights}
        names = {k: str(order["order"]["order"]) for k, order in orders.items()}
        session = hashlib.sha256(repr(sorted(names.items())).encode()).hexdigest()
        self._bits_sent[0] = len(orders) * bits_sent(down)

        keys, commitments = self._collect_keys(phase_work, orders, session)
        threshold = fewest_that_open(len(keys))
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
                self._phase_name(phase_work),
                len(uploads),
                len(shown),
            )
            uploads, total = {}, np.zeros(size)
        else:
            # modulo 2^64, where pairwise masks cancel
            masked = sum(uploads.values(), np.zeros(size, np.uint64))
            total = from_fixed_point(remove_masks(masked, keys, uploads, secrets), self.secure)
        self._counts["answers"] += len(uploads)
        return _as_tree(largest_weight * total, phase), {k: names[k] for k in uploads}

    def _collect_keys(
        self, phase_work: PhaseWork, orders: dict[int, RecordDict], session: str
    ) -> tuple[Keys, dict[int, bytes]]:
        """Asks all clients for their public keys and the commitment to their seed (stage KEYS)."""
        answers = self._run_stage(
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
        requests = {k: {"stage": DEAL, **secure_sum.facts, **keys_to_facts(keys)} for k in keys}
        return self._run_stage(
            secure_sum.phase_work, secure_sum.orders, requests, _make_reader(keys, "to", "letters")
        )

    def _collect_masked(
        self, secure_sum: "_SecureSum", keys: Keys, factors: dict[int, float], size: int
    ) -> Any:
        """Asks for the masked uploads, arrays (size,) of uint64 (stage HIDE)."""
        requests = {
            k: {"stage": HIDE, **secure_sum.facts, **keys_to_facts(keys), "factor": factors[k]}
            for k in keys
        }
        # the only stage that sends the model down
        return self._run_stage(
            secure_sum.phase_work,
            secure_sum.orders,
            requests,
            lambda facts, records: self._read_masked(records, size),
            down=True,
        )

    def _show(self, secure_sum: "_SecureSum", keys: Keys, letters: Any, uploads: Any) -> Any:
        """Asks the clients in the sum for the shares that open its masks (stage SHOW).

        Of a client in the sum they show the share of its own mask's seed, of one that has gone the
        share of its key, never both.
        """
        groups = {"there": list(uploads), "gone": [k for k in keys if k not in uploads]}
        facts = {"stage": SHOW, **secure_sum.facts, **keys_to_facts(keys), **groups}
        requests = {k: facts | {"letters": [letters[j][k] for j in sorted(keys)]} for k in uploads}
        if len(uploads) < secure_sum.threshold:  # too few to open the masks
            requests = {}
        return self._run_stage(
            secure_sum.phase_work, secure_sum.orders, requests, _make_reader(keys, "of", "shares")
        )

    def _open_secrets(
        self,
        phase_work: PhaseWork,
        shown: Any,
        keys: Keys,
        commitments: dict[int, bytes],
        present: Any,
        threshold: int,
    ) -> dict[int, bytes]:
        """Returns the secrets of all members, as far as the shares give them; the others are
        named.
        """
        if len(shown) < threshold:
            return {}
        secrets = open_secrets(shown, keys, commitments, present, threshold)
        if missing := sorted(set(keys) - set(secrets)):
            names = ", ".join(map(str, missing))
            LOG.warning(
                "%s: the shares of the secrets of clients %s do not fit",
                self._phase_name(phase_work),
                names,
            )
        return secrets

    def _run_stage(
        self,
        phase_work: PhaseWork,
        orders: dict[int, RecordDict],
        requests: dict[int, Any],
        read: Any,
        down: bool = False,
    ) -> Any:
        """Sends one of the four orders and reads the answers; clients that do not answer are
        logged.

        Args:
            phase_work: the phase's work.
            orders: each client's order.
            requests: the stage's facts, by client that is asked.
            read: reads an answer's facts and records.
            down: whether the order carries the model.

        Returns:
            What `read` returns, by client that answered.
        """
        stage_orders = {}
        for k, facts in requests.items():
            order_parts = dict(orders[k]) if down else {"order": orders[k]["order"]}
            stage_orders[k] = RecordDict({**order_parts, "masks": ConfigRecord(facts)})
        name = self._phase_name(phase_work)
        replies, reasons = self._ask(
            stage_orders,
            TRAIN,
            str(int(phase_work.round)),
            name,
            lambda k, records: read(records["answer"], records),
        )
        self._report_left_out(name, reasons, {})
        return replies

    def _read_masked(self, records: Any, size: int) -> np.ndarray:
        (sent,) = arrays_of(records["up"], (jax.ShapeDtypeStruct((8 * size,), np.uint8),), "upload")
        self._bits_sent[1] += bits_sent(records["up"])
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
    for key in (masks, letters):
        read_public_key(key)
    return (masks, letters), facts["commitment"]


def _make_reader(keys: Keys, member_field: str, value_field: str) -> Any:
    """Returns a function that reads letters or shares, one for each member."""

    def read(facts: Any, records: Any) -> dict[int, bytes]:
        items = dict(zip(facts[member_field], facts[value_field], strict=True))
        if not all(isinstance(value, bytes) for value in items.values()):
            raise Refused(f"{value_field} that are not bytes")
        if set(items) != set(keys):
            raise Refused(
                f"{value_field} {member_field} clients {sorted(items)}, expected {sorted(keys)}"
            )
        return items

    return read


def _as_tree(total: np.ndarray, phase: TracedPhase) -> Any:
    leaves, structure = jax.tree.flatten(phase.up[0])
    segments = np.split(total, np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1])
    arrays = [
        jnp.asarray(segment.reshape(leaf.shape), accumulator(leaf.dtype))
        for segment, leaf in zip(segments, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)
