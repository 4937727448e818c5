"""The reference engine: a Python loop over real slices, nothing compiled, nothing padded.

Slow and plain on purpose. Every other engine must agree with it, and when a work function fails it says where.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.channel import bits_of, opened
from fedax.core.client import Carry, Client, Minibatch
from fedax.core.errors import FedaxError, WorkError
from fedax.core.federation import Cohort, Federation, Gathered, Memory, Upload
from fedax.core.hyper import as_arrays
from fedax.core.keys import stream
from fedax.core.layout import Layout, accumulator
from fedax.core.schedule import Schedule, cohort_weights
from fedax.core.solver import Solver
from fedax.core.task import Task
from fedax.core.view import Observer, View
from fedax.engines.base import Engine, Log, Program, stacked
from fedax.engines.client import Setup
from fedax.engines.gossip import Sending, finite_rows
from fedax.engines.order import shuffled
from fedax.engines.view import all_personal, nobody, view_of
from fedax.graphs import Graph


class EagerClient(Client):
    """A client with concrete numbers and its own arrays."""

    def __init__(self, setup: Setup, index: int, round: int, root: Key[Array, ""], occurrence: int) -> None:
        super().__init__(
            setup.task, setup.solver, setup.schedule, setup.layout, stream(root, "client", round, index, occurrence)
        )
        self.index, self.round = index, round
        self.data = {name: jnp.asarray(values) for name, values in setup.task.train.client(index).items()}
        self.size: int = int(setup.task.train.sizes[index])
        self.share = jnp.asarray(self.size / setup.task.train.total, setup.layout.dtype)
        work = setup.schedule.work(stream(root, "work", round, index), self.size, round)
        self.steps, self.batch = int(work.steps), int(work.batch)

    def loss(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        return EagerMinibatch(self, self.data, None).loss(self.layout.unravel(w))

    def gradient(self, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        return self.layout.ravel(EagerMinibatch(self, self.data, None).gradient(self.layout.unravel(w)))

    def first(self, count: int, split: Literal["train", "test"] = "train") -> "EagerMinibatch":
        data = getattr(self.task, split).client(self.index)
        return EagerMinibatch(self, {name: jnp.asarray(values[:count]) for name, values in data.items()}, None)

    def run(self, step: Callable[..., Carry], carry: Carry, batches: int = 1) -> Carry:
        full, per_epoch = self.schedule.batch_size == "full", -(-self.size // self.batch)
        for done in range(self.steps):
            epoch, number = divmod(done, per_epoch)
            if number == 0:
                order = np.arange(self.size)
                if self.schedule.order == "shuffled" and not full:
                    key = jax.random.fold_in(self.key("order"), epoch)
                    order = np.asarray(shuffled(key, self.size, self.size))
            noise = jax.random.fold_in(self.key("noise"), done)
            minibatches = []
            for j in range(batches):
                begin = (number + j) % per_epoch * self.batch
                rows = order[begin : begin + self.batch]
                key = jax.random.fold_in(jax.random.fold_in(noise, j) if j else noise, 0)
                minibatches.append(EagerMinibatch(self, {name: v[rows] for name, v in self.data.items()}, key))
            carry = step(carry, *minibatches)
        return carry


class EagerMinibatch(Minibatch):
    """Some examples, as they are."""

    def __init__(self, client: EagerClient, data: dict[str, Array], key: Any) -> None:
        self.client, self.data, self.key = client, data, key

    def loss(self, params: PyTree) -> Float[Array, ""]:
        task = self.client.task
        losses = task.loss(params, self.data, self.key)
        loss = losses.sum() / max(losses.shape[0], 1)
        return loss + task.l2 / 2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params)) if task.l2 else loss

    def gradient(self, params: PyTree) -> PyTree:
        return jax.grad(self.loss)(params)


class OpaqueMemory(Memory):
    """Clients' memories behind a name: an algorithm that looks inside finds nothing."""

    def __init__(self, rows: dict[int, PyTree]) -> None:
        self._rows = rows

    def joined(self, other: Memory) -> Memory:
        return OpaqueMemory({k: (own, other._rows[k]) for k, own in self._rows.items()})

    def parted(self) -> tuple[Memory, Memory]:
        return tuple(OpaqueMemory({k: pair[i] for k, pair in self._rows.items()}) for i in range(2))  # type: ignore[return-value]

    def _stacked(self) -> PyTree:
        return jax.tree.map(lambda *rows: jnp.stack(rows), *self._rows.values())


