"""Random constants for the theory's bounds, and the table of their special cases."""

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest

from fedax.theory import dfedavgm, fedaware, fedbc

CASES = {}


def special(function):
    """Registers a generator of (name, the theory's number, the right one) for the constants of a
    random problem."""

    def register(cases):
        CASES[function] = cases

    return register


class Draw:
    """Constants of a random problem; every number is positive."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.L, self.gap, self.distance, self.sigma2, self.gradient = (
            float(v) for v in np.exp(rng.normal(size=5))
        )
        self.error, self.moved, self.spread, self.accuracy = (
            float(v) for v in np.exp(rng.normal(size=4))
        )
        self.h, self.T, self.n = (
            int(rng.integers(2, 9)),
            int(rng.integers(10, 500)),
            int(rng.integers(2, 7)),
        )
        self.share, self.gamma, self.B = (
            float(rng.uniform(0.05, 1)),
            float(rng.uniform(0, 0.3)),
            1 + float(rng.exponential()),
        )
        self.weights, self.tilde = rng.dirichlet(np.ones(self.n), size=2)
        self.smooth, self.zeta = np.exp(rng.normal(size=(2, self.n)))
        self.vectors = rng.normal(size=(self.n, 3))
        self.rate = 1 / (4 * self.L * self.h)
        # the largest of FedAWARE's lemmas on drift
        self.unit = min(1 / (math.sqrt(12) * self.L * self.h), 1 / self.h)
        self.own = fedaware.divergence(self.weights, self.weights)
        self.other = fedaware.divergence(self.tilde, self.weights)

    def gd(self, **more):
        return {"smoothness": self.L, "distance": self.distance, "variance": self.sigma2, **more}

    def goal(self, **more):
        return self.gd(accuracy=self.accuracy, **more)

    def peers(self, **more):
        """A setting of DFedAvgM, by default with a tenth of its largest step size."""
        made = dfedavgm.Setting(
            self.L, self.sigma2, self.spread, self.gradient, self.h, 1.0, momentum=0.3, mixing=0.4
        )
        made = replace(made, **more)
        most = dfedavgm.largest_step_size(
            smoothness=self.L, local_steps=made.local_steps, momentum=made.momentum
        )
        return replace(made, rate=more.get("rate", most / 10))

    def one(self, **more):
        """One client, in effect: full gradients, equal data, no momentum, a complete graph."""
        return self.peers(
            **{
                "local_variance": 0.0,
                "global_variance": 0.0,
                "momentum": 0.0,
                "mixing": 0.0,
                **more,
            }
        )

    def work(self, **more):
        given = {
            "local_steps": np.full(self.n, self.h),
            "rate": self.unit,
            "smoothness": self.L,
            "gradient": self.gradient,
        }
        return {**given, "local_variance": self.sigma2, "dissimilarities": self.zeta, **more}

    def bc(self, **more):
        most = float(fedbc.multiplier_bounds(self.smooth).high.max())
        given = {
            "gap": self.gap,
            "rounds": self.T,
            "smoothness": self.smooth,
            "multiplier": most,
            "error": 0.0,
        }
        return {
            **given,
            "spread": 0.0,
            "dual_rate": 0.1,
            "violation": 0.0,
            "gradient_bound": 0.0,
            **more,
        }


def fine(kind):
    """As many bits as one likes."""
    return dfedavgm.Rounding(dim=7, width=1e-18, kind=kind, clients=4)


def check(function):
    """Fails where a case of the function does not hold."""
    for seed in range(25):
        for name, found, right in CASES[function](Draw(seed)):
            assert found == pytest.approx(right, rel=1e-6, abs=1e-12), (name, seed)


def bounds(module):
    """All public functions of a module of the theory; one without special cases fails `check`."""
    found = [
        member
        for name, member in vars(module).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    return [member for member in found if member.__module__.startswith(module.__name__)]
