"""Cross-entropy and accuracy as per-example functions of a task."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import DataError, InvalidInput, Ragged, Task
from fedax.data import FederatedData
from fedax.models import MLP, Affine, Softmax
from fedax.tasks import (
    Accuracy,
    CrossEntropy,
    LogisticLoss,
    classification,
    of_source,
)
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
    np.testing.assert_allclose(CrossEntropy(MODEL)(PARAMS, EXAMPLES, None), expected, rtol=1e-12)


def test_its_gradient_is_probability_minus_label():
    gradient = jax.grad(lambda params: CrossEntropy(MODEL)(params, EXAMPLES, None).sum())(PARAMS)
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
    loss = CrossEntropy(Softmax(1, 3))
    gradient = jax.jacrev(loss)(params, examples, None)
    np.testing.assert_allclose(loss(params, examples, None), [0.0, 1e5, 2e5])
    np.testing.assert_allclose(gradient.bias, [[0, 0, 0], [1, -1, 0], [1, 0, -1]], atol=1e-12)


def test_accuracy_marks_the_examples_whose_label_is_first():
    params = Affine(jnp.eye(3), jnp.zeros(3))
    examples = {
        "x": jnp.array([[3.0, 1, 2], [0, 1, 2], [5, 5, 0]]),
        "y": jnp.array([0, 1, 1], dtype=jnp.int32),
    }
    accuracy = Accuracy(Softmax(3, 3))(params, examples, None)
    assert accuracy.tolist() == [1.0, 0.0, 0.0]
    assert accuracy.dtype == params.kernel.dtype


def data(classes=3, features=4, **more):
    client = {"x": RNG.normal(size=(5, features)), "y": np.arange(5) % classes}
    return FederatedData([client, client], classes, name="made up", **more)


@pytest.mark.parametrize("kind", [CrossEntropy, Accuracy])
def test_functions_of_equal_models_are_equal(kind):
    assert kind(Softmax(4, 3)) == kind(Softmax(4, 3))
    assert hash(kind(Softmax(4, 3))) == hash(kind(Softmax(4, 3)))
    assert kind(Softmax(4, 3)) != kind(Softmax(4, 2))


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
        (
            Softmax(7, 3),
            {},
            r"Task\(loss=...\): got a function that fails on examples of shapes "
            r".*\(4,\)",
        ),
        (Softmax(4, 3), {"l2": -1.0}, r"Task\(l2=...\): got -1.0"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, options, message):
    with pytest.raises(InvalidInput, match=message):
        classification(data(), model, **options)


def networks():
    yield type("Ours", (Softmax,), {})
    yield lambda features, classes: Softmax(features, classes)

    class Equinox(eqx.Module):
        layer: eqx.nn.Linear

        def __init__(self, features, classes, key):
            self.layer = eqx.nn.Linear(features, classes, key=key)

        def __call__(self, x):
            return self.layer(x)

    yield Equinox
    try:
        from flax import linen, nnx
    except ImportError:
        return

    class Nnx(nnx.Module):
        def __init__(self, features, classes, rngs):
            self.layer = nnx.Linear(features, classes, rngs=rngs)

        def __call__(self, x):
            return self.layer(x)

    class Linen(linen.Module):
        classes: int

        @linen.compact
        def __call__(self, x):
            return linen.Dense(self.classes)(x)

    yield from (Nnx, Linen)


@pytest.mark.slow
@jax.enable_x64(False)
@jax.numpy_dtype_promotion("standard")
def test_classes_and_functions_that_make_a_model_are_called_with_the_sizes_of_the_data():
    data = FederatedData([{"x": np.ones((4, 3)), "y": [0, 1, 0, 1]}], classes=2)

    def source():
        """Makes data."""
        return data

    for network in networks():
        for task in (
            classification(data, network),
            of_source(source)(model=network),
        ):
            shapes = sorted(leaf.shape for leaf in jax.tree.leaves(task.start(jax.random.key(0))))
            assert shapes in ([(2,), (3, 2)], [(2,), (2, 3)]), network

    class Wide(eqx.Module):
        width: int

    with pytest.raises(InvalidInput, match=r"Wide'>, which cannot be called: .*'width'"):
        classification(data, Wide)
    with pytest.raises(InvalidInput, match=r"model: got 'softmx'; .*Did you mean 'softmax'"):
        classification(data, "softmx")


def test_models_have_the_names_of_experiment_files():
    """As the tasks by name: both make the same model."""
    task = classification(fedax.data.digits(clients=3), "mlp")
    assert task.loss.model == MLP((64, 200, 200, 10))
    assert task.loss == fedax.tasks.digits(clients=3, model="mlp").loss


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 2, 4])
@pytest.mark.parametrize("library", ["equinox", "flax"])
def test_a_network_has_an_output_for_each_class(library, outputs):
    """A label without an output would have a loss without lower bound."""
    if library == "flax":
        linen = pytest.importorskip("flax.linen", reason="flax is not installed")
        model = linen.Dense(outputs)
    else:
        model = eqx.nn.Linear(4, outputs, key=jax.random.key(0))
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.raises(InvalidInput, match=rf"got '{outputs} logits'; allowed: 3, one for each"),
    ):
        classification(data(), model)


def labelled(*labels):
    """Clients with these labels, and two features of single precision."""
    return Ragged.of([{"x": np.ones((len(y), 2), np.float32), "y": np.array(y)} for y in labels])


def task_of(function, start, train, **options):
    """A task whose loss, or whose score, is a function of labels."""
    is_score = isinstance(function, Accuracy | LogisticAccuracy)
    loss = (lambda params, e, key: e["x"].sum(1).astype("float32")) if is_score else function
    options |= {"scores": {"accuracy": function}} if is_score else {}
    return Task(start=start, loss=loss, train=train, **options)


@pytest.mark.parametrize(
    ("function", "start", "classes"),
    [
        (CrossEntropy(Softmax(2, 3)), Softmax(2, 3).init, 3),
        (Accuracy(Softmax(2, 3)), Softmax(2, 3).init, 3),
        (LogisticLoss(), lambda key: jnp.zeros(2), 2),
        (LogisticAccuracy(), lambda key: jnp.zeros(2), 2),
    ],
)
def test_labels_that_are_no_class_are_refused_in_every_part(function, start, classes):
    """Such a label has no logit: the loss would be that of a logit of 0, and nothing would fail."""
    field = "accuracy" if "Accuracy" in type(function).__name__ else "loss"
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
