"""Tasks: per-example losses and scores, federated data, the starting point."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.core.arrays import as_array, canonical, check_range
from fedax.core.bound import POLICIES, Bound, PerExample, assembled, takes
from fedax.core.errors import DataError, InvalidInput, UnknownName, short, shown
from fedax.core.indices import check_indices
from fedax.core.keys import Index
from fedax.core.modes import SCORES, Mode, check_mode
from fedax.core.names import ClientNames
from fedax.core.probe import check_per_example, check_rows
from fedax.core.separate import check_separate
from fedax.core.stacked import Stacked

Examples: TypeAlias = Mapping[str, Any]
"""Named arrays of equal length, one row per example."""


def rows_of(examples: Examples, where: str) -> int:
    """The common number of rows; raises `DataError` on unequal lengths or NaN, naming `where` and the array."""
    if not examples:
        raise DataError.found(where, "no arrays", "at least one array, with one row per example")
    for name, values in examples.items():
        if not np.ndim(values):
            raise DataError.found(
                f"{where}[{name!r}]", f"the single number {shown(values)}", "an array of one row per example"
            )
    lengths = {name: len(values) for name, values in examples.items()}
    if len(set(lengths.values())) != 1:
        raise DataError.of(where, lengths, "arrays with one row per example, all of the same length")
    for name, values in examples.items():
        values = as_array(values, f"{where}[{name!r}]")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DataError.found(f"{where}[{name!r}]", f"NaN or infinity in row {row}", "finite numbers")
    return next(iter(lengths.values()))


MOST_EXAMPLES = 2**31 - 1
"""Of all clients together: they are counted in 32 bits."""


def offsets_of(sizes: Sequence[int] | np.ndarray) -> Int[np.ndarray, "bounds"]:
    """The beginning of each client's examples among everybody's, and the number of all; raises `DataError` for too many."""
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    if len(ends) and ends[-1] > MOST_EXAMPLES:
        raise DataError.of("examples of all clients", int(ends[-1]), f"at most {MOST_EXAMPLES}")
    return np.concatenate([[0], ends]).astype(np.int32)


FEW = 64
"""Up to so many clients are looked up one after the other: XLA gives a gather from a large array to all threads."""


class Population(eqx.Module):
    """Sizes of all clients' data, wherever the examples are."""

    offsets: Int[Array | np.ndarray, "bounds"]
    clients: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    @classmethod
    def of(cls, sizes: Sequence[int] | np.ndarray) -> "Population":
        """Of everybody's sizes."""
        offsets = offsets_of(sizes)
        return cls(offsets, len(sizes), int(offsets[-1]))

    @property
    def sizes(self) -> Int[Array | np.ndarray, "clients"]:
        return self.offsets[1:] - self.offsets[:-1]

    def sizes_of(self, clients: Int[Array, "some"]) -> Int[Array, "some"]:
        """The sizes of some clients, at a cost that does not depend on the others."""
        offsets = jnp.asarray(self.offsets)
        if clients.shape[0] <= FEW:

            def size(k: Int[Array, ""]) -> Int[Array, ""]:
                return offsets[k + 1] - offsets[k]

            return jax.lax.map(size, clients)
        return offsets[clients + 1] - offsets[clients]


