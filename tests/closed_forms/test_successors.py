"""Methods that follow the first papers' and their yardsticks, against straight NumPy transcriptions
of their recursions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.utils.random import stream
from marks import slow
from problems import SIZES, quadratic, random_quadratic, regression, vector
from transcription import L2, LR, ROUNDS, SCHEDULE, SEED, P, World

ONE = fedax.Simulation(devices=1)


def run(algorithm, task=None, **options):
    options = {
        "solver": fedax.SGD(LR),
        "schedule": SCHEDULE,
        "rounds": ROUNDS,
        "seed": SEED,
        "engine": ONE,
        **options,
    }
    return fedax.run(algorithm, task or regression(), **options)


def agree(history, expected, tolerance=1e-12):
    np.testing.assert_allclose(vector(history), expected, rtol=0, atol=tolerance)


def mean(values, cohort):
    return np.average(values, axis=0, weights=P[cohort])


def minibatches(k):
    """The rows of all steps of a round."""
    return [slice(begin, begin + 4) for _ in range(2) for begin in range(0, SIZES[k], 4)]


def sharp(world, k, w, rows, rho):
    g = world.gradient(k, w, rows)
    return world.gradient(k, w + rho * g / np.linalg.norm(g), rows)


def dane_round(world, cohort, center, lam):
    """The mean of the local solutions around a center, and of the gradients there."""
    g = mean([world.gradient(k, center) for k in cohort], cohort)
    models = [
        world.sgd(k, center, lambda v, k=k: g - world.gradient(k, center) + lam * (v - center))[0]
        for k in cohort
    ]
    return mean(models, cohort), mean(
        [world.gradient(k, x) for k, x in zip(cohort, models, strict=True)], cohort
    )


def test_sdane():
    world = World()
    lam = 0.7
    mu = 0.4
    x = v = world.start
    for cohort in world.cohorts():
        x, g = dane_round(world, cohort, v, lam)
        v = (mu * x + lam * v - g) / (mu + lam)
    history = run(fedax.SDANE(lam=lam, mu=mu))
    agree(history, x)
    np.testing.assert_allclose(history.state.v, v, rtol=0, atol=1e-12)


def test_accelerated_sdane():
    world = World()
    lam = 0.7
    mu = 0.3
    x = v = world.start
    total = 0.0
    b = 1.0
    for cohort in world.cohorts():
        a = np.roots([lam, -b, -total * b]).max()  # lam a^2 = (A + a) B
        y = (total * x + a * v) / (total + a)
        x, g = dane_round(world, cohort, y, lam)
        v = (mu * a * x + b * v - a * g) / (mu * a + b)
        total = total + a
        b = b + mu * a
    agree(run(fedax.AccSDANE(lam=lam, mu=mu)), x, 1e-10)


def similar_quadratics(spread=0.05):
    """Bowls whose curvatures differ little, of different centres, and the minimiser of their
    mean."""
    a, b = random_quadratic(clients=5, dim=4, low=0.1, high=4.0)
    a = a[:1] + spread * (a - a[:1])
    return quadratic(a, b), np.linalg.solve(a.mean(0), np.einsum("kij,kj->i", a, b) / 5)


@pytest.mark.slow
def test_sdane_reaches_the_optimum_with_everybody_and_exact_solves():
    task, optimum = similar_quadratics()
    options = {"solver": fedax.Exact(), "schedule": fedax.Schedule(batch_size="full")}
    for method, rounds in ((fedax.SDANE(lam=0.5), 250), (fedax.AccSDANE(lam=0.5), 120)):
        found = np.asarray(run(method, task, rounds=rounds, **options).params)
        np.testing.assert_allclose(found, optimum, atol=1e-5)


def test_fedred():
    world = World()
    lam = 0.4
    w = world.start
    for cohort in world.cohorts():
        g = mean([world.gradient(k, w) for k in cohort], cohort)
        models = []
        for k in cohort:
            h = world.gradient(k, w) - g
            x = w
            for rows in minibatches(k):
                slope = world.gradient(k, x, rows)
                # the released code's closed form of the argmin
                x = (h - slope + x / LR + lam * w) / (1 / LR + lam)
            models.append(x)
        w = mean(models, cohort)
    agree(run(fedax.FedRed(lam=lam)), w)


@pytest.mark.slow
@pytest.mark.parametrize(("coins", "decay"), [(True, 1.0), (False, 1.0), (False, 0.5)])
def test_proxskip(coins, decay):
    """Alg. over iterations and coins: h is updated when they say so; a round ends there. Without
    coins every 3 steps. Where step sizes decay, h has that of the steps of its round."""
    world = World()
    p = 0.25 if coins else 1 / 3
    rounds = 4
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    luck = [
        1 - float(jax.random.uniform(stream(root, "work", t), (), jnp.float32))
        for t in range(rounds)
    ]
    counts = [1 + int(np.log(u) / np.log(1 - p)) if coins else 3 for u in luck]
    points = np.tile(world.start, (5, 1))
    h = np.zeros((5, 4))
    for t, count in enumerate(counts):
        rate = LR * decay**t
        for step in range(count):
            before = np.array(
                [x - rate * (world.gradient(k, x) - h[k]) for k, x in enumerate(points)]
            )
            points = np.tile(P @ before, (5, 1)) if step == count - 1 else before
            h = h + p / rate * (points - before)
    np.testing.assert_allclose(P @ h, 0, atol=1e-12)
    amount = {"sync_probability": p} if coins else {"steps": 3}
    agree(
        run(
            fedax.ProxSkip(),
            solver=fedax.SGD(LR, decay=decay),
            schedule=fedax.Schedule(batch_size="full", **amount),
            rounds=rounds,
        ),
        points[0],
    )


def test_fedexprox_with_exact_proximal_points():
    """prox of a quadratic in closed form; beyond 1 the server overshoots."""
    curvatures, centres = random_quadratic()
    gamma = 0.8
    alpha = 1.6
    w = np.zeros(3)
    for _ in range(3):
        points = [
            np.linalg.solve(np.eye(3) + gamma * a, w + gamma * a @ b)
            for a, b in zip(curvatures, centres, strict=True)
        ]
        w = w + alpha * (np.mean(points, axis=0) - w)
    options = {"solver": fedax.Exact(), "schedule": fedax.Schedule(batch_size="full"), "rounds": 3}
    found = run(
        fedax.FedExProx(gamma=gamma, alpha=alpha), quadratic(curvatures, centres), **options
    )
    np.testing.assert_allclose(found.params, w, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_fedsam(momentum):
    world = World()
    rho = 0.3
    w = world.start
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            x = w
            speed = np.zeros(4)
            for rows in minibatches(k):
                speed = momentum * speed + sharp(world, k, x, rows, rho)
                x = x - LR * speed
            models.append(x)
        w = mean(models, cohort)
    agree(run(fedax.FedSAM(rho=rho), solver=fedax.SGD(LR, momentum=momentum)), w)
    wrapped = run(fedax.FedAvg(), solver=fedax.SGD(LR, momentum=momentum, sharpness=rho))
    agree(wrapped, w)


@pytest.mark.parametrize("equal", [False, slow(True)])
def test_fedspeed(equal):
    """As released: the mean of the local models plus the mean of everybody's corrections."""
    world = World()
    lam = 0.5
    rho = 0.2
    p = np.full(5, 0.2) if equal else P
    w = world.start
    h = np.zeros((5, 4))
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            x = w
            for rows in minibatches(k):
                x = x - LR * (sharp(world, k, x, rows, rho) + lam * x + lam * (h[k] - w))
            h[k] = h[k] + x - w
            models.append(x)
        w = np.average(models, axis=0, weights=p[cohort]) + p @ h
    schedule = fedax.Schedule.of(SCHEDULE.options | {"weights": "equal" if equal else "size"})
    agree(run(fedax.FedSpeed(lam=lam, rho=rho), schedule=schedule), w)


