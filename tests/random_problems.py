"""Random problems of which everything is known, in NumPy: heterogeneous quadratics."""

from typing import NamedTuple

import numpy as np


class Quadratics(NamedTuple):
    r"""f_k(x) = (x - b_k)^T A_k (x - b_k) / 2 for each client k, and f = sum_k p_k f_k."""

    a: np.ndarray
    b: np.ndarray
    p: np.ndarray

    @property
    def mean(self):
        return np.einsum("k,kij->ij", self.p, self.a)

    @property
    def optimum(self):
        return np.linalg.solve(self.mean, np.einsum("k,kij,kj->i", self.p, self.a, self.b))

    @property
    def smoothness(self):
        """Of the least smooth client."""
        return float(np.linalg.eigvalsh(self.a)[:, -1].max())

    def value(self, x):
        off = x - self.b
        return float(np.einsum("k,ki,kij,kj->", self.p, off, self.a, off) / 2)

    def gradients(self, x):
        """Of every client: at a common point, or at one for each."""
        return np.einsum("kij,kj->ki", self.a, x - self.b)

    def gradient(self, x):
        return self.p @ self.gradients(x)

    def gap(self, x):
        off = x - self.optimum
        return float(off @ self.mean @ off / 2)


def quadratics(rng, clients=5, dim=4, lowest=0.0, spread=1.0, equal=True):
    """Clients with eigenvalues from `lowest` up, some of them flat, and minimisers `spread`
    apart."""
    q = np.linalg.qr(rng.normal(size=(clients, dim, dim)))[0]
    eigenvalues = lowest + rng.uniform(size=(clients, dim)) ** 3 * rng.uniform(0.2, 5)
    p = np.full(clients, 1 / clients) if equal else rng.dirichlet(np.full(clients, 3.0))
    a = np.einsum("kij,kj,klj->kil", q, eigenvalues, q)
    return Quadratics(a, spread * rng.normal(size=(clients, dim)), p)
