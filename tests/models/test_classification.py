"""Cross-entropy and accuracy as per-example functions of a task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import DataError, InvalidInput, Ragged, Task
from fedax.data import FederatedData
from fedax.models import MLP, Affine, Softmax
from fedax.tasks import LogisticLoss, classification
from fedax.tasks.from_model import OfOutputs, Start, accuracy, cross_entropy
from fedax.tasks.logistic import LogisticAccuracy

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


def test_its_gradient_is_probability_minus_label():
    gradient = jax.grad(
        lambda params: OfOutputs(MODEL, cross_entropy)(params, EXAMPLES, None).sum()
    )(PARAMS)
    error = probabilities(PARAMS, EXAMPLES) - np.eye(3)[np.asarray(EXAMPLES["y"])]
    np.testing.assert_allclose(
        gradient.kernel, np.asarray(EXAMPLES["x"]).T @ error, rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(gradient.bias, error.sum(axis=0), rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_more_classes_than_the_type_of_labels_can_count(kind):
    """Class 256 is none that uint8 has, and not label 0."""
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


def test_tasks_of_equal_models_have_equal_static_parts():
    first, second = (classification(data(), Softmax(4, 3)) for _ in range(2))
    assert (first.start, first.loss, first.scores) == (second.start, second.loss, second.scores)
    assert len({first.start, second.start}) == 1


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


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            Softmax(4, 5),
            {},
            r"classification\(model=...\): got '5 logits'; allowed: 3, one for "
            r"each class",
        ),
        (Softmax(4, 3), {"l2": -1.0}, r"Task\(l2=...\): got -1.0"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, options, message):
    with pytest.raises(InvalidInput, match=message):
        classification(data(), model, **options)


def test_classes_and_functions_that_make_a_model_are_called_with_the_sizes_of_the_data():
    def narrow(classes):
        return Softmax(4, classes)

    for maker in (type("Ours", (Softmax,), {}), narrow):
        start = classification(data(), maker).start
        shapes = [leaf.shape for leaf in jax.tree.leaves(start(jax.random.key(0)))]
        assert shapes == [(4, 3), (3,)]
    with pytest.raises(TypeError, match="'widths'"):
        classification(data(), MLP)
    with pytest.raises(InvalidInput, match=r"model: got 'softmx'; .*Did you mean 'softmax'"):
        classification(data(), "softmx")


def test_models_have_the_names_of_experiment_files():
    """As the tasks by name: both make the same model."""
    task = classification(fedax.data.digits(clients=3), "mlp")
    assert task.loss.model == MLP((64, 200, 200, 10))
    assert task.loss == fedax.task("digits", clients=3, model="mlp").loss


ACCURACY = OfOutputs(Softmax(2, 3), accuracy)


def labelled(*labels):
    """Clients with these labels, and two features of single precision."""
    return Ragged.of([{"x": np.ones((len(y), 2), np.float32), "y": np.array(y)} for y in labels])


def task_of(function, start, train, **options):
    """A task whose loss, or whose score, is a function of labels."""
    is_score = isinstance(function, LogisticAccuracy) or function == ACCURACY
    loss = (lambda params, e, key: e["x"].sum(1).astype("float32")) if is_score else function
    options |= {"scores": {"accuracy": function}} if is_score else {}
    parts = {
        name: options.pop(name) for name in ("test", "validation", "central") if name in options
    }
    return Task(start=start, loss=loss, data=FederatedData.from_arrays(train, **parts), **options)


@pytest.mark.parametrize(
    ("function", "start", "classes"),
    [
        (OfOutputs(Softmax(2, 3), cross_entropy), Start(Softmax(2, 3)), 3),
        (ACCURACY, Start(Softmax(2, 3)), 3),
        (LogisticLoss(), lambda key: jnp.zeros(2), 2),
        (LogisticAccuracy(), lambda key: jnp.zeros(2), 2),
    ],
)
def test_labels_that_are_no_class_are_refused_in_every_part(function, start, classes):
    """Such a label has no logit: the loss would be that of a logit of 0, and nothing would fail."""
    is_score = isinstance(function, LogisticAccuracy) or function == ACCURACY
    field = "accuracy" if is_score else "loss"
    train = labelled([0, 1, 1], [1])
    task_of(function, start, train, test=labelled([0], [classes - 1]))
    allowed = f"allowed: labels y from 0 to {classes - 1}"
    for label in (-1, classes):
        wrong = labelled([0, 1, 1], [label])
        for parts in (
            {"train": wrong},
            {"train": train, "test": wrong},
            {"train": train, "validation": wrong},
            {"train": train, "central": dict(wrong.arrays)},
        ):
            message = rf"^Task\({field}=\.\.\.\): got the label {label}; {allowed}\. Number classes"
            with pytest.raises(DataError, match=message):
                task_of(function, start, **parts)


def test_labels_of_logistic_regression_may_be_whole_real_numbers():
    task_of(LogisticLoss(), lambda key: jnp.zeros(2), labelled([0.0, 1.0], [1.0]))
    with pytest.raises(DataError, match=r"got the label 0\.5; allowed: labels y from 0 to 1"):
        task_of(LogisticLoss(), lambda key: jnp.zeros(2), labelled([0.0, 0.5], [1.0]))
