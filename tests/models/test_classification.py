"""Cross-entropy and accuracy as per-example functions of a task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.data import FederatedData
from fedax.models import MLP, Affine, Softmax
from fedax.tasks import classification
from fedax.tasks.from_model import OfOutputs, accuracy, cross_entropy

RNG = np.random.default_rng(0)
MODEL = Softmax(4, 3)
PARAMS = Affine(jnp.asarray(RNG.normal(size=(4, 3))), jnp.asarray(RNG.normal(size=3)))
EXAMPLES = {
    "x": jnp.asarray(RNG.normal(size=(9, 4))),
    "y": jnp.asarray(RNG.integers(0, 3, 9), dtype=jnp.int32),
}


def probabilities(params, examples):
    logits = np.asarray(examples["x"]) @ np.asarray(params.kernel) + np.asarray(params.bias)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_cross_entropy_is_minus_the_log_probability_of_the_label():
    expected = -np.log(probabilities(PARAMS, EXAMPLES)[np.arange(9), np.asarray(EXAMPLES["y"])])
    np.testing.assert_allclose(
        OfOutputs(MODEL, cross_entropy)(PARAMS, EXAMPLES, None), expected, rtol=1e-12
    )


@pytest.mark.slow
def test_it_is_finite_for_large_logits():
    # Logits 1e5, 0, -1e5: the losses of the three labels are 0, 1e5, 2e5.
    params = Affine(jnp.zeros((1, 3)), jnp.array([1e5, 0.0, -1e5]))
    examples = {"x": jnp.ones((3, 1)), "y": jnp.arange(3, dtype=jnp.int32)}
    loss = OfOutputs(Softmax(1, 3), cross_entropy)
    gradient = jax.jacrev(loss)(params, examples, None)
    np.testing.assert_allclose(loss(params, examples, None), [0.0, 1e5, 2e5])
    np.testing.assert_allclose(gradient.bias, [[0, 0, 0], [1, -1, 0], [1, 0, -1]], atol=1e-12)


def test_accuracy_marks_the_examples_whose_label_is_first():
    params = Affine(jnp.eye(3), jnp.zeros(3))
    examples = {
        "x": jnp.array([[3.0, 1, 2], [0, 1, 2], [5, 5, 0]]),
        "y": jnp.array([0, 1, 1], dtype=jnp.int32),
    }
    found = OfOutputs(Softmax(3, 3), accuracy)(params, examples, None)
    assert found.tolist() == [1.0, 0.0, 0.0]
    assert found.dtype == params.kernel.dtype


def test_more_classes_than_the_type_of_labels_can_count():
    """Class 256 is none that uint8 has, and not label 0."""
    kind = np.uint8
    outputs = jnp.zeros((3, 300), jnp.float32).at[jnp.arange(3), jnp.array([256, 0, 7])].set(9.0)
    examples = {"y": jnp.array([0, 0, 7], kind)}
    np.testing.assert_array_equal(accuracy(outputs, examples), [0, 1, 1])
    expected = jax.nn.logsumexp(outputs, axis=1) - jnp.array([0.0, 9.0, 9.0], jnp.float32)
    np.testing.assert_allclose(cross_entropy(outputs, examples), expected, rtol=1e-6)


def data(classes=3, features=4, **more):
    client = {"x": RNG.normal(size=(5, features)), "y": np.arange(5) % classes}
    return FederatedData.from_arrays([client, client], classes=classes, name="made up", **more)


def test_functions_of_equal_models_are_equal():
    one, same, other = (OfOutputs(Softmax(4, classes), cross_entropy) for classes in (3, 3, 2))
    assert one == same != other
    assert hash(one) == hash(same)
    assert one != OfOutputs(Softmax(4, 3), accuracy)


def test_a_task_holds_what_was_given():
    empty = {"x": np.zeros((0, 4)), "y": np.zeros(0, int)}
    one = {"x": np.full((1, 4), 2.0), "y": np.array([1])}
    task = classification(data(test=[empty, one], central=one), MLP((4, 8, 3)), l2=0.5, name="mine")
    assert (task.name, task.l2, task.train.sizes.tolist(), task.test.sizes.tolist()) == (
        "mine",
        0.5,
        [5, 5],
        [0, 1],
    )
    assert task.test_set["x"].tolist() == [[2.0] * 4]
    assert classification(data(), Softmax(4, 3)).name == "made up"
    assert classification(data(), Softmax(4, 3)).test is None


def test_classes_and_functions_that_make_a_model_are_called_with_the_sizes_of_the_data():
    def narrow(classes):
        return Softmax(4, classes)

    for maker in (type("Ours", (Softmax,), {}), narrow):
        start = classification(data(), maker).start
        shapes = [leaf.shape for leaf in jax.tree.leaves(start(jax.random.key(0)))]
        assert shapes == [(4, 3), (3,)]
