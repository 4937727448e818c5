"""Models, layers and labels that do not fit: the argument that the error names."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import DataError, InvalidInput
from fedax.data import FederatedData
from fedax.models import CNN, MLP, CharLSTM, Softmax, Stage
from fedax.ops import convolve, convolve_activate, join
from fedax.tasks import classification
from fedax.tasks.from_model import cross_entropy

IMAGE = jnp.ones((1, 4, 4, 1))
KERNEL = jnp.ones((3, 3, 1, 2))


def labelled(*labels, **parts):
    """Clients with these labels and two features."""
    clients = [{"x": np.ones((len(y), 2)), "y": np.array(y)} for y in labels]
    return FederatedData.from_arrays(clients, **parts)


THREE = FederatedData.from_arrays([{"x": np.ones((3, 4)), "y": [0, 1, 2]}], classes=3)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("features=", lambda: Softmax(0, 10)),
        ("classes=", lambda: Softmax(3, True)),
        (r"\(3, 0, 2\)", lambda: MLP((3, 0, 2))),
        ("dropout=", lambda: MLP((3, 2), dropout=1.0)),
        ("shape=", lambda: CNN((4, 4, 1), (Stage(2, 5),), (), 10)),
        ("vocabulary=", lambda: CharLSTM(0)),
        ("padding", lambda: convolve(IMAGE, KERNEL, padding="FULL")),
        ("padding", lambda: convolve(IMAGE, KERNEL, padding=((0, 0), (0, -1)))),
        ("stride", lambda: convolve(IMAGE, KERNEL, stride=0)),
        ("x=", lambda: convolve(IMAGE[:, :2], KERNEL)),
        ("window", lambda: convolve_activate(IMAGE, KERNEL, jnp.ones(2), 0)),
        ("shortcut", lambda: join(jnp.ones((1, 3, 3, 2)), jnp.ones((1, 4, 4, 2)), 2)),
        ("model=", lambda: classification(THREE, Softmax(4, 5))),
        ("model", lambda: classification(THREE, "softmx")),
        ("Adapt", lambda: fedax.from_model("softmax", lambda z, e: z, THREE)),
    ],
)
def test_what_does_not_fit(field, make):
    with pytest.raises(InvalidInput, match=field):
        make()


@pytest.mark.parametrize("label", [-1, 2, 0.5])
@pytest.mark.parametrize("part", ["train", "test", "central"])
def test_labels_that_are_no_class(label, part):
    """Such a label has no logit: the loss would be that of a logit of 0, and nothing would fail."""
    good = labelled([0.0, 1.0])
    wrong = labelled([0, label])
    parts = {"test": wrong.train} if part == "test" else {}
    if part == "central":
        parts = {"central": wrong.train[0]}
    train = [(wrong if part == "train" else good).train[0]]
    data = FederatedData.from_arrays(train, **parts)
    with pytest.raises(DataError, match="label"):
        fedax.from_model(Softmax(2, 2), cross_entropy, data)


def test_labels_may_be_whole_real_numbers():
    task = fedax.from_model(Softmax(2, 2), cross_entropy, labelled([0.0, 1.0], [1.0]))
    assert task.train.total == 3
