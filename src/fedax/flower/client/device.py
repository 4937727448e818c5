"""The clients' side: one client with its own examples, which answers the orders of a server."""

import dataclasses
import functools
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from jaxtyping import Array, Float, Int, PyTree

from fedax.communication.channel import decode, is_message
from fedax.communication.privacy import system_gaussians
from fedax.core.hyper import as_arrays
from fedax.core.task import Population, Task
from fedax.engine.round.client import Setup
from fedax.engine.round.evaluation import CompiledView
from fedax.engine.round.phase import PhaseWork, Stage
from fedax.engine.round.privacy import private_of
from fedax.engine.round.single_client import SingleClient, run_single_client, single_client_task
from fedax.engine.round.stages import message_stages
from fedax.engine.round.trace import TracedPhase
from fedax.errors import FedaxError, InvalidInput
from fedax.flower.client.member import HIDE, answer_stage
from fedax.flower.client.outbox import Outbox
from fedax.flower.protocol.plan import PROTOCOL, Assignment, OwnModel, Plan, plan_of
from fedax.flower.protocol.records import (
    Refused,
    check_names,
    order_name,
    record_of,
    tree_of,
)
from fedax.flower.protocol.store import NEVER, Store, Version
from fedax.utils.files import write, writing
from fedax.utils.layout import Layout

LOG = logging.getLogger("fedax.flower")


