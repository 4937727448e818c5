"""Methods against what linear algebra says of them on quadratics f_k(w) = (w - b_k)' A_k (w - b_k)
/ 2, in float64."""

import numpy as np
import optax
import pytest

import fedax
from fedax.experiments.config.sections import SolverSection
from marks import slow
from problems import quadratic, random_quadratic, vector

ONE = fedax.Simulation(devices=1)
FULL = fedax.Schedule(steps=5, batch_size="full")
A, B = random_quadratic()
OPTIMUM = np.linalg.solve(A.mean(0), np.einsum("kij,kj->i", A, B) / len(A))


def run(algorithm, rounds, solver=None, schedule=FULL, task=None, **options):
    solver = solver or fedax.SGD(0.1)
    task = task or quadratic(A, B)
    options = {"engine": ONE, **options}
    return fedax.run(algorithm, task, solver=solver, schedule=schedule, rounds=rounds, **options)


def fixed_point(lr, steps, weights):
    """The w with sum_k p_k (I - (I - lr A_k)^H)(w - b_k) = 0: where FedAvg's local runs cancel on
    average."""
    eye = np.eye(A.shape[1])
    pulls = [
        p * (eye - np.linalg.matrix_power(eye - lr * a, steps))
        for p, a in zip(weights, A, strict=True)
    ]
    return np.linalg.solve(sum(pulls), sum(pull @ b for pull, b in zip(pulls, B, strict=True)))


def test_fedavg_stops_at_its_biased_fixed_point():
    """Of clients that count by their examples."""
    assert np.linalg.norm(fixed_point(0.1, 5, np.full(4, 0.25)) - OPTIMUM) > 1e-2
    sizes = [1, 2, 3, 10]
    expected = fixed_point(0.1, 5, np.array(sizes) / 16)
    found = vector(run(fedax.FedAvg(), 300, task=quadratic(A, B, sizes)))
    np.testing.assert_allclose(found, expected, atol=1e-10, rtol=0)


def test_one_full_step_is_gradient_descent():
    """H = 1: each round multiplies the error by I - lr mean(A)."""
    schedule = fedax.Schedule(steps=1, batch_size="full")
    found = vector(run(fedax.FedAvg(), 7, schedule=schedule))
    expected = OPTIMUM + np.linalg.matrix_power(np.eye(3) - 0.1 * A.mean(0), 7) @ (0 - OPTIMUM)
    np.testing.assert_allclose(found, expected, atol=1e-13, rtol=0)


def test_local_momentum_is_heavy_ball_with_a_fresh_buffer():
    w = np.zeros(3)
    lr = 0.1
    momentum = 0.5
    for _ in range(3):
        locals_ = []
        for a, b in zip(A, B, strict=True):
            y = w.copy()
            speed = np.zeros(3)
            for _ in range(5):
                speed = momentum * speed + a @ (y - b)
                y = y - lr * speed
            locals_.append(y)
        w = np.mean(locals_, axis=0)
    found = vector(run(fedax.FedAvg(), 3, solver=fedax.SGD(0.1, momentum=momentum)))
    np.testing.assert_allclose(found, w, atol=1e-13, rtol=0)


def test_fedprox_pulls_with_mu_times_the_distance():
    """One client, one round: y <- y - lr (A (y - b) + mu (y - w)), the gradient of mu/2 |y - w|^2
    and not of mu/2 |y - w|."""
    task = quadratic(A[:1], B[:1])
    mu = 0.7
    w = np.zeros(3)
    y = w.copy()
    for _ in range(5):
        y = y - 0.1 * (A[0] @ (y - B[0]) + mu * (y - w))
    np.testing.assert_allclose(
        vector(run(fedax.FedProx(mu=mu), 1, task=task)), y, atol=1e-13, rtol=0
    )


def test_fedprox_with_one_mu_per_client():
    mus = np.array([0.0, 0.5, 1.0, 4.0])
    w = np.zeros(3)
    exact = [
        np.linalg.solve(a + mu * np.eye(3), a @ b + mu * w)
        for a, b, mu in zip(A, B, mus, strict=True)
    ]
    found = run(fedax.FedProx(mu=mus), 1, solver=fedax.Exact(1e-12))
    np.testing.assert_allclose(vector(found), np.mean(exact, axis=0), atol=1e-8, rtol=0)


def dane_step(w, mu):
    """The exact DANE update with everyone: w - mean((A_k + mu I)^-1) grad f(w)."""
    gradient = A.mean(0) @ (w - OPTIMUM)
    return w - np.mean([np.linalg.inv(a + mu * np.eye(3)) for a in A], axis=0) @ gradient


