"""Steps of descent on kernels in place: the call, the programs that get it, and those that must
not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.data import FederatedData
from fedax.engine.compilation.descent import descent_step_p, rewrite_descent_steps
from fedax.models import MLP
from fedax.ops import affine
from fedax.ops.extension import status
from fedax.tasks import classification
from layer_samples import TOLERANCE, normal, thinned
from marks import most_slow

pytestmark = pytest.mark.skipif(
    not status().used or status().level == "plain", reason=status().reason or "narrow vectors"
)

SIZES = [
    (1, 784, 200),
    (50, 784, 200),
    (33, 100, 16),
    (64, 401, 120),
    (7, 65, 33),
    (129, 17, 277),
    (50, 1001, 517),
]


def near(got, expected, dtype):
    assert np.max(np.abs(np.asarray(got) - expected)) <= TOLERANCE[dtype] * np.max(np.abs(expected))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [1, 0.15, 0.0])
@pytest.mark.parametrize("sizes", most_slow(SIZES, 3), ids=str)
def test_a_step_is_the_product_and_the_sum(sizes, share, dtype):
    rng = np.random.default_rng(0)
    n, k, o = sizes
    x, kernel = thinned(rng, normal(rng, (n, k), dtype), share), normal(rng, (k, o), dtype)
    gradient, factor = normal(rng, (n, o), dtype), jnp.asarray(0.3, dtype)
    exact = np.asarray(x, "float64").T @ np.asarray(gradient, "float64") * 0.3
    for minus in (False, True):
        for back in (False, True):
            after, *inputs = descent_step_p.bind(
                kernel, x[None], gradient[None], factor, back=back, minus=minus, native=True
            )
            near(after, np.asarray(kernel) + (-exact if minus else exact), dtype)
            for got in inputs:
                near(
                    got[0], np.asarray(gradient, "float64") @ np.asarray(kernel, "float64").T, dtype
                )
    assert len(inputs) == 1


def test_the_kernel_is_read_before_it_changes_and_left_alone_without_a_change():
    rng = np.random.default_rng(1)
    kernel, gradient = normal(rng, (70, 40), "float32"), normal(rng, (9, 40), "float32")
    x = jnp.zeros((1, 9, 70), "float32").at[0, :, 3].set(1.0)
    after, inputs = descent_step_p.bind(
        kernel, x, gradient[None], jnp.float32(1), back=True, minus=False, native=True
    )
    assert (np.delete(after, 3, 0) == np.delete(kernel, 3, 0)).all()
    assert (after[3] != kernel[3]).all()
    (alone,) = affine.input_gradient_p.bind(gradient[None], kernel[None], native=True)
    assert (inputs == alone).all()


LAYERS = MLP((64, 96, 48, 10))
X = jnp.asarray(np.random.default_rng(2).normal(size=(130, 64)), "float32")
"""So many examples that the products of both hidden layers are the extension's."""


def start():
    return jax.tree.map(lambda w: w.astype("float32"), LAYERS.init(jax.random.key(0)))


def loss(params, x=X):
    return (jnp.tanh(LAYERS(params, x)) ** 2).mean()


def descend(params, rate):
    return jax.tree.map(lambda w, g: w - rate * g, params, jax.grad(loss)(params))


def by_optax(params, rate):
    optimizer = optax.sgd(rate)
    return optax.apply_updates(
        params, optimizer.update(jax.grad(loss)(params), optimizer.init(params))[0]
    )


def decayed(params, rate):
    optimizer = optax.chain(optax.sgd(rate), optax.scale(jnp.float32(0.9)))
    return optax.apply_updates(
        params, optimizer.update(jax.grad(loss)(params), optimizer.init(params))[0]
    )


def mirrored(params, rate):
    return jax.tree.map(lambda w, g: g * -rate + w, params, jax.grad(loss)(params))


def by_its_own_size(params, rate):
    gradient = jax.grad(loss)(params)
    return jax.tree.map(
        lambda w, g: w - rate / (1 + optax.tree.norm(gradient)) * g, params, gradient
    )


def reversed_sign(params, rate):
    return jax.tree.map(lambda w, g: rate * g - w, params, jax.grad(loss)(params))


def towards(params, rate):
    return jax.tree.map(lambda w, g: w - rate * (g + 0.1 * w), params, jax.grad(loss)(params))


