"""A grid in this process: the same messages, without a network, for trials and tests."""

import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedax.core.task import Task
from fedax.flower.protocol.plan import Assignment
from fedax.flower.protocol.quiet import need_flower
from fedax.flower.server.engine import Flower

need_flower()

from flwr.app import Message, Metadata, RecordDict  # noqa: E402

from fedax.flower.client.worker import Worker  # noqa: E402


class LocalGrid:
    """Workers as nodes 100, 101 and so on; a message is answered as soon as its answer is asked
    for.

    Args:
        workers: the clients.
    """

    is_local = True

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = {100 + i: worker for i, worker in enumerate(workers)}
        self._sent: dict[str, Message] = {}

    def make_message(
        self, node: int, content: RecordDict, kind: str, group: str, ttl: float
    ) -> Message:
        """Returns a message with a name.

        Flower's own constructor works only in processes that Flower has started.
        """
        metadata = Metadata(1, uuid.uuid4().hex, 1, node, "", group, time.time(), ttl, kind)
        make: Any = Message
        return make(content=content, metadata=metadata)

    def get_node_ids(self) -> list[int]:
        return list(self.workers)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = {message.metadata.message_id: message for message in messages}
        self._sent |= sent
        return list(sent)

    def pull(self, names: Iterable[str]) -> list[tuple[str, Message]]:
        return [
            (name, answer)
            for name in names
            if name in self._sent
            for answer in self.answers(self._sent.pop(name))
        ]

    def answers(self, message: Message) -> list[Message]:
        """Returns the answers to a message."""
        worker = self.workers[message.metadata.dst_node_id]
        return [Message(worker.answer(message.content), reply_to=message)]


def in_process(
    task: Task, folder: Path | str, assignments: Sequence[Assignment], **options: Any
) -> Flower:
    """Returns an engine whose clients all run in this process, without a network.

    Server and clients exchange the messages of a deployment, so a method that runs here also runs
    deployed.

    Args:
        task: the task with the examples of all clients.
        folder: where the clients store their states, a subfolder each.
        assignments: the runs that the clients take part in. They refuse others.
        options: of `fedax.Flower`, such as `deadline` and `minimum`.

    Raises:
        FedaxError: Flower is not installed, or another version is.

    >>> import tempfile, fedax
    >>> from fedax.flower import Assignment, in_process
    >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
    >>> solver, schedule = fedax.SGD(0.5), fedax.Schedule()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     engine = in_process(task, folder, [Assignment(fedax.FedAvg(), solver, schedule)])
    ...     history = fedax.run(
    ...         fedax.FedAvg(), task, solver=solver, schedule=schedule, engine=engine, rounds=3
    ...     )
    >>> round(float(history.params), 4)
    3.0625
    """
    workers = [
        Worker(task, k, Path(folder) / f"client-{k}", assignments)
        for k in range(task.train.clients)
    ]
    return Flower(LocalGrid(workers), **options)