class Ragged(eqx.Module):
    """Examples of many clients, flat and in client order: client k owns rows `offsets[k]` to `offsets[k + 1]`.

    No padding: a federation with power-law sizes costs the memory of its samples. Made by `of` or `flat`.

    Attributes:
        arrays: by name, with a first axis over all examples.
        offsets: shape (clients + 1,).
        clients: their number.
        largest: examples of the largest client.
    """

    arrays: Mapping[str, Array | np.ndarray]
    offsets: Int[Array | np.ndarray, "bounds"]
    clients: int = eqx.field(static=True)
    largest: int = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        clients: Sequence[Examples],
        *,
        where: str = "clients",
        allow_empty: bool = False,
        like: "Ragged | None" = None,
    ) -> "Ragged":
        """Concatenates the clients' named arrays.

        Args:
            clients: the arrays of each.
            where: names them in messages.
            allow_empty: whether a client may have no examples.
            like: the training examples, for another part: it has the same arrays, in the same shapes and types.

        Raises:
            DataError: no client, an empty client (unless allowed), different names, NaN, unequal lengths or shapes.
        """
        if not len(clients):
            raise DataError.found(where, "an empty list", "at least one client")
        if like is not None:
            made = cls.of(clients, where=where, allow_empty=allow_empty)
            return dataclasses.replace(made, arrays=conformed(made.arrays, like.arrays, where))
        together = Stacked.of(clients)
        if together is not None and together.finite and (allow_empty or together.sizes.min() > 0):
            return cls.flat(together.arrays, together.sizes, where)
        names = set(clients[0])  # the first client that does not fit is looked for
        sizes = []
        for k, client in enumerate(clients):
            if set(client) != names:
                raise DataError.of(f"{where}[{k}]", sorted(client), f"the arrays {sorted(names)}, as client 0 has")
            sizes.append(rows_of(client, f"{where}[{k}]"))
            if sizes[-1] == 0 and not allow_empty:
                raise DataError.found(
                    f"{where}[{k}]", "0 examples", "at least 1 example", "Drop the client, or give it data."
                )
        arrays = {}
        for name in clients[0]:
            parts = [as_array(client[name], f"{where}[{k}][{name!r}]") for k, client in enumerate(clients)]
            shapes = {part.shape[1:] for part in parts}
            if len(shapes) > 1:
                raise DataError.of(f"{where}[...][{name!r}]", sorted(shapes), "the same shape of one example in all clients")
            arrays[name] = np.concatenate(parts)
        return cls.flat(arrays, sizes, where)

    @classmethod
    def flat(cls, arrays: Examples, sizes: Sequence[int] | np.ndarray, where: str = "data") -> "Ragged":
        """From arrays that already lie in client order, and the clients' sizes. Real numbers get the default float type."""
        offsets = offsets_of(sizes)
        ready = {name: canonical(values, f"{where}[...][{name!r}]") for name, values in arrays.items()}
        return cls(ready, offsets, len(sizes), int(np.max(sizes)))

    @property
    def sizes(self) -> Int[Array | np.ndarray, "clients"]:
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def population(self) -> Population:
        """The sizes alone."""
        return Population(self.offsets, self.clients, self.total)

    @property
    def total(self) -> int:
        return next(iter(self.arrays.values())).shape[0]

    def located(self, k: Index) -> tuple[Mapping[str, Array], Int[Array, ""], Int[Array, ""]]:
        """Arrays with the examples of one client, where they begin, and how many they are; in a compiled program."""
        offsets = jnp.asarray(self.offsets)
        return {name: jnp.asarray(values) for name, values in self.arrays.items()}, offsets[k], offsets[k + 1] - offsets[k]

    def piece(self, begin: Index, width: int) -> dict[str, Array]:
        """Consecutive examples, whoever has them; in a compiled program."""
        return piece(self.arrays, begin, width)

    def client(self, k: int) -> dict[str, Array | np.ndarray]:
        """The examples of one client."""
        rows = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return {name: values[rows] for name, values in self.arrays.items()}


def has_examples(data: Ragged | None) -> bool:
    """Returns whether any client has an example."""
    return data is not None and data.total > 0


def piece(examples: Examples, begin: Index, width: int) -> dict[str, Array]:
    """Consecutive rows of all arrays; in a compiled program."""
    return {name: jax.lax.dynamic_slice_in_dim(jnp.asarray(v), begin, width) for name, v in examples.items()}


