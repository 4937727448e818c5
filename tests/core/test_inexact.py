"""The solver that stops at a given inexactness, against the exact minimisers of quadratics and a
loop in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import Algorithm, LocalProblem, Upload
from fedax.theory import feddane
from problems import quadratic, random_quadratic

CLIENTS = 4
DIM = 3
RATE = 0.2
START = np.array([1.0, -2.0, 0.5])
ENGINES = {
    "sequential, 2 devices": lambda: fedax.Simulation(devices=2),
    "chunked, 2 devices": lambda: fedax.Simulation(chunk=3, devices=2),
    "eager": fedax.Eager,
}


class Solutions(Algorithm):
    """All clients' local solutions as a note; the model stays."""

    mu: float = fedax.core.hyper(0.0)

    def round(self, fed, state):
        solved = fed.gather(self.solve, fed.everyone, state, state[::-1])
        fed.log(solutions=solved.value)
        return state

    def solve(self, client, w, linear):
        return Upload(client.minimize(LocalProblem(anchor=w, linear=linear, prox=self.mu), start=w))


class Start:
    def __call__(self, key):
        return jnp.asarray(START)


def solved(gamma, mu, engine=None, concavity=0.0, curvatures=None, centres=None, **options):
    task = quadratic(curvatures, centres)
    task = fedax.core.Task(Start(), task.loss, task.data)
    solver = fedax.Inexact(gamma, RATE, concavity, **options)
    history = fedax.run(
        Solutions(mu=mu),
        task,
        solver=solver,
        engine=engine,
        rounds=1,
        schedule=fedax.Schedule(steps=1),
    )
    return history.logged["solutions"][0]


def by_hand(a, b, gamma, mu, concavity=0.0, most=1000):
    """The points that gradient descent passes until the rule holds."""
    matrix = a + mu * np.eye(DIM)
    right = a @ b + mu * START - START[::-1]
    points = [START]
    for _ in range(most):
        w = points[-1]
        residual = np.linalg.norm(matrix @ w - right)
        moved = np.linalg.norm(w - START)
        if residual <= feddane.enough(inexactness=gamma, moved=moved, curvature=mu - concavity):
            break
        points.append(w - RATE * (matrix @ w - right))
    return np.array(points), np.linalg.solve(matrix, right)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gamma", [0.3, 0.01])
def test_it_stops_where_the_rule_first_holds_and_is_as_exact_as_asked(engine, gamma):
    a, b = random_quadratic(CLIENTS, DIM, high=3.0)
    found = solved(gamma, 0.7, ENGINES[engine](), curvatures=a, centres=b)
    lengths = set()
    for k in range(CLIENTS):
        points, exact = by_hand(a[k], b[k], gamma, 0.7)
        np.testing.assert_allclose(found[k], points[-1], rtol=1e-10)
        assert feddane.inexactness(found[k], exact, START) <= gamma
        residual = np.linalg.norm((a[k] + 0.7 * np.eye(DIM)) @ (points[-2] - exact))
        moved = np.linalg.norm(points[-2] - START)
        assert residual > feddane.enough(inexactness=gamma, moved=moved, curvature=0.7)
        lengths.add(len(points))
    assert len(lengths) > 1  # the clients of a chunk need different numbers of steps


def test_concave_losses_ask_for_more():
    a, b = random_quadratic(CLIENTS, DIM, high=3.0)
    a = a - np.eye(DIM)  # eigenvalues from -0.5
    found = solved(0.1, 1.5, concavity=0.5, curvatures=a, centres=b)
    for k in range(CLIENTS):
        points, exact = by_hand(a[k], b[k], 0.1, 1.5, concavity=0.5)
        np.testing.assert_allclose(found[k], points[-1], rtol=1e-10)
        assert feddane.inexactness(found[k], exact, START) <= 0.1
        assert len(points) > len(by_hand(a[k], b[k], 0.1, 1.5)[0])


def test_it_ends_after_the_most_steps():
    a, b = random_quadratic(CLIENTS, DIM)
    found = solved(1e-9, 0.7, max_steps=4, curvatures=a, centres=b)
    np.testing.assert_allclose(found[0], by_hand(a[0], b[0], 0.0, 0.7, most=4)[0][-1], rtol=1e-10)
