"""Asynchronous servers: clients train on the model that they received, and the server steps when
enough have arrived.

Who arrives when follows from the devices' speeds alone. All steps are therefore computed before
training, in plain NumPy, and a compiled run reads one row of them for every step.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedax.core.hyper import Declared, construct, declared, hyper
from fedax.core.scheduling.clock import Cost
from fedax.core.scheduling.timeline import KnownTimeline, Row, Versions
from fedax.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Asynchronous(Declared):
    r"""An asynchronous server: `concurrency` clients are at work, and every `Schedule.cohort`
    arrivals are a server step.

    With `cohort=1` the server steps after every arrival (FedAsync), with more it buffers them
    (FedBuff). A client that is at work, or whose upload waits in the buffer, is not dispatched. An
    upload of staleness $\tau$ (the server steps since the client received its model) has the factor
    $s(\tau)$ on its change, with $s(0) = 1$:

    | `weight` | $s(\tau)$ |
    | --- | --- |
    | `"constant"` | 1 |
    | `"polynomial"` | $(1 + \tau)^{-a}$ |
    | `"hinge"` | 1 for $\tau \le b$, else $1 / (a (\tau - b) + 1)$ |

    The mean divides by the number of uploads (by the sum of their weights without $s$), so that
    stale uploads shorten the step. Who arrives when follows from `run(clock=...)`.

    Args:
        concurrency: clients at work at the same time, from 1 to the number of clients; None for
            all.
        dispatch: `"arrival"`: a client that arrives is replaced at once; `"server_step"`: clients
            are dispatched after server steps only. With as many clients at work as a step takes
            this is the synchronous method.
        uploads: `"changes"`: the change of an upload is against the model that its client received,
            as in FedBuff; `"models"`: against the server's current model, with which the client's
            is mixed, as in FedAsync.
        weight: which $s$.
        a: its $a$, at least 0.
        b: its $b$, at least 0.
        max_staleness: arrivals of a larger one are discarded; what they sent counts as traffic.
            None for no bound.

    >>> fedbuff = Asynchronous(concurrency=100)
    >>> fedasync = Asynchronous(concurrency=100, uploads="models", weight="hinge", a=10.0, b=4)
    >>> fedasync.factors(np.array([0, 4, 5])).round(3).tolist()
    [1.0, 1.0, 0.091]

    Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
    Alg. 1; Xie et al., Asynchronous Federated Optimization, OPT 2020, Alg. 1 and Sec. 5. Papers not
    read: FedBuff and the polynomial weights are checked against the code that its authors released
    (FLSim), the hinge and FedAsync's defaults against nothing. FedAsync's hinge has a = 10.
    """

    _: dataclasses.KW_ONLY
    concurrency: int | None = hyper(None, kind=int, low=1, optional=True)
    dispatch: str = hyper("arrival", choices=("arrival", "server_step"))
    uploads: str = hyper("changes", choices=("changes", "models"))
    weight: str = hyper("polynomial", choices=("constant", "polynomial", "hinge"))
    a: float = hyper(0.5, low=0.0)
    b: int = hyper(4, low=0)
    max_staleness: int | None = hyper(None, kind=int, low=0, optional=True)

    def check(self, clients: int, cohort: int) -> None:
        """Refuses more clients at work than there are, and fewer than a step waits for."""
        low = cohort if self.dispatch == "server_step" else 1
        if self.concurrency is not None and not low <= self.concurrency <= clients:
            allowed = f"{low}, those that a step waits for, to {clients}, the number of clients"
            raise InvalidInput.of("Asynchronous(concurrency=...)", self.concurrency, allowed)

    @classmethod
    def of(cls, spelling: Any) -> "Asynchronous | None":
        """Makes one from its spelling in files, a table of its arguments; one is returned as it is,
        and so is None.
        """
        if spelling is None or isinstance(spelling, cls):
            return spelling
        return construct("Schedule(asynchronous=...)", cls, spelling)

    @property
    def spelling(self) -> dict[str, Any]:
        """The arguments that differ from the defaults, as experiment files spell them."""
        return {
            name: value
            for name, limits in declared(self).items()
            if (value := getattr(self, name)) != limits.default
        }

    def factors(self, staleness: np.ndarray) -> np.ndarray:
        r"""Returns $s(\tau)$ of some staleness."""
        if self.weight == "constant":
            return np.ones(staleness.shape)
        if self.weight == "polynomial":
            return (1.0 + staleness) ** -self.a
        return 1 / (self.a * np.maximum(staleness - self.b, 0.0) + 1)


@dataclasses.dataclass(eq=False)
class ServerSteps(KnownTimeline):
    """The steps of an asynchronous server with their arrivals, computed as far as they are asked
    for.

    Events are taken in the order of their time, those of one time in the order of the clients'
    numbers. An arrival that fills the buffer is a server step; clients that are dispatched then
    receive the new version. The cost of an event grows with the root of the number of clients.

    Args:
        server: concurrency, dispatch and the bound on staleness.
        cohort: arrivals of a server step.
        weights: of the clients in the draw of one to dispatch: their sizes, or ones. Whole numbers,
            at least 1.
        seed: of all draws but those of whole cohorts.
        cost: of some clients and a version returns what their work from dispatch to arrival costs
            each of them.
        draw: of a version returns a whole cohort, as for a synchronous round; called where no
            client is busy and as many as a cohort has are dispatched.
        busy: seconds that the server takes for a step, in which it neither takes uploads nor
            dispatches clients.
    """

    server: Asynchronous
    cohort: int
    weights: np.ndarray
    seed: int | Sequence[int]
    cost: Callable[[np.ndarray, int], Cost]
    draw: Callable[[int], np.ndarray]
    busy: float = 0.0

    def __post_init__(self) -> None:
        bound = self.server.max_staleness
        self.concurrency = self.server.concurrency or len(self.weights)
        self.max_staleness = math.inf if bound is None else bound
        self._free = _Ranking(self.weights)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        # a heap of (time, client, version, number of the dispatch, joules)
        self._events: list[tuple[float, int, int, int, float]] = []
        self._buffer: list[tuple[int, int, int]] = []  # (number of the dispatch, client, version)
        self._steps: list[Row] = []
        self._now = 0.0
        self._last_end = 0.0
        self._dispatches = 0
        # of versions that are still referred to: their slots, and uploads that no step has taken
        self._slot_of: dict[int, int] = {}
        self._outstanding: dict[int, int] = {}
        self._free_slots: list[int] = []
        # since the last step
        self._sent = 0
        self._discarded = 0
        self._joules = 0.0
        self._dispatch()

    def slots(self, steps: int) -> int:
        rows: Any = self.steps(0, steps)
        return 1 + max((row.versions.stored for row in rows), default=0)

    def steps(self, first: int, count: int) -> list[Row]:
        while len(self._steps) < first + count:
            self._step()
        return self._steps[first : first + count]

    def _step(self) -> None:
        """Takes arrivals until the buffer is full, and then the server step."""
        while len(self._buffer) < self.cohort:
            if not self._events:  # all of them were too stale
                self._dispatch()
            time, client, version, number, joules = heapq.heappop(self._events)
            self._now = max(self._now, time)  # later, if it came while the server was busy
            self._joules += joules
            if len(self._steps) - version > self.max_staleness:
                self._discarded += 1
                self._free.add(client)
            else:
                self._buffer.append((number, client, version))
            # after the last arrival of a step, clients wait for the version that it makes
            if self.server.dispatch == "arrival" and len(self._buffer) < self.cohort:
                self._dispatch()
        self._take_buffer()
        self._dispatch()

    def _take_buffer(self) -> None:
        """Takes the server step of a full buffer."""
        # by the number of the dispatch, not by the arrival
        uploads = sorted(self._buffer)
        clients = np.asarray([client for _, client, _ in uploads])
        numbers = np.asarray([version for _, _, version in uploads])
        slots = np.asarray([self._slot_of[version] for _, _, version in uploads])
        step = len(self._steps)
        received: Any = (numbers, slots, self.server.factors(step - numbers), self._slot_of[step])
        self._now += self.busy
        seconds = self._now - self._last_end
        counts: Any = (clients, None, self._sent, self._discarded, seconds, self._joules)
        self._steps.append(Row(*counts, versions=Versions(*received)))
        self._last_end = self._now
        self._buffer.clear()
        self._sent = 0
        self._discarded = 0
        self._joules = 0.0
        for _, client, version in uploads:
            self._free.add(client)
            self._outstanding[version] -= 1
        # uploads of versions that are too old for the next step will be discarded
        oldest = len(self._steps) - self.max_staleness
        for version in list(self._slot_of):
            if not self._outstanding[version] or version < oldest:
                heapq.heappush(self._free_slots, self._slot_of.pop(version))
                del self._outstanding[version]

    def _dispatch(self) -> None:
        """Sends the current version to clients until as many as may be are at work."""
        count = min(self.concurrency - len(self._events), self._free.count)
        if count <= 0:
            return
        version = len(self._steps)
        # everyone is free and a whole cohort is needed: the draw of a synchronous round
        if count == self.cohort and self._free.count == len(self.weights):
            clients = self.draw(version)
            for client in clients.tolist():
                self._free.remove(client)
        else:
            clients = np.asarray([self._free.draw(self._random) for _ in range(count)])
        if version not in self._slot_of:
            # if no slot is free, those in use are 0 to `used` - 1
            used = len(self._slot_of)
            self._slot_of[version] = heapq.heappop(self._free_slots) if self._free_slots else used
            self._outstanding[version] = 0
        self._outstanding[version] += count
        self._sent += count
        cost = self.cost(clients, version)
        ends = (self._now + cost.seconds).tolist()
        for client, end, joules in zip(clients.tolist(), ends, cost.joules.tolist(), strict=True):
            heapq.heappush(self._events, (end, client, version, self._dispatches, joules))
            self._dispatches += 1


class _Ranking:
    """A set of clients with weights, from which one is drawn in proportion to them.

    The weights lie in rows of about the square root of their number, so that a draw and a change
    read two rows. A draw depends on the set alone and not on the order of the changes that led to
    it.
    """

    def __init__(self, weights: np.ndarray) -> None:
        self.count = len(weights)
        width = math.isqrt(self.count - 1) + 1
        self.weights = np.pad(np.asarray(weights, np.int64), (0, width * width - self.count))
        self.free = self.weights.reshape(width, width).copy()
        self.sums = self.free.sum(1)

    def add(self, client: int) -> None:
        self._set(client, self.weights[client])
        self.count += 1

    def remove(self, client: int) -> None:
        self._set(client, 0)
        self.count -= 1

    def draw(self, random: np.random.Generator) -> int:
        """Draws a client in proportion to the weights, and removes it."""
        # the owner of a ticket, where the members' weights lie one after the other in the order of
        # their numbers
        ends = self.sums.cumsum()
        ticket = random.integers(ends[-1])
        row = ends.searchsorted(ticket, "right")
        ticket -= ends[row] - self.sums[row]
        column = self.free[row].cumsum().searchsorted(ticket, "right")
        client = int(row * len(ends) + column)
        self.remove(client)
        return client

    def _set(self, client: int, weight: int | np.integer) -> None:
        row, column = divmod(client, len(self.sums))
        self.sums[row] += weight - self.free[row, column]
        self.free[row, column] = weight
