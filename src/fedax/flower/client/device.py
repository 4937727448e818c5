"""The clients' side: one client with its own examples, which answers the orders of a server."""

import dataclasses
import functools
import hashlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedax.communication.channel import decode, is_message, is_vector
from fedax.communication.privacy import system_gaussians
from fedax.core.hyper import as_arrays
from fedax.core.task import Population, Task
from fedax.engine.round.backend import PhaseWork
from fedax.engine.round.client import Setup
from fedax.engine.round.evaluation import CompiledView
from fedax.engine.round.privacy import private_of
from fedax.engine.round.single_client import SingleClient, run_single_client, single_client_task
from fedax.errors import FedaxError, InvalidInput
from fedax.flower.client.member import HIDE, stage_of
from fedax.flower.client.outbox import Outbox
from fedax.flower.protocol.plan import PROTOCOL, Assignment, Own, Phase, Plan, plan_of
from fedax.flower.protocol.records import (
    Refused,
    arrays_of,
    bytes_sent,
    order_name,
    record_of,
    tree_of,
)
from fedax.flower.protocol.store import NEVER, Store, Version
from fedax.utils.files import write, writing
from fedax.utils.layout import Layout

LOG = logging.getLogger("fedax.flower")


class Known(NamedTuple):
    """An assignment in a federation of some size."""

    assignment: Assignment
    setup: Setup
    plan: Plan


