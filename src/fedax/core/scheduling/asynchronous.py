"""Asynchronous servers: clients train on the model that they received, and the server steps when
enough have arrived.

Who arrives when follows from the devices' speeds alone. The whole timetable is therefore computed
before training, in plain NumPy, and a compiled run reads one row of it for every server step.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.core.history import JOULES
from fedax.core.hyper import check_declared, hyper
from fedax.core.scheduling.devices import Devices, for_clients
from fedax.core.scheduling.timeline import NO_SLOT, Row, Timeline, Versions
from fedax.errors import InvalidInput
from fedax.utils.numbers import convert_fields


@dataclasses.dataclass(frozen=True)
class Asynchronous:
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
    stale uploads shorten the step.

    Args:
        devices: how long clients take: a `fedax.Devices`, or an object with a method
            `seconds(clients, round, down_bits, up_bits, examples)`, which returns for some clients
            the seconds from dispatch to arrival, an array or one number for all. A frozen
            dataclass with fields that have a hash, such as tuples, so that checkpoints know it.
            None for those of `run(devices=...)`, or of `[devices]` in a file.
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
        passes: passes over its examples that a client's work counts as, above 0. Only needed where
            a solver decides by the data how long it works, such as `Exact`.

    >>> from fedax import Devices
    >>> alike = Devices(speed=100.0, latency=1.0)
    >>> fedbuff = Asynchronous(alike, concurrency=100)
    >>> fedasync = Asynchronous(
    ...     alike, concurrency=100, uploads="models", weight="hinge", a=10.0, b=4
    ... )
    >>> fedasync.factors(np.array([0, 4, 5])).round(3).tolist()
    [1.0, 1.0, 0.091]

    Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
    Alg. 1; Xie et al., Asynchronous Federated Optimization, OPT 2020, Alg. 1 and Sec. 5. Papers not
    read: FedBuff and the polynomial weights are checked against the code that its authors released
    (FLSim), the hinge and FedAsync's defaults against nothing. FedAsync's hinge has a = 10.
    """

    devices: Any = None
    _: dataclasses.KW_ONLY
    concurrency: int | None = hyper(None, kind=int, low=1, optional=True)
    dispatch: str = hyper("arrival", choices=("arrival", "server_step"))
    uploads: str = hyper("changes", choices=("changes", "models"))
    weight: str = hyper("polynomial", choices=("constant", "polynomial", "hinge"))
    a: float = hyper(0.5, low=0.0)
    b: int = hyper(4, low=0)
    max_staleness: int | None = hyper(None, kind=int, low=0, optional=True)
    passes: float | None = hyper(None, kind=float, low=0.0, open_low=True, optional=True)

    def __post_init__(self) -> None:
        convert_fields(self)
        check_declared(self)
        if self.devices is not None and not callable(getattr(self.devices, "seconds", None)):
            allowed = (
                "an object with a method `seconds`, or None for those of the run, which a file has "
                "in its table [devices]"
            )
            raise InvalidInput.of("Asynchronous(devices=...)", self.devices, allowed)

    def check(self, clients: int, cohort: int) -> None:
        """Refuses more clients at work than there are, fewer than a step waits for, and devices of
        another number of clients.

        Raises:
            InvalidInput: with the range.
        """
        if isinstance(self.devices, Devices):
            self.devices.check(clients)
        low = cohort if self.dispatch == "server_step" else 1
        if self.concurrency is not None and not low <= self.concurrency <= clients:
            least = ", those that a step waits for," if low > 1 else ""
            allowed = f"{low}{least} to {clients}, the number of clients"
            raise InvalidInput.of("Asynchronous(concurrency=...)", self.concurrency, allowed)

    @classmethod
    def of(cls, spelling: Any) -> "Asynchronous":
        """Makes one from its spelling in files, a table of its arguments; one is returned as it
        is.
        """
        if isinstance(spelling, cls):
            return spelling
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(spelling, Mapping) or not set(spelling) <= set(names):
            allowed = f"a fedax.Asynchronous, or a table with some of {', '.join(names[1:])}"
            raise InvalidInput.of("Schedule(asynchronous=...)", spelling, allowed)
        return cls(**spelling)

    @property
    def spelling(self) -> dict[str, Any]:
        """The arguments that differ from the defaults, as experiment files spell them."""
        values = {
            field.name: (getattr(self, field.name), field.default)
            for field in dataclasses.fields(self)
        }
        return {name: value for name, (value, default) in values.items() if value != default}

    def factors(self, staleness: np.ndarray) -> np.ndarray:
        r"""Returns $s(\tau)$ of some staleness."""
        if self.weight == "constant":
            return np.ones(staleness.shape)
        if self.weight == "polynomial":
            return (1.0 + staleness) ** -self.a
        return 1 / (self.a * np.maximum(staleness - self.b, 0.0) + 1)


