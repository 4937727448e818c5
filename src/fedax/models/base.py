"""Record of a model: two pure functions, whatever library it is written with."""

import dataclasses
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, PyTree

from fedax.core import InvalidInput
from fedax.utils.numbers import are_counts, convert_fields

Logits: TypeAlias = tuple[Float[Array, "batch classes"], None]
"""Outputs of a classifier without a state."""


@dataclass(frozen=True)
class Model:
    """A model as two pure functions. Any object with these two methods is a model too.

    Tasks of equal models share compiled programs, so classes of models compare by their fields.

    Attributes:
        init: `init(key) -> (params, state)`. The parameters are a pytree, of which real arrays are
            trained. The state is what training updates without a gradient, such as batch
            statistics: a pytree of arrays, None if there is none.
        apply: `apply(params, state, x, key) -> (outputs, state)` for a batch x, an array or a tuple
            of arrays. The key is for dropout and the like. It is None in evaluation, and then the
            state is returned as it came.
        frozen: whether a leaf of the parameters, by its name and array, is never trained.

    Example:
        >>> import jax.numpy as jnp
        >>> mean = Model(lambda key: (jnp.zeros(()), None), lambda w, state, x, key: (w - x, state))
        >>> mean.apply(mean.init(jax.random.key(0))[0], None, jnp.ones(2), None)[0].tolist()
        [-1.0, -1.0]
    """

    init: Callable[[Key[Array, ""]], tuple[PyTree, PyTree]]
    apply: Callable[[PyTree, PyTree, Any, Any], tuple[Any, PyTree]]
    frozen: Callable[[str, Any], bool] | None = None


def parameter_count(model: Model | Any) -> int:
    """Returns the number of a model's parameters, without drawing them.

    >>> from fedax.models import Softmax
    >>> parameter_count(Softmax(60, 10))
    610
    >>> from fedax.models import equinox
    >>> parameter_count(equinox(lambda key: eqx.nn.MLP(60, 10, 8, 1, key=key)))
    578
    """
    params = eqx.filter_eval_shape(model.init, jax.random.key(0))[0]
    # Equinox modules have leaves that are no arrays, such as activation functions
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params) if hasattr(leaf, "shape"))


class Sized:
    """Base of this library's models, frozen dataclasses. The types of their fields are checked.

    Whole numbers are sizes of at least 1, floats are shares in [0, 1). NumPy's numbers become
    Python's, and lists become tuples, so that equal models compare equal.
    """

    def __post_init__(self) -> None:
        convert_fields(self)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            choices = typing.get_args(field.type)
            if field.type is int or int in choices:
                allowed = "whole numbers >= 1"
                fits = are_counts(*(value if int in choices else [value]))
            elif field.type is float:
                allowed = "numbers in [0, 1)"
                fits = isinstance(value, int | float) and 0 <= value < 1
            elif typing.get_origin(field.type) is typing.Literal:
                allowed = f"one of {choices}"
                fits = value in choices
            else:
                continue
            if not fits:
                raise InvalidInput.of(f"{type(self).__name__}({field.name}=...)", value, allowed)
