"""Evaluation for observers: passes over all clients' data in large pieces rather than client by
client.

`CompiledView` is what an observer sees. Sums per client are segment sums over the flat arrays of
examples, compensated against rounding.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Shaped

from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, Memory
from fedax.core.task import Examples, Ragged, Task, piece
from fedax.core.validation.misuse import explained
from fedax.core.validation.own_methods import call_model
from fedax.engine.round.aggregation import add_compensated, finalize
from fedax.engine.round.client import CompiledClient, Part, Setup
from fedax.engine.round.engine import PersonalModels, RunCarry, initial_carry
from fedax.engine.round.footprint import RecordingBackend
from fedax.engine.round.model_state import task_as_evaluated
from fedax.observe.base import Gradients, Observer, OfClients, Split, View, compute_all
from fedax.utils.layout import accumulator
from fedax.utils.random import Index

PIECE = 2048
"""Largest number of examples that pass through the model at once in an evaluation."""
INPUTS_ON_CPU = 2**17
"""Numbers in the inputs that pass at once on a CPU: more layers' outputs than its caches hold make
convolutions half as fast.
"""


def personal_models(
    setup: Setup, algorithm: Algorithm[Any], carry: RunCarry
) -> Callable[[Index], PersonalModels] | None:
    """Returns a function from a client's number to the model it uses itself.

    Returns None if that is the global one.
    """
    personal, states = algorithm.personal(carry.state), carry.model_state
    if personal is None:
        return None

    def model(k: Index) -> PersonalModels:
        client = CompiledClient(setup, k, 0, jax.random.key(0), 0)
        if states is not None:
            client.model_state = states.of(k) if isinstance(states, Memory) else states
        # without the barriers XLA would fuse, and so round, differently depending on where the
        # memory is stored
        down, memory_rows = jax.lax.optimization_barrier(
            (personal.down, () if personal.memory is None else (personal.memory.of(k),))
        )
        with explained(personal.work):
            own_model = personal.work(client, *down, *memory_rows)
        own_state = None if states is None else client.model_state
        return PersonalModels(*jax.lax.optimization_barrier((own_model, own_state)))

    return model


def all_personal_models(setup: Setup, algorithm: Algorithm[Any], carry: RunCarry) -> PersonalModels:
    """Returns the models that the clients use themselves, with a first axis (clients,)."""
    clients, own_model_of = setup.task.train.clients, personal_models(setup, algorithm, carry)
    if own_model_of is None:
        model = call_model(algorithm, carry.state, setup.layout.dim)
        return PersonalModels(
            jnp.tile(model[None], (clients, 1)), _states_by_client(carry, clients)
        )
    return jax.lax.map(own_model_of, jnp.arange(clients, dtype=jnp.int32))


def _states_by_client(carry: RunCarry, clients: int) -> PyTree:
    """Returns the states that the clients have between rounds, with a first axis (clients,)."""
    if isinstance(carry.model_state, Memory):
        return carry.model_state.all()
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), carry.model_state
    )


def view_of(
    setup: Setup, algorithm: Algorithm[Any], carry: RunCarry, last_cohort: Cohort
) -> "CompiledView":
    """Returns the observers' view of a carry.

    `last_cohort` is the cohort of the last phase before it.
    """
    published = setup.published(carry)
    task = task_as_evaluated(setup.task, published.model_state)
    model = call_model(algorithm, published.state, setup.layout.dim)
    view = CompiledView(dataclasses.replace(setup, task=task), model)
    set_run(view, setup, algorithm, carry.state)
    view.own, view._worked = personal_models(setup, algorithm, carry), last_cohort
    view.states = carry.model_state if isinstance(carry.model_state, Memory) else None
    return view


def trace_metrics(observers: Sequence[Observer], algorithm: Algorithm[Any], setup: Setup) -> Any:
    """Returns the jaxpr of the observers' metrics."""
    arrays, static = eqx.partition(setup, eqx.is_array)
    cohort = empty_cohort(setup.population.clients, setup.layout.dtype)

    def metrics(arrays: Setup, w: Float[Array, "dim"]) -> dict[str, Any]:
        setup = eqx.combine(arrays, static)
        carry = initial_carry(RecordingBackend(setup), algorithm, jax.random.key(0), w)
        return compute_all(observers, view_of(setup, algorithm, carry, cohort))

    return jax.make_jaxpr(metrics)(arrays, jnp.zeros(setup.layout.dim, setup.layout.dtype))


