"""Per-example functions: the form of a user's function, its check on shapes, and what it holds
beside the parameters: frozen leaves, and a state that no gradient trains.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from fedax.core.federation import ClientStates
from fedax.errors import InvalidInput
from fedax.examples.ragged import Examples
from fedax.utils.layout import accumulator

Policy: TypeAlias = Literal["average", "local", "frozen"]
"""The choices of `Task(state_policy=...)`."""
PerExample: TypeAlias = Callable[..., Any]
"""`(params, examples, key) -> (batch,)`. The key is None in evaluation: no dropout, no
augmentation.

Where the model has a state, a function whose attribute `takes_state` is True gets it as the
argument `state`. The loss returns its values and the new state in training.
"""


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """A user's function of parameters and examples in the form `PerExample`.

    Attributes:
        function: the user's.
        plain: whether it takes the only array of the examples.
        takes_key: whether it takes `key`.
        takes_state: whether it takes `state`.
        takes_training: whether it takes `training`.
    """

    function: PerExample
    plain: bool
    takes_key: bool
    takes_state: bool
    takes_training: bool

    def __call__(
        self, params: PyTree, examples: Examples, key: Key[Array, ""] | None, **more: PyTree
    ) -> PyTree:
        if self.takes_training:
            more["training"] = key is not None
        if self.takes_key:
            more["key"] = key
        return self.function(params, examples["x"] if self.plain else examples, **more)


def per_example(function: PerExample, plain: bool) -> PerExample:
    """Returns a user's function of parameters and examples in the form `PerExample`.

    It may take `key`, `state` and `training` by these names.

    Args:
        function: the user's.
        plain: whether examples are one array.
    """
    # those of fedax have the form
    if hasattr(function, "takes_state"):
        return function
    try:
        names = [*inspect.signature(function).parameters][2:]
    except (TypeError, ValueError):  # built-in functions do not say
        names = []
    takes = [name in names for name in ("key", "state", "training")]
    return UserFunction(function, plain, *takes)


class Bound(eqx.Module):
    """A per-example function of the trained parameters alone.

    Attributes:
        function: of all parameters.
        frozen: the leaves that are not trained, with None in the place of those that are; None if
            all are trained.
        state: the model's state, None if it has none.
    """

    function: PerExample = eqx.field(static=True)
    frozen: PyTree = None
    state: PyTree = None

    @property
    def separate(self) -> bool:
        """Whether it is a function of this library, which probes of users' functions pass over."""
        return bool(getattr(self.function, "separate", False))

    def __call__(self, params: PyTree, examples: Examples, key: Key[Array, ""] | None) -> PyTree:
        return self.update(params, examples, key)[0]

    def update(
        self, params: PyTree, examples: Examples, key: Key[Array, ""] | None
    ) -> tuple[PyTree, PyTree]:
        """Returns the values, and the new state (the old one if the function returns none)."""
        params = assembled(params, self.frozen)
        if self.state is None or not getattr(self.function, "takes_state", False):
            return self.function(params, examples, key), self.state
        values = self.function(params, examples, key, state=self.state)
        # in evaluation a function may return its values alone
        return values if isinstance(values, tuple) else (values, self.state)


def bind(function: PerExample, frozen: PyTree, state: PyTree) -> PerExample:
    """Returns a function of the trained parameters alone: itself if there is nothing to bind."""
    return function if frozen is None and state is None else Bound(function, frozen, state)


ROWS = 3
"""Examples of the check of shapes: a number that no other axis is likely to have."""


def check_per_example(
    field: str,
    function: PerExample,
    params: PyTree,
    examples: Examples,
    key: Key[Array, ""] | None = None,
) -> None:
    """Refuses a function that does not give one value for each example, by shapes alone.

    Args:
        field: names the function in messages.
        function: of the trained parameters, the examples and the key.
        params: shapes of the trained parameters.
        examples: shapes of `ROWS` examples.
        key: for a training step, None for an evaluation.
    """
    try:
        # settings that are stricter than JAX's are kept where it runs
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            values = jax.eval_shape(
                lambda params, examples: function(params, examples, key), params, examples
            )
    except Exception as error:
        shapes = {name: tuple(value.shape[1:]) for name, value in examples.items()}
        error.add_note(f"{field} fails for key={key} on examples of shapes {shapes}.")
        raise
    shape = getattr(values, "shape", None)
    if shape != (ROWS,):
        got = type(values).__name__ if shape is None else f"shape {shape} for {ROWS} examples"
        hint = "Return it without a mean or a sum, and a new state only with `state`."
        raise InvalidInput.found(field, got, "one value per example, shape (batch,)", hint)


def assembled(params: PyTree, frozen: PyTree) -> PyTree:
    """Combines trained and frozen leaves to the user's pytree."""
    return params if frozen is None else eqx.combine(params, frozen)


def state_in_reals(state: PyTree) -> PyTree:
    """Converts a state to real numbers, so that it can be averaged.

    Whole numbers such as counts come back by `state_from_mean`.
    """

    def to_real(leaf: Array) -> Array:
        return (
            leaf
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf.astype(accumulator(jnp.result_type(float)))
        )

    return jax.tree.map(to_real, state)


def state_from_mean(mean: PyTree, like: PyTree) -> PyTree:
    """Converts a mean of states to the types of a state; whole numbers are rounded."""

    # a mean of counts is rarely whole
    def convert(value: Array, old: Array) -> Array:
        is_integer = not jnp.issubdtype(old.dtype, jnp.floating)
        return (jnp.round(value) if is_integer else value).astype(old.dtype)

    return jax.tree.map(convert, mean, like)


def evaluated_state(state: PyTree, initial: PyTree) -> PyTree:
    """Returns the state in which the global model is evaluated: of states that clients store, their
    mean. All processes of a run call it together.

    Args:
        state: as a run publishes it; None if no training changes it.
        initial: of the task, which counts then, and with privacy.
    """
    if isinstance(state, ClientStates):
        return state_from_mean(state.mean(default=initial), initial)
    return initial if state is None else state
