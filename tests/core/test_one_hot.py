"""`jax.nn.one_hot` in a user's loss gives zeros for a class that it does not have: such labels are
refused."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput

X = np.random.default_rng(0).normal(size=(6, 2))


def cross_entropy(logits, y, classes):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, classes)).sum(-1)


LOSSES = {
    "plain": lambda w, e: cross_entropy(e["x"] @ w, e["y"], 3),
    "compiled": jax.jit(lambda w, e: cross_entropy(e["x"] @ w, e["y"], 3)),
    "by example": lambda w, e: jax.vmap(lambda x, y: cross_entropy(x @ w, y, 3))(e["x"], e["y"]),
    "converted": lambda w, e: cross_entropy(e["x"] @ w, e["y"].astype(jnp.int32), 3),
    "from 1": lambda w, e: cross_entropy(e["x"] @ w, e["y"] - 1, 2),
}


def task_of(loss, y, **parts):
    return fedax.Task(
        np.zeros((2, 3)),
        loss,
        fedax.FederatedData.from_arrays([{"x": X, "y": np.asarray(y)}], **parts),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_labels_outside_of_the_classes_are_refused(name):
    loss = LOSSES[name] if name != "from 1" else lambda w, e: LOSSES["from 1"](w[:, :2], e)
    good = np.array([1, 2, 1, 2, 2, 1], np.uint8)
    task_of(loss, good)
    with pytest.raises(
        InvalidInput,
        match=r"Task\(loss=...\): got the class \d, for which "
        r"jax.nn.one_hot",
    ):
        task_of(loss, np.array([1, 2, 1, 3, 2, 1], np.uint8))
    for part in ("test", "validation"):
        with pytest.raises(InvalidInput, match="got the class"):
            task_of(loss, good, **{part: [{"x": X[:1], "y": np.array([3], np.uint8)}]})


def test_classes_as_real_numbers_are_looked_at_too():
    with pytest.raises(InvalidInput, match="got the class 3"):
        task_of(LOSSES["converted"], np.array([0.0, 1.0, 3.0, 0.0, 0.0, 1.0]))


def test_classes_below_0_give_a_warning():
    with pytest.warns(UserWarning, match="gives zeros for the class -1. Number classes from 0 on"):
        task_of(LOSSES["plain"], [-1, 1, -1, 1, 1, 1])


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, e: (
            cross_entropy(e["x"] @ w, jnp.argmax(e["x"] @ w, -1), 3) + 0.0 * e["y"].astype(float)
        ),
        lambda w, e: cross_entropy(e["x"] @ w, e["y"] % 3, 3),
        lambda w, e: cross_entropy(e["x"] @ w, jnp.clip(e["y"], 0, 2), 3),
        lambda w, e: ((e["x"] @ w).sum(-1) - e["y"].astype(float)) ** 2,
        lambda w, e: jnp.where(
            e["y"] < 3, cross_entropy(e["x"] @ w, jnp.where(e["y"] < 3, e["y"], 0), 3), 0.0
        ),
    ],
)
def test_other_losses_give_no_false_alarm(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task_of(loss, [0, 1, 2, 7, 50, 3])


def test_a_module_with_too_few_outputs_is_refused():
    module = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    clients = [{"x": X.astype(np.float32), "y": np.array([0, 1, 2, 3, 0, 1])}]
    with pytest.raises(InvalidInput, match="got the class 3"):
        fedax.from_model(
            fedax.models.equinox(lambda key: module),
            lambda out, e: cross_entropy(out, e["y"], 3),
            clients,
        )