def set_run(view: View, setup: Setup, algorithm: Algorithm[Any], state: Any) -> None:
    """Sets what a view has of its run on every backend: settings, and what clients store."""
    view.method, view.solver, view.schedule = algorithm, setup.solver, setup.schedule
    view.equal = has_equal_weights(setup, algorithm)
    memories = algorithm.nodes(state), algorithm.weights(state), algorithm.constraints(state)
    view.nodes, view.weights, view.constraints = (
        None if memory is None else memory.all() for memory in memories
    )


def has_equal_weights(setup: Setup, algorithm: Algorithm[Any]) -> bool:
    """Returns whether all clients have the same weight in the objective."""
    return algorithm.equal_weights or setup.schedule.weights == "equal"


def empty_cohort(clients: int, dtype: Any) -> Cohort:
    """Returns a cohort without clients, as before the first round."""
    nothing = jnp.zeros(clients, dtype)
    return Cohort(
        jnp.zeros(clients, jnp.int32), jnp.int32(0), nothing, nothing, jnp.zeros((), dtype)
    )


class CompiledView(View):
    """See `View`. Of a model alone it evaluates scores.

    `view_of` adds the run that the model is from.

    Attributes:
        own: from a client's number to the model that it uses itself, and its state; None if the
            model is `w`.
        states: the clients' own states of the model; None if they have none.
    """

    nodes = None
    own: Callable[[Index], PersonalModels] | None = None
    states: Memory | None = None
    _worked: Cohort | None = None

    def __init__(self, setup: Setup, w: Float[Array, "dim"]) -> None:
        self.setup, self.w, self.task = setup, w, setup.task
        self._sums: dict[str, dict[str, Array]] = {}

    def cohort(self) -> Cohort:
        assert self._worked is not None, "a view of a model alone has no rounds"
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        sums = self.sums(split)[score]
        return sums / jnp.asarray(getattr(self.task, split).sizes).astype(sums.dtype)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        if self.own is None and self.states is None:
            return self.per_client(split, score)
        states = self.states
        model_of = self.own or (
            lambda k: PersonalModels(self.w, None if states is None else states.of(k))
        )
        return self.score_models(split, score, model_of)

    def score_models(
        self,
        split: OfClients,
        score: str,
        model_of: Callable[[Index], tuple[Float[Array, "dim"], Any]],
    ) -> Float[Array, "clients"]:
        """Computes `per_client` for models by client.

        `model_of` returns a client's model and its state, None for the global state.
        """
        # client by client, because every client has its own parameters
        data: Ragged = getattr(self.task, split)
        if not data.total:
            return jnp.full(data.clients, jnp.nan, accumulator(self.w.dtype))
        width = examples_at_once(data, data.largest)

        def mean(k: Index) -> Float[Array, ""]:
            w, state = model_of(k)
            functions = self.task.at(state).functions
            params, part, wide = (
                self.setup.layout.unravel(w),
                Part.of(data, k),
                accumulator(self.w.dtype),
            )

            def add(i: Index, sums: tuple[Array, Array]) -> tuple[Array, Array]:
                position = i * width + jnp.arange(width, dtype=jnp.int32)
                rows = part.rows(position)
                values = propagate_nan(
                    {
                        name: functions[name](params, rows, None).astype(wide)
                        for name in dict.fromkeys(("loss", score))
                    }
                )
                return add_compensated(
                    sums, jnp.where(position < part.size, values[score], 0).sum()
                )

            zero = jnp.zeros((), wide)
            return finalize(
                jax.lax.fori_loop(0, (part.size + width - 1) // width, add, (zero, zero))
            ) / part.size.astype(wide)

        return jax.lax.map(mean, jnp.arange(data.clients, dtype=jnp.int32))

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        split = self._resolve_split(split)
        return self.sums(split)[score].sum() / _count_examples(getattr(self.task, split))

    def per_node(self, score: str) -> Float[Array, "clients"]:
        if self.nodes is None:
            return jnp.broadcast_to(self.overall("central", score), (self.task.train.clients,))

        def evaluate_node(k: Index, w: Float[Array, "dim"]) -> Float[Array, ""]:
            task = self.task.at(None if self.states is None else self.states.of(k))
            return CompiledView(dataclasses.replace(self.setup, task=task), w).overall(
                "central", score
            )

        ids = jnp.arange(self.task.train.clients, dtype=jnp.int32)
        return jax.lax.map(lambda row: evaluate_node(*row), (ids, self.nodes))

    def _resolve_split(self, split: Split) -> Split:
        """Returns the split, or "test" for a central test set that the task does not have."""
        return "test" if split == "central" and self.task.central is None else split

    def sums(self, split: str) -> dict[str, Array]:
        """Sums the loss and all scores over each client's examples, shape (clients,).

        The shape is (1,) for a global set.
        """
        if split not in self._sums:
            self._sums[split] = self._sum_scores(getattr(self.task, split))
        return self._sums[split]

    def _sum_scores(self, data: Examples | Ragged) -> dict[str, Array]:
        """Computes `sums` of one data set, some examples at a time."""
        count, wide, functions = (
            _count_examples(data),
            accumulator(self.w.dtype),
            self.task.functions,
        )
        zero = {
            name: jnp.zeros(data.clients if isinstance(data, Ragged) else 1, wide)
            for name in functions
        }
        if not count:
            return zero
        width, params = examples_at_once(data, count), self.setup.layout.unravel(self.w)

        def add(i: Index, sums: tuple[Any, Any]) -> tuple[Any, Any]:
            # the last piece is moved back into the data; rows seen before do not count again
            begin = jnp.minimum(i * width, count - width)
            index = begin + jnp.arange(width, dtype=jnp.int32)
            batch, fresh, owner = (
                _take_piece(data, begin, width),
                index >= i * width,
                jnp.zeros_like(index),
            )
            if isinstance(data, Ragged):
                owner = jnp.searchsorted(jnp.asarray(data.offsets), index, side="right") - 1
            values = propagate_nan(
                {name: f(params, batch, None).astype(wide) for name, f in functions.items()}
            )
            return _add_by_owner(
                sums, owner, {name: jnp.where(fresh, value, 0) for name, value in values.items()}
            )

        return finalize(jax.lax.fori_loop(0, -(-count // width), add, (zero, zero)))

    def predictions(self, split: Split) -> Shaped[Array, "examples ..."]:
        return predictions(
            self.task,
            self.setup.layout.unravel(self.w),
            getattr(self.task, self._resolve_split(split)),
        )

    def unseen(self, score: str, steps: int | None) -> Float[Array, "others"]:
        return evaluate_unseen(self.setup, self.w, score, steps)

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        def evaluate_client(inputs: tuple[Any, ...]) -> Any:
            return look(CompiledClient(self.setup, inputs[0], 0, jax.random.key(0), 0), *inputs[1:])

        return jax.lax.map(
            evaluate_client, (jnp.arange(self.task.train.clients, dtype=jnp.int32), *rows)
        )

    def gradients(self) -> Gradients:
        if not hasattr(self, "_gradients"):
            self._gradients = self._compute_gradients()
        return self._gradients

    def _compute_gradients(self) -> Gradients:
        clients, share = self.task.train.clients, self.share

        # streamed over clients: a matrix of all gradients would have shape (clients, dim)
        wide = accumulator(self.w.dtype)

        def add(k: Index, sums: tuple[Gradients, Gradients]) -> tuple[Gradients, Gradients]:
            gradient = (
                CompiledClient(self.setup, k, 0, jax.random.key(0), 0).gradient(self.w).astype(wide)
            )
            return add_compensated(sums, Gradients.terms(gradient, share[k], clients))

        zero = Gradients.terms(jnp.zeros(self.w.shape, wide), jnp.zeros((), wide), clients)
        return finalize(jax.lax.fori_loop(0, clients, add, (zero, zero)))


def propagate_nan(values: dict[str, Float[Array, "rows"]]) -> dict[str, Float[Array, "rows"]]:
    """Makes all scores of an example NaN where its loss is.

    `argmax` and comparisons of NaN would give valid numbers.
    """
    broken = jnp.isnan(values["loss"])
    return {
        name: value if name == "loss" else jnp.where(broken, jnp.nan, value)
        for name, value in values.items()
    }


def predictions(task: Task, params: Any, data: Examples | Ragged) -> Shaped[Array, "examples ..."]:
    """Computes the predictions of a model for all examples, in pieces."""
    count, predict = _count_examples(data), task.predictions
    width = examples_at_once(data, count)
    assert predict is not None, "a task without predictions"

    def predict_piece(i: Index) -> Array:
        begin = jnp.minimum(i * width, count - width)  # the last piece is moved back into the data
        return predict(params, _take_piece(data, begin, width), None)

    pieces = -(-count // width)
    predicted = jax.lax.map(predict_piece, jnp.arange(pieces, dtype=jnp.int32))
    full_pieces = predicted[:-1].reshape(-1, *predicted.shape[2:])
    return jnp.concatenate([full_pieces, predicted[-1][width * pieces - count :]])


def examples_at_once(data: Examples | Ragged, count: int) -> int:
    """Returns how many of `count` examples pass through the model at once.

    On a CPU from 64 to 256, fewer the larger an example is.
    """
    if jax.default_backend() != "cpu":
        return min(PIECE, count)
    arrays = data.arrays if isinstance(data, Ragged) else data
    numbers = max(1, sum(math.prod(values.shape[1:]) for values in arrays.values()))
    return min(PIECE, count, max(min(256, INPUTS_ON_CPU // numbers), 64))


def _count_examples(data: Examples | Ragged) -> int:
    """Returns the number of examples of all clients, or of a global set."""
    return data.total if isinstance(data, Ragged) else len(next(iter(data.values())))


def _take_piece(data: Examples | Ragged, begin: Index, width: int) -> dict[str, Array]:
    """Returns `width` consecutive examples, whichever client has them."""
    return data.piece(begin, width) if isinstance(data, Ragged) else piece(data, begin, width)


def evaluate_unseen(
    setup: Setup, w: Float[Array, "dim"], score: str, steps: int | None
) -> Float[Array, "others"]:
    """Evaluates a model on held-out clients, see `View.unseen`."""
    task = setup.task.unseen
    assert task is not None, "a task that holds no clients back"
    schedule = setup.schedule
    # every held-out client adapts for the same number of steps, without stragglers; no probability
    # is left that may be an array here
    if steps is not None:
        schedule = dataclasses.replace(
            schedule, steps=steps, times=None, stragglers=0.0, sync_probability=None, dropouts=0.0
        )
    held_out_setup = dataclasses.replace(
        setup, task=task, population=task.train.population, schedule=schedule, first=0
    )

    view = CompiledView(held_out_setup, w)
    if steps is None:
        return view.per_client("test", score)

    def adapt(k: Index) -> tuple[Float[Array, "dim"], Any]:
        client = CompiledClient(held_out_setup, k, 0, jax.random.key(0), 0)
        return client.minimize(start=w), client.model_state

    return view.score_models("test", score, adapt)


def _add_by_owner(
    sums: tuple[Any, Any], owner: Int[Array, "rows"], values: dict[str, Array]
) -> tuple[Any, Any]:
    """Adds values to the compensated sums of their owners.

    Owners ascend, so only the entries of those present are touched.
    """
    # Rows of a piece are numbered by their owner among those present (0, 1, ...), so that the sums
    # of a piece have shape (rows,), not (clients,). Adding to all clients for each piece would cost
    # clients times pieces.
    local = jnp.cumsum(jnp.diff(owner, prepend=owner[:1]) > 0)
    groups = next(iter(sums[0].values())).shape[0]
    owners = jnp.full_like(owner, groups).at[local].set(owner)
    group_sums = {
        name: jnp.zeros_like(value).at[local].add(value) for name, value in values.items()
    }
    old_sums = jax.tree.map(lambda column: column.at[owners].get(mode="fill", fill_value=0), sums)
    return jax.tree.map(
        lambda column, update: column.at[owners].set(update, mode="drop"),
        sums,
        add_compensated(old_sums, group_sums),
    )
