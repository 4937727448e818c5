"""ProxSkip's rate (Mishchenko et al., ICML 2022) against steps in NumPy on random quadratics, with
the exact mean over the coin."""

import numpy as np
import pytest


@pytest.mark.parametrize("seed", range(20))
def test_a_step_contracts_in_the_mean(seed):
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 6))
    dim = int(rng.integers(1, 5))
    curves = np.array(
        [q @ np.diag(rng.uniform(0.1, 3.0, dim)) @ q.T for q in _orthogonal(rng, clients, dim)]
    )
    targets = rng.normal(size=(clients, dim))
    optimum = np.linalg.solve(curves.sum(0), np.einsum("mij,mj->i", curves, targets))
    values = np.linalg.eigvalsh(curves)
    p = rng.choice([0.1, 0.5, 1.0])
    rate = rng.choice([0.2, 1.0]) / values.max()
    best = np.einsum("mij,mj->mi", curves, optimum - targets)
    x = rng.normal(size=(clients, dim))
    h = rng.normal(size=(clients, dim))
    h -= h.mean(0)  # the shifts have the sum 0 from the start on

    def psi(x, h):
        return ((x - optimum) ** 2).sum() + (rate / p) ** 2 * ((h - best) ** 2).sum()

    factor = max(1 - rate * values.min(), 1 - p**2)
    for _ in range(30):
        moved = x - rate * (np.einsum("mij,mj->mi", curves, x - targets) - h)
        mean = np.broadcast_to((moved - rate / p * h).mean(0), x.shape)
        met = mean, h + p / rate * (mean - moved)
        assert p * psi(*met) + (1 - p) * psi(moved, h) <= factor * psi(x, h) * (1 + 1e-12)
        x, h = met if rng.random() < p else (moved, h)


def _orthogonal(rng, clients, dim):
    return np.linalg.qr(rng.normal(size=(clients, dim, dim)))[0]