def test_feddane_with_everyone_and_exact_solves_converges_linearly():
    """Each round multiplies the error by I - mean((A_k + mu I)^-1) mean(A), whose spectral radius
    is the rate."""
    mu = 0.5
    solver = fedax.Exact(1e-13)
    found = run(fedax.FedDANE(mu=mu), 3, solver=solver)
    w = np.zeros(3)
    for _ in range(3):
        w = dane_step(w, mu)
    np.testing.assert_allclose(vector(found), w, atol=1e-7, rtol=0)
    jump = np.eye(3) - np.mean([np.linalg.inv(a + mu * np.eye(3)) for a in A], axis=0) @ A.mean(0)
    rate = np.abs(np.linalg.eigvals(jump)).max()
    errors = [
        np.linalg.norm(vector(run(fedax.FedDANE(mu=mu), t, solver=solver)) - OPTIMUM)
        for t in (4, 8)
    ]
    assert rate < 0.7
    assert errors[1] < errors[0] * (rate * 1.1) ** 4
    assert np.linalg.norm(vector(run(fedax.FedDANE(mu=mu), 40, solver=solver)) - OPTIMUM) < 1e-8


def test_dane_uses_everybody_whatever_the_cohort():
    """The error after a round is I - eta mean((A_k + mu I)^-1) mean(A) times that before, although
    the schedule draws two."""
    mu = 0.5
    eta = 0.5
    w = np.zeros(3)
    jump = np.eye(3) - eta * np.mean(
        [np.linalg.inv(a + mu * np.eye(3)) for a in A], axis=0
    ) @ A.mean(0)
    schedule = fedax.Schedule(cohort=2)
    found = run(fedax.DANE(mu=mu, eta=eta), 3, solver=fedax.Exact(1e-13), schedule=schedule)
    np.testing.assert_allclose(
        vector(found), OPTIMUM + np.linalg.matrix_power(jump, 3) @ (w - OPTIMUM), atol=1e-7, rtol=0
    )


def test_feddane_as_released_subtracts_the_wrong_entries():
    """Two parameter arrays W (3,) and b (2,): g - db[0] on all of W, g - db[1] on all of b; a
    scalar each."""
    target = np.array([1.0, -2.0, 0.5, 3.0, -1.0])

    def loss(params, x):
        return ((params[0][None, :] - x[:, :3]) ** 2).sum(1) / 2 + (
            (params[1][None, :] - x[:, 3:]) ** 2
        ).sum(1)

    clients = [np.stack([target]), np.stack([3 * target])]
    task = fedax.Task((np.zeros(3), np.zeros(2)), loss, clients)
    method = fedax.FedDANE(mu=0.0, correction="as_released", cohorts="shared")
    found = run(
        method,
        1,
        task=task,
        solver=fedax.SGD(0.1),
        schedule=fedax.Schedule(steps=2, batch_size="full"),
    )
    scale = np.array([1.0, 1, 1, 2, 2])
    g = scale * (0 - 2 * target)  # the mean gradient at zero, as centres are target and 3 target
    results = []
    for centre in (target, 3 * target):
        own = scale * (0 - centre)
        correction = g - np.array([own[3]] * 3 + [own[4]] * 2)
        y = np.zeros(5)
        for _ in range(2):
            y = y - 0.1 * (scale * (y - centre) + correction)
        results.append(y)
    np.testing.assert_allclose(vector(found), np.mean(results, axis=0), atol=1e-13, rtol=0)


def test_feddane_pipelined_uses_the_previous_gradient():
    mu = 0.3
    w = np.zeros(3)
    previous = None
    for _ in range(3):
        own = [a @ (w - b) for a, b in zip(A, B, strict=True)]
        results = []
        for k, (a, b) in enumerate(zip(A, B, strict=True)):
            correction = 0 if previous is None else previous - own[k]
            y = w.copy()
            for _ in range(5):
                y = y - 0.1 * (a @ (y - b) + correction + mu * (y - w))
            results.append(y)
        w = np.mean(results, axis=0)
        previous = np.mean(own, axis=0)
    np.testing.assert_allclose(
        vector(run(fedax.FedDANE(mu=mu, pipelined=True), 3)), w, atol=1e-13, rtol=0
    )


