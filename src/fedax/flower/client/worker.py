"""The clients' side: one client with its own examples, which answers the orders of a server."""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import Array, Float, Int, PyTree

from fedax.communication.accounting import epsilon_of_gaussians
from fedax.communication.channel import is_message
from fedax.communication.privacy import system_gaussians
from fedax.core.hyper import as_arrays, bound_to
from fedax.core.task import Task
from fedax.engine.round.client import CompiledClient, Setup
from fedax.engine.round.evaluation import CompiledView
from fedax.engine.round.phase import PhaseWork, Stage, message_stages
from fedax.engine.round.privacy import private_of
from fedax.engine.round.single_client import run_single_client, single_client_task
from fedax.errors import FedaxError, InvalidInput
from fedax.examples.ragged import Population
from fedax.flower.client.disk import Outbox, Store, Version, load_secret
from fedax.flower.client.member import answer_stage
from fedax.flower.protocol.plan import Assignment, OwnModel, Plan, plan_of
from fedax.flower.protocol.records import (
    NEVER,
    Refused,
    check_names,
    digest_of,
    order_name,
    record_of,
    tree_of,
)
from fedax.utils.layout import Layout

LOG = logging.getLogger("fedax.flower")


class Worker:
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
        InvalidInput: a task with examples of several clients in one of its splits.

    >>> import fedax
    >>> from fedax.flower import Assignment, Worker
    >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0], [2.0, 3.0]])
    >>> run = Assignment(fedax.FedAvg(), fedax.SGD(0.5), fedax.Schedule())
    >>> worker = Worker(task, 1, "states", [run])  # then worker.answer(message.content)
    >>> int(worker.task.train.total)
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
        self.clients = clients or task.train.clients
        self.task = task if task.train.clients == 1 else single_client_task(task, partition)
        # sums of one client are reported with the number of all examples of a split
        for split, data in self.task.data.parts.items():
            if data.clients != 1:
                field = f"Worker(task=...), {split}"
                raise InvalidInput.found(field, f"examples of {data.clients} clients", "of one")
        self.partition = partition
        self.folder = Path(folder)
        self.secure = secure
        self.outbox = Outbox(self.folder)
        self.layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
        dtype = self.layout.dtype
        resolved = [
            given._replace(
                algorithm=as_arrays(bound_to(given.algorithm, task.names, self.clients), dtype),
                solver=as_arrays(given.solver, dtype),
            )
            for given in assignments
        ]
        self.assignments = {
            given.name(self.layout, self.clients, self.task.l2): given for given in resolved
        }
        privacies = [given.channel.privacy for given in resolved if given.channel is not None]
        self.counts = any(privacy and privacy.where == "client" for privacy in privacies)
        self._cached_plan = functools.cache(self._make_plan)

    def answer(self, content: Any) -> Any:
        """Returns the answer to an order, both records of Flower; an error is an answer as well.

        It has the text of an error of fedax. Errors of the task's own code may show examples, so
        their text stays in the client's log.
        """
        try:
            order = content["order"]
            check_names(order)
            kinds = {"hello": self._answer_hello, "work": self._work, "measure": self._measure}
            return kinds[order["kind"]](order, content)
        except Exception as error:
            LOG.warning("client %d: order refused: %r", self.partition, error)
            text = f"{type(error).__name__}, see the client's log"
            if isinstance(error, FedaxError):
                text = str(error)
            return self._answer(error=text)

    def _answer_hello(self, order: Any, content: Any) -> Any:
        sizes = {split: int(data.total) for split, data in self.task.data.parts.items()}
        return self._answer(**{"test": 0, "validation": 0} | sizes)

    def _work(self, order: Any, content: Any) -> Any:
        if "down" in content:
            digest = digest_of({"down": content["down"]})
            if order_name(self.partition, order, digest) != order["order"]:
                raise Refused("an order whose name is not that of its content")
        if "masks" not in content:
            if self.secure:
                raise Refused(
                    "an upload in the open is asked for; this client answers under masks alone"
                )
            record, facts = self._make_upload(order, content)
            return self._reply(order, facts, up=record)

        def work() -> PyTree:
            inner_content = {name: record for name, record in content.items() if name != "masks"}
            record, facts = self._make_upload(order, inner_content)
            if facts["broken"]:
                raise Refused("its upload or its memory is not finite")
            phase = self._plan_for(order).phases[order["phase"]]
            return tree_of(record, phase.up, "upload")[0]

        secret = load_secret(self.folder / "noise.key")
        facts, hidden = answer_stage(content, self.partition, self.outbox, secret, work)
        return self._reply(order, facts, **{} if hidden is None else {"up": record_of(hidden)})

    def _make_upload(self, order: Any, content: Any) -> tuple[ArrayRecord, dict[str, int]]:
        """Returns the upload that an order asks for, and facts about it. One with noise is made
        once.
        """
        private = self._plan_for(order).setup.private
        if private is not None and private.local:

            def make() -> tuple[ArrayRecord, dict[str, int]]:
                self.outbox.account.spend(private.privacy)
                return self._run_phase(order, content)

            return self.outbox.send_once("noisy", content, make)
        if self.counts:
            self.outbox.account.spend(None)
        return self._run_phase(order, content)

    def _run_phase(self, order: Any, content: Any) -> tuple[ArrayRecord, dict[str, int]]:
        """Does the work of an order and stores the memories after it."""
        plan = self._plan_for(order)
        phase = plan.phases[order["phase"]]
        down = tree_of(content["down"], phase.down, "sent down")
        states = self._load_states(order, content, phase.states)
        round = order["round"]
        occurrence = order["occurrence"]
        private = plan.setup.private
        protection: tuple[Stage, ...] = ()
        if private is not None and not private.central:
            leaves = jax.tree.leaves(phase.up[0], is_leaf=is_message)
            # the shapes before a codec
            shapes = [(leaf.dim,) if is_message(leaf) else leaf.shape for leaf in leaves]
            gaussians = system_gaussians(shapes)
            protection = (private.stage(phase.name, occurrence, gaussians=gaussians),)
        stages = message_stages(plan.setup.channel, self.clients, protection)
        root = jax.random.wrap_key_data(jnp.asarray(order["root"], jnp.uint32))
        phase_work = PhaseWork(phase.work, down, root, jnp.int32(round), occurrence, stages)
        upload, new_states, broken = self.task.programs.call(
            run_single_client, phase_work, plan.setup, states, jnp.int32(self.partition)
        )
        store = Store(self.folder / order["run"])
        if not broken:
            for name, slot, before in _versions(order, phase.states):
                if name in new_states:
                    store.keep(
                        slot,
                        Version(round, order["order"], before),
                        record_of(new_states[name]),
                        order["floor"],
                    )
        return record_of((upload.value, upload.weight)), {"broken": int(broken)}

    def _measure(self, order: Any, content: Any) -> Any:
        """Sums of the loss and of all scores over its examples, at the global model or at the one
        it uses itself.
        """
        plan = self._plan_for(order)
        if order["personal"] and plan.own is not None:
            forms = {} if plan.own.state is None else {"own": plan.own.state}
            w = self.task.programs.call(
                _personal_model,
                plan.own,
                tree_of(content["down"], plan.own.down, "sent down"),
                self._load_states(order, content, forms),
                plan.setup,
                jnp.int32(self.partition),
            )
        else:
            like = jax.ShapeDtypeStruct((self.layout.dim,), self.layout.dtype)
            w = tree_of(content["down"], like, "sent down")
        sums = self.task.programs.call(_sum_scores, plan.setup, w, order["split"])
        return self._reply(order, {}, up=record_of(sums))

    def _load_states(self, order: Any, content: Any, forms: dict[str, PyTree]) -> dict[str, PyTree]:
        """Returns the client's states of the versions that an order names."""
        return {
            name: tree_of(content[f"first {name}"], forms[name], "state")
            if version == NEVER
            else Store(self.folder / order["run"]).read(slot, version, forms[name])
            for name, slot, version in _versions(order, forms)
        }

    def _reply(self, order: Any, facts: dict[str, Any], **records: Any) -> Any:
        return RecordDict({**self._answer(order=order["order"], **facts), **records})

    def _answer(self, **facts: Any) -> RecordDict:
        return RecordDict({"answer": ConfigRecord({"partition": self.partition, **facts})})

    def _plan_for(self, order: Any) -> Plan:
        return self._cached_plan(order["assignment"], order["total"])

    def _make_plan(self, name: str, total: int) -> Plan:
        if name not in self.assignments:
            reason = "an order of a run that is not among its assignments"
            hint = (
                "Algorithm, solver, schedule, channel, model, l2 and the number of clients have to "
                "be the same at the server and at its clients, and so has the version of fedax."
            )
            raise InvalidInput.because(f"client {self.partition}", reason, hint)
        algorithm, solver, schedule, channel = self.assignments[name]
        # of the others' sizes a client knows the sum
        offsets = np.linspace(0, total, self.clients + 1).astype(np.int32)
        population = Population(offsets, self.clients, total)
        task = self.task
        if channel is not None and channel.attack is not None:
            task = channel.attack.poison(task, self.partition, self.clients)
        setup = Setup(algorithm, task, solver, schedule, self.layout, population, channel)
        return plan_of(dataclasses.replace(setup, private=private_of(setup)))

    def spent(self, delta: float) -> float:
        """Returns the epsilon that its uploads have spent, over all runs, at some delta; infinity
        if one had no noise.

        Of runs with `Privacy(where="client")`, and of all other uploads while it has such an
        assignment.
        """
        return epsilon_of_gaussians(self.outbox.account.uploads, delta)


def _versions(order: Any, names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Returns the name, the slot and the version of each state that an order is about."""
    return zip(sorted(names), order["slots"], order["bases"], strict=True)


def _personal_model(
    personal: OwnModel, down: PyTree, states: PyTree, setup: Setup, index: Int[Array, ""]
) -> Float[Array, "dim"]:
    setup = dataclasses.replace(setup, first=index)
    client = CompiledClient(setup, index)
    return personal.work(client, *down, *states.values())


def _sum_scores(setup: Setup, w: Float[Array, "dim"], split: str) -> tuple[Float[Array, ""], ...]:
    """Returns the sums of the loss and of the scores by name."""
    sums = CompiledView(setup, w).sums(split)
    return tuple(sums[name][0] for name in sorted(sums))
