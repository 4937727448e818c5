"""Arrays of other libraries and less common types: taken as they are meant, or refused in a
sentence."""

import tempfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import fedax
from fedax.core import InvalidInput

MASKED = np.ma.array([1.0, 2.0], mask=[False, True])


class Tensor:
    """What PyTorch's tensors do when NumPy reads them."""

    def __init__(self, values, requires_grad=False):
        self.values = np.asarray(values)
        self.requires_grad = requires_grad
        self.shape = self.values.shape

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.values.astype(dtype or self.values.dtype)

    def __len__(self):
        return len(self.values)


def of_named(values):
    task = fedax.Task(0.0, lambda w, examples: (w - examples["x"]) ** 2, [{"x": values}])
    return task.train.arrays["x"]


def of_stored(values):
    with tempfile.TemporaryDirectory() as folder:
        clients = [{"x": values, "y": [0, 1]}]
        stored = fedax.data.store(f"{folder}/stored", clients, classes=2)
        return np.array(fedax.data.stored(stored).train[0]["x"])


def of_params(values):
    def loss(w, x):
        return (jnp.sum(w["w"].astype(float)) - x) ** 2

    task = fedax.Task({"w": values}, loss, [[1.0]])
    return fedax.run(fedax.FedAvg(), task, rounds=0).params["w"]


def of_start(values):
    task = fedax.Task({"w": np.zeros(2)}, lambda w, x: (jnp.sum(w["w"]) - x) ** 2, [[1.0]])
    return fedax.run(fedax.FedAvg(), task, rounds=0, params={"w": values}).params["w"]


PLACES = [of_named, of_stored, of_params, of_start]
TAKEN = {
    "tensor": Tensor([1.0, 2.0]),
    "series": pd.Series([1.0, 2.0], index=["u", "v"]),
    "nullable": pd.Series([1.0, 2.0], dtype="Float64"),
    "bfloat16": np.array([1.0, 2.0], ml_dtypes.bfloat16),
    "half": np.array([1.0, 2.0], np.float16),
    "long double": np.array([1.0, 2.0], np.longdouble),
    "other byte order": np.array([1.0, 2.0], ">f8"),
    "strided": np.array([[1.0, 2.0], [3.0, 4.0]], order="F")[0],
    "reversed": np.array([2.0, 1.0])[::-1],
    "no mask": np.ma.array([1.0, 2.0]),
}
REFUSED = {
    "tensor with gradients": (
        Tensor([1.0, 2.0], True),
        "requires grad",
    ),
    "masked": (MASKED, "masked entries"),
    "objects": (np.array([1.0, None], object), "object"),
    "text": (np.array(["1", "2"]), "<U1"),
    "dates": (np.array(["2020-01-01", "2021-01-01"], "M8[D]"), "datetime64"),
    "complex": (np.array([1j, 2j]), "complex"),
    "fields": (np.zeros(2, [("a", "f4")]), "'a'"),
    "sparse": (scipy.sparse.csr_array(np.eye(2)), "csr_array"),
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("name", TAKEN)
def test_arrays_are_taken_as_they_are_meant(place, name):
    found = place(TAKEN[name])
    assert np.asarray(found, float).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_cannot_be_meant_are_refused(place, name):
    values, message = REFUSED[name]
    if place is of_start:
        message = "|".join([message, "real numbers", "shape"])
    with pytest.raises(InvalidInput, match=message):
        place(values)


@pytest.mark.parametrize("rows", [[MASKED, MASKED], (np.ma.masked, 1.0)])
def test_masks_within_lists_are_not_dropped(rows):
    with pytest.raises(InvalidInput, match="masked entries"):
        fedax.Task(0.0, lambda w, x: jnp.sum((w - x) ** 2, 1), [rows])


@pytest.mark.parametrize(
    "leaf", ["relu", True, {1.0}, range(2), lambda x: x, b"1"], ids=lambda leaf: type(leaf).__name__
)
def test_leaves_that_are_no_numbers_are_refused_not_frozen(leaf):
    with pytest.raises(InvalidInput, match=r"Task\(start=...\), leaf 'b'"):
        fedax.Task({"a": 0.0, "b": leaf}, lambda w, x: (w["a"] - x) ** 2, [[1.0]])


def test_parameters_beyond_the_range_are_refused():
    with (
        jax.enable_x64(False),
        pytest.raises(InvalidInput, match=r"leaf 'w': got .*numbers beyond the range"),
    ):
        fedax.Task({"w": np.float64(1e300)}, lambda w, x: (w["w"] - x) ** 2, [[1.0]])