class Device:
    """A client that answers the messages of a server with work on its examples.

    Nothing about the examples leaves the client but their number, and the uploads of the method.
    All states are files in a folder, so an answer depends on the message and that folder alone. You
    can start a new process for every message, or use one for all.

    With `Privacy(where="client")` the noise comes from the operating system, new for every message.
    A message with noise or under masks is stored before it is sent and answers its order if that
    comes again. `account.json` counts the uploads by their noise, over all runs, and an upload that
    would exceed the budget is refused.

    Args:
        task: the task, with the examples of all clients, or with those of this client alone.
        partition: the client's number, from 0.
        folder: where the client stores its states.
        assignments: the runs that it takes part in. It refuses messages of other runs.
        secure: whether it only answers under masks, which hide its uploads from the server.

    Raises:
        InvalidInput: a partition that the task does not have.

    >>> import fedax
    >>> from fedax.flower import Assignment, Device
    >>> task = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2, 0.0, clients=[[1.0], [2.0, 3.0]])
    >>> run = Assignment(fedax.FedAvg(), fedax.SGD(0.5), fedax.Schedule())
    >>> device = Device(task, 1, "states", [run])  # then device.answer(message.content)
    >>> int(device.task.train.total)
    2
    """

    def __init__(
        self,
        task: Task,
        partition: int,
        folder: Path | str,
        assignments: Sequence[Assignment],
        secure: bool = False,
    ) -> None:
        clients = task.train.clients
        if not isinstance(partition, int) or partition < 0 or 1 < clients <= partition:
            most = (
                f"whole numbers from 0 to {clients - 1}"
                if clients > 1
                else ("whole numbers from 0")
            )
            raise InvalidInput.of("Device(partition=...)", partition, most)
        self.task = task if clients == 1 else single_client_task(task, partition)
        # sums of one client are reported with the number of all examples of a split
        for split in ("test", "validation"):
            data = getattr(self.task, split)
            if data is not None and data.clients != 1:
                raise InvalidInput.found(
                    f"Device(task=...), {split}", f"examples of {data.clients} clients", "of one"
                )
        self.partition, self.folder, self.secure = partition, Path(folder), secure
        self.layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
        dtype = self.layout.dtype
        ready = [
            Assignment(
                as_arrays(a.algorithm, dtype), as_arrays(a.solver, dtype), a.schedule, a.channel
            )
            for a in assignments
        ]
        self.assignments = {assignment.name(self.layout): assignment for assignment in ready}
        privacies = [None if a.channel is None else a.channel.privacy for a in ready]
        self.counts = any(each is not None and each.where == "client" for each in privacies)
        self._known = functools.cache(self._make_known)

    def answer(self, content: Any) -> Any:
        """Returns the answer to an order, both records of Flower; an error is an answer as well,
        with its text.
        """
        try:
            order = content["order"]
            if order["version"] != PROTOCOL:
                raise FedaxError(
                    f"an order of protocol {order['version']}; this client has {PROTOCOL}"
                )
            kinds = {"hello": self._hello, "work": self._timed_work, "measure": self._measure}
            return kinds[order["kind"]](order, content)
        except Exception as error:
            text = (
                str(error)
                if isinstance(error, FedaxError)
                else (f"{type(error).__name__}: {error}")
            )
            LOG.warning("client %d: order refused: %s", self.partition, text)
            return self._answer(error=text)

    def _hello(self, order: Any, content: Any) -> Any:
        test = self.task.test
        held = -1 if test is None else int(test.total)
        return self._answer(train=int(self.task.train.total), test=held)

    def _timed_work(self, order: Any, content: Any) -> Any:
        """Returns the answer to an order of work, with when it was received and how long it took.

        Stages of sums under masks are not timed.
        """
        received, begun = time.time(), time.perf_counter()
        reply = self._work(order, content)
        if "masks" not in content:
            seconds = time.perf_counter() - begun
            reply["timing"] = ConfigRecord({"received": received, "seconds": seconds})
        return reply

    def _work(self, order: Any, content: Any) -> Any:
        if "masks" in content:
            return self._under_masks(order, content)
        if self.secure:
            raise Refused(
                "an upload in the open is asked for; this client answers under masks alone"
            )
        reply = self._upload(order, content)
        if 0 < (most := int(order["largest"])) < (size := bytes_sent(reply["up"])):
            raise Refused(f"an upload of {size} bytes, the server takes {most}")
        return reply

    def _under_masks(self, order: Any, content: Any) -> Any:
        def work() -> tuple[PyTree, dict[str, Any]]:
            plain = {name: record for name, record in content.items() if name != "masks"}
            reply = self._upload(order, plain)
            phase = _phase_for(self._of(order).plan, str(order["work"]), content["down"])
            facts: Any = reply["answer"]
            return tree_of(reply["up"], phase.up, "upload")[0], {
                name: facts[name] for name in ("broken", "near", "clipped")
            }

        def answer() -> Any:
            return stage_of(content, self.partition, self.folder, self._secret_bytes(), work)

        masks = content["masks"]
        if masks["stage"] != HIDE:
            return answer()
        # one content under the masks of a session: a second one would give the difference of both
        # away
        session = hashlib.sha256(str(masks["session"]).encode()).hexdigest()[:32]
        return self.outbox.once(f"hidden-{session}", content, answer)

    def _upload(self, order: Any, content: Any) -> Any:
        """Returns the reply with the upload that an order asks for. One with noise is made once."""
        known = self._of(order)
        private = known.setup.private
        if private is None or not private.local:
            if self.counts:
                self.outbox.account.spend(None)
            return self._made(known, order, content)

        def make() -> Any:
            self.outbox.account.spend(private.privacy)
            return self._made(known, order, content)

        self._check_name(order, content)
        return self.outbox.once("noisy", content, make)

    def _check_name(self, order: Any, content: Any) -> None:
        if order_name(self.partition, order, content["down"]) != str(order["order"]):
            raise Refused("an order whose name is not that of its content")

    def _made(self, known: Known, order: Any, content: Any) -> Any:
        """Does the work of an order and stores the memories after it."""
        store = Store(self.folder, str(order["run"]))
        phase = _phase_for(known.plan, str(order["work"]), content["down"])
        down = tree_of(content["down"], phase.down, "sent down")
        slots, bases = dict(zip(phase.held, order["slots"])), dict(zip(phase.held, order["bases"]))
        rows = {
            name: self._memory(content, store, slots[name], bases[name], name, like)
            for name, like in phase.held.items()
        }
        root, round = (
            jax.random.wrap_key_data(jnp.asarray(order["root"], jnp.uint32)),
            int(order["round"]),
        )
        codec = None if known.assignment.channel is None else known.assignment.channel.up
        phase_work = PhaseWork(
            phase.work, down, codec, root, jnp.int32(round), int(order["occurrence"])
        )
        if known.setup.private is not None and not known.setup.private.central:
            phase_work = known.setup.private.protect(
                phase_work, None, self._gaussians(phase) if known.setup.private.local else None
            )
        upload, kept, broken = run_single_client(
            phase_work, known.setup, rows, jnp.int32(self.partition)
        )
        if not broken:
            for name in kept:
                store.keep(
                    slots[name], Version(round, str(order["order"]), bases[name]), kept[name]
                )
                store.forget(slots[name], bases[name], int(order["floor"]))
        facts = {
            "broken": int(broken),
            "near": _near(upload.value, down),
            "clipped": _clipped(upload.value),
        }
        return self._reply(order, facts, up=record_of((upload.value, upload.weight)))

    def _measure(self, order: Any, content: Any) -> Any:
        """Sums of the loss and of all scores over its examples, at the global model or at the one
        it uses itself.
        """
        known, split = self._of(order), str(order["split"])
        data = getattr(self.task, split)
        if data is None or not data.total:
            return self._reply(order, {"count": 0}, up=record_of(()))
        own = known.plan.own
        if order["personal"] and own is not None:
            store = Store(self.folder, str(order["run"]))
            memory = None
            if own.memory is not None:
                memory = self._memory(
                    content, store, order["slots"][0], order["bases"][0], "own", own.memory
                )
            w = _own_model(
                own,
                tree_of(content["down"], own.down, "sent down"),
                memory,
                known.setup,
                jnp.int32(self.partition),
            )
        else:
            like = jax.ShapeDtypeStruct((self.layout.dim,), self.layout.dtype)
            w = tree_of(content["down"], like, "sent down")
        return self._reply(
            order, {"count": int(data.total)}, up=record_of(_sums(known.setup, w, split))
        )

    def _memory(
        self, content: Any, store: Store, slot: str, base: str, name: str, like: PyTree
    ) -> PyTree:
        return (
            tree_of(content[f"first {name}"], like, "memory")
            if base == NEVER
            else store.read(slot, base, like)
        )

    def _reply(self, order: Any, facts: dict[str, Any], **records: Any) -> Any:
        return RecordDict({**self._answer(order=order["order"], **facts), **records})

    def _answer(self, **facts: Any) -> RecordDict:
        return RecordDict({"answer": ConfigRecord({"partition": self.partition, **facts})})

    def _of(self, order: Any) -> Known:
        return self._known(str(order["assignment"]), int(order["clients"]), int(order["total"]))

    def _make_known(self, name: str, clients: int, total: int) -> Known:
        if name not in self.assignments:
            reason = "an order of a run that is not among its assignments"
            hint = (
                "Algorithm, solver, schedule, channel and model have to be the same at the "
                "server and at its clients."
            )
            raise InvalidInput.because(f"client {self.partition}", reason, hint)
        algorithm, solver, schedule, channel = assignment = self.assignments[name]
        # of the others' sizes a client knows the sum
        population = Population(np.linspace(0, total, clients + 1).astype(np.int32), clients, total)
        setup = Setup(self.task, solver, schedule, self.layout, population, channel)
        setup = dataclasses.replace(setup, private=private_of(algorithm, setup))
        return Known(assignment, setup, plan_of(algorithm, setup))

    @functools.cached_property
    def outbox(self) -> Outbox:
        """The messages that it makes once, and the account of its privacy."""
        return Outbox(self.folder)

    def spent(self, delta: float) -> float:
        """Returns the epsilon that its uploads have spent, over all runs, at some delta; infinity
        if one had no noise.

        Of runs with `Privacy(where="client")`, and of all other uploads while it has such an
        assignment.
        """
        return self.outbox.account.epsilon(delta)

    def _gaussians(self, phase: Phase) -> list[Float[Array, "..."]]:
        """Draws the noise of one message."""
        shapes = [_opened_shape(leaf) for leaf in jax.tree.leaves(phase.up[0], is_leaf=is_message)]
        return [jnp.asarray(numbers, self.layout.dtype) for numbers in system_gaussians(shapes)]

    def _secret_bytes(self) -> bytes:
        """Returns the secret from which the keys of its masks are derived."""
        path = self.folder / "noise.key"
        with writing(path):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, os.urandom(32), 0o600)
            return path.read_bytes()


