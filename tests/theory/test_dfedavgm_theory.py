"""Decentralized FedAvg's lemmas and theorems on losses with bounded gradients, whose constants are
known; runs in NumPy."""

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from fedax.core import InvalidInput
from fedax.theory import dfedavgm
from fedax.theory.dfedavgm import Rounding, Setting


class Bounded:
    """f_i(x) = sum_j c_ij u_ij log cosh((x_j - b_ij) / u_ij): gradients c_ij tanh((x_j - b_ij) /
    u_ij)."""

    def __init__(self, rng, clients, dim=3):
        shape = (clients, dim)
        self.c = rng.uniform(0.1, 1, shape)
        self.b = rng.normal(size=shape)
        self.u = rng.uniform(0.5, 2, shape)

    def gradients(self, x):
        return self.c * np.tanh((x - self.b) / self.u)

    def value(self, x):
        off = (x - self.b) / self.u
        return float(
            np.mean(np.sum(self.c * self.u * (np.logaddexp(off, -off) - math.log(2)), axis=1))
        )

    def setting(self, **run):
        line = np.linspace(-12, 12, 2001)[:, None, None]
        slopes = self.gradients(line)
        sups = np.abs(slopes - slopes.mean(1, keepdims=True)).max(0)
        constants = {
            "smoothness": float((self.c / self.u).max()),
            "global_variance": float(np.mean(np.sum(sups**2, axis=1))),
        }
        return Setting(
            gradient_bound=float(np.linalg.norm(self.c, axis=1).max()), **constants, **run
        )

    def minimum(self):
        x = np.zeros(self.c.shape[1])
        for _ in range(4000):
            x = x - 0.5 * self.gradients(x).mean(0)
        return self.value(x)


def local(problem, x, setting, rng, noise):
    """All y^k of one round."""
    y = [x, x]
    for _ in range(setting.local_steps):
        g = problem.gradients(y[-1]) + noise * rng.normal(size=x.shape) / math.sqrt(x.shape[1])
        y.append(y[-1] - setting.rate * g + setting.momentum * (y[-1] - y[-2]))
    return y[1:]


def quantise(v, width, kind, rng):
    below = np.floor(v / width)
    return width * (
        below if kind == "down" else below + (rng.uniform(size=v.shape) < v / width - below)
    )


def opposed(clients, slopes, w, rounds, step):
    """Linear losses -<b_i, x>: local training adds a constant; the mean square distance from the
    mean after each round."""
    x = np.zeros((clients, 1))
    seen = []
    for _ in range(rounds):
        x = w @ (x + step * slopes)
        seen.append(np.mean(((x - x.mean(0)) ** 2).sum(-1)))
    return seen


def test_lemma_4_as_printed_fails_on_the_ring_of_100():
    """Opposed losses along the slowest direction of the ring; smoothness as small as one likes."""
    slopes = np.cos(2 * np.pi * np.arange(100) / 100)[:, None]
    w = np.asarray(nx.to_numpy_array(nx.cycle_graph(100))) / 3 + np.eye(100) / 3
    lam = float(np.sort(np.abs(np.linalg.eigvalsh(w)))[-2])
    setting = Setting(
        1e-3,
        0.0,
        float(np.mean(slopes**2)),
        gradient_bound=1.0,
        local_steps=1,
        rate=1.0,
        mixing=lam,
    )
    found = opposed(100, slopes, w, 8000, 1.0)[-1]
    # the geometric series of the slowest eigenvalue
    assert found == pytest.approx(np.mean(slopes**2) * (lam / (1 - lam)) ** 2, rel=1e-3)
    printed = setting.c2 * setting.rate**2 / (1 - lam)  # (9)
    assert found > 7 * printed
    bound = dfedavgm.consensus_bound(setting)
    assert bound / 100 < found <= bound


