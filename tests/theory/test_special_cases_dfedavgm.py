"""The bounds of DFedAvgM in their limits and special cases, and against those of FedAWARE, as in
`test_special_cases.py`."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedax.theory import dfedavgm, fedaware
from special_cases import bounds, check, fine, special


@special(dfedavgm.move_bound)
def _(d):
    yield (
        "theta = 0, full gradients",
        dfedavgm.move_bound(d.one()),
        2 * (d.one().rate * d.gradient) ** 2,
    )


@special(dfedavgm.drift_bound)
def _(d):
    """Lemma A.1 of FedAWARE has 30 and 5 where Lemma 3 has 32 and 8."""
    alone = {
        "rate": d.one().rate,
        "dissimilarities": np.zeros(d.n),
        "local_variance": 0.0,
        "gradient": 0.0,
    }

    def lemma_a1(**more):
        return float(fedaware.drift_bound(**d.work(**{**alone, **more}))[0])

    yield (
        "the gradient alone",
        dfedavgm.drift_bound(d.one(), d.gradient**2),
        32 / 30 * lemma_a1(gradient=d.gradient),
    )
    noisy, unequal = d.one(local_variance=d.sigma2), d.one(global_variance=d.spread)
    yield "noise alone", dfedavgm.drift_bound(noisy, 0.0), 8 / 5 * lemma_a1(local_variance=d.sigma2)
    apart = lemma_a1(dissimilarities=np.full(d.n, d.spread))
    yield "heterogeneity alone", dfedavgm.drift_bound(unequal, 0.0), 32 / 30 * apart
    yield "nothing", dfedavgm.drift_bound(d.one(), 0.0), 0.0


@special(dfedavgm.consensus_bound)
def _(d):
    exact = dfedavgm.consensus_bound(d.peers())
    yield "the complete graph", dfedavgm.consensus_bound(d.peers(mixing=0.0)), 0.0
    yield (
        "b to infinity, without bias",
        dfedavgm.consensus_bound(d.peers(), fine("stochastic")),
        exact,
    )
    yield "b to infinity, down", dfedavgm.consensus_bound(d.peers(), fine("down")), exact
    rest = d.one(gradient_bound=0.0, mixing=0.5)
    yield "nothing moves", dfedavgm.consensus_bound(rest), 0.0
    square = d.n * d.spread**2
    rounding = dfedavgm.Rounding(dim=d.n, width=d.spread)
    yield "rounding alone, without bias", dfedavgm.consensus_bound(rest, rounding), square / 4
    yield (
        "rounding alone, down",
        dfedavgm.consensus_bound(rest, replace(rounding, kind="down")),
        square,
    )


@special(dfedavgm.effective_steps)
def _(d):
    yield "theta = 0", dfedavgm.effective_steps(local_steps=d.h, momentum=0.0), d.h
    yield "K = 1", dfedavgm.effective_steps(local_steps=1, momentum=d.share / 2), 1.0
    # a gradient acts in all steps after it
    still = sum(0.999**age for last in range(d.h) for age in range(last + 1))
    yield "theta near 1", dfedavgm.effective_steps(local_steps=d.h, momentum=0.999), still


@special(dfedavgm.constants)
def _(d):
    slow = 1e-9 / d.L
    yield "the complete graph", dfedavgm.constants(d.peers(mixing=0.0)).beta, 0.0
    yield "one client, full gradients", dfedavgm.constants(d.one()).alpha, 0.0
    yield "eta to 0", dfedavgm.constants(d.one(rate=slow)).gamma, slow * d.h
    printed = dfedavgm.constants(d.one(rate=slow), as_printed=True).gamma
    yield "eta to 0, theta = 0: as printed", dfedavgm.constants(d.one(rate=slow)).gamma, printed
    yield (
        "b to infinity",
        dfedavgm.constants(d.peers(), fine("stochastic")),
        dfedavgm.constants(d.peers()),
    )


@special(dfedavgm.stationarity_bound)
def _(d):
    floor = sum(dfedavgm.constants(d.peers())[1:])
    yield "T to infinity", dfedavgm.stationarity_bound(d.peers(), gap=d.gap, rounds=10**18), floor
    slow = 1e-9 / d.L
    descent = fedaware.stationarity_bound(
        gap=d.gap, rate=slow * d.h, smoothness=d.L, errors=np.zeros(d.T)
    )
    yield (
        "one client, eta to 0",
        dfedavgm.stationarity_bound(d.one(rate=slow), gap=d.gap, rounds=d.T),
        descent,
    )
    exact = dfedavgm.stationarity_bound(d.peers(), gap=d.gap, rounds=d.T)
    yield (
        "b to infinity",
        dfedavgm.stationarity_bound(d.peers(), fine("stochastic"), gap=d.gap, rounds=d.T),
        exact,
    )


@special(dfedavgm.pl_bound)
def _(d):
    floor = sum(dfedavgm.constants(d.peers())[1:]) / (2 * d.L)
    yield (
        "T to infinity",
        dfedavgm.pl_bound(d.peers(), gap=d.gap, rounds=10**12, curvature=d.L),
        floor,
    )
    linear = (1 - d.L * dfedavgm.constants(d.one()).gamma) ** d.T * d.gap
    yield (
        "one client, full gradients",
        dfedavgm.pl_bound(d.one(), gap=d.gap, rounds=d.T, curvature=d.L),
        linear,
    )
    yield "at the minimum", dfedavgm.pl_bound(d.one(), gap=0.0, rounds=d.T, curvature=d.L), 0.0


@special(dfedavgm.largest_step_size)
def _(d):
    most = dfedavgm.largest_step_size(smoothness=d.L, local_steps=d.h, momentum=0.3)
    yield "gamma = 0", 1 + d.L * dfedavgm.constants(d.peers(rate=most)).gamma, 1.0
    found = dfedavgm.largest_step_size(smoothness=d.L, local_steps=d.h)
    yield "theta = 0", found, (math.sqrt(9 / 8) - 1) / (4 * d.L * d.h)


@special(dfedavgm.step_size)
def _(d):
    yield (
        "one step of one round",
        dfedavgm.step_size(smoothness=d.L, local_steps=1, rounds=1),
        1 / d.L,
    )
    half = dfedavgm.step_size(smoothness=d.L, local_steps=d.h, rounds=4 * d.T)
    yield (
        "four times the rounds",
        2 * half,
        dfedavgm.step_size(smoothness=d.L, local_steps=d.h, rounds=d.T),
    )


@special(dfedavgm.best_step_size)
def _(d):
    """Without a floor the best bound has the largest gamma, where 1 - 128 x - 384 x^2 = 0 with x =
    LK eta."""
    largest = (math.sqrt(128**2 + 4 * 384) - 128) / (2 * 384 * d.L * d.h)
    found = dfedavgm.best_step_size(d.one(), gap=d.gap, rounds=d.T)
    yield (
        "no floor",
        dfedavgm.constants(d.one(rate=found)).gamma,
        dfedavgm.constants(d.one(rate=largest)).gamma,
    )


@special(dfedavgm.pl_step_size)
def _(d):
    found = dfedavgm.pl_step_size(curvature=d.L, local_steps=d.h, rounds=d.T)
    yield "it leaves 1/T of the gap", math.exp(-d.L * d.h * d.T * found), 1 / d.T
    yield "K steps", d.h * found, dfedavgm.pl_step_size(curvature=d.L, local_steps=1, rounds=d.T)


@special(dfedavgm.bit_threshold)
def _(d):
    yield "d to infinity", dfedavgm.bit_threshold(dim=10**15), 128 / 9
    yield (
        "equally many rounds: whole numbers but for the scale",
        dfedavgm.bit_threshold(dim=32 * d.h, rounds_ratio=1.0),
        32 - 1 / d.h,
    )


@special(dfedavgm.coarsest_accuracy)
def _(d):
    # with r <= 4 there may be none, as rounding down has twice the noise
    finest = dfedavgm.coarsest_accuracy(d.peers(), fine("down"), gap=d.gap, rounds_ratio=5.0)
    yield "b to infinity", 1 + finest, 1.0
    coarse = dfedavgm.Rounding(dim=4, width=1.0)
    yield (
        "flat losses",
        dfedavgm.coarsest_accuracy(d.one(gradient_bound=0.0), coarse, gap=d.gap),
        0.0,
    )


BOUNDS = [
    function for function in bounds(dfedavgm) if function is not dfedavgm.mean_square_consensus
]


@pytest.mark.parametrize("function", BOUNDS, ids=lambda function: function.__name__)
def test_limits_and_special_cases(function):
    check(function)