def test_fedcm():
    world = World()
    alpha = 0.3
    lr = 0.8
    w = world.start
    m = np.zeros(4)
    for cohort in world.cohorts():
        changes = []
        directions = []
        for k in cohort:
            x = w
            for rows in minibatches(k):
                x = x - LR * (alpha * world.gradient(k, x, rows) + (1 - alpha) * m)
            changes.append(x - w)
            directions.append((w - x) / (LR * len(minibatches(k))))
        w = w + lr * mean(changes, cohort)
        m = mean(directions, cohort)
    agree(run(fedax.FedCM(alpha=alpha, lr=lr)), w)


@pytest.mark.slow
def test_fedcm_is_fedavg_m():
    """Cheng et al.'s FedAvg-M by its own recursion, whose server steps by gamma along the mean
    direction g: with K steps everywhere, FedCM with alpha = beta and lr = gamma / (K eta)."""
    task = regression(sizes=(8,) * 5)
    beta = 0.3
    gamma = 0.07
    steps = 3
    schedule = fedax.Schedule(steps=steps, batch_size="full")
    w = np.array([0.0, 0.1, 0.1, 0.1])
    g = np.zeros(4)
    x = [np.asarray(task.train[k]["x"]) for k in range(5)]
    y = [np.asarray(task.train[k]["y"]) for k in range(5)]
    x = [np.hstack([np.ones((8, 1)), each]) for each in x]
    for _ in range(ROUNDS):
        total = np.zeros(4)
        for k in range(5):
            v = w
            for _ in range(steps):
                slope = x[k].T @ (x[k] @ v - y[k]) / 8 + L2 * v
                v = v - LR * (beta * slope + (1 - beta) * g)
            total += (w - v) / (LR * steps * 5)
        g = total
        w = w - gamma * g
    agree(run(fedax.FedCM(alpha=beta, lr=gamma / (steps * LR)), task, schedule=schedule), w)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_scaffold_with_momentum(beta):
    """Control variates are means of the gradients along the local steps; 1 is SCAFFOLD."""
    world = World()
    lr = 0.8
    w = world.start
    g = np.zeros(4)
    c = np.zeros(4)
    own = np.zeros((5, 4))
    for cohort in world.cohorts():
        changes = []
        directions = []
        dc = np.zeros(4)
        for k in cohort:
            x = w
            slopes = []
            for rows in minibatches(k):
                slopes.append(world.gradient(k, x, rows))
                x = x - LR * (beta * (slopes[-1] - own[k] + c) + (1 - beta) * g)
            changes.append(x - w)
            directions.append((w - x) / (LR * len(slopes)))
            new = np.mean(slopes, axis=0)
            dc = dc + P[k] * (new - own[k])
            own[k] = new
        w = w + lr * mean(changes, cohort)
        g = mean(directions, cohort)
        c = c + dc
    history = run(fedax.SCAFFOLDM(beta=beta, lr=lr))
    agree(history, w)
    np.testing.assert_allclose(history.state.g, g, rtol=0, atol=1e-11)
    np.testing.assert_allclose(history.state.c, P @ own, rtol=0, atol=1e-11)
    np.testing.assert_allclose(history.state.clients.all(), own, rtol=0, atol=1e-11)
    if beta == 1:
        agree(run(fedax.SCAFFOLD(lr=lr)), w)


