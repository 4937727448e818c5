"""Observers of users: what they return is checked, and mistakes name the observer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import observe
from fedax.core import InvalidInput
from problems import regression

ENGINES = {"simulation": fedax.Simulation(), "eager": fedax.Eager()}


@pytest.fixture(scope="module")
def digits():
    return fedax.task("digits", clients=3)


class Scalar(observe.Observer):
    def __call__(self, view):
        return 1.5


class Nothing(observe.Observer):
    def __call__(self, view):
        view.w.sum()


class Unnamed(observe.Observer):
    def __call__(self, view):
        return {1: view.w.sum()}


class Column(observe.Observer):
    def __call__(self, view):
        return {"lost": 1.0}


class Converts(observe.Observer):
    def __call__(self, view):
        return {"norm": float(view.w[0])}


class Late(observe.Observer):
    def __call__(self, view):
        return {"raw w": view.w}

    def on_host(self, seen, task):
        return float(seen["raw w"].sum())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Scalar, r'^Scalar\.__call__, its result: got 1\.5; .* Write return \{"name": value\}\.'),
        (Nothing, r"^Nothing\.__call__, its result: got None; allowed: a dict of metrics by name"),
        (Unnamed, r"^Unnamed\.__call__, its result: got \{1: f64\[\]\}; allowed: a dict"),
        (
            Column,
            r"^run\(observe=...\): got 'lost'; allowed: names that no other metric has, nor a",
        ),
        (Late, r"^Late\.on_host, its result: got .*; allowed: a dict of metrics by name"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_names_the_observer(kind, message, engine):
    with pytest.raises(InvalidInput, match=message):
        fedax.run(fedax.FedAvg(), regression(), observe=[kind()], rounds=0, engine=ENGINES[engine])


def test_what_compiled_functions_cannot_do_names_the_observer():
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        fedax.run(fedax.FedAvg(), regression(), observe=[Converts()], rounds=0)
    assert caught.value.__notes__[0].startswith("Converts.__call__ is compiled")


@pytest.mark.parametrize("value", [3, np.float32(3), np.array(3.0), True, np.int64(3)])
def test_numbers_of_any_kind_are_metrics(value, digits):
    metric = observe.SetMetric("a", lambda y, p: value)
    history = fedax.run(fedax.FedAvg(), digits, observe=[metric], rounds=0)
    assert history.last("test_a") == float(value)


def test_numbers_of_jax_are_plain_fields():
    """Equinox warns of arrays in static fields, and they cannot be hashed."""
    objective = observe.Objective(minimum=jnp.float32(0.5))
    assert (objective.minimum, type(objective.minimum)) == (0.5, float)
    error = observe.CalibrationError(bins=jnp.int32(9))
    assert (error.bins, type(error.bins)) == (9, int)
    codec = fedax.codecs.TopK(jnp.float32(0.25))
    assert (codec.fraction, hash(codec)) == (0.25, hash(fedax.codecs.TopK(0.25)))
    assert fedax.SGD(0.1, momentum=np.array(0.5)) == fedax.SGD(0.1, momentum=0.5)
