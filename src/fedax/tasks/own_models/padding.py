"""Padding of short minibatches in networks with a state: the mask in their norms, and a probe that
it reaches all that depends on the batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fedax.core import InvalidInput

_PADDED = 5
"""Rows of padding in the probe. With the eight examples that is a number of rows which no other
axis is likely to have."""
_SCALES = (1.0, 10.0)
"""Sizes of the two contents of the padding."""


def mask_of_rows(
    mask: Bool[Array, "batch"], x: Array, field: str = "from_flax(module=...)"
) -> Bool[Array, "rows ..."]:
    """Returns a mask of examples as one of an array's rows, which broadcasts over its other axes.

    Each example may have several rows side by side, as after `x.reshape(batch * time, channels)`.

    >>> x = jnp.zeros((4, 3))
    >>> mask_of_rows(jnp.array([True, False]), x)[:, 0].tolist()
    [True, True, False, False]

    Raises:
        InvalidInput: an array whose number of rows is no multiple of the number of examples.
    """
    repeats, rest = divmod(x.shape[0], mask.shape[0])
    if rest or not repeats:
        got = f"a batch norm of an array of shape {x.shape} in a minibatch of {mask.shape[0]}"
        allowed = "batch norms with one row, or several rows side by side, for each example"
        hint = "Turn the axes so that the examples come first."
        raise InvalidInput.found(field, got, allowed, hint)
    rows = mask if repeats == 1 else jnp.repeat(mask, repeats)
    return rows.reshape(-1, *(1,) * (x.ndim - 1))


def leaves_padding_out(network: Any, params: PyTree, inputs: tuple[Any, ...]) -> bool:
    """Returns whether a network with a mask keeps padding out of its state and of its outputs for
    the examples.

    It takes one training step on examples and padding, with two contents of the padding. That
    shows norms which know no mask, such as a module's own running mean, and rows in another order
    than the mask's. A network that fails there does not leave padding out.

    Args:
        network: `fedax.tasks.own_models.outputs.Network`, with a state.
        params: its starting point.
        inputs: its arguments for some examples.
    """
    rng = np.random.default_rng(0)
    lenient_settings = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    try:
        with lenient_settings[0], lenient_settings[1], np.errstate(all="ignore"):
            batches = [
                tuple(_append_padding(np.asarray(x), scale, rng) for x in inputs)
                for scale in _SCALES
            ]
            step = _compile_step(network, params, batches[0])
            # not at the starting point alone, where weights of 0 would hide the padding
            for start in (jax.tree.map(lambda p: _perturb(p, rng), params), params):
                one, other = (jax.tree.leaves(step(start, network.state, x)) for x in batches)
                # away from the starting point the network may leave its domain
                if all(np.isfinite(np.asarray(values)).all() for values in one):
                    return all(map(_are_equal, one, other))
    except Exception:  # the probe of the loss reports networks that fail without a mask too
        return False
    return False


def _append_padding(x: np.ndarray, scale: float, rng: np.random.Generator) -> Array:
    """Returns examples with rows of padding: noise, or whole numbers that the examples have."""
    shape = (_PADDED, *x.shape[1:])
    if np.issubdtype(x.dtype, np.floating):
        padding = scale * rng.normal(size=shape)
    elif scale == _SCALES[0]:
        padding = np.zeros(shape)
    else:
        padding = rng.choice(x.reshape(-1), shape) if x.any() else np.ones(shape)
    return jnp.concatenate([jnp.asarray(x), jnp.asarray(padding.astype(x.dtype))])


def _perturb(p: Any, rng: np.random.Generator) -> Any:
    if not jnp.issubdtype(jnp.result_type(p), jnp.floating):
        return p
    return p + jnp.asarray(0.1 * rng.normal(size=jnp.shape(p)), jnp.result_type(p))


def _compile_step(network: Any, params: Any, inputs: tuple[Array, ...]) -> Any:
    """Returns the compiled training step `(params, state, inputs) -> (outputs, new state)`.

    Outputs are those of the examples alone.
    """
    rows = inputs[0].shape[0]
    examples = rows - _PADDED
    mask = jnp.arange(rows) < examples

    def step(params: Any, state: Any, inputs: tuple[Array, ...]) -> Any:
        outputs, new_state = network.apply(params, state, inputs, jax.random.key(0), mask)
        of_batch = [leaf for leaf in jax.tree.leaves(outputs) if jnp.shape(leaf)[:1] == (rows,)]
        return [leaf[:examples] for leaf in of_batch], new_state

    # one step alone is computed: compiling it takes most of the time
    options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
    return jax.jit(step).lower(params, network.state, inputs).compile(options)


def _are_equal(one: Any, other: Any) -> bool:
    """Returns whether two arrays are equal up to the order of sums, which GPUs may change."""
    one, other = np.asarray(one), np.asarray(other)
    if not np.issubdtype(one.dtype, np.floating):
        return np.array_equal(one, other)
    tolerance = 16 * np.finfo(one.dtype).eps * np.max(np.abs(one), initial=0.0)
    return bool(np.all(np.abs(one - other) <= tolerance))
