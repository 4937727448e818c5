"""The laws of tasks: a loss, a score and predictions see every example alone, and are pure."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.conformance.method import Law, require
from fedax.core import Task

ROWS = 24
"""Examples of the batch that is evaluated, many enough to see what counts from some place on."""


def keeps_examples_apart(task: Task) -> None:
    """Compares values of examples in a batch with those of each example alone.

    In training noise depends on the shape of the batch. There the first example is compared with
    itself beside other examples.
    """
    rows = np.linspace(0, task.train.total - 1, ROWS).astype(int)
    batch = {name: jnp.asarray(values[rows]) for name, values in task.train.arrays.items()}
    # each array with a first axis over batches: those of one example, and two of which the second
    # has other examples beside the first one
    alone = jax.tree.map(lambda values: values[:, None], batch)
    together = jax.tree.map(lambda values: jnp.stack([values, values[np.arange(ROWS) // 2]]), batch)
    start = task.start(jax.random.key(0))
    functions = dict(task.functions)
    if task.predictions is not None:
        functions["predict"] = task.predictions
    # many models give equal values for all examples where they start
    for params in (start, jax.tree.map(_add_noise, start)):
        for name, function in functions.items():
            expected = _evaluate(function, params, alone, None)[:, 0]
            _require_same(name, expected, _evaluate(function, params, together, None)[0])
        if not task.couples:
            values = _evaluate(functions["loss"], params, together, jax.random.key(2))
            _require_same("loss in training", values[0, :1], values[1, :1])


def stays_the_same(task: Task) -> None:
    """Traces every function twice: what changes something outside gives two programs."""
    params = jax.eval_shape(task.start, jax.random.key(0))
    examples = {name: values[:3] for name, values in task.train.arrays.items()}
    for name, function in task.functions.items():
        # functions in a jaxpr's text have their addresses
        texts = {
            re.sub(
                "0x[0-9a-f]+",
                "",
                str(jax.make_jaxpr(lambda p, e, f=function: f(p, e, None))(params, examples)),
            )
            for _ in range(2)
        }
        require(len(texts) == 1, f"{name}: another function when it is called again")


def _add_noise(leaf: Any) -> jax.Array:
    return leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape, leaf.dtype)


def _evaluate(function: Any, params: Any, batches: Any, key: Any) -> np.ndarray:
    """Returns the values of all examples, one row for a batch."""
    return np.asarray(jax.lax.map(lambda batch: function(params, batch, key), batches), float)


def _require_same(name: str, expected: np.ndarray, values: np.ndarray) -> None:
    # half precision rounds to about a hundredth
    differs = ~np.isclose(values, expected, rtol=0.01, atol=0.01, equal_nan=True)
    first = np.argmax(differs)
    numbers = f"{expected.flat[first]:.6g} and, beside other examples, {values.flat[first]:.6g}"
    require(not differs.any(), f"{name}: the value of an example is {numbers}")


TASK_LAWS = {
    "keeps_examples_apart": Law(
        "keeps_examples_apart",
        "sees every example alone, whatever is in its batch",
        "Engines pad batches and cut them into pieces: normalise over features or by fixed "
        "statistics, put an example's weight into the data, draw noise from the argument `key`, "
        "and leave the mean to the engine. A loss that couples a minibatch in training takes the "
        "argument `state`.",
        keeps_examples_apart,
    ),
    "stays_the_same": Law(
        "stays_the_same",
        "is the same function whenever it is called",
        "It changes something outside, such as a list or a module that it closes over: pass that "
        "as parameters or state.",
        stays_the_same,
    ),
}
"""All laws of tasks by name."""