class RunSetup(NamedTuple):
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
        clients: how many clients the runs have; by default as many as the task. It refuses orders
            that say another number.

    Raises:
        InvalidInput: a partition that the task does not have.

    >>> import fedax
    >>> from fedax.flower import Assignment, Device
    >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0], [2.0, 3.0]])
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
        clients: int | None = None,
    ) -> None:
        self.clients = task.train.clients if clients is None else clients
        if not isinstance(partition, int) or not 0 <= partition < self.clients:
            allowed = f"whole numbers from 0 to {self.clients - 1}"
            raise InvalidInput.of("Device(partition=...)", partition, allowed)
        self.task = task if task.train.clients == 1 else single_client_task(task, partition)
        # sums of one client are reported with the number of all examples of a split
        for split in ("test", "validation"):
            data = getattr(self.task, split)
            if data is not None and data.clients != 1:
                raise InvalidInput.found(
                    f"Device(task=...), {split}", f"examples of {data.clients} clients", "of one"
                )
        self.partition = partition
        self.folder = Path(folder)
        self.secure = secure
        self.layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
        dtype = self.layout.dtype
        resolved = [
            Assignment(
                as_arrays(a.algorithm, dtype), as_arrays(a.solver, dtype), a.schedule, a.channel
            )
            for a in assignments
        ]
        self.assignments = {assignment.name(self.layout): assignment for assignment in resolved}
        privacies = [None if a.channel is None else a.channel.privacy for a in resolved]
        self.counts = any(
            privacy is not None and privacy.where == "client" for privacy in privacies
        )
        self._cached_setup = functools.cache(self._make_setup)

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
            check_names(order)
            kinds = {
                "hello": self._answer_hello,
                "work": self._work,
                "measure": self._measure,
            }
            return kinds[order["kind"]](order, content)
        except Exception as error:
            text = (
                str(error)
                if isinstance(error, FedaxError)
                else (f"{type(error).__name__}: {error}")
            )
            LOG.warning("client %d: order refused: %s", self.partition, text)
            return self._answer(error=text)

    def _answer_hello(self, order: Any, content: Any) -> Any:
        test = self.task.test
        test_size = -1 if test is None else int(test.total)
        return self._answer(train=int(self.task.train.total), test=test_size)

    def _work(self, order: Any, content: Any) -> Any:
        if "masks" in content:
            return self._work_under_masks(order, content)
        if self.secure:
            raise Refused(
                "an upload in the open is asked for; this client answers under masks alone"
            )
        return self._make_upload(order, content)

    def _work_under_masks(self, order: Any, content: Any) -> Any:
        def work() -> tuple[PyTree, dict[str, Any]]:
            inner_content = {name: record for name, record in content.items() if name != "masks"}
            reply = self._make_upload(order, inner_content)
            phase = _find_phase(self._setup_for(order).plan, order)
            facts: Any = reply["answer"]
            return tree_of(reply["up"], phase.up, "upload")[0], {
                name: facts[name] for name in ("broken", "clipped")
            }

        def answer() -> Any:
            return answer_stage(content, self.partition, self.folder, self._load_secret(), work)

        masks = content["masks"]
        if masks["stage"] != HIDE:
            return answer()
        # one content under the masks of a session: a second one would give the difference of both
        # away
        session = hashlib.sha256(str(masks["session"]).encode()).hexdigest()[:32]
        return self.outbox.send_once(f"hidden-{session}", content, answer)

    def _make_upload(self, order: Any, content: Any) -> Any:
        """Returns the reply with the upload that an order asks for. One with noise is made once."""
        run_setup = self._setup_for(order)
        private = run_setup.setup.private
        if private is None or not private.local:
            if self.counts:
                self.outbox.account.spend(None)
            return self._run_phase(run_setup, order, content)

        def make() -> Any:
            self.outbox.account.spend(private.privacy)
            return self._run_phase(run_setup, order, content)

        self._check_name(order, content)
        return self.outbox.send_once("noisy", content, make)

    def _check_name(self, order: Any, content: Any) -> None:
        if order_name(self.partition, order, content["down"]) != str(order["order"]):
            raise Refused("an order whose name is not that of its content")

    def _run_phase(self, run_setup: RunSetup, order: Any, content: Any) -> Any:
        """Does the work of an order and stores the memories after it."""
        store = Store(self.folder / order["run"])
        phase = _find_phase(run_setup.plan, order)
        down = tree_of(content["down"], phase.down, "sent down")
        names = sorted(phase.states)
        slots = dict(zip(names, order["slots"], strict=True))
        versions = dict(zip(names, order["bases"], strict=True))
        states = {
            name: self._load_state(content, store, slots[name], versions[name], name, like)
            for name, like in phase.states.items()
        }
        root = jax.random.wrap_key_data(jnp.asarray(order["root"], jnp.uint32))
        round = int(order["round"])
        occurrence, private = int(order["occurrence"]), run_setup.setup.private
        protection: tuple[Stage, ...] = ()
        if private is not None and not private.central:
            gaussians = self._draw_noise(phase) if private.local else None
            protection = private.stages(phase.name, occurrence, gaussians=gaussians)
        stages = message_stages(run_setup.assignment.channel, self.clients, protection)
        phase_work = PhaseWork(phase.work, down, root, jnp.int32(round), occurrence, stages)
        upload, new_states, broken = self.task.programs.call(
            run_single_client, phase_work, run_setup.setup, states, jnp.int32(self.partition)
        )
        if not broken:
            for name in new_states:
                store.keep(
                    slots[name],
                    Version(round, str(order["order"]), versions[name]),
                    new_states[name],
                )
                store.forget(slots[name], versions[name], int(order["floor"]))
        facts = {
            "broken": int(broken),
            "clipped": _count_clipped(upload.value),
        }
        return self._reply(order, facts, up=record_of((upload.value, upload.weight)))

    def _measure(self, order: Any, content: Any) -> Any:
        """Sums of the loss and of all scores over its examples, at the global model or at the one
        it uses itself.
        """
        run_setup = self._setup_for(order)
        split = str(order["split"])
        data = getattr(self.task, split)
        if data is None or not data.total:
            return self._reply(order, {"count": 0}, up=record_of(()))
        personal = run_setup.plan.own
        if order["personal"] and personal is not None:
            store = Store(self.folder / order["run"])
            state = None
            if personal.memory is not None:
                state = self._load_state(
                    content, store, order["slots"][0], order["bases"][0], "own", personal.memory
                )
            w = self.task.programs.call(
                _personal_model,
                personal,
                tree_of(content["down"], personal.down, "sent down"),
                state,
                run_setup.setup,
                jnp.int32(self.partition),
            )
        else:
            like = jax.ShapeDtypeStruct((self.layout.dim,), self.layout.dtype)
            w = tree_of(content["down"], like, "sent down")
        sums = self.task.programs.call(_sum_scores, run_setup.setup, w, split)
        return self._reply(order, {"count": int(data.total)}, up=record_of(sums))

    def _load_state(
        self, content: Any, store: Store, slot: str, version: str, name: str, like: PyTree
    ) -> PyTree:
        return (
            tree_of(content[f"first {name}"], like, "memory")
            if version == NEVER
            else store.read(slot, version, like)
        )

    def _reply(self, order: Any, facts: dict[str, Any], **records: Any) -> Any:
        return RecordDict({**self._answer(order=order["order"], **facts), **records})

    def _answer(self, **facts: Any) -> RecordDict:
        return RecordDict({"answer": ConfigRecord({"partition": self.partition, **facts})})

    def _setup_for(self, order: Any) -> RunSetup:
        return self._cached_setup(
            str(order["assignment"]), int(order["clients"]), int(order["total"])
        )

    def _make_setup(self, name: str, clients: int, total: int) -> RunSetup:
        if name not in self.assignments:
            reason = "an order of a run that is not among its assignments"
            hint = (
                "Algorithm, solver, schedule, channel and model have to be the same at the "
                "server and at its clients."
            )
            raise InvalidInput.because(f"client {self.partition}", reason, hint)
        if clients != self.clients:
            raise Refused(f"an order of a run with {clients} clients, expected {self.clients}")
        algorithm, solver, schedule, channel = assignment = self.assignments[name]
        # of the others' sizes a client knows the sum
        population = Population(np.linspace(0, total, clients + 1).astype(np.int32), clients, total)
        setup = Setup(self.task, solver, schedule, self.layout, population, channel)
        setup = dataclasses.replace(setup, private=private_of(algorithm, setup))
        return RunSetup(assignment, setup, plan_of(algorithm, setup))

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

    def _draw_noise(self, phase: TracedPhase) -> list[Float[Array, "..."]]:
        """Draws the noise of one message."""
        shapes = [_decoded_shape(leaf) for leaf in jax.tree.leaves(phase.up[0], is_leaf=is_message)]
        return [jnp.asarray(numbers, self.layout.dtype) for numbers in system_gaussians(shapes)]

    def _load_secret(self) -> bytes:
        """Returns the secret from which the keys of its masks are derived."""
        path = self.folder / "noise.key"
        with writing(path):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, os.urandom(32), 0o600)
            return path.read_bytes()


