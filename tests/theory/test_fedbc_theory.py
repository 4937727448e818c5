"""FedBC's lemmas and theorem along runs on random quadratics with all devices, in NumPy."""

import numpy as np
import pytest

from fedax.theory import fedbc
from random_problems import quadratics


def solve(q, z, lam, error, rng):
    """Each device's minimiser of f_i + lam_i |x - z|^2, off so that the gradient of the Lagrangian
    has the length sqrt(error)."""
    eye = np.eye(len(z))
    found = []
    for a, b, each in zip(q.a, q.b, lam, strict=True):
        hessian = a + 2 * each * eye
        direction = rng.normal(size=len(z))
        residual = np.sqrt(error) * direction / np.linalg.norm(direction)
        found.append(np.linalg.solve(hessian, a @ b + 2 * each * z + residual))
    return np.array(found)


class Run:
    """FedBC from x_i = z, everything kept."""

    def __init__(self, seed, rounds=25):
        rng = np.random.default_rng(seed)
        self.q = quadratics(rng, spread=rng.choice([0.0, 0.3, 3.0]))
        self.smoothness = np.linalg.eigvalsh(self.q.a)[:, -1]
        self.low, self.high = (
            1 + self.smoothness.max(),
            1 + self.smoothness.max() + rng.choice([0.5, 5.0]),
        )
        self.dual_rate = rng.choice([0.01, 1.0])
        self.error = rng.choice([0.0, 1e-4, 0.1])
        self.tolerances = rng.uniform(0, 0.1, size=5)
        z = rng.choice([1.0, 10.0]) * rng.normal(size=4)
        x = np.tile(z, (5, 1))
        lam = rng.uniform(self.low, self.high, size=5)
        self.z = [z]
        self.x = [x]
        self.lam = [lam]
        self.violation = []
        for _ in range(rounds):
            x = solve(self.q, z, lam, self.error, rng)
            c = np.sum((x - z) ** 2, axis=1) - self.tolerances
            lam = np.clip(lam + self.dual_rate * c, self.low, self.high)
            z = lam @ x / lam.sum()
            (
                self.z.append(z),
                self.x.append(x),
                self.lam.append(lam),
                self.violation.append(float(np.abs(c).max())),
            )

    def spread(self, t):
        return float(np.mean(np.sum((self.x[t] - self.z[t]) ** 2, axis=1)))


@pytest.mark.slow
def test_consensus_along_runs():
    """Lemma B.2, with delta the largest at the models that were visited; the multipliers are in
    their interval."""
    needed = []
    for seed in range(500):
        run = Run(seed, rounds=3)
        assert all(np.all((run.low <= lam) & (lam <= run.high)) for lam in run.lam)
        for t in range(3):
            delta = max(
                fedbc.heterogeneity(run.q.gradients(x), low=run.lam[t].min(), high=run.lam[t].max())
                for x in run.x[t + 1]
            )
            bound = fedbc.consensus_bound(
                smoothness=run.smoothness.max(),
                multiplier=run.lam[t].min(),
                error=run.error,
                heterogeneity=delta,
            )
            found = np.sum((run.x[t + 1] - run.z[t + 1]) ** 2, axis=1).max()
            assert found <= bound * (1 + 1e-9) + 1e-20
            needed.append(found / bound if bound else 0.0)
    assert 0.02 < max(needed) <= 1


def test_consensus_is_reached_by_opposed_linear_losses():
    """Gradients +-g, solved exactly: the models are g/lam apart, which the bound says of each
    model's distance to z."""
    g = 3.0
    lam = 2.0
    delta = fedbc.heterogeneity(np.array([[g], [-g]]), low=lam, high=lam)
    bound = fedbc.consensus_bound(smoothness=1e-12, multiplier=lam, error=0.0, heterogeneity=delta)
    assert delta == 2 * lam * g
    assert bound == pytest.approx((g / lam) ** 2)


@pytest.mark.slow
def test_theorem_4_5_along_runs():
    for seed in range(100):
        run = Run(seed)
        squares = [np.sum(run.q.gradient(z) ** 2) for z in run.z[:-1]]
        steepest = max(float(np.linalg.norm(run.q.gradients(x), axis=1).max()) for x in run.x)
        bound = fedbc.stationarity_bound(
            gap=run.q.gap(run.z[0]),
            rounds=25,
            error=run.error,
            smoothness=run.smoothness,
            multiplier=run.high,
            spread=max(run.spread(t) for t in range(26)),
            dual_rate=run.dual_rate,
            violation=max(run.violation),
            gradient_bound=steepest,
            tolerance=float(run.tolerances.mean()),
        )
        assert np.mean(squares) <= bound


def test_heterogeneity_is_the_largest_of_a_grid():
    rng = np.random.default_rng(0)
    for _ in range(20):
        gradients = rng.normal(size=(4, 3))
        found = fedbc.heterogeneity(gradients, low=1.0, high=2.5)
        grid = [
            np.linalg.norm(a * gradients[i] - b * gradients[j])
            for a in np.linspace(1, 2.5, 5)
            for b in np.linspace(1, 2.5, 5)
            for i in range(4)
            for j in range(4)
            if i != j
        ]
        assert found == pytest.approx(max(grid))
    alike = np.tile(rng.normal(size=3), (3, 1))
    assert fedbc.heterogeneity(alike, low=1.0, high=2.5) == pytest.approx(
        1.5 * np.linalg.norm(alike[0])
    )
    assert fedbc.heterogeneity(np.ones((1, 2)), low=1.0, high=2.0) == 0
