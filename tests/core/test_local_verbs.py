"""What methods do within a client's work: other gradients in its steps, means over its examples,
common numbers of steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.core import Algorithm, LocalProblem, Minibatch
from fedax.utils.random import stream
from problems import SIZES, regression, vector
from transcription import L2, LR, ROUNDS, SCHEDULE, SEED, P, World

ONE = fedax.Simulation(devices=1)
ENGINES = [ONE, fedax.Eager(), fedax.Simulation(chunk=2, devices=1, microbatch=2)]


def run(method, solver, rounds=ROUNDS, schedule=SCHEDULE, task=None, engine=ONE, **options):
    options = {"rounds": rounds, "seed": SEED, **options}
    return fedax.run(
        method, task or regression(), solver=solver, schedule=schedule, engine=engine, **options
    )


def sharp(world, k, w, rows, rho):
    """The gradient at the worst point at distance rho, to first order."""
    g = world.gradient(k, w, rows)
    return world.gradient(k, w + rho * g / np.linalg.norm(g), rows)


@pytest.mark.parametrize("engine", ENGINES[::2], ids=["one", "pieces"])
def test_sam_around_sgd_with_momentum_and_a_proximal_term(engine):
    world = World()
    rho = 0.3
    mu = 0.7
    momentum = 0.6
    w = world.start
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            mine = w
            speed = np.zeros(4)
            for _ in range(2):
                for begin in range(0, SIZES[k], 4):
                    slope = sharp(world, k, mine, slice(begin, begin + 4), rho) + mu * (mine - w)
                    speed = momentum * speed + slope
                    mine = mine - LR * speed
            models.append(mine)
        w = np.average(models, axis=0, weights=P[cohort])
    solver = fedax.SGD(LR, momentum=momentum, sharpness=rho)
    np.testing.assert_allclose(
        vector(run(fedax.FedProx(mu=mu), solver, engine=engine)), w, rtol=0, atol=1e-12
    )


@pytest.mark.slow
def test_sam_without_a_radius_is_its_solver():
    for solver in (
        fedax.SGD(LR, momentum=0.5, clip=1.0),
        fedax.Optax(optax.sgd(LR, 0.9, nesterov=True)),
    ):
        aware = dataclasses.replace(solver, sharpness=0.0)
        plain, none = (vector(run(fedax.SCAFFOLD(option="I"), each)) for each in (solver, aware))
        np.testing.assert_array_equal(plain, none)


def test_sam_stays_where_there_is_no_gradient():
    flat = fedax.Task(np.ones(2), lambda w, x: 0 * (x @ w), [np.ones((3, 2))])
    history = run(
        fedax.FedAvg(), fedax.SGD(0.1, sharpness=0.05), task=flat, schedule=fedax.Schedule(steps=2)
    )
    np.testing.assert_array_equal(vector(history), np.ones(2))


class Clipped(fedax.FedAvg):
    """Clips the gradient of every minibatch, by a hook."""

    def train(self, client, w):
        def clipped(batch, params):
            gradient = batch.gradient(params)
            scale = jnp.minimum(1, 0.3 / optax.tree.norm(gradient))
            return jax.tree.map(lambda g: scale * g, gradient)

        return fedax.Upload(
            client.minimize(LocalProblem(step_gradient=clipped), start=w), reference=w
        )


@pytest.mark.slow
def test_a_hook_that_clips_is_the_solvers_clipping():
    hooked = run(Clipped(), fedax.SGD(LR))
    built_in = run(fedax.FedAvg(), fedax.SGD(LR, clip=0.3))
    np.testing.assert_allclose(vector(hooked), vector(built_in), rtol=0, atol=1e-14)


class SumsOfWeights(Algorithm):
    """Adds up the sum of the weights of gradients in the model's change, round by round."""

    def round(self, fed, state):
        return state + fed.average(self.look, fed.everyone, state)

    def look(self, client, w):
        return fedax.Upload(0 * w + client.solver.accumulated(client, 0.7))


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_sum_of_weights_is_the_change_under_a_gradient_of_one(momentum):
    """Step by step with the velocity and the proximal term; the decay by round changes its pull."""
    decay = 0.5
    expected = 0.0
    for t in range(3):
        lr = 0.1 * decay**t
        speed = 0.0
        moved = 0.0
        for _ in range(4):
            speed = momentum * speed + 1 + 0.7 * moved
            moved -= lr * speed
        expected -= moved / lr
    task = fedax.Task(0.0, lambda w, x: 0 * x + w, [[1.0] * 4])
    schedule = fedax.Schedule(epochs=1, batch_size=1)
    solver = fedax.SGD(0.1, momentum=momentum, decay=decay)
    found = run(SumsOfWeights(), solver, rounds=3, schedule=schedule, task=task)
    np.testing.assert_allclose(vector(found), expected, rtol=1e-12)