class Timetable(Timeline):
    """The server steps of a run with their arrivals, computed as far as they are asked for.

    Events are taken in the order of their time, those of one time in the order of the clients'
    numbers. An arrival that fills the buffer is a server step; clients that are dispatched then
    receive the new version. The cost of an event is logarithmic in the number of clients.

    Args:
        server: concurrency, dispatch and the bound on staleness.
        cohort: arrivals of a server step.
        weights: of the clients in the draw of one to dispatch: their sizes, or ones. Whole numbers,
            at least 1.
        seconds: a function of clients and the version that they received, which returns how long
            each takes from dispatch to arrival.
        draw: a function of a version that returns a whole cohort, used where no client is busy and
            as many as a cohort has are dispatched: the draw of a synchronous round.
        seed: of all other draws.
        joules: a function as `seconds`, which returns what each takes; None if that is not known.
        busy: seconds that the server takes for a step, in which it neither takes uploads nor
            dispatches clients.

    >>> class Numbered:
    ...     def seconds(self, clients, round, down_bits, up_bits, examples):
    ...         return clients + 1.0
    >>> server = Asynchronous(Numbered(), concurrency=2, dispatch="server_step")
    >>> timetable = Timetable(
    ...     server,
    ...     2,
    ...     np.ones(2, int),
    ...     lambda clients, version: clients + 1.0,
    ...     lambda version: [0, 1],
    ...     [0],
    ... )
    >>> timetable.extend(2)
    >>> timetable.times.tolist(), timetable.rows(0, 2).clients.tolist()
    ([2.0, 4.0], [[0, 1], [0, 1]])
    """

    def __init__(
        self,
        server: Asynchronous,
        cohort: int,
        weights: np.ndarray,
        seconds: Callable[[np.ndarray, int], np.ndarray],
        draw: Callable[[int], Any],
        seed: Any,
        joules: Callable[[np.ndarray, int], np.ndarray] | None = None,
        busy: float = 0.0,
    ) -> None:
        self.server, self.cohort, self._seconds, self._draw = server, cohort, seconds, draw
        self._joules, self._spent, self._spent_by_step = joules, 0.0, list[float]()
        self._busy = busy
        self._concurrency = server.concurrency or len(weights)
        self._free = _Ranking(weights)
        self._clients = len(weights)
        self._random = np.random.Generator(np.random.PCG64(seed))
        # a heap of (time, client, version, number of the dispatch, joules)
        self._events: list[tuple[float, int, int, int, float]] = []
        self._now, self._version, self._dispatches, self._sent, self._discarded = 0.0, 0, 0, 0, 0
        self._buffer: list[tuple[int, int, int]] = []  # (number of the dispatch, client, version)
        # slots of the versions that are still referred to
        self._slot_of: dict[int, int] = {}
        # dispatches by version whose uploads no step has taken
        self._outstanding: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._slots = [0]  # those in use before each step, the largest so far
        # for each step: clients, versions, slots, stored, sent, discarded
        self._rows: list[tuple[list[int], list[int], list[int], int, int, int]] = []
        self._times: list[float] = []
        self._dispatch()

    @property
    def times(self) -> np.ndarray:
        """Seconds from the start of the run to the end of each server step."""
        return np.asarray(self._times, np.float64)

    def notes(
        self, first: int, count: int, traffic: Sequence[dict[str, Any]] = ()
    ) -> dict[str, np.ndarray]:
        """Returns notes of some steps, shape (count,): the end of each in seconds from the start,
        and the joules of the arrivals since the step before, discarded ones included, if known.
        """
        steps = slice(first, first + count)
        joules = {} if self._joules is None else {JOULES: np.asarray(self._spent_by_step[steps])}
        return {"clock": self.times[steps]} | joules

    def slots(self, steps: int) -> int:
        """Returns how many slots the first steps need: at least 1."""
        self.extend(steps)
        return max(1, self._slots[max(steps - 1, 0)])

    def rows(self, first: int, count: int, padded: int | None = None) -> Row:
        self.extend(first + count)
        columns = zip(*self._rows[first : first + count], strict=True)
        clients, versions, slots, stored, sent, discarded = (
            np.asarray(column, np.int32) for column in columns
        )
        # staleness: steps between the version and the one that takes the upload
        factors = self.server.factors(np.arange(first, first + count)[:, None] - versions)
        padding = (padded or count) - count

        def pad(rows: np.ndarray) -> Any:
            return np.concatenate([rows, np.zeros((padding, *rows.shape[1:]), rows.dtype)])

        received = Versions(pad(versions), pad(slots), pad(factors), pad(stored))
        return Row(pad(clients), None, pad(sent), pad(discarded), received)

    def extend(self, steps: int) -> None:
        """Computes the timetable up to a number of server steps."""
        while len(self._rows) < steps:
            self._step()

    def _step(self) -> None:
        """Takes arrivals until the buffer is full, and then the server step."""
        limit = math.inf if self.server.max_staleness is None else self.server.max_staleness
        while len(self._buffer) < self.cohort:
            if not self._events:  # all of them were too stale
                self._dispatch()
            time, client, version, number, joules = heapq.heappop(self._events)
            self._now = max(self._now, time)  # later, if it came while the server was busy
            self._spent += joules
            if self._version - version > limit:
                self._discarded += 1
                self._free.add(client)
            else:
                self._buffer.append((number, client, version))
            # after the last arrival of a step, clients wait for the version that it makes
            if self.server.dispatch == "arrival" and len(self._buffer) < self.cohort:
                self._dispatch()
        self._take_buffer(limit)
        self._dispatch()

    def _take_buffer(self, limit: float) -> None:
        """Takes the server step of a full buffer."""
        # by the number of the dispatch, not by the arrival
        _, clients, versions = (list(column) for column in zip(*sorted(self._buffer), strict=True))
        slots = [self._slot_of[version] for version in versions]
        # no client received this version if no slot was taken for it
        stored = self._slot_of.get(self._version, NO_SLOT)
        self._rows.append((clients, versions, slots, stored, self._sent, self._discarded))
        self._now += self._busy
        self._times.append(self._now)
        self._spent_by_step.append(self._spent)
        for version in versions:
            self._outstanding[version] -= 1
        self._version += 1
        self._sent = self._discarded = 0
        self._spent = 0.0
        # uploads of versions that are too old for the next step will be discarded
        expired = [
            v
            for v in set(versions) | {self._version - 1}
            if v in self._slot_of and not self._outstanding[v]
        ]
        # the one version that this step makes too old; those before it went earlier
        oldest = self._version - 1 - limit
        expired += [v for v in (oldest,) if v in self._slot_of and v not in expired]
        for version in expired:
            heapq.heappush(self._free_slots, self._slot_of.pop(int(version)))
            del self._outstanding[int(version)]
        for client in clients:
            self._free.add(client)
        self._buffer.clear()
        self._slots.append(self._slots[-1])

    def _dispatch(self) -> None:
        """Sends the current version to clients until as many as may be are at work."""
        count = min(self._concurrency - len(self._events), self._free.count)
        if count <= 0:
            return
        # everyone is free and a whole cohort is needed: the draw of a synchronous round
        if count == self.cohort and self._free.count == self._clients:
            clients = [int(k) for k in self._draw(self._version)]
            for client in clients:
                self._free.remove(client)
        else:
            clients = [self._free.draw(self._random) for _ in range(count)]
        if self._version not in self._slot_of:
            # no slot is free, so those in use are 0 to `used` - 1
            used = len(self._slot_of)
            self._slot_of[self._version] = (
                heapq.heappop(self._free_slots) if self._free_slots else used
            )
            self._outstanding[self._version] = 0
            # the largest number of slots so far
            self._slots[-1] = max(self._slots[-1], self._slot_of[self._version] + 1)
        self._outstanding[self._version] += count
        self._sent += count
        ids = np.asarray(clients)
        durations = for_clients("devices.seconds", self._seconds(ids, self._version), ids)
        energies = np.zeros(count) if self._joules is None else self._joules(ids, self._version)
        # the end on the clock has to be finite as well
        is_valid = (durations >= 0) & (durations <= np.finfo(np.float64).max - self._now)
        if not is_valid.all():
            raise InvalidInput.of(
                "devices",
                float(durations[~is_valid][0]),
                "finite seconds >= 0 from a client's dispatch to its arrival",
            )
        for client, duration, joules in zip(
            clients, durations.tolist(), energies.tolist(), strict=True
        ):
            event = (self._now + duration, client, self._version, self._dispatches, joules)
            heapq.heappush(self._events, event)
            self._dispatches += 1