def conformed(arrays: Examples, like: Examples, where: str) -> dict[str, Any]:
    """Returns the arrays of another part of the data in the types of the training examples.

    Args:
        arrays: of the part.
        like: the training examples.
        where: names the part in messages.

    Raises:
        DataError: other names than those of the training examples, rows of another shape, or real numbers for whole ones.
    """
    if set(arrays) != set(like):
        raise DataError.of(where, sorted(arrays), f"the arrays {sorted(like)}, as the training examples have")
    return {name: _conformed(arrays[name], values, f"{where}[{name!r}]") for name, values in like.items()}


def _conformed(values: Any, like: Any, where: str) -> Any:
    if values.shape[1:] != like.shape[1:]:
        got, allowed = f"rows of shape {values.shape[1:]}", f"{like.shape[1:]}, as the training examples have"
        raise DataError.found(where, got, allowed)
    if values.dtype == like.dtype:
        return values
    kinds = values.dtype.kind, like.dtype.kind
    if kinds[1] != "f" and (kinds[0] == "f" or kinds[1] == "b"):
        whole = np.asarray(values)
        if kinds[1] == "b" and not np.isin(whole, (0, 1)).all():
            raise DataError.found(where, f"values of type {values.dtype}", "true or false, as the training examples have")
        if not np.array_equal(whole, np.floor(whole)):
            raise DataError.found(where, f"real numbers ({values.dtype})", f"whole numbers ({like.dtype}), as in training")
        values = whole if kinds[1] == "b" else whole.astype(np.int64)
    check_range(np.asarray(values), like.dtype, where)
    return canonical(np.asarray(values).astype(like.dtype), where)


class Given(eqx.Module):
    """A starting point that does not depend on the seed."""

    params: PyTree

    def __call__(self, key: Any) -> PyTree:
        return jax.tree.map(jnp.asarray, self.params)


def _client_names(names: Any) -> ClientNames | None:
    return names if names is None or isinstance(names, ClientNames) else ClientNames(names, "Task(names=...)")


