"""The theorem of local gradient descent on random problems; optima and runs in NumPy."""

import math

import numpy as np
import pytest

from convex import gradient, newton, smoothness, value
from fedax.theory import local_gd
from random_problems import quadratics


class Quadratic:
    def __init__(self, rng):
        self.q = quadratics(rng, spread=rng.choice([0.0, 0.3, 3.0]))
        self.clients = len(self.q.p)
        self.optimum = self.q.optimum
        self.smoothness = self.q.smoothness
        self.gradients = self.q.gradients
        self.gap = self.q.gap


class Logistic:
    """Labels by a rule of each client's own."""

    def __init__(self, rng):
        self.clients = 4
        dim = 3
        l2 = 0.05
        a = rng.normal(size=(self.clients, 12, dim))
        signs = np.sign(
            np.einsum("kij,kj->ki", a, rng.normal(size=(self.clients, dim)))
            + rng.normal(size=(self.clients, 12))
        )
        self.data = [(a[k], signs[k], l2) for k in range(self.clients)]
        self.f = a.reshape(-1, dim), signs.reshape(-1), l2
        self.optimum = newton(*self.f)
        self.smoothness = max(smoothness(x, l2) for x, _, _ in self.data)

    def gradients(self, x):
        points = np.broadcast_to(x, (self.clients, self.optimum.size))
        return np.array([gradient(w, *data) for w, data in zip(points, self.data, strict=True)])

    def gap(self, x):
        return max(value(x, *self.f) - value(self.optimum, *self.f), 0.0)


def descend(problem, start, interval, rate, steps):
    """The workers' models before each step, and after the last."""
    models = np.tile(start, (problem.clients, 1))
    seen = []
    for t in range(steps):
        seen.append(models)
        models = models - rate * problem.gradients(models)
        if (t + 1) % interval == 0:
            models = np.tile(models.mean(0), (problem.clients, 1))
    return [*seen, models]


def check_run(problem, start, interval, steps, fraction):
    """The theorem; the part of its bound that the run needs."""
    rate = fraction * local_gd.step_size(problem.smoothness, interval)
    runs = descend(problem, start, interval, rate, steps)
    variance = local_gd.variance(problem.gradients(problem.optimum))
    means = [models.mean(0) for models in runs]
    distance = float(np.linalg.norm(means[0] - problem.optimum))
    slack = 1e-12 * (1 + distance**2) * (1 + problem.smoothness) ** 2
    options = {
        "variance": variance,
        "smoothness": problem.smoothness,
        "interval": interval,
        "steps": steps,
        "rate": rate,
    }
    bound = local_gd.bound(distance=distance, **options)
    gap = problem.gap(np.mean(means[:steps], axis=0))
    assert gap <= bound + slack
    return gap / bound if bound else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "problems"), [(Quadratic, 700), (Logistic, 300)], ids=["quadratics", "logistic"]
)
def test_theorem_on_random_problems(kind, problems):
    needed = []
    for seed in range(problems):
        rng = np.random.default_rng(seed)
        problem = kind(rng)
        start = problem.optimum + rng.choice([0.0, 1.0, 10.0]) * rng.normal(
            size=problem.optimum.size
        )
        interval = int(rng.choice([1, 2, 5, 8]))
        needed.append(
            check_run(
                problem,
                start,
                interval,
                interval * int(rng.integers(1, 4)),
                rng.choice([0.1, 0.5, 1.0]),
            )
        )
    assert 1e-3 < max(needed) <= 1


def test_the_first_term_is_loose_by_a_factor_of_ten_at_most():
    """One worker and the curvature 1.26/(gamma T): the constant 2 cannot be 0.2."""
    rate = 0.25
    steps = 400
    curvature = 1.26 / (rate * steps)
    mean = np.mean((1 - rate * curvature) ** np.arange(steps))
    bound = local_gd.bound(
        distance=1.0, variance=0.0, smoothness=1.0, interval=1, steps=steps, rate=rate
    )
    assert bound / 10 < curvature / 2 * mean**2 <= bound


def test_theorem_with_one_step_is_gradient_descent_and_without_noise_has_no_floor():
    options = {"distance": 2.0, "smoothness": 3.0, "steps": 60}
    alike = [local_gd.bound(variance=0.0, interval=h, rate=1e-3, **options) for h in (1, 2, 7)]
    assert alike[0] == alike[1] == alike[2] == 2 * 4 / (1e-3 * 60)


def test_plan_has_the_fewest_communications_and_the_accuracy():
    for accuracy in (10.0, 0.3, 0.01):
        given = {"distance": 3.0, "variance": 0.4, "smoothness": 2.0}
        most = local_gd.plan(accuracy=accuracy, **given).rate
        for rate in (most, most / 7, most / 50):
            plan = local_gd.plan(accuracy=accuracy, rate=rate, **given)
            fewest = 16 * 9 / accuracy * max(2, math.sqrt(3 * 0.4 * 2 / accuracy))
            assert plan.communications == pytest.approx(fewest)
            floor = 24 * rate**2 * 0.4 * plan.interval**2 * 2.0
            assert 2 * 9 / (rate * plan.steps) == pytest.approx(accuracy / 2)
            assert floor <= accuracy / 2 * (1 + 1e-12)
            assert rate <= 1 / (4 * 2.0 * plan.interval) * (1 + 1e-12)


def test_best_interval_is_the_best_of_all():
    given = {"distance": 3.0, "variance": 0.4, "smoothness": 2.0, "rate": 0.004, "accuracy": 0.05}

    def cost(interval, price):
        left = (
            given["accuracy"]
            - 24 * given["rate"] ** 2 * given["variance"] * interval**2 * given["smoothness"]
        )
        steps = math.inf if left <= 0 else 2 * given["distance"] ** 2 / (given["rate"] * left)
        if steps < math.inf:
            bound = {name: given[name] for name in ("distance", "variance", "smoothness", "rate")}
            found = local_gd.bound(interval=interval, steps=math.ceil(steps), **bound)
            assert found <= given["accuracy"] * (1 + 1e-12)
        return steps * (1 + price / interval)

    found = [local_gd.best_interval(price=price, **given) for price in (0.01, 0.1, 1.0, 10.0, 1e6)]
    assert found == [
        min(range(1, 32), key=lambda h: cost(h, price)) for price in (0.01, 0.1, 1.0, 10.0, 1e6)
    ]
    assert found[0] == 1 < found[3] <= found[4]


def test_corollary_1_is_the_theorem():
    given = {"distance": 3.0, "variance": 0.4, "smoothness": 2.0, "interval": 5, "steps": 400}
    rate = math.sqrt(4 / 400) / 8
    printed = 8 * 2 * 9 / math.sqrt(4 * 400) + 3 * 4 * 0.4 * 25 / (2 * 2 * 400)
    assert local_gd.bound(rate=rate, **given) == pytest.approx(printed)