class _Ranking:
    """A set of clients with weights, from which one is drawn in logarithmic time: a Fenwick tree of
    the weights.

    A draw depends on the set alone and not on the order of the changes that led to it.
    """

    def __init__(self, weights: np.ndarray) -> None:
        size = len(weights)
        self.weights, self.count, self.total = [int(w) for w in weights], size, int(np.sum(weights))
        # the largest power of two up to `size`: the first step of a search
        self.top = 1 << (size.bit_length() - 1)
        sums = np.concatenate([[0], np.cumsum(np.asarray(weights, np.int64))])
        ends = np.arange(size + 1)
        # tree[i] sums the weights of the clients i - lowbit(i) to i - 1, where i & -i is the lowest
        # bit
        self.tree: list[int] = (sums - sums[ends - (ends & -ends)]).tolist()

    def add(self, client: int) -> None:
        self._change(client, self.weights[client])
        self.count += 1

    def remove(self, client: int) -> None:
        self._change(client, -self.weights[client])
        self.count -= 1

    def draw(self, random: np.random.Generator) -> int:
        """Draws a client in proportion to the weights, and removes it."""
        ticket, position, step = int(random.integers(self.total)), 0, self.top
        # the owner of the ticket, where the members' weights lie one after the other in the order
        # of their numbers
        while step:
            if position + step < len(self.tree) and self.tree[position + step] <= ticket:
                position += step
                ticket -= self.tree[position]
            step >>= 1
        self.remove(position)
        return position

    def _change(self, client: int, delta: int) -> None:
        self.total += delta
        position = client + 1
        while position < len(self.tree):
            self.tree[position] += delta
            position += position & -position