def test_feddane_decay_fades_the_correction():
    rho = 0.5
    w = np.zeros(3)
    for t in range(3):
        own = [a @ (w - b) for a, b in zip(A, B, strict=True)]
        g = np.mean(own, axis=0)
        results = []
        for k, (a, b) in enumerate(zip(A, B, strict=True)):
            y = w.copy()
            for _ in range(5):
                y = y - 0.1 * (a @ (y - b) + rho**t * (g - own[k]))
            results.append(y)
        w = np.mean(results, axis=0)
    np.testing.assert_allclose(
        vector(run(fedax.FedDANE(mu=0.0, decay=rho), 3)), w, atol=1e-13, rtol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FedAvgM", {}),
        ("FedAdam", {}),
        ("FedYogi", {}),
        ("FedYogi", {"v0": 0.0}),
        ("FedAdagrad", {"b1": 0.5}),
    ],
)
def test_server_optimizers_are_the_published_ones(name, options):
    """Alg. 2 of Reddi et al. written out: m and v of the raw pseudo-gradient, no bias correction, v
    = tau^2 at first."""
    method = getattr(fedax, name)(lr=0.3, **options)
    w = np.zeros(3)
    m = np.zeros(3)
    v = None
    for _ in range(4):
        mean = np.mean([_local(w, a, b) for a, b in zip(A, B, strict=True)], axis=0)
        delta = w - mean
        if name == "FedAvgM":
            m = method.momentum * m + delta
            w = w - 0.3 * m
            continue
        v = np.full(3, method.v0 * method.tau**2) if v is None else v
        m = method.b1 * m + (1 - method.b1) * delta
        v = {
            "FedAdam": method.b2 * v + (1 - method.b2) * delta**2,
            "FedYogi": v - (1 - method.b2) * delta**2 * np.sign(v - delta**2),
            "FedAdagrad": v + delta**2,
        }[name]
        w = w - 0.3 * m / (np.sqrt(v) + method.tau)
    np.testing.assert_allclose(vector(run(method, 4)), w, atol=1e-12, rtol=0)


def _local(w, a, b):
    for _ in range(5):
        w = w - 0.1 * a @ (w - b)
    return w


def test_learning_rate_decay():
    schedule = fedax.Schedule(steps=1, batch_size="full")
    w = np.zeros(3)
    for t in range(4):
        w = w - 0.1 * 0.5**t * A.mean(0) @ (w - OPTIMUM)
    found = run(fedax.FedAvg(), 4, schedule=schedule, solver=fedax.SGD(0.1, decay=0.5))
    np.testing.assert_allclose(vector(found), w, atol=1e-13, rtol=0)


def test_learning_rate_decay_by_step_begins_anew_in_every_round():
    models = np.zeros((len(A), 3))
    for _ in range(2):
        models[:] = models.mean(0)
        for step in range(3):
            models -= 0.1 / (1 + step) * np.einsum("kij,kj->ki", A, models - B)
    solver = fedax.SGD(0.1, decay=lambda count: 1 / (1 + count), decay_by="step")
    found = run(
        fedax.FedAvg(), 2, schedule=fedax.Schedule(steps=3, batch_size="full"), solver=solver
    )
    np.testing.assert_allclose(vector(found), models.mean(0), atol=1e-13, rtol=0)


@pytest.mark.parametrize("times", [slow(None), (3, 4)])
def test_learning_rate_decay_over_the_run_goes_on_from_round_to_round(times):
    """A warm-up and a cosine, which would be other numbers if a round began anew."""
    cosine = optax.warmup_cosine_decay_schedule(0.2, 1.0, 2, 6, 0.1)
    models = np.zeros((len(A), 3))
    count = 0
    for steps in (3, 3) if times is None else (3, 1):
        models[:] = models.mean(0)
        for _ in range(steps):
            models -= 0.1 * float(cosine(count)) * np.einsum("kij,kj->ki", A, models - B)
            count += 1
    work = {"steps": 3} if times is None else {"times": times}
    solver = fedax.SGD(0.1, decay=cosine, decay_by="run")
    found = run(
        fedax.FedAvg(), 2, schedule=fedax.Schedule(batch_size="full", **work), solver=solver
    )
    np.testing.assert_allclose(vector(found), models.mean(0), atol=1e-9, rtol=0)


def test_clipping_and_weight_decay():
    """The gradient is cut to the norm, then a part of w is added, then momentum and the step
    follow, anew in each round."""
    clip = 1.0
    weight_decay = 0.1
    models = np.zeros((len(A), 3))
    for _ in range(2):
        models[:] = models.mean(0)
        speed = np.zeros_like(models)
        for _ in range(3):
            g = np.einsum("kij,kj->ki", A, models - B)
            assert (np.linalg.norm(g, axis=1) > 1).any()
            g *= np.minimum(1, clip / np.linalg.norm(g, axis=1, keepdims=True))
            speed = 0.5 * speed + g + weight_decay * models
            models -= 0.2 * speed
    parts = (
        optax.clip_by_global_norm(clip),
        optax.add_decayed_weights(weight_decay),
        optax.sgd(0.2, momentum=0.5),
    )
    # `[solver]` of a file
    section = SolverSection(learning_rate=0.2, momentum=0.5, clip=clip, weight_decay=weight_decay)
    for solver in (section.make(), fedax.Optax(optax.chain(*parts))):
        found = run(
            fedax.FedAvg(), 2, schedule=fedax.Schedule(steps=3, batch_size="full"), solver=solver
        )
        np.testing.assert_allclose(vector(found), models.mean(0), atol=1e-12, rtol=0)
