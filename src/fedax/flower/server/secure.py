"""Secure aggregation: the server learns only the sum of the uploads, not single ones.

Follows SecAgg with pairwise and personal masks and secret shares (see
`fedax.flower.protocol.masks`). A sum takes four orders to each client: KEYS (public keys), DEAL
(encrypted shares of the client's secrets for the others), HIDE (the masked upload) and SHOW (shares
that remove the masks, also those of clients that dropped out).
"""

import hashlib
from collections.abc import Callable
from typing import Any

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
    PublicKeys,
    check_public_key,
    fewest_that_open,
    from_fixed_point,
    open_secrets,
    remove_masks,
)
from fedax.flower.protocol.records import Refused, arrays_of, bits_sent
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
        for phase in self.plan.phases:
            self._check_phase(f"{self.algorithm}.{phase.name}", phase)
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
        phase_name = self._phase_name(phase_work)
        ids = [int(k) for k in cohort.ids]
        weights = dict.fromkeys(ids, 0.0)
        for k, weight in zip(ids, np.asarray(cohort.weights, np.float64), strict=True):
            weights[k] += float(weight)
        if len(weights) < FEWEST:
            allowed = f"whole numbers >= {FEWEST} with secure=..."
            raise InvalidInput.of(f"{phase_name}, its clients", len(weights), allowed)
        phase, orders = self._make_orders(weights, phase_work, client_states)
        upload_sum, present = self._sum_under_masks(phase_work, phase, weights, orders)
        weight = sum(weights[k] for k in present)
        broken = np.array([0 if k in present else ABSENT for k in ids], np.int32)
        if present:
            versions = jnp.stack([self._version_of(orders[k]) for k in present])
            summed_ids = jnp.asarray(present, jnp.int32)
            new_states = {
                name: client_states[name].put(summed_ids, versions) for name in phase.stored
            }
            client_states = client_states | new_states
        return PhaseResult(
            empty_upload(phase),
            (upload_sum, jnp.asarray(weight, accumulator(cohort.weights.dtype))),
            None,
            client_states,
            jnp.asarray(broken),
        )

    def _sum_under_masks(
        self,
        phase_work: PhaseWork,
        phase: TracedPhase,
        weights: dict[int, float],
        orders: dict[int, RecordDict],
    ) -> tuple[Any, list[int]]:
        """Runs the four stages of one sum.

        Args:
            phase_work: the phase's work.
            phase: shapes and types of its messages.
            weights: each client's weight in the sum.
            orders: the clients' orders.

        Returns:
            The weighted sum of the uploads, and the clients in it.
        """
        largest_weight = max(weights.values()) or 1.0
        size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(phase.up[0]))
        names = sorted((k, str(order["order"]["order"])) for k, order in orders.items())
        session = hashlib.sha256(repr(names).encode()).hexdigest()
        phase_name = self._phase_name(phase_work)

        def ask(stage: str, requests: dict[int, Any], read: Callable[[int, Any], Any]) -> Any:
            """Returns what `read` makes of the answers to a stage's facts, by client."""
            stage_orders = {}
            for k, facts in requests.items():
                # one stage alone sends the model down
                parts = dict(orders[k]) if stage == HIDE else {"order": orders[k]["order"]}
                masks = ConfigRecord({"stage": stage, "session": session, **facts})
                stage_orders[k] = RecordDict({**parts, "masks": masks})
            answers, reasons = self._ask(
                stage_orders, TRAIN, str(int(phase_work.round)), phase_name, read
            )
            self._report_left_out(phase_name, reasons, {})
            return answers

        # public keys
        keys = ask(KEYS, {k: {} for k in orders}, lambda k, records: _read_keys(records))
        threshold = fewest_that_open(len(keys))
        # letters with shares of the members' secrets, by sender and recipient
        facts = {"threshold": threshold, **keys_to_facts(keys)}
        letters = ask(DEAL, dict.fromkeys(keys, facts), _make_reader(keys, "to", "letters"))
        # masked uploads, arrays (size,) of uint64, of those who have dealt
        keys = {k: keys[k] for k in letters}
        facts = keys_to_facts(keys)
        requests = {
            k: facts | {"largest": self.secure, "factor": weights[k] / largest_weight} for k in keys
        }
        uploads = ask(HIDE, requests, lambda k, records: self._read_masked(records, size))
        # shares that open the masks: of a client in the sum those of its own mask's key, of one
        # that has gone those of its pairwise key, never both
        groups = {"there": list(uploads), "gone": [k for k in keys if k not in uploads]}
        requests = {
            k: facts | groups | {"received": [letters[j][k] for j in keys]}
            for k in uploads
            if len(uploads) >= threshold
        }
        shown = ask(SHOW, requests, _make_reader(keys, "of", "shares"))
        secrets = open_secrets(shown, keys, uploads, threshold) if len(shown) >= threshold else {}

        if len(secrets) < len(keys) or len(uploads) < max(self.minimum, 1):
            LOG.warning(
                "%s: the sum of %d uploads is not opened by the shares of %d: the round changes "
                "nothing",
                phase_name,
                len(uploads),
                len(shown),
            )
            return _as_tree(np.zeros(size), phase), []
        self._counts["answers"] += len(uploads)
        # modulo 2^64, where pairwise masks cancel
        masked = sum(uploads.values(), np.zeros(size, np.uint64))
        total = from_fixed_point(remove_masks(masked, keys, uploads, secrets), self.secure)
        return _as_tree(largest_weight * total, phase), list(uploads)

    def _read_masked(self, records: Any, size: int) -> np.ndarray:
        (sent,) = arrays_of(records["up"], (jax.ShapeDtypeStruct((8 * size,), np.uint8),), "upload")
        self._bits_sent[1] += bits_sent(records["up"])
        return sent.view(np.uint64)


def _read_keys(records: Any) -> Keys:
    keys = Keys(*records["answer"]["keys"])
    for key in keys:
        check_public_key(key)
    return keys


def _make_reader(keys: PublicKeys, member_field: str, value_field: str) -> Any:
    """Returns a function that reads letters or shares, one for each member."""

    def read(k: int, records: Any) -> dict[int, bytes]:
        facts = records["answer"]
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
