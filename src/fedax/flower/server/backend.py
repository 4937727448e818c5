"""Backend over Flower's grid: an order to every client of a cohort, and their answers, as far as
they can be taken.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.channel import decode
from fedax.communication.privacy import derive_secret_key
from fedax.core.algorithm import Personal
from fedax.core.federation import ClientStates, Cohort, Upload
from fedax.engine.backends.python_rounds import PythonBackend
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import (
    MEMORY,
    ClientResult,
    PhaseResult,
    PhaseWork,
    to_shapes,
    vectors,
    zeros,
)
from fedax.engine.round.trace import TracedPhase
from fedax.errors import FedaxError, InvalidInput
from fedax.flower.protocol.plan import Assignment, fits, plan_of
from fedax.flower.protocol.records import (
    NEVER,
    Refused,
    bits_of,
    digest_of,
    order_name,
    record_of,
    tree_of,
)
from fedax.flower.server.engine import Flower
from fedax.flower.server.roster import EVALUATE, NO_MESSAGE, TRAIN, contents, one_line
from fedax.utils.layout import accumulator

LOG = logging.getLogger("fedax.flower")
ABSENT = 4
"""In place of a part that is not finite: no upload that could be taken."""


LEFT_OUT = "%s, client %d: left out: %s"
Read = TypeVar("Read")


class Sums(NamedTuple):
    """Sums over each client's examples, zeros for a client that has not answered.

    Attributes:
        examples: their number.
        scores: the sums of the loss and of all scores by name.
    """

    examples: Float[Array, "clients"]
    scores: dict[str, Float[Array, "clients"]]


class NoAnswer(FedaxError):
    """An answer of a client is needed and is not there."""


class RemoteStates(ClientStates):
    """Memories that are on the clients' disks; here are the names of the versions that count.

    Attributes:
        slot: tells it from other memories of the run.
        first: the state that client k starts with.
    """

    slot: str = eqx.field(static=True)
    first: Callable[[int], PyTree] = eqx.field(static=True)

    def name(self, k: int) -> str:
        """Returns the version of client k."""
        return np.asarray(self.of(k), np.uint8).tobytes().hex()

    def all(self) -> PyTree:
        raise InvalidInput.because(
            "Flower engine",
            "the clients' states stay with them",
            "Nothing here can look at them.",
        )

    def mean(self, default: PyTree = None) -> PyTree:
        return self.all() if default is None else default

    def each(self, function: Callable[[Any], Any]) -> ClientStates:
        return self.all()

    def _with(self, rows: PyTree) -> ClientStates:
        return RemoteStates(rows, self.slot, self.first)


class FlowerBackend(PythonBackend):
    """Orders to the clients of one algorithm.

    Args:
        setup: see `Setup`.
        root: of the run's random streams.
        engine: the roster of the clients, and the options of the run.

    Attributes:
        floor: the first round whose memories may be asked for again.
    """

    def __init__(self, setup: Setup, root: Key[Array, ""], engine: Flower) -> None:
        self.setup = setup
        self.engine = engine
        self.algorithm = type(setup.algorithm).__name__
        self.floor = 0
        self._slots = 0
        self.plan = plan_of(setup)
        assignment = Assignment(setup.algorithm, setup.solver, setup.schedule, setup.channel)
        self.assignment = assignment.name(setup.layout, setup.population.clients, setup.task.l2)
        run = engine.run, self.assignment, jax.random.key_data(root).tolist()
        self.run_name = hashlib.sha256(repr(run).encode()).hexdigest()[:32]
        self._round = -1
        self._counts = dict.fromkeys(("answers", "refused", "absent"), np.int64(0))

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
        if private is None or not private.amplified:
            return key
        return derive_secret_key(key, self._derive_words("cohort"))

    def _derive_words(self, purpose: str, *content: bytes) -> np.ndarray:
        """Returns eight words that cannot be told without the secret, different for every purpose,
        assignment and content.
        """
        header = f"{purpose} {self.assignment} {self.setup.population.total}".encode()
        digest = hmac.new(self.engine.secret, digestmod=hashlib.sha256)
        for field in (header, *content):
            digest.update(len(field).to_bytes(8, "big") + field)
        return np.frombuffer(digest.digest(), np.uint32)

    def client_states(self, initial: PyTree) -> ClientStates:
        first = initial if callable(initial) else lambda k: initial
        versions = jnp.zeros((self.setup.population.clients, len(NEVER) // 2), jnp.uint8)
        self._slots += 1
        slot = f"state-{self._slots}"
        return RemoteStates(
            versions, slot, lambda k: jax.tree.map(jnp.asarray, first(jnp.int32(k)))
        )

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates], gather: bool
    ) -> PhaseResult:
        if int(phase_work.round) != self._round:
            self._round = int(phase_work.round)
            self._counts = dict.fromkeys(self._counts, np.int64(0))
        self._bits_sent = [0, 0]
        answer = super().work(phase_work, cohort, states, gather)
        name = self._phase_name(phase_work)
        LOG.info("%s: %d answers of this round", name, self._counts["answers"])
        return answer._replace(logged=dict(self._counts), sent=tuple(self._bits_sent))

    def run_clients(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates]
    ) -> list[ClientResult]:
        ids = [int(k) for k in cohort.ids]
        phase, orders = self._make_work_orders(ids, phase_work, states)
        phase_name = self._phase_name(phase_work)
        reference = None
        if phase.near is not None:
            reference = vectors(decode(phase_work.down))[phase.near]

        def read(k: int, records: Any) -> ClientResult:
            value, weight = tree_of(records["up"], phase.up, "upload", reference)
            if weight is not None and weight < 0:
                raise Refused(f"upload: its weight is {weight}, expected at least 0")
            self._bits_sent[1] += bits_of(records["up"])
            broken = int(phase_work.broken_part((decode(value), weight), {}, {}))
            # what the server cannot see: a state that is not finite
            broken = broken or (MEMORY if records["answer"]["broken"] else 0)
            return ClientResult(Upload(value, weight), new_states(phase, orders[k]), broken)

        results = self._ask(orders, TRAIN, phase_name, read)
        counted = len(results)
        if self.setup.drop:
            broken = [k for k, result in results.items() if result.broken]
            for k in broken:
                LOG.warning(LEFT_OUT, phase_name, k, "its upload is not finite")
            counted -= len(broken)
            if counted < self.engine.minimum:
                text = "%s: %d uploads, fewer than %d: the round changes nothing"
                LOG.warning(text, phase_name, counted, self.engine.minimum)
                results = {}
        self._counts["answers"] += counted
        return [results.get(k, absent_result(phase)) for k in ids]

    def _make_work_orders(
        self, ids: Iterable[int], phase_work: PhaseWork, states: dict[str, ClientStates]
    ) -> tuple[TracedPhase, dict[int, RecordDict]]:
        """Returns the traced phase, and the order for each client."""
        number = self._find_phase(phase_work, states)
        facts = {
            "kind": "work",
            "phase": number,
            "round": int(phase_work.round),
            "occurrence": phase_work.occurrence,
            "root": jax.random.key_data(phase_work.root).tolist(),
        }
        orders = self._make_orders(ids, facts, phase_work.down, states)
        self._bits_sent[0] = sum(bits_of(order["down"]) for order in orders.values())
        return self.plan.phases[number], orders

    def _find_phase(self, phase_work: PhaseWork, states: dict[str, Any]) -> int:
        """Returns the number of a phase, by its code and what it has bound, the forms of its
        message and of the clients' states, and how often its name came before in the round.
        """
        down = to_shapes(phase_work.down)
        held = {
            name: to_shapes(jax.eval_shape(state.first, jnp.int32(0)))
            for name, state in states.items()
        }
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
            "A value that changes from round to round must be an argument of the work function.",
        )

    def _make_orders(
        self,
        ids: Iterable[int],
        facts: dict[str, Any],
        down: PyTree,
        client_states: dict[str, Any],
    ) -> dict[int, RecordDict]:
        """Returns the orders to some clients: `facts`, the run, and the versions of their states,
        or the states themselves where a client has none yet.

        The name of an order is a hash of all that the answer depends on.
        """
        record = record_of(down)
        digest = digest_of({"down": record})
        # in the order of names, in which a client has the forms of its states
        states = dict(sorted(client_states.items()))
        facts = facts | {
            "run": self.run_name,
            "assignment": self.assignment,
            "total": self.setup.population.total,
            "slots": [state.slot for state in states.values()],
            "floor": self.floor,
        }
        orders = {}
        for k in ids:
            own = facts | {"bases": [state.name(k) for state in states.values()]}
            own["order"] = order_name(k, own, digest)
            first = {
                f"first {name}": record_of(state.first(k))
                for name, state in states.items()
                if state.name(k) == NEVER
            }
            orders[k] = RecordDict({"order": ConfigRecord(own), "down": record, **first})
        return orders

    def _quorum(self, orders: int) -> int:
        """Returns the number of answers to some orders after which clients that are offline are not
        waited for, where the run goes on without them.
        """
        return self.engine.minimum

    def _phase_name(self, phase_work: PhaseWork) -> str:
        return f"{self.algorithm}.{phase_work.name}, round {int(phase_work.round)}"

    def _ask(
        self,
        orders: dict[int, RecordDict],
        kind: str,
        phase_name: str,
        read: Callable[[int, Any], Read],
    ) -> dict[int, Read]:
        """Returns what `read` makes of the answers to some orders, by client. Names the clients
        that are left out.

        Raises:
            NoAnswer: nobody may be.
        """
        values: dict[int, Read] = {}
        reasons: dict[int, str] = {}
        absent = set[int]()
        roster = self.engine.roster
        for event in roster.answers(orders, kind, phase_name):
            if event is None:
                usable = [value for value in values.values() if not getattr(value, "broken", 0)]
                if self.setup.drop and len(usable) >= self._quorum(len(orders)):
                    break
                continue
            k, answer = event
            if answer.has_error() and answer.error.code in NO_MESSAGE:
                absent.add(k)
            try:
                records = contents(answer)
                facts = records["answer"]
                name = orders[k]["order"]["order"]
                if (facts["partition"], facts["order"]) != (k, name):
                    raise Refused(
                        f"an answer of client {facts['partition']} to order {facts['order']}, "
                        f"not to {name}"
                    )
                values[k] = read(k, records)
            except FedaxError as error:
                reasons[k] = one_line(error)
            except Exception as error:  # whatever an answer holds, it ends nobody else's run
                reasons[k] = f"not an answer ({error!r})"
        for k in orders.keys() - values.keys() - reasons.keys():
            late = f"no answer within {self.engine.deadline:g} seconds"
            reasons[k] = "offline" if k in roster.offline else late
            absent.add(k)
        if kind == TRAIN:
            self._counts["absent"] += len(absent)
            self._counts["refused"] += len(reasons) - len(absent)
        for k in sorted(reasons):
            LOG.warning(LEFT_OUT, phase_name, k, reasons[k])
        if reasons and not self.setup.drop:
            details = "; ".join(f"client {k}: {reason}" for k, reason in reasons.items())
            raise NoAnswer(
                f"{phase_name}: {details}. Once they answer, `flwr run` with the run's settings, "
                'runs/NAME.toml, continues this run. Only a new run with on_bad_client="drop" '
                "goes on without them."
            )
        return {k: values[k] for k in orders if k in values}

    def measure(self, down: Any, split: str, personal: Personal | None = None) -> Sums:
        """Sums over the examples of each client, at a model sent down or at the one it uses itself.

        Raises:
            NoAnswer: none has, or one is missing that may not be.
        """
        sizes = [getattr(client_sizes, split) for client_sizes in self.engine.sizes]
        client_states: dict[str, ClientStates] = (
            {} if personal is None or personal.states is None else {"own": personal.states}
        )
        names = sorted(["loss", *self.setup.task.scores])
        number = jax.ShapeDtypeStruct((), accumulator(self.setup.layout.dtype))
        facts = {"kind": "measure", "split": split, "personal": personal is not None}
        asked = [k for k, size in enumerate(sizes) if size]
        orders = self._make_orders(asked, facts, down, client_states)

        def read(k: int, records: Any) -> list[Any]:
            values = tree_of(records["up"], (number,) * len(names), "sums")
            if self.setup.drop and not np.isfinite(values).all():
                raise Refused("sums that are not finite")
            return [sizes[k], *values]

        phase_name = f"{self.algorithm}, measurement of {split}"
        sums = self._ask(orders, EVALUATE, phase_name, read)
        if orders and not sums:
            raise NoAnswer(f"{phase_name}: no client has answered")
        rows = [sums.get(k, [0] * (1 + len(names))) for k in range(len(sizes))]
        table = jnp.asarray(np.array(rows, number.dtype).T)
        return Sums(table[0], dict(zip(names, table[1:], strict=True)))


def new_states(phase: TracedPhase, order: Any) -> dict[str, PyTree]:
    """Returns the version of the states that an order makes: its name, as bytes."""
    version = np.frombuffer(bytes.fromhex(order["order"]["order"]), np.uint8)
    return dict.fromkeys(phase.stored, jnp.asarray(version))


def absent_result(phase: TracedPhase) -> ClientResult:
    """Returns the result of a client that has not answered: zeros that do not count."""
    return ClientResult(Upload(*zeros(phase.up)), {}, ABSENT)
