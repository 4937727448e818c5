"""The small parts: layouts, local problems, tasks, traffic, hyperparameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.communication.channel import bits_of
from fedax.core import InvalidInput, Layout, LocalProblem, Ragged
from fedax.core.hyper import Hyper, as_arrays


def test_the_first_block_of_a_flat_model_is_no_padding():
    model = {"kernel": np.ones((3, 3, 32), np.float32), "z": np.ones(5000, np.float32)}
    program = jax.jit(Layout.of(model).ravel).lower(model).compile()
    assert " pad(" not in program.as_text()


def test_layout_keeps_the_order_of_leaves():
    params = (jnp.arange(6.0).reshape(2, 3), {"b": jnp.array(7.0), "a": jnp.array([8.0])})
    layout = Layout.of(params)
    assert layout.blocks == (6, 1, 1)
    assert layout.ravel(params).tolist() == [0, 1, 2, 3, 4, 5, 8, 7]
    assert jax.tree.all(
        jax.tree.map(
            lambda a, b: bool((a == b).all()), layout.unravel(layout.ravel(params)), params
        )
    )
    assert hash(layout) == hash(Layout.of(params))


@pytest.mark.slow
def test_local_gradient_is_the_gradient_of_its_value():
    rng = np.random.default_rng(0)
    w, anchor, linear = (jnp.asarray(rng.normal(size=4)) for _ in range(3))
    problem = LocalProblem(anchor=anchor, linear=linear, prox=0.7)
    layout = Layout.of(w)
    added = problem.added_gradient(layout, jnp.zeros(4), w)
    np.testing.assert_allclose(added, jax.grad(problem.added_value)(w), rtol=1e-12)
    np.testing.assert_allclose(added, linear + 0.7 * (w - anchor), rtol=1e-12)


@pytest.mark.parametrize(
    ("limits", "allowed", "outside"),
    [
        ({"low": 0.0, "high": 1.0}, "numbers in [0, 1]", [-1e-3, 1.001]),
        (
            {"low": 0.0, "open_low": True, "high": 1.0, "open_high": True},
            "numbers in (0, 1)",
            [0.0, 1.0],
        ),
        ({}, "numbers in (-infinity, infinity)", [-np.inf, np.inf]),
        ({"default": np.inf, "low": 1.0}, "numbers in [1, infinity]", [0.999]),
        ({"default": 2, "low": 1, "high": 9}, "whole numbers in [1, 9]", [0, 10]),
    ],
)
def test_ranges_of_hyperparameters(limits, allowed, outside):
    """Their text and the values next to them, all of which are refused; without bounds real numbers
    are finite."""
    limits = Hyper("x", **{"default": 0.5} | limits)
    assert limits.allowed == allowed
    none, word, nan, *found = limits.outside()
    assert (none, type(word)) == (None, str)
    assert np.isnan(nan)
    assert found == outside
    assert not any(map(limits.allows, (none, word, nan, *found)))


def test_real_numbers_become_arrays_and_nothing_else_does():
    tree = {"real": 0.5, "array": np.ones(2), "jax": jnp.ones(2), "whole": 3, "word": "a"}
    found = as_arrays(tree, np.float32)
    for name in ("real", "array", "jax"):
        assert isinstance(found[name], jax.Array)
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], tree[name])
    assert (found["whole"], type(found["whole"]), found["word"]) == (3, int, "a")


def test_bits_of_arrays():
    assert (
        bits_of({"a": jnp.zeros((2, 3), jnp.float32), "b": jnp.zeros((), jnp.float64)})
        == 6 * 32 + 64
    )


def test_ragged_is_flat():
    ragged = Ragged.of([{"x": [1.0, 2.0]}, {"x": [3.0]}])
    assert (ragged.total, ragged.clients, ragged.largest) == (3, 2, 2)
    assert ragged[1]["x"].tolist() == [3.0]
    assert np.asarray(ragged.sizes).tolist() == [2, 1]


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: jnp.mean((w - x) ** 2),
        lambda w, x: (w - x)[:, None],
        lambda w, x: [w - x],
    ],
)
def test_a_loss_must_be_per_example(loss):
    with pytest.raises(InvalidInput, match="loss"):
        fedax.Task(0.0, loss, [[1.0, 2.0]])


def test_a_score_never_gets_a_key():
    """Not even when the task is made: it may fail with one."""

    def score(w, x, key):
        if key is not None:
            raise ValueError("a key in evaluation")
        return w - x

    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0, 2.0]], scores={"off": score})
    assert list(task.scores) == ["off"]


@pytest.mark.slow
def test_loss_with_a_key_gets_one_in_training_only():
    """Noise in training, none in evaluation; another seed is other noise, the same seed the
    same."""
    seen = []

    def loss(w, x, key):
        seen.append(key is None)
        return (w - x - (0.0 if key is None else jax.random.normal(key))) ** 2 / 2

    task = fedax.Task(0.0, loss, [[1.0, 2.0], [3.0]])
    options = {
        "schedule": fedax.Schedule(batch_size=1),
        "rounds": 2,
        "observe": [fedax.observe.TrainLoss()],
    }
    runs = [
        fedax.run(fedax.FedAvg(), task, seed=s, engine=e, **options)
        for s, e in ((0, None), (1, None), (0, fedax.Eager()))
    ]
    assert set(seen) == {True, False}
    assert float(runs[0].params) != float(runs[1].params)
    np.testing.assert_allclose(runs[0].params, runs[2].params, rtol=1e-12)


@pytest.mark.slow
def test_feddane_as_released_needs_two_parameter_arrays():
    task = fedax.Task(np.zeros(3), lambda w, x: (w.sum() - x) ** 2, [[1.0]])
    with pytest.raises(
        InvalidInput, match="models of two parameter arrays, the second of two entries or more"
    ):
        fedax.run(fedax.FedDANE(correction="as_released"), task, rounds=1)


@pytest.mark.slow
def test_exact_solver_reaches_stationarity():
    """Ridge logistic regression: the local gradient at the solution is zero."""

    def loss(w, data):
        return jnp.logaddexp(0.0, -data["y"] * (data["x"] @ w))

    rng = np.random.default_rng(0)
    client = {"x": rng.normal(size=(30, 4)), "y": np.sign(rng.normal(size=30))}
    task = fedax.Task(np.zeros(4), loss, [client], l2=0.1)
    w = jnp.asarray(fedax.run(fedax.FedAvg(), task, solver=fedax.Exact(1e-12), rounds=1).params)
    gradient = jax.grad(
        lambda w: loss(w, {k: jnp.asarray(v) for k, v in client.items()}).mean() + 0.05 * w @ w
    )(w)
    assert np.abs(gradient).max() < 1e-8
