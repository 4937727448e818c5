"""Per-example functions with what they hold beside the parameters: frozen leaves, and a state that
no gradient trains.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.core.federation import Memory
from fedax.utils.layout import accumulator

POLICIES = ("average", "local", "frozen")
"""The choices of `Task(state_policy=...)`."""
Policy: TypeAlias = Literal["average", "local", "frozen"]
PerExample: TypeAlias = Callable[..., Any]
"""`(params, examples, key) -> (batch,)`. The key is None in evaluation: no dropout, no
augmentation.

Where the model has a state, a function whose attribute `takes_state` is True gets it as the
argument `state`. The loss returns its values and the new state in training.
"""


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

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Any:
        return self.update(params, examples, key)[0]

    def update(self, params: PyTree, examples: Any, key: Any) -> tuple[Any, PyTree]:
        """Returns the values, and the new state (the old one if the function returns none)."""
        params = assembled(params, self.frozen)
        if self.state is None or not getattr(self.function, "takes_state", False):
            return self.function(params, examples, key), self.state
        values = self.function(params, examples, key, state=self.state)
        # in evaluation a function may return its values alone
        return values if isinstance(values, tuple) else (values, self.state)


def assembled(params: PyTree, frozen: PyTree) -> PyTree:
    """Combines trained and frozen leaves to the user's pytree."""
    return params if frozen is None else eqx.combine(params, frozen)


def state_in_reals(state: PyTree) -> PyTree:
    """Converts a state to real numbers, so that it can be averaged.

    Whole numbers such as counts come back by `state_from_mean`.
    """

    def to_real(leaf: Any) -> Any:
        return (
            leaf
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf.astype(accumulator(jnp.result_type(float)))
        )

    return jax.tree.map(to_real, state)


def state_from_mean(mean: PyTree, like: PyTree) -> PyTree:
    """Converts a mean of states to the types of a state; whole numbers are rounded."""

    # a mean of counts is rarely whole
    def convert(value: Any, old: Any) -> Any:
        is_integer = not jnp.issubdtype(old.dtype, jnp.floating)
        return (jnp.round(value) if is_integer else value).astype(old.dtype)

    return jax.tree.map(convert, mean, like)


def evaluated_state(state: Any) -> PyTree:
    """Returns the state in which the global model is evaluated.

    Where clients store states in this process it is their mean. None if the clients' states are in
    other processes.
    """
    if isinstance(state, Memory):
        return (
            # one client's state tells the types
            state_from_mean(state.each(state_in_reals).mean(), state.of(0))
            if state.in_process
            else None
        )
    return state
