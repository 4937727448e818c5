"""The nodes that are there, and the client that each of them is."""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from fedax.core.hyper import MOST_COUNT
from fedax.errors import FedaxError, printable, short
from fedax.flower.server.engine import Flower

LOG = logging.getLogger("fedax.flower")
PAUSES = 0.02, 0.5
"""Seconds between two looks for answers: at first, and at most."""
AGAIN = 2.0
HELLO = 300.0
REFUSED = 10.0
"""Seconds until a node that was gone is looked for again, for the answer of a new one, and until a
refused one is asked again."""
PULL = 1.0
"""Seconds to wait for answers that are being pulled, before the next look."""
NOTICES = 5.0, 60.0
"""Seconds until the wait for clients at the start is logged, and until it is logged again."""
NODE_UNAVAILABLE = 5
"""Flower's error of a node that is gone."""
NO_MESSAGE = 3, 4
"""Flower's errors of an order or an answer that has expired: a ClientApp that crashed, for
example."""
TRAIN = "train"
EVALUATE = "evaluate"
QUERY = "query"


class ClientsMissing(FedaxError):
    """Some clients did not come in time."""


class Sizes(NamedTuple):
    """Examples of a client by split, 0 where it has none."""

    train: int
    test: int
    validation: int

    def __str__(self) -> str:
        return f"{self.train} training, {self.test} test and {self.validation} validation examples"


class Link:
    """Messages over a grid of Flower. Every answer is pulled in its own thread.

    Flower waits for the missing parts of an answer, for three minutes after the last one. A client
    that sends half an answer would hold up those of all others if they were pulled together.

    Args:
        grid: of Flower.
    """

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self._pulls: dict[str, Future[list[Message]]] = {}

    def make_message(
        self, node: int, content: RecordDict, kind: str, group: str, ttl: float
    ) -> Message:
        """Returns a message to a node."""
        return Message(content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=group)

    def pull(self, names: Collection[str]) -> list[tuple[str, Message]]:
        """Returns the answers that are complete by now, each with the message that it answers.

        What an answer itself says of that comes from the client.

        Raises:
            httpx.HTTPError: the server cannot be reached.
        """
        import httpx

        for name in names:
            if name not in self._pulls:
                self._pulls[name] = Future()
                threading.Thread(target=self._pull, args=(name,), daemon=True).start()
        wait([self._pulls[name] for name in names], PULL)
        answers = list[tuple[str, Message]]()
        for name in names:
            if not self._pulls[name].done():
                continue
            error = self._pulls[name].exception()
            if isinstance(error, httpx.HTTPError):
                raise error
            if error is None:
                answers += [(name, message) for message in self._pulls.pop(name).result()[:1]]
            else:
                LOG.warning("an answer cannot be read: %s", one_line(error))
                self._pulls[name] = Future()  # never done, so it is not pulled again
        return answers

    def _pull(self, name: str) -> None:
        try:
            self._pulls[name].set_result(list(self.grid.pull_messages([name])))
        except Exception as error:
            self._pulls[name].set_exception(error)