def _find_phase(plan: Plan, order: Any) -> TracedPhase:
    """Returns the phase that an order is of.

    Raises:
        Refused: a server with other phases.
    """
    phase = plan.phases[int(order["phase"])]
    if phase.name != order["work"]:
        raise Refused(f"phase {order['phase']} is {phase.name!r} here, not {order['work']!r}")
    return phase


def _decoded_shape(leaf: Any) -> tuple[int, ...]:
    """Returns the shape of a part of an upload, before a codec."""
    return (leaf.dim,) if is_message(leaf) else tuple(leaf.shape)


def _count_clipped(value: PyTree) -> int:
    clipped = decode(value)[1]
    return 0 if clipped is None else int(clipped)


def _personal_model(
    personal: OwnModel, down: PyTree, state: PyTree, setup: Setup, index: Int[Array, ""]
) -> Float[Array, "dim"]:
    client = SingleClient(setup, index, 0, jax.random.key(0), 0)
    return personal.work(client, *down, *(() if state is None else (state,)))


def _sum_scores(setup: Setup, w: Float[Array, "dim"], split: str) -> tuple[Float[Array, ""], ...]:
    """Returns the sums of the loss and of the scores by name."""
    sums = CompiledView(setup, w).sums(split)
    return tuple(sums[name][0] for name in sorted(sums))