def _phase_for(plan: Plan, work: str, record: Any) -> Phase:
    """Returns the phase that an order is of: by the name of its work function, and by the number
    and shapes of its arrays.
    """
    if work not in plan.phases:
        raise Refused(f"no work function {work!r}; there are {', '.join(sorted(plan.phases))}")
    *others, last = plan.phases[work]
    for phase in others:
        try:
            arrays_of(record, phase.down, "sent down")
        except Refused:
            continue
        return phase
    return last


def _opened_shape(leaf: Any) -> tuple[int, ...]:
    """Returns the shape of a part of an upload, before a codec."""
    return (leaf.dim,) if is_message(leaf) else tuple(leaf.shape)


def _near(value: PyTree, down: PyTree) -> list[int]:
    """Returns for each message that is a difference which received vector it is a difference to."""
    vectors = [leaf for leaf in jax.tree.leaves(decode(down)[0]) if is_vector(leaf)]
    found = []
    for leaf in jax.tree.leaves(value, is_leaf=is_message):
        if is_message(leaf) and leaf.near is not None:
            same = [
                i
                for i, vector in enumerate(vectors)
                if vector.shape == leaf.near.shape and _equal(vector, leaf.near)
            ]
            if not same:
                reason = (
                    "a reference that is none of the vectors it was sent, so that the "
                    "server cannot know it"
                )
                raise InvalidInput.because("Upload(reference=...)", reason)
            found.append(same[0])
    return found


def _equal(a: Float[Array, "dim"], b: Float[Array, "dim"]) -> Bool[Array, ""]:
    return jnp.array_equal(a, b, equal_nan=True)


def _clipped(value: PyTree) -> int:
    clipped = decode(value)[1]
    return 0 if clipped is None else int(clipped)


@eqx.filter_jit
def _own_model(
    own: Own, down: PyTree, memory: PyTree, setup: Setup, index: Int[Array, ""]
) -> Float[Array, "dim"]:
    client = SingleClient(setup, index, 0, jax.random.key(0), 0)
    return own.work(client, *down, *(() if memory is None else (memory,)))


@eqx.filter_jit
def _sums(setup: Setup, w: Float[Array, "dim"], split: str) -> tuple[Float[Array, ""], ...]:
    """Returns the sums of the loss and of the scores by name."""
    sums = CompiledView(setup, w).sums(split)
    return tuple(sums[name][0] for name in sorted(sums))