class Roster:
    """The clients of an engine's grid, by their number.

    Args:
        engine: with the grid, and what a client may claim; see `Flower`.
        clients: how many there are, numbered from 0.

    Attributes:
        nodes: the node of each client.
        sizes: the examples of each client.
        offline: the clients of the last orders that had no node when they were looked for.
    """

    def __init__(self, engine: Flower, clients: int) -> None:
        self.engine = engine
        self.grid = engine.grid
        self.clients = clients
        self.link = self.grid if getattr(self.grid, "is_local", False) else Link(self.grid)
        self.most_examples = min(engine.most_examples or MOST_COUNT, MOST_COUNT // clients)
        self.nodes: dict[int, int] = {}
        self.sizes: dict[int, Sizes] = {}
        self.offline = frozenset()
        # by message, the node that was asked which client it is; by node, until when it is not
        # asked again, and why it was refused
        self._greetings: dict[str, int] = {}
        self._quiet_until: dict[int, float] = {}
        self._refusals: dict[int, str] = {}

    def gather(self, patience: float) -> None:
        """Waits until every client has a node.

        Raises:
            ClientsMissing: some do not come in time.
        """
        start = time.monotonic()
        notice = start + NOTICES[0]
        while True:
            self.greet()
            missing = [k for k in range(self.clients) if k not in self.nodes]
            if not missing:
                return
            present = self.clients - len(missing)
            names = ", ".join(map(str, missing))
            who = f"clients {names} ({present} of {self.clients} are there)"
            seconds = start + patience - time.monotonic()
            if seconds < 0:
                raise ClientsMissing(f"{who} did not come within {patience:g} seconds")
            if time.monotonic() >= notice:
                LOG.warning("waiting up to %.0f seconds for %s", seconds, who)
                notice += NOTICES[1]
            time.sleep(PAUSES[1])

    def greet(self) -> None:
        """Asks the nodes that are new which client they are, and admits those that have answered.

        The reason of a refusal is logged once, and the node is asked again later.

        It does not wait for answers: a node that never gives one holds up nobody.
        """
        connected = set(self.grid.get_node_ids())
        now = time.monotonic()
        new = [
            node
            for node in sorted(connected - set(self.nodes.values()))
            if self._quiet_until.get(node, 0.0) <= now
        ]
        hello = RecordDict({"order": ConfigRecord({"kind": "hello"})})
        messages = [self.link.make_message(node, hello, QUERY, "hello", HELLO) for node in new]
        self._greetings |= self._push(messages, new)
        self._quiet_until |= dict.fromkeys(new, now + HELLO)
        answers = self.link.pull(list(self._greetings)) if self._greetings else []
        registered = self.engine.registered
        owners = registered() if answers and registered else None
        for name, answer in answers:
            node = self._greetings.pop(name)
            try:
                self._admit(node, contents(answer)["answer"], owners, connected)
            except Exception as error:  # whatever an answer holds
                reason = one_line(error)
                if self._refusals.get(node) != reason:
                    k = (owners or {}).get(node)
                    name = f"node {node}" if k is None else f"client {k}"
                    LOG.warning("%s refused: %s", name, reason)
                self._refusals[node] = reason
                self._quiet_until[node] = now + REFUSED

    def _admit(
        self, node: int, facts: Any, owners: Mapping[int, int] | None, connected: set[int]
    ) -> None:
        """Admits a node that has said which client it is.

        Raises:
            FedaxError: it is none, or another one.
        """
        k = int(facts["partition"])
        sizes = Sizes(*(int(facts[split]) for split in Sizes._fields))
        if owners is not None and owners.get(node) != k:
            whose = f"client {owners[node]}" if node in owners else "no client"
            raise FedaxError(f"it says it is client {k}, and its key is that of {whose}")
        if not 0 <= k < self.clients:
            raise FedaxError(f"it says it is client {k}; there are {self.clients}, from 0")
        if sizes.train < 1 or min(sizes) < 0 or max(sizes) > self.most_examples:
            raise FedaxError(
                f"client {k} claims {sizes}; allowed: at least 1 training example, and at most "
                f"{self.most_examples} in each"
            )
        if self.nodes.get(k) in connected:
            raise FedaxError(f"client {k} is there already, in another process")
        if self.sizes.get(k, sizes) != sizes:
            raise FedaxError(f"client {k} comes back with {sizes}, it had {self.sizes[k]}")
        self.nodes[k] = node
        self.sizes[k] = sizes
        LOG.info("client %d is node %d", k, node)

    def answers(
        self, orders: Mapping[int, RecordDict], kind: str, phase_name: str
    ) -> Iterator[tuple[int, Message] | None]:
        """Yields the answers of clients as they come before the deadline; later ones expire.

        Yields None again and again while all clients that have not answered are offline. A client
        that is back gets its order then: an order that comes twice changes nothing.

        Args:
            orders: by client.
            kind: of Flower's messages.
            phase_name: the phase, for the log, and as the group of the messages.
        """
        end = time.monotonic() + self.engine.deadline
        pause = PAUSES[0]
        next_attempt = 0.0
        pending: dict[str, int] = {}
        waiting = set(orders)
        logged = set()
        while waiting or pending:
            if waiting and time.monotonic() >= next_attempt:
                ready = self._find_connected(waiting)
                # a new node that is being asked may be one of the clients
                next_attempt = time.monotonic() + (PAUSES[1] if self._greetings else AGAIN)
                ttl = max(end - time.monotonic(), PAUSES[0])
                messages = [
                    self.link.make_message(self.nodes[k], orders[k], kind, phase_name, ttl)
                    for k in ready
                ]
                pending |= self._push(messages, ready)
                waiting -= set(ready)
            for name, answer in self.link.pull(list(pending)) if pending else ():
                k = pending.pop(name)
                if answer.has_error() and answer.error.code == NODE_UNAVAILABLE:
                    waiting.add(k)
                else:
                    yield k, answer
            self.offline = frozenset(waiting)
            if time.monotonic() > end:
                return
            if waiting and not pending:
                yield None
                if waiting - logged:
                    names = ", ".join(map(str, sorted(waiting)))
                    seconds = end - time.monotonic()
                    text = "%s: client %s offline; waiting up to %.0f seconds"
                    LOG.warning(text, phase_name, names, seconds)
                    logged |= waiting
            time.sleep(pause)
            pause = min(1.5 * pause, PAUSES[1])

    def _find_connected(self, clients: set[int]) -> list[int]:
        """Returns the clients whose node is connected; one that is gone may be back as another."""
        connected = set(self.grid.get_node_ids())
        if any(self.nodes[k] not in connected for k in clients) and connected - set(
            self.nodes.values()
        ):
            self.greet()
        return [k for k in sorted(clients) if self.nodes[k] in connected]

    def _push(self, messages: list[Message], owners: list[int]) -> dict[str, int]:
        """Returns the owners of sent messages by message id; a message that was not accepted has
        none.
        """
        names = self.grid.push_messages(messages) if messages else []
        return {name: owner for name, owner in zip(names, owners, strict=True) if name}


def one_line(error: BaseException) -> str:
    """Returns the text of an error, which may be a client's, as one line without control
    characters, cut to what fits a log.
    """
    return short(printable(str(error)))


def contents(answer: Message) -> Any:
    """Returns the records of an answer.

    Raises:
        FedaxError: it is an error, of Flower or of the client.
    """
    if answer.has_error():
        raise FedaxError(f"error {answer.error.code}: {answer.error.reason}")
    if text := answer.content.get("answer", {}).get("error"):
        raise FedaxError(text)
    return answer.content