def test_without_mixing_of_the_models_no_bound_holds():
    """Eq. (7) with nothing rounded, x + W q: the distance grows with every round."""
    slopes = np.array([[1.0], [-1.0], [0.5], [-0.5]])
    w = np.asarray(nx.to_numpy_array(nx.cycle_graph(4))) / 3 + np.eye(4) / 3
    lam = 1 / 3
    setting = Setting(
        0.1, 0.0, float(np.mean(slopes**2)), gradient_bound=1.0, local_steps=1, rate=1.0, mixing=lam
    )
    assert opposed(4, slopes, w, 500, 1.0)[-1] <= dfedavgm.consensus_bound(setting)
    x = np.zeros((4, 1))
    for _ in range(500):
        x = x + w @ slopes
    assert np.mean(((x - x.mean(0)) ** 2).sum(-1)) > 100 * dfedavgm.consensus_bound(setting)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
def test_effective_steps_are_those_of_a_linear_loss(momentum):
    y = [0.0, 0.0]
    for k in range(1, 12):
        y.append(y[-1] - 1.0 + momentum * (y[-1] - y[-2]))
        found = dfedavgm.effective_steps(local_steps=k, momentum=momentum)
        assert -y[-1] == pytest.approx(found)
        printed = (k - momentum) / (1 - momentum)
        assert printed == pytest.approx(found) if k == 1 or momentum == 0 else printed > found


