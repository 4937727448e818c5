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
from jax.flatten_util import ravel_pytree

from fedax.communication.channel import is_message
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.engine.round.phase import ClientResult, PhaseWork
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
from fedax.flower.protocol.records import Refused, bits_of, content_of
from fedax.flower.server.backend import LOG, FlowerBackend, NoAnswer, absent_result, new_states
from fedax.flower.server.roster import TRAIN


class SecureBackend(FlowerBackend):
    """Sends four orders for each phase, see the module's description; `fedax.flower.client.member`
    is the client's side.

    Uploads are scaled by the client's weight over the largest weight, so that no entry under a mask
    exceeds `Flower(secure=...)`. More than half of the clients that sent their keys, and at least
    three, have to stay until the end.

    Args:
        arguments: see `FlowerBackend`.

    Raises:
        InvalidInput: a method whose server needs single uploads, with the reason.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        reasons = [self._reason_against(phase) for phase in self.plan.phases]
        if self.setup.private is not None and self.setup.private.central:
            reasons.append(
                "privacy at the server clips single uploads, which it does not see: choose "
                'where="client"'
            )
        for reason in filter(None, reasons):
            hint = "Methods whose uploads are means can be summed so."
            raise InvalidInput.because("Flower(secure=...)", reason, hint)

    def _quorum(self, orders: int) -> int:
        return max(super()._quorum(orders), fewest_that_open(orders))

    def _reason_against(self, phase: TracedPhase) -> str | None:
        """Returns why the uploads of a phase cannot be summed under masks, None if they can."""
        name = f"{self.algorithm}.{phase.name}"
        leaves = jax.tree.leaves(phase.up[0], is_leaf=is_message)
        if phase.gather:
            return f"{name} gathers single uploads, and there is a sum alone"
        if phase.up[1] is not None:
            return (
                f"uploads of {name} have weights of their own, which the server would have to see"
            )
        if any(map(is_message, leaves)):
            return f"uploads of {name} are coded, and codes do not add up"
        if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            return f"uploads of {name} are not all real numbers"
        return None

    def run_clients(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, ClientStates]
    ) -> list[ClientResult]:
        """Returns the mean of the clients that stayed as the upload of each of them: it is all that
        is known, and their weighted sum is that of their uploads.
        """
        ids = [int(k) for k in cohort.ids]
        weights = dict.fromkeys(ids, 0.0)
        for k, weight in zip(ids, np.asarray(cohort.weights, np.float64), strict=True):
            weights[k] += float(weight)
        if len(weights) < FEWEST:
            allowed = f"whole numbers >= {FEWEST} with secure=..."
            field = f"{self._phase_name(phase_work)}, its clients"
            raise InvalidInput.of(field, len(weights), allowed)
        phase, orders = self._make_work_orders(weights, phase_work, client_states)
        absent = absent_result(phase)
        zeros, unravel = ravel_pytree(absent.upload.value)
        total, present = self._sum_under_masks(phase_work, weights, orders, zeros.size)
        mean = total / (sum(weights[k] for k in present) or 1.0)
        upload = Upload(unravel(jnp.asarray(mean, zeros.dtype)))
        results = {k: ClientResult(upload, new_states(phase, orders[k]), 0) for k in present}
        return [results.get(k, absent) for k in ids]

    def _sum_under_masks(
        self,
        phase_work: PhaseWork,
        weights: dict[int, float],
        orders: dict[int, RecordDict],
        size: int,
    ) -> tuple[np.ndarray, list[int]]:
        """Runs the four stages of one sum.

        Args:
            phase_work: the phase's work.
            weights: each client's weight in the sum.
            orders: the clients' orders.
            size: numbers of an upload.

        Returns:
            The weighted sum of the uploads, and the clients in it.

        Raises:
            NoAnswer: the sum is not opened, and no client may be left out.
        """
        largest_weight = max(weights.values()) or 1.0
        names = sorted((k, order["order"]["order"]) for k, order in orders.items())
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
            return self._ask(stage_orders, TRAIN, phase_name, read)

        # public keys
        keys = ask(KEYS, {k: {} for k in orders}, _read_keys)
        threshold = fewest_that_open(len(keys))
        # letters with shares of the members' secrets, by sender and recipient
        facts = {"threshold": threshold, **keys_to_facts(keys)}
        letters = ask(DEAL, dict.fromkeys(keys, facts), _make_reader(keys, "letters"))
        # masked uploads, arrays (size,) of uint64, of those who have dealt
        keys = {k: keys[k] for k in letters}
        facts = {"largest": self.engine.secure, **keys_to_facts(keys)}
        requests = {k: facts | {"factor": weights[k] / largest_weight} for k in keys}

        def read_masked(_: int, records: Any) -> np.ndarray:
            content = content_of(records["up"], 8 * size, "upload")
            self._bits_sent[1] += bits_of(records["up"])
            return np.frombuffer(content, np.uint64)

        uploads = ask(HIDE, requests, read_masked)
        # shares that open the masks: of a client in the sum those of its own mask's key, of one
        # that has gone those of its pairwise key, never both
        facts["there"] = list(uploads)
        requests = {
            k: facts | {"received": [letters[j][k] for j in keys]}
            for k in uploads
            if len(uploads) >= threshold
        }
        shown = ask(SHOW, requests, _make_reader(keys, "shares"))
        secrets = open_secrets(shown, keys, uploads, threshold) if len(shown) >= threshold else {}
        is_small = self.setup.drop and len(uploads) < self.engine.minimum
        if len(secrets) < len(keys) or is_small:
            text = f"{phase_name}: the sum of {len(uploads)} uploads is not opened by {len(shown)}"
            if not self.setup.drop:
                raise NoAnswer(text)
            LOG.warning("%s: the round changes nothing", text)
            return np.zeros(size), []
        self._counts["answers"] += len(uploads)
        # modulo 2^64, where pairwise masks cancel
        masked = sum(uploads.values(), np.zeros(size, np.uint64))
        total = from_fixed_point(remove_masks(masked, keys, uploads, secrets), self.engine.secure)
        return largest_weight * total, list(uploads)


def _read_keys(k: int, records: Any) -> Keys:
    keys = Keys(*records["answer"]["keys"])
    for key in keys:
        check_public_key(key)
    return keys


def _make_reader(keys: PublicKeys, field: str) -> Callable[[int, Any], dict[int, bytes]]:
    """Returns a function that reads letters or shares, one for each member."""

    def read(k: int, records: Any) -> dict[int, bytes]:
        values = records["answer"][field]
        if not all(isinstance(value, bytes) for value in values):
            raise Refused(f"{field} that are not bytes")
        return dict(zip(keys, values, strict=True))

    return read
