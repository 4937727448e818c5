"""Mistakes of who writes a method: one error that names the method and says what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import Algorithm, Upload, hyper
from fedax.core import InvalidInput

ENGINES = {"simulation": fedax.Simulation(), "eager": fedax.Eager()}


def squared(w, examples):
    return (examples["x"].astype(w.dtype) @ w - examples["y"].astype(w.dtype)) ** 2


def absolute(w, examples):
    return abs(examples["x"].astype(w.dtype) @ w - examples["y"].astype(w.dtype))


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    clients = {
        name: {"x": rng.normal(size=(n, 2)).astype("f"), "y": np.arange(n)}
        for name, n in (("anna", 3), ("bert", 5), ("carl", 2))
    }
    return fedax.Task(jnp.zeros(2, jnp.float32), squared, clients, scores={"mae": absolute})


def run(algorithm, task, **options):
    return fedax.run(algorithm, task, **{"rounds": 1, "solver": fedax.SGD(0.1)} | options)


class Base(Algorithm):
    def round(self, fed, w):
        return fed.average(self.train, fed.sample(), w)

    def train(self, client, w):
        return Upload(client.minimize(start=w))


class NoUpload(Base):
    def train(self, client, w):
        return client.minimize(start=w)


class NoResult(Base):
    def train(self, client, w):
        Upload(client.minimize(start=w))


class NoState(Base):
    def round(self, fed, w):
        fed.average(self.train, fed.sample(), w)


class NoModel(Base):
    def init(self, fed, w):
        return w, w

    def round(self, fed, state):
        return fed.average(self.train, fed.sample(), state[0]), state[1]


class TwoModels(NoModel):
    def init(self, fed, w):
        return w, 0.0

    def model(self, state):
        return state


class AnotherState(NoModel):
    """A list for a tuple, which a compiled loop cannot carry."""

    def round(self, fed, state):
        return [*super().round(fed, state)]

    def model(self, state):
        return state[0]


class Stores(AnotherState):
    def init(self, fed, w):
        return w, fed.client_states(w)

    def round(self, fed, state):
        return fed.average(self.train, fed.sample(), state[0], states=state[1])

    def train(self, client, w, own):
        return Upload(w, state=(own, 1.0))


class WorksInInit(Base):
    init = Base.round


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WorksInInit, "init: clients work in it"),
        (NoUpload, r"NoUpload\.train, its result: got an array f32\[2\]; allowed: an Upload"),
        (NoResult, r"NoResult\.train, its result: got None; allowed: an Upload"),
        (Stores, r"Stores\.train, its result: got \(f32\[2\], f..\[\]\); .* an array f32\[2\]"),
        (TwoModels, r"TwoModels\.model, its result: got \(f32\[2\], f64\[\]\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_one_error_that_names_the_method(kind, message, engine, task):
    with pytest.raises(InvalidInput, match=message):
        run(kind(), task, engine=ENGINES[engine])


class Resets(AnotherState):
    init = TwoModels.init

    def round(self, fed, state):
        return fed.average(self.train, fed.sample(), state[0], 0.5), np.float64(1)

    def train(self, client, w, rate):
        return Upload(w - rate * client.gradient(w))


@pytest.mark.parametrize("engine", ENGINES.values())
def test_states_and_messages_may_have_numbers_of_python_and_numpy(task, engine):
    assert run(Resets(), task, engine=engine, rounds=2).outcome.ok


@pytest.mark.slow
@pytest.mark.parametrize("engine", [None, fedax.Eager()])
def test_a_state_of_another_structure_is_refused(task, engine):
    with pytest.raises(InvalidInput, match=r"NoState\.round, its result: got None; .*f32\[2\]"):
        run(NoState(), task, engine=engine)
    with pytest.raises(InvalidInput, match=r"\.round, .*got \[f32\[2\], f32\[2\]\]; .*\(f32\[2\],"):
        run(AnotherState(), task, engine=engine)


class IfOfHyper(Base):
    mu: float = hyper(0.1)

    def train(self, client, w):
        return Upload(client.minimize(start=w) if self.mu > 0 else w)


class IfOfValue(Base):
    def round(self, fed, w):
        mean = super().round(fed, w)
        return mean if jnp.linalg.norm(mean) > 1 else w


class Number(Base):
    def train(self, client, w):
        return Upload(w * jnp.asarray(float(client.minimize(start=w)[0]), w.dtype))


class OfNumPy(Base):
    def train(self, client, w):
        return Upload(jnp.asarray(np.clip(np.asarray(client.minimize(start=w)), -1, 1)))


class Selects(Base):
    def train(self, client, w):
        return Upload(w[w >= 0])


class Counts(Base):
    def train(self, client, w):
        for _ in range(client.steps):
            w = w - client.learning_rate * client.gradient(w)
        return Upload(w)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (IfOfHyper, "train"),
        (IfOfValue, "round"),
        (Number, "train"),
        (OfNumPy, "train"),
        (Selects, "train"),
        (Counts, "train"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_values_that_a_compiled_round_does_not_have_are_named(kind, function, task):
    with pytest.raises((jax.errors.JAXTypeError, jax.errors.JAXIndexError)) as caught:
        run(kind(), task)
    # JAX adds its own
    note, *_ = caught.value.__notes__
    assert note.startswith(f"{kind.__name__}.{function} is compiled")
    assert run(kind(), task, engine=fedax.Eager()).outcome.ok
