"""The nodes that are there, and the client that each of them is."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from fedax.core.hyper import MOST_COUNT
from fedax.errors import FedaxError, printable, short
from fedax.flower.protocol.plan import PROTOCOL

LOG = logging.getLogger("fedax.flower")
PAUSES = 0.02, 0.5
"""Seconds between two looks for answers: at first, and at most."""
AGAIN, HELLO, REFUSED = 2.0, 300.0, 10.0
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
TRAIN, EVALUATE, QUERY = "train", "evaluate", "query"


class ClientsMissing(FedaxError):
    """Some clients did not come in time."""


class Sizes(NamedTuple):
    """Examples of a client; -1 of a test set for none."""

    train: int
    test: int

    def __str__(self) -> str:
        test = "no test set" if self.test < 0 else f"{self.test} test examples"
        return f"{self.train} training examples and {test}"


class Greeting(NamedTuple):
    """A question to a node which client it is, and when it expires."""

    node: int
    end: float


class Refusal(NamedTuple):
    """Why a node was refused, and when it is asked again."""

    reason: str
    end: float


class Puller:
    """Pulls answers from a grid, each in its thread.

    Flower waits for the missing parts of an answer, for three minutes after the last one. A client
    that sends half an answer would hold up those of all others if they were pulled together.

    Args:
        grid: of Flower.
    """

    def __init__(self, grid: Any) -> None:
        self.grid, self.is_local = grid, getattr(grid, "is_local", False)
        self._threads: dict[str, threading.Thread] = {}
        self._pulled: dict[str, list[Message] | Exception] = {}

    def __call__(self, names: Collection[str]) -> list[Message]:
        """Returns the answers to messages that are complete by now.

        Raises:
            httpx.HTTPError: the server cannot be reached.
        """
        import httpx

        if self.is_local:
            return list(self.grid.pull_messages(names))
        for name in names:
            if name not in self._threads:
                self._threads[name] = threading.Thread(target=self._pull, args=(name,), daemon=True)
                self._threads[name].start()
        end, answers = time.monotonic() + PULL, list[Message]()
        for name in names:
            self._threads[name].join(max(0.0, end - time.monotonic()))
            pulled = self._pulled.pop(name, None)
            if isinstance(pulled, httpx.HTTPError):
                raise pulled
            if isinstance(
                pulled, Exception
            ):  # its thread stays known, so that it is not pulled again
                LOG.warning("an answer cannot be read: %s", _one_line(pulled))
            elif pulled is not None:
                del self._threads[name]
                answers += pulled
        return answers

    def _pull(self, name: str) -> None:
        try:
            self._pulled[name] = list(self.grid.pull_messages([name]))
        except Exception as error:
            self._pulled[name] = error


class Roster:
    """The clients of a grid, by their number.

    Args:
        grid: of Flower.
        clients: how many there are, numbered from 0.
        deadline: seconds for an answer.
        most_examples: the most training or test examples that a client may claim.
        registered: gives, for the nodes that are there, the clients whose keys they hold. Without
            it clients are believed.

    Attributes:
        nodes: the node of each client.
        sizes: the examples of each client.
        offline: the clients of the last orders that had no node when they were looked for.
    """

    def __init__(
        self,
        grid: Any,
        clients: int,
        deadline: float,
        most_examples: int | None = None,
        registered: Callable[[], Mapping[int, int]] | None = None,
    ) -> None:
        self.grid, self.clients, self.deadline = grid, clients, deadline
        self.registered = registered
        self.pull = Puller(grid)
        self.most_examples = (
            MOST_COUNT // clients
            if most_examples is None
            else min(most_examples, MOST_COUNT // clients)
        )
        self.nodes: dict[int, int] = {}
        self.sizes: dict[int, Sizes] = {}
        self.offline = frozenset[int]()
        self._greetings: dict[str, Greeting] = {}
        self._refusals: dict[int, Refusal] = {}

    def gather(self, patience: float) -> None:
        """Waits until every client has a node.

        Raises:
            ClientsMissing: some do not come in time.
        """
        start = time.monotonic()
        end, notice = start + patience, start + NOTICES[0]
        while True:
            self.greet()
            if not (missing := [k for k in range(self.clients) if k not in self.nodes]):
                return
            now, names = time.monotonic(), ", ".join(map(str, missing))
            present = self.clients - len(missing)
            who = f"{'client' if len(missing) == 1 else 'clients'} {names}"
            who += f" ({present} of {self.clients} are there)"
            if now > end:
                raise ClientsMissing(f"{who} did not come within {patience:g} seconds")
            if now >= notice:
                LOG.warning("waiting up to %.0f seconds for %s", end - now, who)
                notice = now + NOTICES[1]
            time.sleep(PAUSES[1])

    def greet(self) -> None:
        """Asks the nodes that are new which client they are, and admits those that have answered.

        It does not wait for answers: a node that never gives one holds up nobody.
        """
        connected = set(self.grid.get_node_ids())
        now = time.monotonic()
        self._greetings = {
            name: greeting
            for name, greeting in self._greetings.items()
            if greeting.end > now and greeting.node in connected
        }
        asked = {greeting.node for greeting in self._greetings.values()}
        refused = {node for node, refusal in self._refusals.items() if refusal.end > now}
        new = sorted(connected - set(self.nodes.values()) - asked - refused)
        hello = RecordDict({"order": ConfigRecord({"version": PROTOCOL, "kind": "hello"})})
        messages = [self._make_message(node, hello, QUERY, "hello", HELLO) for node in new]
        pushed = self._push(messages, new)
        self._greetings |= {name: Greeting(node, now + HELLO) for name, node in pushed.items()}
        answers = self.pull(list(self._greetings)) if self._greetings else []
        owners = self.registered() if answers and self.registered else None
        for answer in answers:
            name = answer.metadata.reply_to_message_id
            if (greeting := self._greetings.pop(name, None)) is not None:
                self._take_greeting(greeting.node, answer, owners, connected)

    def _take_greeting(
        self, node: int, answer: Message, owners: Mapping[int, int] | None, connected: set[int]
    ) -> None:
        """Admits a node that has said which client it is, or refuses it; a reason is logged
        once.
        """
        owner = None if owners is None else owners.get(node)
        try:
            facts = contents(answer)["answer"]
            k, sizes = int(facts["partition"]), Sizes(int(facts["train"]), int(facts["test"]))
            if owners is not None and owner != k:
                whose = "no client" if owner is None else f"client {owner}"
                raise FedaxError(f"it says it is client {k}, and its key is that of {whose}")
            self._admit(k, node, sizes, connected)
            self._refusals.pop(node, None)
        except Exception as error:  # whatever an answer holds
            reason, previous = str(error), self._refusals.get(node)
            if previous is None or previous.reason != reason:
                name = f"node {node}" if owner is None else f"client {owner}"
                LOG.warning("%s refused: %s", name, reason)
            self._refusals[node] = Refusal(reason, time.monotonic() + REFUSED)

    def _admit(self, k: int, node: int, sizes: Sizes, connected: set[int]) -> None:
        if not 0 <= k < self.clients:
            raise FedaxError(f"it says it is client {k}; there are {self.clients}, from 0")
        if sizes.train < 1:
            raise FedaxError(
                f"client {k} has {sizes.train} training examples, at least 1 is needed"
            )
        if max(sizes) > self.most_examples:
            raise FedaxError(
                f"client {k} claims {max(sizes)} examples; allowed: at most {self.most_examples}"
            )
        if sizes.test < -1:
            raise FedaxError(f"client {k} claims {sizes.test} test examples")
        if k in self.nodes and self.nodes[k] in connected:
            raise FedaxError(f"client {k} is there already, in another process")
        if self.sizes.get(k, sizes) != sizes:
            raise FedaxError(f"client {k} comes back with {sizes}, it had {self.sizes[k]}")
        self.nodes[k], self.sizes[k] = node, sizes

    def answers(
        self, orders: Mapping[int, RecordDict], kind: str, group: str, phase_name: str = ""
    ) -> Iterator[tuple[int, Message] | None]:
        """Yields the answers of clients as they come before the deadline; later ones expire.

        Yields None again and again while all clients that have not answered are offline. A client
        that is back gets its order then: an order that comes twice changes nothing.

        Args:
            orders: by client.
            kind: of Flower's messages.
            group: of Flower's messages.
            phase_name: the phase, for the log.
        """
        end, pause, next_attempt = time.monotonic() + self.deadline, PAUSES[0], 0.0
        pending: dict[str, int] = {}
        waiting, logged = set(orders), set[int]()
        while waiting or pending:
            if waiting and time.monotonic() >= next_attempt:
                ready = self._find_connected(waiting)
                # a new node that is being asked may be one of the clients
                next_attempt = time.monotonic() + (PAUSES[1] if self._greetings else AGAIN)
                seconds = end - time.monotonic()
                messages = [
                    self._make_message(self.nodes[k], orders[k], kind, group, seconds)
                    for k in ready
                ]
                pending |= self._push(messages, ready)
                waiting -= set(ready)
            for answer in self.pull(list(pending)) if pending else ():
                if (k := pending.pop(answer.metadata.reply_to_message_id, None)) is None:
                    continue
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

    def _make_message(
        self, node: int, content: RecordDict, kind: str, group: str, seconds: float
    ) -> Message:
        ttl = max(seconds, PAUSES[0])
        if self.pull.is_local:  # `Message(...)` needs a process that Flower started
            return self.grid.create_message(content, kind, node, group, ttl)
        return Message(content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=group)


def _one_line(text: Any) -> str:
    """Returns a client's text as one line without control characters, cut to what fits a log."""
    return short(printable(str(text)))


def contents(answer: Message) -> Any:
    """Returns the records of an answer.

    Raises:
        FedaxError: it is an error, of Flower or of the client.
    """
    if answer.has_error():
        code, reason = answer.error.code, _one_line(answer.error.reason)
        if code == NODE_UNAVAILABLE:
            raise FedaxError(f"it went offline before it answered (error {code})")
        raise FedaxError(f"error {code}: {reason}")
    if text := answer.content.get("answer", {}).get("error"):
        raise FedaxError(_one_line(text))
    return answer.content
