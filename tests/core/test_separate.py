"""Losses that couple the examples of a batch are refused, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.core.validation.coupling_check import check_separate
from fedax.tasks.classify import CrossEntropy

CLIENTS = [np.linspace(-1, 2, 6).reshape(3, 2), np.ones((4, 2))]


def task(loss, start=0.0, clients=CLIENTS, **more):
    return fedax.tasks.from_loss(loss, start, clients, **more)


def squares(w, x):
    return ((w - x) ** 2).sum(1)


def only_in_training(w, x, key):
    return squares(w, x) if key is None else squares(w, x - x.mean(0, keepdims=True))


def mixed_up(w, x, key):
    return squares(w, x) if key is None else squares(w, 0.7 * x + 0.3 * x[::-1])


COUPLING = {
    "batch statistic": lambda w, x: squares(
        w, (x - x.mean(0, keepdims=True)) / (1 + x.std(0, keepdims=True))
    ),
    "mean": lambda w, x: squares(w, x).mean() + jnp.zeros(x.shape[0]),
    "length of the batch": lambda w, x: squares(w, x) / x.shape[0],
    "rank": lambda w, x: squares(w, x) * jnp.argsort(-x[:, 0]).astype(x.dtype),
    "only where the model is not zero": lambda w, x: (w * (x - x.mean(0, keepdims=True))).sum(1),
    "a loop": lambda w, x: jax.lax.fori_loop(
        0,
        2,
        lambda i, total: total + squares(w, x - x.mean(0, keepdims=True)),
        jnp.zeros(x.shape[0]),
    ),
    "only in training": only_in_training,
    "mixed up": mixed_up,
}


@pytest.mark.parametrize("loss", COUPLING.values(), ids=COUPLING)
def test_coupled_losses_are_refused(loss):
    message = (
        r"Task\(loss=...\): got one whose value for an example changes with the others .* "
        r"allowed: functions of single"
    )
    with pytest.raises(InvalidInput, match=message):
        task(loss)


def test_coupled_scores_are_refused():
    with pytest.raises(
        InvalidInput,
        match=r"Task\(score=...\): got one whose value for an "
        r"example changes",
    ):
        task(squares, scores={"score": COUPLING["batch statistic"]})


def test_coupled_losses_are_refused_in_single_and_half_precision():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        for dtype in (np.float32, jnp.bfloat16):
            with pytest.raises(InvalidInput, match="changes with the others"):
                task(COUPLING["batch statistic"], np.zeros((), dtype))
            assert task(squares, np.zeros((), dtype)).train.clients == 2


def dropout(w, x, key):
    kept = 1.0 if key is None else 2.0 * jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)
    return squares(w, kept * x)


def by_layer(w, x):
    """Normalised over the features of each example."""
    return squares(w, (x - x.mean(1, keepdims=True)) / (1e-3 + x.std(1, keepdims=True)))


def in_a_loop(w, x):
    return jax.lax.scan(
        lambda total, column: (total + (w - column) ** 2, None), jnp.zeros(x.shape[0]), x.T
    )[0]


@pytest.mark.parametrize(
    "loss",
    [squares, dropout, by_layer, in_a_loop, lambda w, x: jnp.log(w - 10 + 0 * x[:, 0])],
    ids=lambda f: f.__name__,
)
def test_separate_losses_are_taken(loss):
    """With dropout, with statistics of an example's own, with loops, and one that is finite
    nowhere."""
    assert task(loss).train.clients == 2


def test_one_example_is_enough_to_see_a_division_by_the_batch():
    with pytest.raises(InvalidInput, match="changes with the others"):
        task(COUPLING["length of the batch"], 1.0, [np.ones((1, 2))])


def test_a_function_is_evaluated_once():
    seen = []

    def counted(w, x):
        seen.append(x.shape[0])
        return squares(w, x)

    first = task(counted)
    calls = len(seen)
    assert (
        task(counted, clients=[2 * values for values in CLIENTS]).train.clients
        == first.train.clients
    )
    # its shape alone, with a key and without, the search for one_hot, and two programs
    assert len(seen) <= calls + 5


def test_models_of_the_library_are_taken_at_their_word():
    data = fedax.data.FederatedData(
        [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[2.0]], "y": [1]}], classes=2
    )
    built = fedax.tasks.classification(data, fedax.models.Softmax(1, 2))
    assert isinstance(built.loss, CrossEntropy)
    assert built.loss.separate
    check_separate("loss", built.loss, lambda key: pytest.fail("not evaluated"), built.train.arrays)