class EagerFederation(Federation):
    """One round, step by step."""

    def __init__(self, setup: Setup, algorithm: str, round: int, root: Key[Array, ""]) -> None:
        self.setup, self.algorithm, self.round, self.root = setup, algorithm, round, root
        self.clients = setup.task.train.clients
        self.notes: dict[str, Any] = {}
        self.down = self.up = 0
        self.bad_client, self.nobody = -1, False
        self.last: Cohort | None = None
        self._draws = 0
        self._occurrences: dict[str, int] = {}

    @property
    def everyone(self) -> Cohort:
        return self._cohort(jnp.arange(self.clients, dtype=jnp.int32), drawn=False)

    def sample(self, odds: Float[Array, "clients"] | None = None) -> Cohort:
        key = stream(self.root, "cohort", self.round, self._draws)
        self._draws += 1
        ids, count = self.setup.schedule.draw(key, jnp.asarray(self.setup.task.train.offsets), odds)
        return self._cohort(ids[: int(count)], drawn=odds is None)

    def _cohort(self, ids: Array, drawn: bool) -> Cohort:
        share = jnp.asarray(
            self.setup.task.train.sizes[np.asarray(ids)] / self.setup.task.train.total, self.setup.layout.dtype
        )
        count = ids.shape[0]
        return Cohort(ids, count, *cohort_weights(self.setup.schedule, ids, share, count, self.clients, drawn))

    def key(self, purpose: str) -> Key[Array, ""]:
        return stream(self.root, "server", self.round, purpose)

    def memory(self, initial: PyTree) -> Memory:
        return OpaqueMemory({k: initial(jnp.int32(k)) if callable(initial) else initial for k in range(self.clients)})

    def note(self, **values: Array | float) -> None:
        self.notes.update({name: np.asarray(value) for name, value in values.items()})

    def average(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        uploads, memory = self._phase(work, cohort, down, memory)
        if not uploads:
            raise NobodyError
        weights = _weights(uploads, cohort)
        total = jnp.stack(weights).astype(accumulator(weights[0].dtype)).sum()

        def weighted(*parts: Array) -> Array:
            wide = accumulator(parts[0].dtype)
            terms = (w.astype(wide) * p.astype(wide) for w, p in zip(weights, parts, strict=True))
            return (sum(terms) / total.astype(wide)).astype(parts[0].dtype)

        mean = jax.tree.map(weighted, *(upload.value for upload in uploads))
        return mean if memory is None else (mean, memory)

    def gather(self, work: Callable[..., Upload[Any]], cohort: Cohort, *down: PyTree, memory: Memory | None = None) -> Any:
        uploads, memory = self._phase(work, cohort, down, memory)
        if not uploads:
            raise NobodyError
        values = jax.tree.map(lambda *parts: jnp.stack(parts), *(upload.value for upload in uploads))
        weights = jnp.stack(
            [
                default if upload.weight is None else upload.weight
                for upload, default in zip(uploads, cohort.weights, strict=True)
            ]
        )
        gathered = Gathered(values, weights, cohort.ids, jnp.ones(len(uploads), bool))
        return gathered if memory is None else (gathered, memory)

    def exchange(
        self, graph: Graph, send: Callable[..., Upload[Any]], receive: Callable[..., Any], memory: Memory
    ) -> Memory:
        graph.check_population(self.clients)
        neighbours, weights = (np.asarray(table) for table in graph.at(int(self.round)))
        links = (neighbours != neighbours[:, :1]).sum(1)
        uploads, in_hand = self._phase(Sending(send), self.everyone, (), memory, links)
        assert in_hand is not None
        occurrence, after = self._occurrence(receive), dict(in_hand._rows)
        for k in range(self.clients):
            parts = zip(weights[k], (uploads[j].value for j in neighbours[k]), strict=True)
            scaled = [jax.tree.map(lambda u, w=w: jnp.asarray(w, u.dtype) * u, value) for w, value in parts]
            received = jax.tree.map(lambda *terms: sum(terms), *scaled)
            after[k] = self._work(receive, occurrence, k, in_hand._rows[k], received)
            if self.bad_client < 0 and not bool(finite_rows(jax.tree.map(lambda leaf: leaf[None], after[k]))[0]):
                self.bad_client = k
        return OpaqueMemory(after)

    def _phase(
        self,
        work: Callable[..., Upload[Any]],
        cohort: Cohort,
        down: Iterable[PyTree],
        memory: Any,
        messages: Sequence[int] | np.ndarray | None = None,
    ) -> tuple[list[Upload[Any]], Memory | None]:
        """Runs one phase; `messages` is how often each participant sends its upload, once by default."""
        occurrence, uploads, self.last = self._occurrence(work), [], cohort
        after = None if memory is None else dict(memory._rows)
        for i, k in enumerate(int(k) for k in cohort.ids):
            upload = self._work(work, occurrence, k, *down, *(() if memory is None else (memory._rows[k],)))
            if after is not None:
                after[k] = upload.memory
            self.down += bits_of(list(down))
            up = bits_of(upload.value) + (0 if upload.weight is None else bits_of(upload.weight))
            self.up += up if messages is None else up * int(messages[i])
            value, clipped = opened(upload.value)
            uploads.append(Upload(value, upload.weight, upload.memory))
            if clipped is not None:
                self.note(overflow=jnp.asarray(self.notes.get("overflow", 0), jnp.int32) + clipped)
            finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(value))
            self.bad_client = k if self.bad_client < 0 and not finite else self.bad_client
        return uploads, None if after is None else OpaqueMemory(after)

    def _occurrence(self, work: Callable[..., Any]) -> int:
        name = getattr(work, "__name__", type(work).__name__)
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]

    def _work(self, work: Callable[..., Any], occurrence: int, k: int, *arguments: Any) -> Any:
        """The work of one client; an error in it names the place."""
        try:
            return work(EagerClient(self.setup, k, int(self.round), self.root, occurrence), *arguments)
        except FedaxError:
            raise
        except Exception as error:
            name = getattr(work, "__name__", type(work).__name__)
            place = f"{self.algorithm}.{name}, round {self.round}, client {k}"
            raise WorkError(f"{place}: {type(error).__name__}: {error}") from error


