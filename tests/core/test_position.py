"""Losses that look at the place of an example in its batch are refused: places differ with engines
and microbatches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import InvalidInput

pytestmark = pytest.mark.usefixtures("as_users_run")


CLIENTS = [np.linspace(-1, 2, 12).reshape(6, 2).astype(np.float32), np.ones((4, 2), np.float32)]


def squares(w, x):
    return ((w - x) ** 2).sum(1)


def places(x):
    return jnp.arange(x.shape[0])


PLACES = {
    "weight by place": lambda w, x: squares(w, x) * (1 + places(x)),
    "every other one": lambda w, x: squares(w, x) * (1 + places(x) % 2),
    "from the twentieth on": lambda w, x: squares(w, x) * (1 + (places(x) >= 20)),
    "the last one": lambda w, x: squares(w, x) + (places(x) == x.shape[0] - 1),
    "the first one counts twice": lambda w, x: squares(w, x).at[0].mul(2.0),
    "sums so far": lambda w, x: jnp.cumsum(squares(w, x)),
    "differences": lambda w, x: squares(w, x - jnp.roll(x, 1, axis=0)),
    "noise of a fixed key": lambda w, x: squares(
        w, x + jax.random.normal(jax.random.key(0), x.shape)
    ),
    "noise of a fixed key on values": lambda w, x: (
        squares(w, x) + jax.random.uniform(jax.random.key(3), x.shape[:1])
    ),
    "dropout of a fixed key": lambda w, x: squares(
        w, x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
    ),
    "table of constants": lambda w, x: squares(w, x) * jnp.linspace(1, 2, x.shape[0]),
    "in a loop": lambda w, x: jax.lax.scan(
        lambda t, row: (t + 1, t * ((w - row) ** 2).sum()), 1.0, x
    )[1],
}


@pytest.mark.parametrize("loss", PLACES.values(), ids=PLACES)
def test_losses_that_look_at_places_are_refused(loss):
    message = (
        r"Task\(loss=...\): got one whose value for an example changes with (its place "
        r"in|the others of)"
    )
    with pytest.raises(InvalidInput, match=message):
        fedax.tasks.from_loss(loss, np.zeros((), np.float32), CLIENTS)


def test_scores_that_look_at_places_are_refused():
    with pytest.raises(
        InvalidInput,
        match=r"Task\(score=...\): got one whose value .* its "
        r"place in the batch",
    ):
        fedax.tasks.from_loss(squares, 0.0, CLIENTS, scores={"score": PLACES["weight by place"]})


def test_predictions_that_look_at_places_are_refused():
    def predict(w, x):
        return jnp.stack([x[:, 0] * (1 + places(x)), x[:, 1]], axis=1)

    with pytest.raises(
        InvalidInput,
        match=r"Task\(predict=...\): got one whose value .* its "
        r"place in the batch",
    ):
        fedax.tasks.from_loss(squares, 0.0, CLIENTS, predict=predict)


def test_the_message_says_where_weights_and_noise_belong():
    with pytest.raises(InvalidInput, match=r"array beside x.* argument `key`"):
        fedax.tasks.from_loss(PLACES["noise of a fixed key"], 0.0, CLIENTS)


SEPARATE = {
    "random features of a fixed key": lambda w, x: squares(
        w, x @ jax.random.normal(jax.random.key(0), (2, 5))
    ),
    "weights in the data": lambda w, x: (1 + x[:, 1]) * (w - x[:, 0]) ** 2,
    "places within an example": lambda w, x: ((w - x) ** 2 * (1 + jnp.arange(x.shape[1]))).sum(1),
    "a loop over examples": lambda w, x: jax.lax.map(lambda row: ((w - row) ** 2).sum(), x),
    "sorted within an example": lambda w, x: (
        (w - jnp.sort(x, axis=1)) ** 2 * jnp.array([1.0, 2.0])
    ).sum(1),
}


@pytest.mark.parametrize("loss", SEPARATE.values(), ids=SEPARATE)
def test_losses_of_single_examples_are_taken(loss):
    assert fedax.tasks.from_loss(loss, np.zeros((), np.float32), CLIENTS).train.clients == 2


@settings(max_examples=25, deadline=None, database=None, derandomize=True)
@given(
    weights=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6).filter(
        lambda w: max(w) - min(w) > 0.01
    ),
    scale=st.floats(0.5, 3.0),
)
def test_any_weights_that_repeat_along_the_batch_are_refused(weights, scale):
    table = np.array(weights)

    def loss(w, x):
        return scale * squares(w, x) * jnp.asarray(np.resize(table, x.shape[0]))

    with pytest.raises(InvalidInput, match="its place in the batch"):
        fedax.tasks.from_loss(loss, 0.0, CLIENTS)
