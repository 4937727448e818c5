"""Tasks: per-example losses and scores, federated data, the starting point."""

import dataclasses
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.bound_model import (
    ROWS,
    Bound,
    PerExample,
    Policy,
    assembled,
    bind,
    check_per_example,
    per_example,
)
from fedax.core.directions import SCORES, Mode
from fedax.core.hyper import check_declared, hyper
from fedax.core.programs import SHARED, ProgramOwner
from fedax.core.starting_point import Given, Made, native, starting_point
from fedax.core.validation.prediction import predict
from fedax.errors import InvalidInput, UnknownName, short
from fedax.examples.client_names import ClientNames
from fedax.examples.encoding import Encoding
from fedax.examples.federated import FederatedData
from fedax.examples.integer_ranges import check_indices
from fedax.examples.ragged import (
    Examples,
    Ragged,
)


class Task(eqx.Module):
    r"""A federated learning problem $\min_w \sum_k \frac{n_k}{n} f_k(w)$, $f_k$ the mean loss over
    client k's examples.

    Args:
        start: the starting point: a pytree of real numbers or arrays, or a function of a random key
            that makes one, so that seeds differ in it. Leaves that are no numbers, such as
            activation functions, are split off and put back. Of Equinox modules, alone or within
            the pytree, only real arrays are trained. Of leaves of several float types, all are
            trained in the widest.
        loss: `loss(params, examples) -> (batch,)`, one loss per example, in JAX. `examples` is a
            dict of arrays with a batch axis, or an array where each client's examples are one. The
            value of an example must not depend on the others of its batch, nor on its place:
            `fedax check --task` and `fedax.conformance.check` test that, a task checks shapes and
            types only. What the loss reads elsewhere is read when the task's first run compiles.
            It may take more, by these names: `key`, a random key for dropout or augmentation, None
            in evaluation; `training`, whether this is a training step; `state`, the model's state:
            then it returns `(losses, new state)`. A loss with a state gets full minibatches: short
            ones are filled again with examples of the client. So one that couples the examples of a
            minibatch in training takes a state, `()` if it has none.
        data: the clients' examples, or a list or mapping of clients as `FederatedData.from_arrays`
            takes them.
        scores: further per-example functions of the same signature by name, such as
            `{"accuracy": ...}`.
        l2: adds $\frac{\text{l2}}{2}\lVert w \rVert^2$ to every client's loss (not to reported
            example losses). At least 0.
        modes: of scores, `"max"` where more is better and `"min"` where less is; of the loss less
            is better, of `"accuracy"` more.
        name: for tables and messages.
        predictor: of the signature of `loss`, the model's predictions: the probabilities of all
            classes, shape (batch, classes), or anything else with one row per example; None if the
            task has none.
        frozen: leaves that are not trained, by name or predicate: neither sent nor counted nor
            differentiated nor copied for each client.
        state: what the model updates without a gradient, such as batch statistics: any pytree of
            arrays, None if it has none.
        state_policy: `"average"`: sent and averaged with the uploads; `"local"`: every client keeps
            its own, and the global model is looked at with their mean; `"frozen"`: stays as given.
        owner: of the compiled programs, by default the task itself: another task compiles anew,
            also one of the same functions, which may read other values by then. A task with other
            arrays made by `dataclasses.replace` keeps it. None: tasks of equal functions share
            programs, for functions that read nothing but their arguments and fields.

    Example:
        The mean of all numbers, 3.5, minimises the federated squared error:

        >>> import fedax
        >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
        >>> schedule = fedax.Schedule(batch_size="full")
        >>> history = fedax.run(
        ...     fedax.FedAvg(), task, solver=fedax.SGD(1.0), schedule=schedule, rounds=1
        ... )
        >>> float(history.params)
        3.5

    Raises:
        InvalidInput: a loss whose values are not of shape (batch,), a starting point that cannot be
            trained, or data that do not fit the model.
    """

    start: Any
    loss: PerExample = eqx.field(static=True)
    data: Any
    scores: dict[str, PerExample] = eqx.field(static=True, default_factory=dict)
    l2: float = hyper(0.0, static=True, low=0.0)
    modes: dict[str, Mode] = eqx.field(static=True, default_factory=dict[str, Mode])
    name: str | None = eqx.field(static=True, default=None)
    predictor: PerExample | None = eqx.field(static=True, default=None)
    frozen: PyTree = None
    state: PyTree = None
    state_policy: str = hyper("average", choices=get_args(Policy))
    owner: ProgramOwner | None = eqx.field(static=True, default_factory=ProgramOwner)

    def __post_init__(self) -> None:
        if not isinstance(self.data, FederatedData):
            self.data = FederatedData.from_arrays(self.data, name="task")
        self.name = self.data.name if self.name is None else self.name
        # a task made of another one has both already
        if not isinstance(self.start, Given | Made):
            self.start, self.frozen = starting_point(self.start, self.frozen)
        plain = self.data.plain
        self.loss = per_example(self.loss, plain)
        self.scores = {name: per_example(score, plain) for name, score in self.scores.items()}
        if self.predictor is not None:
            self.predictor = per_example(self.predictor, plain)
        if self.state is not None:
            self.state = jax.tree.map(
                lambda leaf: jnp.asarray(native(leaf, "Task(state=...)")), self.state
            )

    def __check_init__(self) -> None:
        check_declared(self)
        if "loss" in self.scores:
            raise InvalidInput.of(
                "Task(scores=...)", "loss", "other names of scores: the loss has this one"
            )
        for score, mode in self.modes.items():
            if score not in self.scores:
                raise UnknownName.among("Task(modes=...)", score, self.scores)
            if mode not in get_args(Mode):
                raise InvalidInput.of(f"Task(modes=...)[{score!r}]", mode, '"min" or "max"')
        params = jax.eval_shape(self.start, jax.random.key(0))
        examples = {
            name: jax.ShapeDtypeStruct((ROWS, *values.shape[1:]), values.dtype)
            for name, values in self.train.arrays.items()
        }
        for name, function in self.functions.items():
            check_per_example(f"Task({name}=...)", function, params, examples)
        # our own models work with a key if they do without
        if not getattr(self.loss, "separate", False):
            key = jax.random.key(0)
            check_per_example("Task(loss=...)", self.functions["loss"], params, examples, key)
        splits = [*self.data.arrays_by_part.values()]
        if self.data.unseen is not None:
            splits += self.data.unseen.arrays_by_part.values()
        for name, function in {"loss": self.loss, **self.scores}.items():
            # losses and scores of classifiers check labels; a wrong one would not fail
            if (check_labels := getattr(function, "check_labels", None)) is not None:
                check_labels(f"Task({name}=...)", splits)
        check_indices(
            "Task(loss=...)", self.functions["loss"], self.start, splits, self.programs.call
        )

    def __repr__(self) -> str:
        """Returns a short table: examples, their arrays, scores."""
        width = max(map(len, self._summary))
        lines = [f"  {name:<{width}}  {short(text)}" for name, text in self._summary.items()]
        return "\n".join(["Task", *lines])

    def _repr_html_(self) -> str:
        """Returns the same table, for notebooks."""
        import pandas  # takes long to import

        return pandas.Series(self._summary).to_frame("Task").to_html()

    @property
    def _summary(self) -> dict[str, str]:
        return (
            {"name": self.name} | self.data.summary | {"scores": ", ".join(["loss", *self.scores])}
        )

    @property
    def train(self) -> Ragged:
        """The clients' training examples."""
        return self.data.train

    @property
    def validation(self) -> Ragged | None:
        """The clients' examples for choices made while training; see `FederatedData`."""
        return self.data.validation

    @property
    def test(self) -> Ragged | None:
        """The clients' test examples."""
        return self.data.test

    @property
    def central(self) -> dict[str, Any] | None:
        """The test set that belongs to no client."""
        return self.data.central

    @property
    def names(self) -> ClientNames | None:
        """Names of the clients, in their order."""
        return self.data.names

    @property
    def encoding(self) -> Encoding | None:
        """Rules by which tables become arrays, None for data that were made of arrays."""
        return self.data.encoding

    @property
    def unseen(self) -> "Task | None":
        """The task of the clients that never take part; see `FederatedData.with_unseen`."""
        return None if self.data.unseen is None else self.with_data(self.data.unseen)

    def with_data(self, data: FederatedData) -> "Task":
        """Returns the task of other examples of the same form, which are not checked again."""
        # a copy by `copy.copy` would count as being made for good, and its programs stay
        return eqx.tree_at(lambda task: task.data, self, data)

    @property
    def score_modes(self) -> dict[str, Mode]:
        """The directions of the loss and of all scores that have one."""
        default_modes: dict[str, Mode] = {
            name: mode for name, mode in SCORES.items() if name in ("loss", *self.scores)
        }
        return default_modes | self.modes

    @property
    def functions(self) -> dict[str, PerExample]:
        """Loss and scores by name, as functions of the trained parameters, the examples and the key
        alone.
        """
        return {
            name: self._bind(function)
            for name, function in {"loss": self.loss, **self.scores}.items()
        }

    @property
    def predictions(self) -> PerExample | None:
        """As `functions`: the model's predictions, None if the task has none."""
        return None if self.predictor is None else self._bind(self.predictor)

    def predict(self, params: PyTree, x: Any) -> np.ndarray:
        """Returns the predictions of a trained model for new inputs, one row for each example.

        They are the probabilities of all classes for classifiers, else what the task's own function
        returns.

        Args:
            params: such as `History.params`; `History.predict` takes its own.
            x: an array of inputs; or a dict of arrays where examples have several, with or without
                the labels `y`; or a frame of pandas with the columns of the training tables, alone
                or as `x` in the dict.

        Raises:
            InvalidInput: a task without predictions.
            DataError: inputs that do not fit the training examples.

        Example:
            >>> import fedax
            >>> task = fedax.task("synthetic", clients=3)
            >>> history = fedax.run(fedax.FedAvg(), task, rounds=1)
            >>> task.predict(history.params, task.train.arrays["x"][:5]).shape
            (5, 10)
        """
        if self.predictor is None:
            hint = "Give the task a function of predictions: predictor=..."
            raise InvalidInput.because("predict", f"task {self.name!r} has no predictions", hint)
        function = self._bind(self.predictor)
        like = self.train.arrays
        return predict(function, params, x, like, self.encoding, self.programs.call)

    @property
    def without_examples(self) -> "Task":
        """The task with arrays of no rows, which still predicts."""
        empty = {
            name: np.zeros((0, *values.shape[1:]), values.dtype)
            for name, values in self.train.arrays.items()
        }
        train = Ragged(empty, np.zeros(1, np.int32), clients=0, largest=0)
        return self.with_data(FederatedData(train, encoding=self.encoding, plain=self.data.plain))

    @property
    def programs(self) -> ProgramOwner:
        """The owner of the task's compiled programs."""
        return SHARED if self.owner is None else self.owner

    def _bind(self, function: PerExample) -> PerExample:
        return bind(function, self.frozen, self.state)

    @property
    def couples(self) -> bool:
        """Whether the loss may couple the examples of a minibatch in training, as that of a model
        with a state does: minibatches are full then, and never cut into pieces.
        """
        return self.state is not None

    @property
    def test_set(self) -> Examples | None:
        """The global test examples: `central`, or all clients' test examples, or None if there are
        none.
        """
        if self.central is not None:
            return self.central
        return self.test.arrays if self.test is not None and self.test.total else None

    @property
    def is_single(self) -> bool:
        """Whether it has one client, which may stand in for all clients of a deployment."""
        return self.train.clients == 1

    def for_clients(self, count: int | None) -> "Task":
        """Returns the task for a deployment of `count` clients.

        The name of a stand-in's only client is the name of none of them.
        """
        if not self.is_single or count in (None, 1) or self.names is None:
            return self
        return self.with_data(dataclasses.replace(self.data, names=None))

    def at(self, state: PyTree) -> "Task":
        """Returns the task with another state of the model."""
        if self.state is None or state is None or state is self.state:
            return self
        return eqx.tree_at(lambda task: task.state, self, state)

    def holding(self, params: PyTree) -> "Task":
        """Returns the task with further leaves frozen: those that are not None in `params`."""
        frozen = assembled(params, self.frozen)
        # `frozen` may be None, which is replaced too
        return eqx.tree_at(
            lambda task: task.frozen, self, frozen, is_leaf=lambda leaf: leaf is None
        )

    def require_no_state(self, method: str) -> None:
        """Refuses a model with a state, for a method whose work does not train one.

        Raises:
            InvalidInput: the model has a state.
        """
        if self.state is not None:
            allowed = "models without batch statistics"
            raise InvalidInput.found(method, "a model with a state", allowed)

    def assembled(self, params: PyTree) -> PyTree:
        """Returns the model in the user's pytree, from the trained parameters."""
        return assembled(params, self.frozen)

    def sums(
        self,
        function: PerExample,
        params: PyTree,
        data: Examples,
        weight: Float[Array, "batch"],
        key: Key[Array, ""] | None,
    ) -> PyTree:
        """Returns the weighted sums over the examples of a function that gives a pytree with one
        row per example.
        """
        values = self._bind(function)(params, data, key)
        return jax.tree.map(lambda rows: weighted_sum(rows, weight), values)

    def trained(
        self,
        params: PyTree,
        data: Examples,
        weight: Float[Array, "batch"],
        key: Key[Array, ""] | None,
    ) -> tuple[Float[Array, ""], PyTree]:
        """Returns the weighted sum of a minibatch's losses, and the model's state after it.

        Padding has weight 0.
        """
        loss = self.functions["loss"]
        if not isinstance(loss, Bound):
            return weighted_sum(loss(params, data, key), weight), None
        values, state = loss.update(params, data, key)
        return weighted_sum(values, weight), jax.lax.stop_gradient(state)


def weighted_sum(values: Array | np.ndarray, weight: Float[Array, "batch"]) -> Float[Array, "*row"]:
    """Returns a weighted sum of rows; values of weight 0 do not count, not even NaN."""
    # one weight for each row, shape (batch, 1, ...)
    if values.ndim > 1:
        weight = weight.reshape(-1, *(1,) * (values.ndim - 1))
    # not a plain product: 0 times NaN is NaN
    return jnp.sum(jnp.where(weight > 0, weight * values.astype(weight.dtype), 0), axis=0)


def initial_params(task: Task, seed: int) -> tuple[PyTree, Key[Array, ""]]:
    """Returns the initial parameters of a run, and the root key of all its other random streams.

    Args:
        task: what is learned.
        seed: of the run.
    """
    # two streams, so that another rule for the initial model does not change the rounds
    root = jax.random.key(seed)
    return task.start(jax.random.fold_in(root, 0)), jax.random.fold_in(root, 1)
