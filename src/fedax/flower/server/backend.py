"""Backend over Flower's grid: an order to every client of a cohort, and their answers, as far as
they can be taken.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.channel import decode
from fedax.communication.privacy import derive_secret_key
from fedax.core.algorithm import Algorithm, Personal
from fedax.core.federation import Cohort, Memory, Upload
from fedax.engine.backends.python_rounds import ClientResult, PythonBackend
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import MEMORY, UPLOAD, PhaseResult, PhaseWork, to_shapes, vectors
from fedax.engine.round.trace import TracedPhase
from fedax.errors import FedaxError, InvalidInput
from fedax.flower.protocol.plan import PROTOCOL, Assignment, fits, plan_of
from fedax.flower.protocol.records import (
    Refused,
    bits_sent,
    bytes_of,
    order_name,
    record_of,
    tree_of,
)
from fedax.flower.protocol.store import NEVER
from fedax.flower.server.roster import EVALUATE, NO_MESSAGE, TRAIN, Roster, contents
from fedax.utils.layout import accumulator

LOG = logging.getLogger("fedax.flower")
ABSENT = 4
"""In place of a part that is not finite: no upload that could be taken."""


Read = TypeVar("Read")


class NoAnswer(FedaxError):
    """A client's upload is needed and is not there."""


class RemoteMemory(Memory):
    """Memories that are on the clients' disks; here are the names of the versions that count.

    Attributes:
        slot: tells it from other memories of the run.
        first: the memory that client k starts with.
    """

    in_process: ClassVar[bool] = False
    slot: str = eqx.field(static=True)
    first: Callable[[int], PyTree] = eqx.field(static=True)

    def name(self, k: int) -> str:
        """Returns the version of client k."""
        return np.asarray(self.of(k), np.uint8).tobytes().hex()

    def all(self) -> PyTree:
        raise InvalidInput.because(
            "Flower engine",
            "the clients' memories stay with them",
            "Nothing here can look at them.",
        )

    def each(self, function: Callable[[Any], Any]) -> Memory:
        return self.all()

    def _with(self, rows: PyTree) -> Memory:
        return RemoteMemory(rows, self.slot, self.first)


