"""Record of a model: two pure functions, whatever library it is written with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Key, PyTree

from fedax.utils.leaf_names import Which


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
        frozen: leaves of the parameters that are never trained, by name or predicate.

    Example:
        >>> import jax.numpy as jnp
        >>> mean = Model(lambda key: (jnp.zeros(()), None), lambda w, state, x, key: (w - x, state))
        >>> mean.apply(mean.init(jax.random.key(0))[0], None, jnp.ones(2), None)[0].tolist()
        [-1.0, -1.0]
    """

    init: Callable[[Key[Array, ""]], tuple[PyTree, PyTree]]
    apply: Callable[[PyTree, PyTree, Any, Any], tuple[Any, PyTree]]
    frozen: Which | None = None


def parameter_count(model: Model | Any) -> int:
    """Returns the number of a model's parameters, without drawing them.

    >>> from fedax.models import Softmax
    >>> parameter_count(Softmax(60, 10))
    610
    """
    params = jax.eval_shape(model.init, jax.random.key(0))[0]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