@pytest.mark.parametrize("rates", [slow("common"), "by_steps"])
def test_fedlin(rates):
    world = World()
    w = world.start
    for _ in range(ROUNDS):
        gradients = np.array([world.gradient(k, w) for k in range(5)])
        models = []
        for k in range(5):
            x = w
            rate = LR / len(minibatches(k)) if rates == "by_steps" else LR
            for rows in minibatches(k):
                x = x - rate * (world.gradient(k, x, rows) - gradients[k] + P @ gradients)
            models.append(x)
        w = P @ models
    agree(run(fedax.FedLin(rates=rates)), w)


@pytest.mark.parametrize("corrected", [slow(False), True])
def test_mime(corrected):
    """FedJAX's two files with Optax's momentum: the state that local steps see does not change
    within a round."""
    world = World()
    beta = 0.6
    lr = 0.7
    w = world.start
    m = np.zeros(4)
    for cohort in world.cohorts():
        g = mean([world.gradient(k, w) for k in cohort], cohort)
        models = []
        for k in cohort:
            x = w
            for rows in minibatches(k):
                slope = world.gradient(k, x, rows)
                slope = slope - world.gradient(k, w, rows) + g if corrected else slope
                x = x - LR * (slope + beta * m)
            models.append(x)
        w = w - lr * mean([w - x for x in models], cohort)
        m = g + beta * m
    kind = fedax.Mime if corrected else fedax.MimeLite
    agree(run(kind(momentum=beta, lr=lr)), w)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["AccSDANE", "FedSpeed", "SCAFFOLDM", "Mime"])
def test_the_same_in_32_bits(kind):
    """As users run it: close to the run in 64 bits."""
    exact = vector(run(getattr(fedax, kind)()))
    with jax.enable_x64(False):
        low = vector(run(getattr(fedax, kind)(), regression(dtype=np.float32)))
    assert low.dtype == np.float32
    np.testing.assert_allclose(low, exact, rtol=2e-4, atol=2e-5)
