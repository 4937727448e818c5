"""Evaluation for observers: one pass over all clients' examples, then sums by client.

`CompiledView` is what an observer sees. A model passes over the flat arrays of examples in large
pieces rather than client by client, which gives a value for each example.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from fedax.core.bound_model import evaluated_state
from fedax.core.carry import RunCarry
from fedax.core.federation import ClientStates, Cohort
from fedax.core.validation.misuse import explained
from fedax.core.validation.own_methods import call_model
from fedax.engine.round.aggregation import add_compensated, finalize, no_terms
from fedax.engine.round.client import CompiledClient, Setup
from fedax.examples.ragged import Examples, Ragged
from fedax.observe.base import Gradients, Observer, OfClients, Split, View
from fedax.utils.layout import accumulator
from fedax.utils.random import Index

PIECE = 2048
"""Largest number of examples that pass through the model at once in an evaluation."""
INPUTS_ON_CPU = 2**17
"""Numbers in the inputs that pass at once on a CPU: more layers' outputs than its caches hold make
convolutions half as fast.
"""


class PersonalModels(NamedTuple):
    """The model that one client uses itself, or those of all with a first axis (clients,).

    Attributes:
        models: flat, shape (dim,).
        states: in which each of them is evaluated, such as batch statistics: after the work that
            makes the model, which may train. None if the model has no state that changes.
    """

    models: Float[Array, "*clients dim"]
    states: PyTree = None


class ModelsOfClients(Observer):
    """The models that the clients use themselves, for `run(personal=True)`."""

    def __call__(self, view: View) -> dict[str, Any]:
        assert isinstance(view, CompiledView), "refused by `Program.check`"
        return view.models_of_clients()._asdict()


def personal_models(
    setup: Setup, carry: RunCarry, w: Float[Array, "dim"]
) -> Callable[[Index], PersonalModels]:
    """Returns a function from a client's number to the model that it uses itself.

    `w` is the global model, which clients without their own one use.
    """
    personal = setup.algorithm.personal(carry.state)
    states = carry.model_state

    def state_of(k: Index) -> PyTree:
        return states.of(k) if isinstance(states, ClientStates) else states

    if personal is None:
        return lambda k: PersonalModels(w, state_of(k))

    def model(k: Index) -> PersonalModels:
        client = CompiledClient(setup, k)
        if states is not None:
            client.model_state = state_of(k)
        # without the barriers XLA would fuse, and so round, differently depending on where the
        # memory is stored
        down, memory_rows = jax.lax.optimization_barrier(
            (personal.down, () if personal.states is None else (personal.states.of(k),))
        )
        with explained(personal.work):
            own_model = personal.work(client, *down, *memory_rows)
        own_state = None if states is None else client.model_state
        return PersonalModels(*jax.lax.optimization_barrier((own_model, own_state)))

    return model


def view_of(
    setup: Setup,
    carry: RunCarry,
    last_cohort: Cohort,
    kind: Callable[[Setup, Float[Array, "dim"]], "CompiledView"] | None = None,
) -> "CompiledView":
    """Returns the observers' view of a carry.

    `last_cohort` is the cohort of the last phase before it, `kind` makes the view of a model.
    """
    algorithm = setup.algorithm
    published = setup.published(carry)
    task = setup.task
    task = task.at(evaluated_state(published.model_state, task.state))
    model = call_model(algorithm, published.state, setup.layout.dim)
    view = (kind or CompiledView)(dataclasses.replace(setup, task=task), model)
    view.method = algorithm
    view.solver = setup.solver
    view.schedule = setup.schedule
    view.equal = setup.has_equal_weights
    state = carry.state
    nodes = algorithm.nodes(state)
    view.nodes = None if nodes is None else nodes.all()
    weights = algorithm.weights(state)
    view.weights = None if weights is None else weights.all()
    view._worked = last_cohort
    view.states = carry.model_state if isinstance(carry.model_state, ClientStates) else None
    view.own = personal_models(setup, carry, model)
    view.is_personal = view.states is not None or algorithm.personal(state) is not None
    return view


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
        own: from a client's number to the model that it uses itself, and its state.
        is_personal: whether that is another one than `w` in the common state.
        states: the clients' own states of the model; None if they have none.
    """

    nodes = None
    own: Callable[[Index], PersonalModels]
    is_personal: bool = False
    states: ClientStates | None = None
    _worked: Cohort | None = None

    def __init__(self, setup: Setup, w: Float[Array, "dim"]) -> None:
        self.setup = setup
        self.w = w
        self.task = setup.task
        self._sums: dict[str, dict[str, Array]] = {}

    def cohort(self) -> Cohort:
        assert self._worked is not None, "a view of a model alone has no rounds"
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        sums = self.sums(split)[score]
        return sums / jnp.asarray(getattr(self.task, split).sizes).astype(sums.dtype)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        if not self.is_personal:
            return self.per_client(split, score)
        return self.score_models(split, score, self.own)

    def models_of_clients(self) -> PersonalModels:
        """Returns the models that the clients use themselves, with a first axis (clients,)."""
        return jax.lax.map(self.own, jnp.arange(self.task.train.clients, dtype=jnp.int32))

    def score_models(
        self,
        split: OfClients,
        score: str,
        model_of: Callable[[Index], tuple[Float[Array, "dim"], Any]],
    ) -> Float[Array, "clients"]:
        """Computes `per_client` for models by client.

        `model_of` returns a client's model and its state, None for the global state.
        """
        data: Ragged = getattr(self.task, split)
        wide = accumulator(self.w.dtype)
        if not data.total:
            return jnp.full(data.clients, jnp.nan, wide)

        # client by client, because every client has its own parameters
        def mean(k: Index) -> Float[Array, ""]:
            client = CompiledClient(self.setup, k)
            w, client.model_state = model_of(k)
            functions = self.task.at(client.model_state).functions

            def total(params: PyTree, rows: dict[str, Array], weight: Array, _: Any) -> Array:
                values = _score_examples(functions, params, rows, [score])[score]
                return jnp.where(weight > 0, values, 0).astype(wide).sum()

            examples = client.first(data.largest, split)
            count = jnp.asarray(examples.count, wide)
            return examples.sum_pieces(total, self.setup.layout.unravel(w)) / count

        return jax.lax.map(mean, jnp.arange(data.clients, dtype=jnp.int32))

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        split = self._resolve_split(split)
        return self.sums(split)[score].sum() / self.count(split)

    def count(self, split: str) -> int:
        """Returns the number of all examples of a split."""
        return _as_ragged(getattr(self.task, split)).total

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
            data = _as_ragged(getattr(self.setup.task, split))
            functions = self.setup.task.functions
            params = self.setup.layout.unravel(self.w)
            wide = accumulator(self.w.dtype)
            if not data.total:
                return {name: jnp.zeros(data.clients, wide) for name in functions}
            values = map_examples(
                lambda examples: _score_examples(functions, params, examples, functions), data
            )
            self._sums[split] = {
                name: sum_by_client(column.astype(wide), data) for name, column in values.items()
            }
        return self._sums[split]

    def predictions(self, split: Split) -> Shaped[Array, "examples ..."]:
        task = self.setup.task
        predict = task.predictions
        assert predict is not None, "a task without predictions"
        params = self.setup.layout.unravel(self.w)
        data = _as_ragged(getattr(task, self._resolve_split(split)))
        return map_examples(lambda examples: predict(params, examples, None), data)

    def unseen(self, score: str, steps: int | None) -> Float[Array, "others"]:
        task = self.setup.task.unseen
        schedule = self.setup.schedule
        assert task is not None, "a task that holds no clients back"
        # every held-out client adapts for the same number of steps, without stragglers; no
        # probability is left that may be an array here
        if steps is not None:
            schedule = dataclasses.replace(
                schedule, steps=steps, times=None, sync_probability=None, conditions={}
            )
        population = task.train.population
        setup = dataclasses.replace(
            self.setup, task=task, population=population, schedule=schedule, first=0
        )
        view = CompiledView(setup, self.w)
        if steps is None:
            return view.per_client("test", score)

        def adapt(k: Index) -> tuple[Float[Array, "dim"], Any]:
            client = CompiledClient(setup, k)
            return client.minimize(start=self.w), client.model_state

        return view.score_models("test", score, adapt)

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        def evaluate_client(inputs: tuple[Any, ...]) -> Any:
            return look(CompiledClient(self.setup, inputs[0]), *inputs[1:])

        return jax.lax.map(
            evaluate_client, (jnp.arange(self.task.train.clients, dtype=jnp.int32), *rows)
        )

    def gradients(self) -> Gradients:
        if not hasattr(self, "_gradients"):
            self._gradients = self._compute_gradients()
        return self._gradients

    def _compute_gradients(self) -> Gradients:
        clients = self.task.train.clients
        share = self.share

        # streamed over clients: a matrix of all gradients would have shape (clients, dim)
        wide = accumulator(self.w.dtype)

        def add(k: Index, sums: Gradients) -> Gradients:
            gradient = wide_gradient(self.setup, k, self.w)
            return add_compensated(sums, Gradients.terms(gradient, share[k], clients))

        zero = Gradients.terms(jnp.zeros(self.w.shape, wide), jnp.zeros((), wide), clients)
        return finalize(jax.lax.fori_loop(0, clients, add, no_terms(zero)))


