"""FedDANE's theorems on random quadratics: exact constants, expectations over all pairs of cohorts
of one device."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.theory import feddane
from fedax.theory.advice import Method, suggestions
from random_problems import quadratics


def local_solution(q, k, w, g, mu):
    """The minimiser of F_k + <g - grad F_k(w), . - w> + mu/2 |. - w|^2."""
    return w - np.linalg.solve(q.a[k] + mu * np.eye(len(w)), g)


def expected_value(q, w, mu, gamma, rng):
    """E f(w^t) when both draws are one device with probability p; the solution is off by gamma in a
    random direction."""
    total = 0.0
    gradients = q.gradients(w)
    dim = len(w)
    mu = np.broadcast_to(mu, len(q.p))
    gamma = np.broadcast_to(gamma, len(q.p))
    for j, g in enumerate(gradients):
        for k in range(len(q.p)):
            exact = local_solution(q, k, w, g, mu[k])
            direction = rng.normal(size=dim)
            off = gamma[k] * np.linalg.norm(exact - w) * direction / np.linalg.norm(direction)
            assert feddane.inexactness(exact + off, exact, w) == pytest.approx(gamma[k], abs=1e-9)
            total += q.p[j] * q.p[k] * q.value(exact + off)
    return total


def indefinite(rng):
    """Devices with eigenvalues of both signs, and -lambda and L that bound them."""
    q = quadratics(rng, equal=bool(rng.integers(2)), spread=rng.choice([0.1, 1.0]))
    q = q._replace(a=q.a - rng.choice([0.0, 0.5]) * np.eye(4))
    eigenvalues = np.linalg.eigvalsh(q.a)
    return q, max(0.0, -float(eigenvalues.min())), float(np.abs(eigenvalues).max())


@pytest.mark.slow
def test_a_round_decreases_f_by_rho_at_least():
    """Theorem 5 (3 where nothing is concave), with the best mu and others, wherever rho says
    something."""
    said = 0
    tightest = 0.0
    for seed in range(500):
        rng = np.random.default_rng(seed)
        q, concavity, smoothness = indefinite(rng)
        w = 20 * rng.normal(size=4)
        gradients = q.gradients(w)
        b = feddane.dissimilarity(gradients, q.p)
        gamma = float(rng.choice([0.0, 0.2])) / (b**2 + 0.5)
        given = {
            "smoothness": smoothness,
            "dissimilarity": b,
            "inexactness": gamma,
            "concavity": concavity,
        }
        mu = feddane.best_mu(**given).mu * rng.choice([0.7, 1.0, 4.0])
        if mu <= concavity:
            continue
        rho = feddane.decrease(mu=mu, **given)
        square = np.sum(q.gradient(w) ** 2)
        measured = q.value(w) - expected_value(q, w, mu, gamma, rng)
        assert rho <= 0 or measured >= rho * square - 1e-9 * abs(q.value(w))
        said += rho > 0
        tightest = max(tightest, rho * square / measured) if measured > 0 else tightest
    assert said > 400
    assert 0.4 < tightest <= 1


def test_a_constant_of_the_proof_cannot_be_halved():
    """Homogeneous devices, tiny steps: the decrease is |grad|^2/mu, the first term, to first
    order."""
    mu = 1e4
    smoothness = 1.0
    w = 1 - 1 / (mu + smoothness)
    measured = (1 - w**2) / 2
    rho = feddane.decrease(mu=mu, smoothness=smoothness, dissimilarity=1.0)
    assert rho <= measured < rho + 2 / mu**2


def test_theorem_7_as_corrected_holds_and_as_printed_fails():
    """A flat device beside a curved one; the gradients agree at 1, so B = 1."""
    flat = 1e-3
    mu = 5.0
    q = quadratics(np.random.default_rng(0), clients=2, dim=1)
    q = q._replace(a=np.array([[[1.0]], [[flat]]]), b=np.array([[0.0], [1 - 1 / flat]]))
    w = np.ones(1)
    own = np.array([1.0, flat])
    assert feddane.dissimilarity(q.gradients(w)) == pytest.approx(1)
    printed = np.mean(1 / (mu * own) - 2.5 * own / (mu * own) ** 2)
    decrease = q.value(w) - expected_value(q, w, mu * own, 0.0, np.random.default_rng(0))
    assert printed > 0 > decrease
    assert (
        feddane.decrease(mu=mu * own, smoothness=own, dissimilarity=1.0, overall=(1 + flat) / 2) < 0
    )


@pytest.mark.slow
def test_a_round_with_constants_of_each_device():
    said = 0
    for seed in range(500):
        rng = np.random.default_rng(seed)
        q = quadratics(rng, equal=bool(rng.integers(2)), spread=rng.choice([0.1, 1.0]))
        w = 20 * rng.normal(size=4)
        own = np.linalg.eigvalsh(q.a)[:, -1]
        b = feddane.dissimilarity(q.gradients(w), q.p)
        gamma = rng.uniform(0, 0.2, size=5) / (b**2 + 0.5)
        mu = rng.uniform(2, 8, size=5) * own.max() * (b**2 + 0.5)
        given = {"smoothness": own, "dissimilarity": b, "inexactness": gamma, "weights": q.p}
        exactly = float(np.linalg.eigvalsh(q.mean)[-1])
        rho = feddane.decrease(mu=mu, overall=exactly, **given)
        measured = q.value(w) - expected_value(q, w, mu, gamma, rng)
        assert measured >= rho * np.sum(q.gradient(w) ** 2) - 1e-9 * abs(q.value(w))
        assert feddane.decrease(mu=mu, **given) <= rho + 1e-15
        said += rho > 0
    assert said > 400


def test_special_cases_agree():
    given = {"smoothness": 1.3, "dissimilarity": 1.7, "inexactness": 0.1}
    square = 1.7**2 - 1
    gamma = 0.1
    mu = 40.0
    theorem_3 = (2 - 3 * gamma) / (2 * mu) - (2 * 1.3 * (1 + gamma) ** 2 + 3 * 1.3) / (2 * mu**2)
    theorem_3 -= square * ((1.3 * (1 + gamma) ** 2 + 1.3) / mu**2 + gamma / mu)
    assert feddane.decrease(mu=mu, **given) == pytest.approx(theorem_3, rel=1e-12)
    assert feddane.decrease(mu=np.full(3, mu), overall=1.3, **given) == pytest.approx(
        theorem_3, rel=1e-12
    )
    assert feddane.decrease(mu=mu, concavity=1e-12, **given) == pytest.approx(theorem_3)


def test_corollary_4():
    big = 100.0
    mu = 5 * big**2
    assert feddane.decrease(mu=mu, smoothness=1.0, dissimilarity=big) == pytest.approx(
        3 / (25 * big**2), rel=1e-3
    )
    best = feddane.best_mu(smoothness=1.0, dissimilarity=big)
    assert best.mu == pytest.approx(4 * big**2 + 1)
    assert (
        best.decrease
        == pytest.approx(1 / (2 * best.mu))
        == pytest.approx(1 / (8 * big**2), rel=1e-3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("concavity", [0.0, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("inexactness", [0.0, 0.1, 0.3])
def test_best_mu_is_the_best_of_a_grid(concavity, inexactness):
    given = {
        "smoothness": 1.3,
        "dissimilarity": 1.5,
        "inexactness": inexactness,
        "concavity": concavity,
    }
    best = feddane.best_mu(**given)
    grid = [feddane.decrease(mu=concavity + mu, **given) for mu in np.geomspace(1e-2, 1e6, 3001)]
    assert best.decrease == pytest.approx(feddane.decrease(mu=best.mu, **given))
    assert 0 < max(grid) <= best.decrease * (1 + 1e-9) <= max(grid) * 1.001


def test_too_inexact_for_any_mu():
    assert feddane.best_mu(smoothness=1.0, dissimilarity=1.0, inexactness=0.67) == (math.inf, 0)
    assert feddane.best_mu(smoothness=1.0, dissimilarity=1.0, inexactness=0.66).decrease > 0


def test_edges():
    at = np.zeros(2)
    assert feddane.inexactness(at, at, at) == 0
    assert feddane.inexactness(at + 1, at, at) == math.inf
    assert feddane.dissimilarity(np.zeros((2, 3))) == 1
    assert feddane.dissimilarity(np.array([[1.0], [-1.0]])) == math.inf
    assert feddane.dissimilarity(np.array([[1.0], [-1.0]]), np.array([1.0, 0.0])) == 1


def test_rounds_are_enough():
    """Gradient descent in disguise: a homogeneous problem, each round with the decrease that the
    theorem counts on."""
    mu = 5.0
    w = 3.0
    squares = []
    rho = feddane.decrease(mu=mu, smoothness=1.0, dissimilarity=1.0)
    found = feddane.rounds(gap=w**2 / 2, rho=rho, accuracy=0.05)
    for _ in range(found):
        squares.append(w**2)
        w -= w / (1 + mu)
    assert np.mean(squares) <= 0.05


def test_nothing_is_promised_up_to_the_concavity():
    assert feddane.decrease(mu=0.5, smoothness=1.0, dissimilarity=1.0, concavity=0.5) == -np.inf
    with pytest.raises(InvalidInput, match="dissimilarity"):
        feddane.decrease(mu=1.0, smoothness=1.0, dissimilarity=0.9)


@pytest.mark.parametrize(
    ("schedule", "cohorts", "promises"),
    [
        ({}, "shared", True),
        ({"weights": "equal"}, "shared", False),
        ({"conditions": {"dropouts": 0.1}}, "shared", False),
        ({"cohort": 1, "sampling": "proportional"}, "independent", True),
        ({"cohort": 1, "sampling": "proportional"}, "shared", False),
        ({"cohort": 1}, "independent", False),
    ],
)
def test_a_decrease_is_promised_for_two_draws_by_the_shares(schedule, cohorts, promises):
    """By default the one large device is drawn as often as the small one."""
    task = fedax.Task(20.0, lambda w, x: (w - x) ** 2 / 2, [[0.0], [1.0, 2.0]])
    method = fedax.FedDANE(mu=40.0, cohorts=cohorts)
    work = Method(method, fedax.SGD(0.1), fedax.Schedule(**schedule))
    (*_, last) = suggestions("feddane", task, {"": work})
    assert last.value > 0
    assert last.source.endswith(": a decrease") == promises


def test_a_loss_with_a_closed_form_may_be_concave():
    def waves(w, x):
        return jnp.cos(w - x) + 1

    waves.smoothness = lambda examples: 1.0
    task = fedax.Task(0.0, waves, [[0.1], [0.2]])
    rows = suggestions("feddane", task, {"": Method(None, fedax.SGD(0.1), fedax.Schedule())})
    assert rows[3].value == pytest.approx(-math.cos(0.1))