class Task(eqx.Module):
    r"""A federated learning problem $\min_w \sum_k \frac{n_k}{n} f_k(w)$, $f_k$ the mean loss over client k's examples.

    Args:
        start: `key -> params`, the starting point (any pytree of real arrays of one dtype).
        loss: `(params, examples, key) -> (batch,)`, one loss per example; masking and weighting are the engine's. See
            `fedax.core.bound.PerExample` for further arguments it may take.
        train: the clients' training examples.
        scores: further per-example quantities by name, of the same signature, such as `{"accuracy": ...}`.
        test: the clients' test examples, in the same client order (a client may have none).
        holdout: a global test set; by default the union of the clients' test examples.
        l2: adds $\frac{\text{l2}}{2}\lVert w \rVert^2$ to every client's loss (not to reported example losses). At least 0.
        modes: of scores, `"max"` where more is better and `"min"` where less is; of the loss less is better, of `"accuracy"` more.
        name: for tables and messages.
        predict: of the signature of `loss`, the model's predictions: the probabilities of all classes, shape (batch, classes), or
            anything else with one row per example; None if the task has none.
        validation: the clients' examples for choices made while training, such as among the settings of a grid; in the same
            client order (a client may have none). They are no part of `train`. See `fedax.tasks.with_validation`.
        held_back: a task of the same model and loss whose clients never take part; see `fedax.tasks.with_held_back`.
        frozen: the model's pytree with the leaves that are not trained, and None in the place of the trained ones. They are
            neither sent nor differentiated nor copied for each client. None if all are trained.
        state: what the model updates without a gradient, such as batch statistics: any pytree of arrays, None if it has none.
        state_policy: `"average"`: sent and averaged with the uploads; `"local"`: every client keeps its own, and the global model
            is looked at with their mean; `"frozen"`: stays as given.
        names: of the clients, in their order, or None. Traces of availability and results refer to them.
        columns: names of the columns of x, or None. Tables that predictions are made of are read by them.

    Raises:
        InvalidInput: a loss that is not per-example, or couples the examples of a batch without a state or a mask, or data that do
            not fit the model.
    """

    start: Callable[[Key[Array, ""]], PyTree]
    loss: PerExample = eqx.field(static=True)
    train: Ragged
    scores: dict[str, PerExample] = eqx.field(static=True, default_factory=dict)
    test: Ragged | None = None
    holdout: dict[str, Array | np.ndarray] | None = None
    l2: float = eqx.field(static=True, default=0.0)
    name: str = eqx.field(static=True, default="task")
    predict: PerExample | None = eqx.field(static=True, default=None)
    validation: Ragged | None = None
    held_back: "Task | None" = None
    frozen: PyTree = None
    state: PyTree = None
    state_policy: str = eqx.field(static=True, default="average")
    names: ClientNames | None = eqx.field(static=True, default=None, converter=_client_names)
    columns: tuple[str, ...] | None = eqx.field(static=True, default=None)
    modes: dict[str, Mode] = eqx.field(static=True, default_factory=dict[str, Mode])

    def __check_init__(self) -> None:
        if not (isinstance(self.l2, int | float) and 0 <= self.l2 < np.inf):
            raise InvalidInput.of("Task(l2=...)", self.l2, "finite numbers >= 0")
        if self.state_policy not in POLICIES:
            raise InvalidInput.of("Task(state_policy=...)", self.state_policy, f"one of {POLICIES}")
        if "loss" in self.scores:
            raise InvalidInput.of("Task(scores=...)", "loss", "other names of scores: the loss has this one")
        for score, mode in self.modes.items():
            if score not in self.scores:
                raise UnknownName.among("Task(modes=...)", score, self.scores)
            check_mode(f"Task(modes=...)[{score!r}]", mode, optional=False)
        for split in ("test", "validation"):
            data: Ragged | None = getattr(self, split)
            if data is not None and data.clients != self.train.clients:
                raise DataError.found(f"Task({split}=...)", f"{data.clients} clients", f"{self.train.clients}, as in train")
        self._check_parts()
        if self.names is not None and len(self.names) != self.train.clients:
            raise DataError.of("Task(names=...)", f"{len(self.names)} names", f"{self.train.clients}, one for each client")
        if self.holdout is not None and not rows_of(self.holdout, "holdout"):
            raise DataError.found("holdout", "0 examples", "at least 1 example, or None")
        probe = {k: jax.ShapeDtypeStruct((3, *v.shape[1:]), v.dtype) for k, v in self.train.arrays.items()}
        for name, function in self.functions.items():
            check_per_example(name, function, self.start, probe, training=name == "loss")
            check_separate(name, function, self.start, self.train.arrays, training=not self.couples)
        parts = [part.arrays for part in (self.train, self.test, self.validation) if part is not None]
        check_indices("loss", self.functions["loss"], self.start, parts + ([] if self.holdout is None else [self.holdout]))
        if (predictions := self.predictions) is not None:
            check_rows("predict", predictions, self.start, probe)
            check_separate("predict", predictions, self.start, self.train.arrays, training=False)

    def _check_parts(self) -> None:
        """Refuses test, validation and unseen examples of another form than the training examples."""
        parts = {"test": self.test, "validation": self.validation, "held_back": self.held_back and self.held_back.train}
        form = {name: (values.shape[1:], values.dtype) for name, values in self.train.arrays.items()}
        held: dict[str, Examples] = {where: data.arrays for where, data in parts.items() if data is not None}
        if self.holdout is not None:
            rows_of(self.holdout, "holdout")
            held["holdout"] = {name: as_array(values, "holdout") for name, values in self.holdout.items()}
        for where, arrays in held.items():
            if {name: (values.shape[1:], values.dtype) for name, values in arrays.items()} != form:
                conformed(arrays, self.train.arrays, where)  # finds the words, or that types alone differ

    def __repr__(self) -> str:
        """A short table: examples, their arrays, scores."""
        arrays = {name: f"{a.dtype.name}{[*a.shape[1:]] or ''}" for name, a in self.train.arrays.items()}
        rows = {"name": self.name, "clients": f"{self.train.clients:,}", "training examples": f"{self.train.total:,}"}
        for split in ("validation", "test"):
            if (data := getattr(self, split)) is not None:
                rows[f"{split} examples"] = f"{data.total:,}"
        if self.holdout is not None:
            rows["global test set"] = f"{len(next(iter(self.holdout.values()))):,} examples"
        rows["arrays"] = ", ".join(f"{name}: {form}" for name, form in arrays.items())
        rows["scores"] = ", ".join(["loss", *self.scores])
        width = max(map(len, rows))
        return "\n".join(["Task", *(f"  {name:<{width}}  {short(text)}" for name, text in rows.items() if text)])

    @property
    def score_modes(self) -> dict[str, Mode]:
        """The directions of the loss and of all scores that have one."""
        known: dict[str, Mode] = {name: mode for name, mode in SCORES.items() if name in ("loss", *self.scores)}
        return known | self.modes

    @property
    def functions(self) -> dict[str, Callable[[PyTree, Any, Any], Any]]:
        """Loss and scores by name, as functions of the trained parameters, the examples and the key alone."""
        return {name: self._bound(function) for name, function in {"loss": self.loss, **self.scores}.items()}

    @property
    def predictions(self) -> Callable[[PyTree, Any, Any], Any] | None:
        """As `functions`: the model's predictions, None if the task has none."""
        return None if self.predict is None else self._bound(self.predict)

    def _bound(self, function: PerExample) -> Callable[[PyTree, Any, Any], Any]:
        alone = self.frozen is None and self.state is None and not takes(function)
        return function if alone else Bound(function, self.frozen, self.state)

    @property
    def couples(self) -> bool:
        """Whether the loss may couple the examples of a minibatch in training: such a minibatch is never cut into pieces."""
        return bool(takes(self.loss))

    @property
    def test_set(self) -> Mapping[str, Any] | None:
        """The global test examples: `holdout`, or all clients' test examples, or None if there are none."""
        return (
            self.holdout
            if self.holdout is not None
            else self.test.arrays
            if self.test is not None and self.test.total
            else None
        )

    def at(self, state: PyTree) -> "Task":
        """The task of a model in another state."""
        if self.state is None or state is None or state is self.state:
            return self
        return eqx.tree_at(lambda task: task.state, self, state)

    def holding(self, params: PyTree) -> "Task":
        """The task with some more leaves frozen, which are None in the pytree if they stay trained."""
        frozen = assembled(params, self.frozen)
        return eqx.tree_at(lambda task: task.frozen, self, frozen, is_leaf=lambda leaf: leaf is None)

    def assembled(self, params: PyTree) -> PyTree:
        """The model in the user's own pytree, from the trained parameters."""
        return assembled(params, self.frozen)

    def total(
        self, function: PerExample, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any
    ) -> Float[Array, ""]:
        """The weighted sum of a per-example function; rows of weight 0 (padding) do not count, whatever they hold."""
        return weighted_sum(function(params, data, key), weight)

    def trained(self, params: PyTree, data: Any, weight: Float[Array, "batch"], key: Any) -> tuple[Float[Array, ""], PyTree]:
        """The weighted sum of the losses of a minibatch, and the model's state after it; padding has weight 0."""
        loss = self.functions["loss"]
        if not isinstance(loss, Bound):
            return self.total(loss, params, data, weight, key), None
        values, state = loss.update(params, data, key, weight > 0)
        return weighted_sum(values, weight), jax.lax.stop_gradient(state)


def weighted_sum(values: Any, weight: Float[Array, "batch"]) -> Float[Array, ""]:
    """The sum of some values with weights; what has weight 0 does not count, whatever it is."""
    return jnp.sum(jnp.where(weight > 0, weight * values.astype(weight.dtype), 0))