def wide_gradient(setup: Setup, k: Index, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
    """Returns the gradient of a client's loss in the type in which sums are added up."""
    return CompiledClient(setup, k).gradient(w).astype(accumulator(w.dtype))


def map_examples(function: Callable[[dict[str, Array]], PyTree], data: Ragged) -> PyTree:
    """Applies a function to all examples in pieces; gives leaves of shape (examples, ...)."""
    width = examples_at_once(data, data.total)
    pieces = -(-data.total // width)
    repeated = pieces * width - data.total

    def evaluate(i: Index) -> PyTree:
        # the last piece is moved back into the data
        begin = jnp.minimum(i * width, data.total - width)
        return function(data.piece(begin, width))

    def flatten(rows: Array) -> Array:
        return jnp.concatenate([rows[:-1].reshape(-1, *rows.shape[2:]), rows[-1][repeated:]])

    return jax.tree.map(flatten, jax.lax.map(evaluate, jnp.arange(pieces, dtype=jnp.int32)))


def sum_by_client(values: Float[Array, "examples"], data: Ragged) -> Float[Array, "clients"]:
    """Sums values of examples over each client."""
    # the error of a sum grows with its number of terms: n values are added in groups of sqrt(n)
    group = max(1, math.isqrt(data.largest))
    groups = data.total // group + data.clients
    offsets = jnp.asarray(data.offsets)
    # a client's groups follow those of the clients before it; some numbers between have no values
    first_group = offsets[:-1] // group + jnp.arange(data.clients, dtype=jnp.int32)
    index = jnp.arange(data.total, dtype=jnp.int32)
    owner = jnp.searchsorted(offsets, index, side="right") - 1
    number = first_group[owner] + (index - offsets[owner]) // group
    group_sums = jax.ops.segment_sum(values, number, groups, indices_are_sorted=True)
    group_ids = jnp.arange(groups, dtype=jnp.int32)
    owner = jnp.searchsorted(first_group, group_ids, side="right") - 1
    return jax.ops.segment_sum(group_sums, owner, data.clients, indices_are_sorted=True)


def _score_examples(
    functions: Mapping[str, Callable[..., Any]],
    params: PyTree,
    examples: dict[str, Array],
    names: Iterable[str],
) -> dict[str, Float[Array, "rows"]]:
    """Returns scores of each example, NaN where its loss is.

    `argmax` and comparisons of NaN would give valid numbers.
    """
    loss = functions["loss"](params, examples, None)
    values = {
        name: loss if name == "loss" else functions[name](params, examples, None) for name in names
    }
    return {
        # a score may be a comparison
        name: jnp.where(jnp.isnan(loss), jnp.nan, value.astype(loss.dtype))
        for name, value in values.items()
    }


def examples_at_once(data: Ragged, count: int) -> int:
    """Returns how many of `count` examples pass through the model at once.

    On a CPU from 64 to 256, fewer the larger an example is.
    """
    if jax.default_backend() != "cpu":
        return min(PIECE, count)
    numbers = max(1, sum(math.prod(values.shape[1:]) for values in data.arrays.values()))
    return min(PIECE, count, max(min(256, INPUTS_ON_CPU // numbers), 64))


def _as_ragged(data: Examples | Ragged) -> Ragged:
    """Returns a global set as the examples of one client."""
    if isinstance(data, Ragged):
        return data
    count = len(next(iter(data.values())))
    return Ragged(data, np.array([0, count], np.int32), 1, count)