def with_gradients(params, rate):
    gradient = jax.grad(loss)(params)
    return jax.tree.map(lambda w, g: w - rate * g, params, gradient), gradient


def by_the_loss_after(params, rate):
    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - rate * value * g, params, gradient)


def between_models(params, rate):
    other = jax.tree.map(lambda w: 2 * w, params)
    return jax.tree.map(lambda w, g: w - rate * g, other, jax.grad(loss)(params))


def shared(params, rate):
    def twice(params):
        return loss(params) + loss(params, 2 * X)

    return jax.tree.map(lambda w, g: w - rate * g, params, jax.grad(twice)(params))


FOUND = [
    (descend, 2, 1),
    (by_optax, 2, 1),
    (decayed, 2, 1),
    (mirrored, 2, 1),
    (by_the_loss_after, 2, 1),
    (between_models, 2, 0),
]
LEFT = [by_its_own_size, reversed_sign, towards, with_gradients, shared]


def steps_of(function, *arguments):
    program = jax.make_jaxpr(function)(*arguments)
    changed = rewrite_descent_steps(program.jaxpr)
    if changed is program.jaxpr:
        return 0, 0, None
    found = [equation for equation in changed.eqns if equation.primitive is descent_step_p]
    leaves = jax.core.eval_jaxpr(changed, program.consts, *jax.tree.leaves(arguments))
    return len(found), sum(equation.params["back"] for equation in found), leaves


@pytest.mark.slow
@pytest.mark.parametrize("rate", [jnp.float32(0.5), 0.5], ids=["array", "number"])
@pytest.mark.parametrize(("function", "count", "back"), FOUND)
def test_steps_that_are_found(function, count, back, rate):
    params = start()
    found, with_inputs, leaves = steps_of(lambda params: function(params, rate), params)
    assert (found, with_inputs) == (count, back)
    for got, expected in zip(leaves, jax.tree.leaves(jax.jit(function)(params, rate)), strict=True):
        assert np.abs(got - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("function", LEFT)
def test_steps_that_are_left(function):
    assert steps_of(lambda params: function(params, 0.5), start())[0] == 0


def test_groups_and_derivatives_of_a_step():
    params = start()
    program = jax.make_jaxpr(lambda params: descend(params, 0.5))(params)

    def changed(params):
        return jax.core.eval_jaxpr(
            rewrite_descent_steps(program.jaxpr), program.consts, *jax.tree.leaves(params)
        )

    def plain(params):
        return jax.tree.leaves(descend(params, 0.5))

    many = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), params)
    pairs = [(jax.vmap(changed)(many), jax.vmap(plain)(many))]
    pairs += zip(jax.jvp(changed, (params,), (params,)), jax.jvp(plain, (params,), (params,)))
    for own, expected in pairs:
        for a, b in zip(own, expected, strict=True):
            assert np.abs(a - b).max() < 2e-6 * np.abs(b).max()


@pytest.mark.parametrize("kind", ["FedAvg", "FedProx"])
def test_runs_have_them_and_keep_their_numbers(kind, monkeypatch):
    rng = np.random.default_rng(3)
    sizes = (150, 260, 201)
    clients = [
        {
            "x": np.asarray(rng.normal(size=(n, 64)), "float32"),
            "y": rng.integers(0, 10, n).astype("int32"),
        }
        for n in sizes
    ]
    task = classification(FederatedData(clients, classes=10), LAYERS)
    algorithm = fedax.FedAvg() if kind == "FedAvg" else fedax.FedProx(mu=0.1)
    seen = []

    def counted(program):
        changed = rewrite_descent_steps(program)
        seen.append(sum(equation.primitive is descent_step_p for equation in changed.eqns))
        return changed

    def trained():
        schedule = fedax.Schedule(epochs=2, batch_size=130)
        return fedax.run(
            algorithm, task, solver=fedax.SGD(0.2), schedule=schedule, rounds=3, seed=0, observe=[]
        ).params

    monkeypatch.setattr("fedax.engine.round.client.rewrite_descent_steps", counted)
    own = trained()
    monkeypatch.setattr("fedax.engine.round.client.rewrite_descent_steps", lambda program: program)
    for got, expected in zip(jax.tree.leaves(own), jax.tree.leaves(trained()), strict=True):
        assert np.abs(got - expected).max() < 2e-6 * np.abs(expected).max()
    # the gradient of FedProx has a second term
    assert set(seen) == ({2} if kind == "FedAvg" else {0})