class FlowerBackend(PythonBackend):
    """Orders to the clients of one algorithm.

    Args:
        setup: see `Setup`.
        algorithm: the method.
        root: of the run's random streams.
        roster: the clients.
        run: a name that is the same when the run is continued.
        minimum: the fewest uploads of a phase that count.
        secret: that no client has, of the noise of privacy and, where sampling amplifies privacy,
            of the cohorts.

    Attributes:
        floor: the first round whose memories may be asked for again.
    """

    def __init__(
        self,
        setup: Setup,
        algorithm: Algorithm[Any],
        root: Key[Array, ""],
        roster: Roster,
        run: str,
        minimum: int,
        secret: bytes,
    ) -> None:
        self._secret = secret
        self.setup, self.roster, self.minimum = setup, roster, minimum
        self.algorithm, self.floor = type(algorithm).__name__, 0
        self._state_forms: dict[str, PyTree] = {}  # of one client, by slot
        self.plan = plan_of(algorithm, setup)
        self.assignment = Assignment(algorithm, setup.solver, setup.schedule, setup.channel).name(
            setup.layout
        )
        # of the run's root, not of the phase's: memories of phases in `init` are those of the
        # rounds after it
        self.run_name = run_name(
            run, self.assignment, np.asarray(jax.random.key_data(root)).tolist()
        )
        self._round, self._counts = (
            -1,
            dict.fromkeys(("answers", "refused", "absent", "message_bytes"), 0),
        )

    def noise_key(self, key: Key[Array, ""], released: PyTree) -> Key[Array, ""]:
        """See `Backend.noise_key`; from a secret, because clients know the seed.

        It depends on all that is released. With the same noise on two different sums their
        difference would be public, and with the same noise of two widths on one sum the sum itself.
        """
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(released)]
        return derive_secret_key(key, self._derive_words("noise", *leaves))

    def cohort_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """See `Backend.cohort_key`; from a secret where privacy relies on hidden cohorts, because
        clients know the seed.
        """
        private = self.setup.private
        return (
            derive_secret_key(key, self._derive_words("cohort"))
            if private is not None and private.amplified
            else key
        )

    def _derive_words(self, purpose: str, *content: bytes) -> np.ndarray:
        """Returns eight words that cannot be told without the secret, different for every purpose,
        assignment and content.
        """
        population = self.setup.population
        header = f"{purpose} {self.assignment} {population.clients} {population.total}".encode()
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        for field in (header, *content):
            digest.update(len(field).to_bytes(8, "big") + field)
        return np.frombuffer(digest.digest(), np.uint32)

    def memory(self, initial: PyTree) -> Memory:
        first = initial if callable(initial) else lambda k: initial
        versions = jnp.zeros((self.setup.population.clients, len(bytes.fromhex(NEVER))), jnp.uint8)
        slot = f"memory-{len(self._state_forms) + 1}"
        self._state_forms[slot] = to_shapes(jax.eval_shape(first, jnp.int32(0)))
        return RemoteMemory(
            versions,
            slot,
            lambda k: jax.tree.map(jnp.asarray, first(jnp.int32(k))),
        )

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        raise AssertionError("refused by the plan")

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        if int(phase_work.round) != self._round:
            self._round, self._counts = int(phase_work.round), dict.fromkeys(self._counts, 0)
        self._bits_sent = [0, 0]
        answer = self._run_phase(phase_work, cohort, client_states, gather)
        down, up = self._bits_sent
        return answer._replace(
            notes={name: np.int64(count) for name, count in self._counts.items()}, sent=(down, up)
        )

    def _run_phase(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        return super().work(phase_work, cohort, client_states, gather)

    def run_clients(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory]
    ) -> list[ClientResult]:
        ids = [int(k) for k in cohort.ids]
        phase, orders = self._make_orders(ids, phase_work, client_states)
        results = self._collect_results(phase_work, phase, orders)
        return [results[k] for k in ids]

    def _make_orders(
        self, ids: Iterable[int], phase_work: PhaseWork, client_states: dict[str, Memory]
    ) -> tuple[TracedPhase, dict[int, RecordDict]]:
        """Returns the traced phase, and the order for each client."""
        number = self._find_phase(phase_work, client_states)
        down = record_of(phase_work.down)
        orders = {
            k: self._make_order(k, phase_work, number, down, client_states)
            for k in dict.fromkeys(ids)
        }
        self._bits_sent[0] = len(orders) * bits_sent(down)
        return self.plan.phases[number], orders

    def _find_phase(self, phase_work: PhaseWork, client_states: dict[str, Any]) -> int:
        """Returns the number of a phase, by its code, the forms of its message and of the clients'
        states, and how often its name came before in the round.
        """
        down = to_shapes(phase_work.down)
        held = {name: self._state_forms[state.slot] for name, state in client_states.items()}
        candidates = [
            (phase.occurrence != phase_work.occurrence, number)
            for number, phase in enumerate(self.plan.phases)
            if fits(phase, phase_work.work, down, held)
        ]
        if candidates:
            # a later round may run a function more often than the first two
            return min(candidates)[1]
        raise InvalidInput.because(
            self._phase_name(phase_work),
            "not a phase of the first two rounds, from which the clients know what there is",
        )

    def _make_order(
        self,
        k: int,
        phase_work: PhaseWork,
        number: int,
        down: Any,
        client_states: dict[str, Memory],
    ) -> RecordDict:
        """Returns the order for one client; its name is a hash of all that the answer depends
        on.
        """
        root = np.asarray(jax.random.key_data(phase_work.root)).tolist()
        facts = self._order_facts("work", k, client_states) | {
            "work": phase_work.work.__name__,
            "phase": number,
            "round": int(phase_work.round),
            "occurrence": phase_work.occurrence,
            "root": root,
        }
        facts |= {"order": order_name(k, facts, down), "floor": self.floor}
        return self._order_records(facts, k, down, client_states)

    def _order_facts(self, kind: str, k: int, client_states: dict[str, Any]) -> dict[str, Any]:
        """Returns what all orders to client k say: the run, and the versions of its states."""
        # in the order of names, in which a client has the forms of its states
        states = [client_states[name] for name in sorted(client_states)]
        population = self.setup.population
        return {
            "version": PROTOCOL,
            "kind": kind,
            "run": self.run_name,
            "assignment": self.assignment,
            "clients": population.clients,
            "total": population.total,
            "slots": [state.slot for state in states],
            "bases": [state.name(k) for state in states],
        }

    def _order_records(
        self, facts: dict[str, Any], k: int, down: Any, client_states: dict[str, Any]
    ) -> RecordDict:
        """Returns an order with the states that the client starts with, where it has none yet."""
        first = {
            f"first {name}": record_of(state.first(k))
            for name, state in client_states.items()
            if state.name(k) == NEVER
        }
        return RecordDict({"order": ConfigRecord(facts), "down": down, **first})

    def _collect_results(
        self, phase_work: PhaseWork, phase: TracedPhase, orders: dict[int, RecordDict]
    ) -> dict[int, ClientResult]:
        phase_name = self._phase_name(phase_work)
        results, reasons = self._ask(
            orders,
            TRAIN,
            str(int(phase_work.round)),
            phase_name,
            lambda k, records: self._read_result(phase_work, phase, orders[k], records, k),
        )
        counted = [k for k, result in results.items() if not (result.broken and self.setup.drop)]
        self._counts["answers"] += len(counted)
        broken = dict.fromkeys(set(results) - set(counted), "its upload is not finite")
        self._report_left_out(phase_name, reasons, broken)
        if len(counted) < self.minimum and self.setup.drop:
            LOG.warning(
                "%s: %d uploads, fewer than %d: the round changes nothing",
                phase_name,
                len(counted),
                self.minimum,
            )
            results = {}
        absent = ClientResult(empty_upload(phase), {}, ABSENT)
        return {k: results.get(k, absent) for k in orders}

    def _quorum(self, orders: int) -> int | None:
        """Returns the number of answers to some orders after which clients that are offline are not
        waited for.

        None waits for all, where the run stops without one of them.
        """
        return self.minimum if self.setup.drop else None

    def _phase_name(self, phase_work: PhaseWork) -> str:
        return f"{self.algorithm}.{phase_work.work.__name__}, round {int(phase_work.round)}"

    def _ask(
        self,
        orders: dict[int, RecordDict],
        kind: str,
        group: str,
        phase_name: str,
        read: Callable[[int, Any], Read],
    ) -> tuple[dict[int, Read], dict[int, str]]:
        """Returns the parts read from the answers to some orders, and the reasons why there are
        none from the other clients.

        Clients that are offline are waited for until the answers are a quorum.
        """
        values: dict[int, Read] = {}
        absent: dict[int, str] = {}
        refused: dict[int, str] = {}
        received, quorum = 0, self._quorum(len(orders))
        for event in self.roster.answers(orders, kind, group, phase_name):
            if event is None:
                usable = [value for value in values.values() if not getattr(value, "broken", 0)]
                if quorum is not None and len(usable) >= quorum:
                    break
                continue
            k, answer = event
            is_lost = answer.has_error() and answer.error.code in NO_MESSAGE
            reasons = absent if is_lost else refused
            try:
                records = contents(answer)
                received += bytes_of(records)
                self._check_answers_order(orders[k], records["answer"], k)
                values[k] = read(k, records)
            except FedaxError as error:
                reasons[k] = str(error)
            except Exception as error:  # whatever an answer holds, it ends nobody else's run
                reasons[k] = f"not an answer ({error!r})"
        for k in orders.keys() - values.keys() - absent.keys() - refused.keys():
            late = f"no answer within {self.roster.deadline:g} seconds"
            absent[k] = "offline" if k in self.roster.offline else late
        if kind == TRAIN:
            self._counts["absent"] += len(absent)
            self._counts["refused"] += len(refused)
            self._counts["message_bytes"] += received + sum(map(bytes_of, orders.values()))
        return {k: values[k] for k in orders if k in values}, absent | refused

    def _check_answers_order(self, order: RecordDict, facts: Any, k: int) -> None:
        order_facts: Any = order["order"]
        if (facts["partition"], facts["order"]) != (k, order_facts["order"]):
            raise Refused(
                f"an answer of client {facts['partition']} to order {facts['order']}, "
                f"not to {order_facts['order']}"
            )

    def _report_left_out(self, name: str, reasons: dict[int, str], broken: dict[int, str]) -> None:
        """Names the clients that are left out.

        Raises:
            NoAnswer: nobody may be.
        """
        for k, reason in sorted((reasons | broken).items()):
            LOG.warning("%s, client %d: left out: %s", name, k, reason)
        if reasons and not self.setup.drop:
            details = "; ".join(f"client {k}: {reason}" for k, reason in reasons.items())
            raise NoAnswer(
                f"{name}: {details}. Once they answer, `flwr run` with the run's flower-run.toml "
                'continues this run. Only a new run with on_bad_client="drop" goes on without them.'
            )

    def _read_result(
        self, phase_work: PhaseWork, phase: TracedPhase, order: RecordDict, records: Any, k: int
    ) -> ClientResult:
        facts: Any = records["answer"]
        sent = vectors(decode(phase_work.down)[0])
        reference = None if phase.near is None else sent[phase.near]
        value, weight = tree_of(records["up"], phase.up, "upload", reference, int(facts["clipped"]))
        if weight is not None and float(weight) < 0:
            raise Refused(f"upload: its weight is {float(weight)}, expected at least 0")
        self._bits_sent[1] += bits_sent(records["up"])
        if (reported := int(facts["broken"])) not in (0, UPLOAD, MEMORY):
            raise Refused(f"upload: {reported} for what is not finite, expected 0 to {MEMORY}")
        broken = int(phase_work.broken_part((decode(value)[0], weight), {}, {})) or reported
        new_states = dict.fromkeys(phase.stored, self._version_of(order))
        return ClientResult(Upload(value, weight), new_states, broken)

    def _version_of(self, order: RecordDict) -> Array:
        """Returns the version of the states that an order makes: its name, as bytes."""
        order_facts: Any = order["order"]
        return jnp.asarray(np.frombuffer(bytes.fromhex(order_facts["order"]), np.uint8))

    def _check_count(self, k: int, split: str, count: int) -> int:
        """Returns the examples that client k has measured, which have to be those that it said it
        has.

        Raises:
            Refused: other ones.
        """
        sizes = self.roster.sizes[k]
        expected = {"train": sizes.train, "test": max(sizes.test, 0)}.get(split)
        if expected is None and not 0 <= count <= self.roster.most_examples:
            raise Refused(f"sums over {count} examples, expected 0 to {self.roster.most_examples}")
        if expected is not None and count != expected:
            raise Refused(f"sums over {count} examples, expected {expected}, which it said it has")
        return count

    def measure(
        self, down: Any, split: str, personal: Personal | None = None
    ) -> dict[str, Float[Array, "clients"]]:
        """Sums over the examples of each client, at a model sent down or at the one it uses itself.

        Returns:
            `"count"`, the number of a client's examples, and the sums of the loss and of all scores
            over them; zeros for a client that has not answered.
        """
        client_states: dict[str, Memory] = (
            {} if personal is None or personal.memory is None else {"own": personal.memory}
        )
        names, clients = sorted(["loss", *self.setup.task.scores]), self.setup.population.clients
        question = {"order": split, "split": split, "personal": personal is not None}
        record = record_of(down)
        orders = {
            k: self._order_records(
                self._order_facts("measure", k, client_states) | question, k, record, client_states
            )
            for k in range(clients)
        }
        number = jax.ShapeDtypeStruct((), accumulator(self.setup.layout.dtype))
        table = np.zeros((clients, 1 + len(names)), number.dtype)

        def read(k: int, records: Any) -> None:
            count = self._check_count(k, split, int(records["answer"]["count"]))
            sums = tree_of(records["up"], (number,) * len(names) if count else (), "sums")
            table[k, : 1 + len(sums)] = [count, *sums]

        phase_name = f"{self.algorithm}, measurement of {split}"
        _, reasons = self._ask(orders, EVALUATE, split, phase_name, read)
        self._report_left_out(phase_name, reasons, {})
        return dict(zip(["count", *names], jnp.asarray(table.T), strict=True))


def run_name(run: str, assignment: str, root: list[int]) -> str:
    """Returns the name of a run on the clients' disks."""
    return hashlib.sha256(repr((run, assignment, root)).encode()).hexdigest()[:32]


def empty_upload(phase: TracedPhase) -> Upload[Any]:
    """Returns an upload of zeros."""
    value, weight = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), phase.up)
    return Upload(value, weight)