class NobodyError(FedaxError):
    """A phase without clients: the round leaves the state as it was."""


def _weights(uploads: Sequence[Upload[Any]], cohort: Cohort) -> list[Array]:
    own = [upload.weight for upload in uploads if upload.weight is not None]
    return own if own and math.fsum(float(w) for w in own) > 0 else list(cohort.weights)


class Eager(Engine):
    """The reference engine; see the module. No arguments."""

    def program(
        self,
        algorithms: Sequence[Algorithm[Any]],
        task: Task,
        solver: Solver,
        schedule: Schedule,
        layout: Layout,
        roots: Sequence[Key[Array, ""]],
        longest: int,
    ) -> "EagerProgram":
        setup = Setup(task, as_arrays(solver, layout.dtype), schedule, layout)
        return EagerProgram(setup, as_arrays(list(algorithms), layout.dtype), roots)


class EagerProgram(Program):
    """Runs rounds in Python, one run after the other."""

    def __init__(self, setup: Setup, algorithms: Sequence[Algorithm[Any]], roots: Sequence[Key[Array, ""]]) -> None:
        self.setup, self.seeds = setup, len(roots)
        self.algorithms = [algorithm for algorithm in algorithms for _ in roots]
        self.roots = list(roots) * len(algorithms)

    def _federation(self, algorithm: Algorithm[Any], round: int, root: Key[Array, ""]) -> Any:
        return EagerFederation(self.setup, type(algorithm).__name__, round, root)

    def start(self, models: Sequence[Float[Array, "dim"]]) -> Any:
        runs = zip(self.algorithms, self.roots, [*models] * (len(self.algorithms) // self.seeds), strict=True)
        return [(algorithm.init(self._federation(algorithm, 0, root), w), None) for algorithm, root, w in runs]

    def advance(self, states: Any, first: int, count: int) -> tuple[Any, list[Log]]:
        runs = zip(self.algorithms, self.roots, states, strict=True)
        results = [self._advance(algorithm, root, state, first, count) for algorithm, root, (state, _) in runs]
        return [(state, worked) for state, _, worked in results], [log for _, log, _ in results]

    def _advance(
        self, algorithm: Algorithm[Any], root: Key[Array, ""], state: Any, first: int, count: int
    ) -> tuple[Any, Log, Cohort | None]:
        notes: list[dict[str, Any]] = []
        worked: Cohort | None = None
        down, up, bad = [], [], []
        for t in range(first, first + count):
            fed = self._federation(algorithm, t, root)
            try:
                state = algorithm.round(fed, state)
                worked = fed.last
            except NobodyError:
                fed.bad_client, worked = -1, None
            notes.append(fed.notes)
            down.append(fed.down)
            up.append(fed.up)
            bad.append(fed.bad_client)
        return state, Log(stacked(notes), *(np.asarray(values, np.int64) for values in (down, up, bad))), worked

    def observe(self, states: Any, observers: Sequence[Observer], done: int) -> list[dict[str, np.ndarray]]:
        views = [self._view(algorithm, *state) for algorithm, state in zip(self.algorithms, states, strict=True)]
        return [
            {name: np.asarray(value) for observer in observers for name, value in observer(view).items()} for view in views
        ]

    def _view(self, algorithm: Algorithm[Any], state: Any, worked: Cohort | None) -> View:
        return view_of(self.setup, algorithm, state, self._shown(worked, self.setup.task.train.clients))

    def _shown(self, worked: Cohort | None, clients: int) -> Cohort:
        """Who worked last, as views have it."""
        return (worked or nobody(0, self.setup.layout.dtype)).padded(clients)

    def personal(self, states: Any) -> list[Float[Array, "clients dim"]]:
        return [all_personal(self.setup, a, state) for a, (state, _) in zip(self.algorithms, states, strict=True)]

    def split(self, states: Any) -> list[Any]:
        return [state for state, _ in states]

    def join(self, states: list[Any]) -> Any:
        return [(state, None) for state in states]