def test_theorem_1_as_printed_fails_with_much_momentum():
    """All clients have x^2 / 2; a round multiplies x by a constant, and the printed bound counts on
    seven times its progress."""
    start = 1.0
    setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=2, rate=1e-9, momentum=0.95)
    rounds = round(0.5 / setting.rate / dfedavgm.effective_steps(local_steps=2, momentum=0.95))
    y1 = 1 - setting.rate
    factor = y1 - setting.rate * y1 + setting.momentum * (y1 - 1)
    least = start * math.exp(2 * rounds * math.log(factor))
    # the constants of Theorem 1 as printed; alpha is 0 without variances
    k = setting.local_steps
    eta = setting.rate
    steps = (k - setting.momentum) / (1 - setting.momentum)
    descent = k**2 * eta**3 / steps + eta**2
    gamma = eta * steps - 64 * k**2 * descent
    beta = 64 * k**2 * eta**2 * descent * setting.c2 / gamma
    assert least > start / (gamma * rounds) + beta
    assert least <= dfedavgm.stationarity_bound(setting, gap=start / 2, rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("code", [None, "stochastic", "down"])
def test_theorems_1_and_3_along_runs(momentum, code):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        problem = Bounded(rng, 8)
        w = np.asarray(nx.to_numpy_array(nx.cycle_graph(8))) / 3 + np.eye(8) / 3
        lam = float(np.sort(np.abs(np.linalg.eigvalsh(w)))[-2])
        steps = 3
        setting = problem.setting(
            rate=1.0, local_steps=steps, momentum=momentum, mixing=lam, local_variance=0.0
        )
        most = dfedavgm.largest_step_size(
            smoothness=setting.smoothness, local_steps=steps, momentum=momentum
        )
        setting = replace(setting, rate=0.4 * most)
        rounding = None if code is None else Rounding(dim=3, width=1e-3, kind=code, clients=8)
        x = np.full((8, 3), 5.0)
        squares = []
        values = []
        rounds = 400
        for _ in range(rounds):
            mean = x.mean(0)
            squares.append(np.sum(problem.gradients(mean).mean(0) ** 2))
            values.append(problem.value(mean))
            sent = local(problem, x, setting, rng, 0.0)[-1] - x
            x = w @ (x + (sent if code is None else quantise(sent, 1e-3, code, rng)))
        gap = values[0] - problem.minimum()
        assert min(squares) <= dfedavgm.stationarity_bound(
            setting, rounding, gap=gap, rounds=rounds
        )
        # what the proof shows of each round, on average: f falls by gamma/2 |grad f|^2 less the
        # floor
        found = dfedavgm.constants(setting, rounding)
        promised = found.gamma / 2 * (np.mean(squares) - found.alpha - found.beta) * rounds
        assert values[0] - problem.value(x.mean(0)) >= promised


def test_special_cases():
    setting = Setting(
        2.0, 0.1, 0.2, gradient_bound=1.5, local_steps=3, rate=1e-3, momentum=0.5, mixing=0.8
    )
    complete = replace(setting, mixing=0.0)
    assert dfedavgm.consensus_bound(complete) == 0 == dfedavgm.constants(complete).beta
    fine = [Rounding(dim=5, width=1e-12, kind=kind) for kind in ("stochastic", "down")]
    for rounding in fine:
        assert dfedavgm.consensus_bound(setting, rounding) == pytest.approx(
            dfedavgm.consensus_bound(setting)
        )
    assert dfedavgm.constants(setting, fine[0]) == pytest.approx(dfedavgm.constants(setting))
    still = replace(setting, momentum=0.0)
    assert still.c1 == 8 * 3 * 0.1 + 32 * 9 * 0.2
    assert dfedavgm.effective_steps(local_steps=3, momentum=0.0) == 3
    alone = replace(still, local_variance=0.0, global_variance=0.0)
    assert alone.c1 == 0 == dfedavgm.constants(alone).alpha


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_largest_step_size_is_where_gamma_ends(momentum):
    given = {"smoothness": 2.0, "local_steps": 5, "momentum": momentum}
    most = dfedavgm.largest_step_size(**given)
    setting = Setting(
        local_variance=0.0, global_variance=0.0, gradient_bound=1.0, rate=most, **given
    )
    if most < 1 / 80:
        assert dfedavgm.constants(setting).gamma == pytest.approx(0, abs=1e-12)
        with pytest.raises(InvalidInput, match=r"step sizes below `largest_step_size`"):
            dfedavgm.stationarity_bound(replace(setting, rate=most * 1.001), gap=1.0, rounds=1)
    assert dfedavgm.constants(replace(setting, rate=0.999 * most)).gamma > 0


def test_best_step_size_is_the_best_of_a_grid():
    setting = Setting(
        2.0, 0.1, 0.2, gradient_bound=1.5, local_steps=3, rate=1e-3, momentum=0.5, mixing=0.8
    )
    for rounds in (10, 10_000, 10**8):
        best = dfedavgm.best_step_size(setting, gap=3.0, rounds=rounds)
        most = dfedavgm.largest_step_size(smoothness=2.0, local_steps=3, momentum=0.5)
        grid = [
            dfedavgm.stationarity_bound(replace(setting, rate=eta), gap=3.0, rounds=rounds)
            for eta in np.geomspace(most * 1e-6, most * 0.999, 400)
        ]
        assert dfedavgm.stationarity_bound(
            replace(setting, rate=best), gap=3.0, rounds=rounds
        ) <= min(grid) * (1 + 1e-6)


def test_theorem_2_on_a_strongly_convex_loss():
    """Clients x^2/2 up to a shift, on a domain that bounds their gradients."""
    shifts = np.array([[0.3], [-0.3], [0.1], [-0.1]])
    w = np.asarray(nx.to_numpy_array(nx.cycle_graph(4))) / 3 + np.eye(4) / 3
    lam = 1 / 3
    rounds = 300
    spread = float(np.mean(shifts**2))
    setting = Setting(
        1.0, 0.0, spread, gradient_bound=2.3, local_steps=2, rate=2e-3, momentum=0.5, mixing=lam
    )
    x = np.full((4, 1), 2.0)
    for _ in range(rounds):
        y0 = x
        y1 = x - setting.rate * (x - shifts)
        x = w @ (y1 - setting.rate * (y1 - shifts) + 0.5 * (y1 - y0))
    assert x.mean() ** 2 / 2 <= dfedavgm.pl_bound(setting, gap=2.0, rounds=rounds, curvature=1.0)


def test_proposition_3():
    """The threshold is where the messages of 9/4 the rounds cost the same; the printed sign
    promises too much."""
    for dim in (10, 1000, 199_210):
        b = dfedavgm.bit_threshold(dim=dim)
        assert (32 + dim * b) * 9 / 4 == pytest.approx(32 * dim)
        assert (32 + dim * (128 / 9 + 32 / dim)) * 9 / 4 > 32 * dim
    assert dfedavgm.bit_threshold(dim=199_210) < 16