class Means(Algorithm):
    """Notes means over the clients' examples, and takes one step along a gradient of its own on the
    first minibatches."""

    def round(self, fed, state):
        mean, matrix = fed.average(self.look, fed.everyone, state)
        fed.log(mean=mean, matrix=matrix)
        return fed.average(self.step, fed.everyone, state)

    def look(self, client, w):
        def values(params, examples, key):
            return {
                "y": examples["y"],
                "outer": examples["x"][:, :, None] * examples["x"][:, None, :],
            }

        found = client.mean_of(values, w)
        return fedax.Upload((found["y"], found["outer"]))

    def step(self, client, w):
        def absolute(params, examples, key):
            return jnp.abs(examples["x"] @ params["w"] + params["b"] - examples["y"])

        def one(params, batch: Minibatch):
            return jax.tree.map(
                lambda p, g: p - LR * g, params, batch.gradient_of(absolute, params)
            )

        layout = client.layout
        return fedax.Upload(layout.ravel(client.for_each_minibatch(one, layout.unravel(w))))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES, ids=["one", "eager", "pieces"])
def test_means_over_examples_and_gradients_of_other_losses(engine):
    world = World()
    schedule = fedax.Schedule(epochs=1, batch_size=4, order="given")
    found = run(Means(), fedax.SGD(LR), rounds=1, schedule=schedule, engine=engine)
    np.testing.assert_allclose(found.logged["mean"][0], P @ [y.mean() for y in world.y], rtol=1e-12)
    outer = [np.einsum("ni,nj->ij", x[:, 1:], x[:, 1:]) / len(x) for x in world.x]
    np.testing.assert_allclose(found.logged["matrix"][0], np.tensordot(P, outer, 1), rtol=1e-12)
    models = []
    for k in range(5):
        w = world.start
        for begin in range(0, SIZES[k], 4):
            x = world.x[k][begin : begin + 4]
            y = world.y[k][begin : begin + 4]
            w = w - LR * x.T @ np.sign(x @ w - y) / len(y)
        models.append(w)
    np.testing.assert_allclose(vector(found), P @ models, rtol=0, atol=1e-12)
    assert L2 > 0  # which is no part of a loss of the method's own


def test_own_losses_count_as_gradients():
    looked, stepped = fedax.footprint(Means(), regression()).phases
    assert (looked.step_gradients, looked.full_gradients) == (0, 0)
    assert (stepped.step_gradients, stepped.full_gradients) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.25, 1.0])
@pytest.mark.parametrize("engine", [ONE, fedax.Eager()], ids=["one", "eager"])
def test_common_coins_end_the_round_of_all_clients(p, engine):
    """Each client takes the same steps, drawn anew in every round and from the seed."""
    schedule = fedax.Schedule(sync_probability=p, batch_size="full")
    task = fedax.Task(np.zeros(1), lambda w, x: x @ w, [np.ones((n, 1)) for n in (2, 5)])
    for seed in (0, 1):
        options = {"schedule": schedule, "task": task, "engine": engine, "seed": seed, "rounds": 4}
        history = run(fedax.LocalGD(), fedax.SGD(1.0), **options)
        root = jax.random.fold_in(jax.random.key(seed), 1)
        luck = [
            1 - float(jax.random.uniform(stream(root, "work", t), (), jnp.float32))
            for t in range(4)
        ]
        steps = [1 if p == 1 else 1 + int(np.log(u) / np.log(1 - p)) for u in luck]
        np.testing.assert_allclose(vector(history), -sum(steps))


def test_numbers_of_steps_are_geometric():
    p = 0.3
    keys = jax.random.split(jax.random.key(0), 20_000)
    schedule = fedax.Schedule(sync_probability=p)
    steps = np.asarray(jax.vmap(lambda key: schedule.work(keys[0], 9, 0, key).steps)(keys))
    for count in range(1, 6):
        expected = p * (1 - p) ** (count - 1)
        assert abs(np.mean(steps == count) - expected) < 4 * np.sqrt(expected / len(keys))
    assert steps.max() <= schedule.most_steps(9)
    assert schedule.mean_steps(9) == pytest.approx(1 / p)
    assert schedule.equal_steps(SIZES)
