"""Every bound in its limits and special cases, against the other bounds and against what is known
without them."""

import math

import numpy as np
import pytest

from fedax.theory import fedaware, fedbc, feddane, local_gd
from special_cases import bounds, check, special

MEASURES = {
    *(local_gd.variance, local_gd.iterate_variance, feddane.inexactness, feddane.dissimilarity),
    *(fedaware.diversity, fedaware.dissimilarities, fedaware.frank_wolfe_gap),
    *(fedbc.heterogeneity, fedbc.solve_errors, fedbc.violations, fedbc.lagrangian),
}
"""Numbers that are read off a run; they bound nothing, and have closed forms in the tests of their
modules."""


@special(local_gd.step_size)
def _(d):
    yield "H = 1", local_gd.step_size(d.L, 1), 1 / (4 * d.L)
    yield (
        "the plan of equal clients",
        local_gd.step_size(d.L, 1),
        local_gd.plan(**d.goal(variance=0.0)).rate,
    )


@special(local_gd.bound)
def _(d):
    alone = d.gd(variance=0.0)
    one = local_gd.bound(**alone, interval=1, steps=99, rate=d.rate)
    yield (
        "equal clients: H matters through the step size only",
        local_gd.bound(**alone, interval=d.h, steps=99, rate=d.rate),
        one,
    )
    yield (
        "gradient descent",
        local_gd.bound(**alone, interval=1, steps=d.T),
        8 * d.L * d.distance**2 / d.T,
    )
    yield (
        "T to infinity",
        local_gd.bound(**d.gd(), interval=d.h, steps=10**16),
        1.5 * d.sigma2 / d.L,
    )
    yield (
        "at the optimum",
        local_gd.bound(**d.gd(distance=0.0, variance=0.0), interval=d.h, steps=9),
        0.0,
    )
    slow = 1 / (4 * d.L * d.h * 100)
    terms = (2 * d.distance**2 / (slow * d.T), 24 * (slow * d.h) ** 2 * d.sigma2 * d.L)
    yield "its two terms", local_gd.bound(**d.gd(), interval=d.h, steps=d.T, rate=slow), sum(terms)


@special(local_gd.communications)
def _(d):
    yield (
        "T/H of any plan",
        local_gd.communications(**d.goal()),
        local_gd.plan(**d.goal(rate=d.rate)).communications,
    )
    yield (
        "equal clients",
        local_gd.communications(**d.goal(variance=0.0)),
        16 * d.L * d.distance**2 / d.accuracy,
    )


@special(local_gd.plan)
def _(d):
    yield "the largest step size has H = 1", local_gd.plan(**d.goal()).interval, 1.0
    yield (
        "gradient descent",
        local_gd.plan(**d.goal(variance=0.0)).steps,
        16 * d.L * d.distance**2 / d.accuracy,
    )
    steps = math.ceil(local_gd.plan(**d.goal()).steps)
    reached = local_gd.bound(**d.gd(), interval=1, steps=steps, rate=local_gd.plan(**d.goal()).rate)
    yield "the bound reaches the accuracy", max(reached, d.accuracy), d.accuracy


@special(local_gd.next_distance_bound)
def _(d):
    here = {"spread": 0.0, "smoothness": d.L}
    still = local_gd.next_distance_bound(**here, distance=d.distance, gap=d.gap, rate=1e-15)
    yield "steps of size 0", still, d.distance**2
    yield (
        "the optimum stays",
        local_gd.next_distance_bound(**here, distance=0.0, gap=0.0, rate=d.rate),
        0.0,
    )
    found = local_gd.next_distance_bound(
        **here, distance=d.distance, gap=d.L / 2 * d.distance**2, rate=d.rate
    )
    yield (
        "above gradient descent on L/2 x^2",
        max(found, ((1 - d.rate * d.L) * d.distance) ** 2),
        found,
    )


@special(local_gd.spread_bound)
def _(d):
    given = {"smoothness": d.L, "interval": d.h, "rate": d.rate}
    yield (
        "equal clients at the optimum",
        local_gd.spread_bound(gaps=np.zeros(d.h), variance=0.0, **given),
        0.0,
    )
    found = local_gd.spread_bound(gaps=np.zeros(d.h), variance=d.sigma2, **given)
    # workers of opposed linear losses, k steps after they met
    apart = d.rate**2 * d.sigma2 * sum(k**2 for k in range(d.h))
    yield "above opposed linear losses", max(found, apart), found


@special(local_gd.spread_excess_bound)
def _(d):
    given = {"smoothness": d.L, "interval": d.h, "rate": d.rate}
    gaps = np.full(d.h, d.gap)
    yield (
        "equal clients",
        local_gd.spread_excess_bound(gaps=gaps, variance=0.0, **given),
        -d.gap * d.h / 2,
    )
    found = local_gd.spread_excess_bound(gaps=gaps, variance=d.sigma2, **given)
    first = 1.5 * d.L * local_gd.spread_bound(gaps=gaps, variance=d.sigma2, **given) - gaps.sum()
    yield "not below what the first inequality gives", max(found, first), found
    printed = -gaps.sum() / 2 + 12 * d.L * d.rate**2 * d.h**2 * d.sigma2 * d.h
    yield "not above the printed one", min(found, printed), found


@special(local_gd.mean_gradient_bound)
def _(d):
    one = local_gd.mean_gradient_bound(spread=0.0, gap=d.gap, smoothness=d.L)
    yield "one model: twice what smoothness gives", one, 2 * (2 * d.L * d.gap)
    yield "at the optimum", local_gd.mean_gradient_bound(spread=0.0, gap=0.0, smoothness=d.L), 0.0


@special(local_gd.inner_product_bound)
def _(d):
    yield (
        "one model: convexity",
        local_gd.inner_product_bound(spread=0.0, gap=d.gap, smoothness=d.L),
        -2 * d.gap,
    )


@special(local_gd.best_interval)
def _(d):
    alone = d.goal(variance=0.0, price=d.gap)
    yield (
        "equal clients: as rarely as the step size allows",
        local_gd.best_interval(**alone, rate=d.rate),
        d.h,
    )
    yield (
        "the step size of gradient descent",
        local_gd.best_interval(**alone, rate=1 / (4 * d.L)),
        1,
    )
    noisy = d.gd(variance=d.sigma2 + 1, accuracy=1e3 * (d.sigma2 + 1) / d.L, rate=d.rate / 10)
    yield "free communication", local_gd.best_interval(**noisy, price=1e-12), 1


@special(local_gd.corollary)
def _(d):
    steps = 1000
    theorem = local_gd.bound(
        **d.gd(), interval=d.h, steps=steps, rate=math.sqrt(d.n / steps) / (4 * d.L)
    )
    yield (
        "the theorem",
        local_gd.corollary(**d.gd(), clients=d.n, interval=d.h, steps=steps),
        theorem,
    )
    alone = local_gd.corollary(**d.gd(variance=0.0), clients=d.n, interval=d.h, steps=steps)
    yield "equal clients", alone, 8 * d.L * d.distance**2 / math.sqrt(d.n * steps)


@special(feddane.inexactness_bound)
def _(d):
    yield (
        "solved exactly",
        feddane.inexactness_bound(residual=0.0, moved=d.moved, curvature=d.L),
        0.0,
    )
    yield (
        "not solved",
        feddane.inexactness_bound(residual=d.error, moved=0.0, curvature=d.L),
        math.inf,
    )


@special(feddane.enough)
def _(d):
    given = {"moved": d.moved, "curvature": d.L}
    residual = feddane.enough(inexactness=d.gamma, **given)
    yield "the inverse of the bound", feddane.inexactness_bound(residual=residual, **given), d.gamma
    yield "an exact solve", feddane.enough(inexactness=0.0, **given), 0.0


def theorem_3(mu, d, B, gamma):
    """The right side of eq. (13), as printed."""
    first = 1 / mu - 3 * gamma / (2 * mu) - d.L * (1 + gamma) ** 2 / mu**2 - 3 * d.L / (2 * mu**2)
    return first - (B**2 - 1) * (d.L * (1 + gamma) ** 2 / mu**2 + d.L / mu**2 + gamma / mu)


@special(feddane.decrease)
def _(d):
    mu, given = 3 * d.L, {"smoothness": d.L, "dissimilarity": d.B, "inexactness": d.gamma}
    identical = feddane.decrease(mu=mu, smoothness=d.L, dissimilarity=1.0)
    yield "identical devices solved exactly", identical, 1 / mu - 2.5 * d.L / mu**2
    yield (
        "Theorem 5 without concavity",
        feddane.decrease(mu=mu, **given, concavity=1e-9),
        theorem_3(mu, d, d.B, d.gamma),
    )
    each = feddane.decrease_by_device(mu=np.full(d.n, mu), **given, weights=d.weights)
    yield "devices of equal constants", feddane.decrease(mu=mu, **given), each
    yield "mu to infinity", 1e12 * feddane.decrease(mu=1e12, **given), 1 - d.gamma * (d.B**2 + 0.5)


@special(feddane.decrease_by_device)
def _(d):
    identical = feddane.decrease_by_device(mu=5 * d.L, smoothness=d.L, dissimilarity=1.0)
    yield "identical devices solved exactly", identical, 1 / (10 * d.L)
    given = {
        "mu": np.full(d.n, 4 * d.L),
        "smoothness": np.full(d.n, d.L),
        "inexactness": np.full(d.n, d.gamma),
    }
    found = feddane.decrease_by_device(**given, dissimilarity=d.B, overall=d.L)
    yield "Theorem 3", found, theorem_3(4 * d.L, d, d.B, d.gamma)


@special(feddane.best_mu)
def _(d):
    found = feddane.best_mu(smoothness=d.L, dissimilarity=d.B)
    yield "exact solves", found.mu, d.L * (4 * d.B**2 + 1)
    yield (
        "its decrease",
        found.decrease,
        feddane.decrease(mu=found.mu, smoothness=d.L, dissimilarity=d.B),
    )
    yield "identical devices", feddane.best_mu(smoothness=d.L, dissimilarity=1.0).mu, 5 * d.L
    concave = feddane.best_mu(smoothness=d.L, dissimilarity=d.B, concavity=1e-9)
    yield "concavity to 0", concave.decrease, found.decrease


@special(feddane.rounds)
def _(d):
    yield "nothing to gain", feddane.rounds(gap=0.0, rho=d.share, accuracy=d.accuracy), 1
    twice = feddane.rounds(gap=1000.0, rho=0.5, accuracy=0.25)
    yield "half the accuracy", twice, 2 * feddane.rounds(gap=1000.0, rho=0.5, accuracy=0.5)


@special(fedaware.diversity_bound)
def _(d):
    yield "equal clients", fedaware.diversity_bound(global_variance=0.0, gradient=d.gradient), 1.0
    mean = d.weights @ d.vectors
    variance = float(d.weights @ fedaware.dissimilarities(d.vectors, d.weights))
    found = fedaware.diversity_bound(global_variance=variance, gradient=float(np.linalg.norm(mean)))
    yield "with the variance at x, FedDANE's B", found, feddane.dissimilarity(d.vectors, d.weights)


@special(fedaware.divergence)
def _(d):
    yield "the clients' own weights", d.own, (d.n, d.n, 0.0, 0.0)
    yield (
        "one of n equal clients",
        fedaware.divergence(np.eye(d.n)[0]),
        (d.n**2, d.n, d.n**2 - d.n, d.n - 1),
    )


@special(fedaware.surrogate_gradient_bound)
def _(d):
    given, square = {"global_variance": d.sigma2, "gradient": d.gradient}, d.gradient**2
    yield "the clients' own weights", fedaware.surrogate_gradient_bound(d.own, **given), square
    yield (
        "equal clients",
        fedaware.surrogate_gradient_bound(d.other, global_variance=0.0, gradient=d.gradient),
        square,
    )
    yield (
        "as printed, own weights",
        fedaware.surrogate_gradient_bound(d.own, **given, as_printed=True),
        2 * square,
    )
    away = fedaware.direction_error_bound(found=d.other, global_variance=d.sigma2, error=0.0)
    yield (
        "the error of the direction",
        fedaware.surrogate_gradient_bound(d.other, **given),
        (d.gradient + away) ** 2,
    )


@special(fedaware.drift_bound)
def _(d):
    alone = d.work(local_variance=0.0, dissimilarities=np.zeros(d.n))
    yield (
        "equal clients, full gradients",
        fedaware.drift_bound(**alone),
        np.full(d.n, 30 * (d.h * d.unit * d.gradient) ** 2),
    )
    yield "and stationary", fedaware.drift_bound(**{**alone, "gradient": 0.0}), np.zeros(d.n)


@special(fedaware.mean_drift_bound)
def _(d):
    """It is made simple by eta K <= 1, which is 1 for the client with the largest drift."""
    mean = d.weights @ fedaware.drift_bound(**d.work())
    yield (
        "equal work",
        fedaware.mean_drift_bound(**d.work(), weights=d.weights) * d.h * d.unit,
        mean,
    )
    rest = d.work(local_variance=0.0, dissimilarities=np.zeros(d.n), gradient=0.0)
    yield "equal clients, full gradients, stationary", fedaware.mean_drift_bound(**rest), 0.0


@special(fedaware.heterogeneity)
def _(d):
    unequal = {"local_steps": np.arange(1, d.n + 1), "rate": d.unit}
    equal = fedaware.heterogeneity(
        local_steps=np.full(d.n, d.h), rate=d.unit, dissimilarities=d.zeta
    )
    yield "equal work", equal, 0.0
    yield "equal clients", fedaware.heterogeneity(**unequal, dissimilarities=np.zeros(d.n)), 0.0
    printed = fedaware.heterogeneity(**unequal, dissimilarities=d.zeta, as_printed=True)
    yield "as printed", d.n * fedaware.heterogeneity(**unequal, dissimilarities=d.zeta), printed


@special(fedaware.momentum_error_bound)
def _(d):
    given = {"moved": 0.0, "smoothness": d.L}
    every = fedaware.momentum_error_bound(error=d.error, drift=d.spread, share=1.0, **given)
    yield "everybody, no momentum", every, d.error / 2 + d.spread
    yield (
        "exact and at rest",
        fedaware.momentum_error_bound(error=0.0, drift=0.0, share=d.share, **given),
        0.0,
    )


@special(fedaware.direction_error_bound)
def _(d):
    own = fedaware.direction_error_bound(found=d.own, global_variance=d.sigma2, error=d.error)
    yield "the clients' own weights", own, math.sqrt(d.error)
    yield (
        "equal clients",
        fedaware.direction_error_bound(found=d.other, global_variance=0.0, error=0.0),
        0.0,
    )


@special(fedaware.stationarity_bound)
def _(d):
    given = {"rate": 1 / d.L, "smoothness": d.L}
    descent = fedaware.stationarity_bound(gap=d.gap, errors=np.zeros(d.T), **given)
    yield "gradient descent", descent, 2 * d.L * d.gap / d.T
    yield (
        "at the minimum",
        fedaware.stationarity_bound(gap=0.0, errors=np.full(d.T, d.error), **given),
        d.error**2,
    )


@special(fedbc.multiplier_bounds)
def _(d):
    low, high = fedbc.multiplier_bounds(d.smooth)
    yield "its length", high - low, 1 + 1 / d.smooth
    yield "L to infinity", np.subtract(*reversed(fedbc.multiplier_bounds(np.full(1, 1e7)))), [1.0]


@special(fedbc.lagrangian_gradient_bound)
def _(d):
    given = {"moved": 0.0, "smoothness": d.L, "multiplier": d.spread}
    yield "at rest", fedbc.lagrangian_gradient_bound(error=d.error, **given), 2 * d.error
    yield "exact and at rest", fedbc.lagrangian_gradient_bound(error=0.0, **given), 0.0


@special(fedbc.movement_bound)
def _(d):
    given = {
        "smoothness": d.smooth,
        "dual_rate": 0.1,
        "violation": 0.0,
        "spread": 0.0,
        "multiplier": d.L,
    }
    yield (
        "exact, in consensus, tight",
        fedbc.movement_bound(descent=d.gap, error=0.0, **given),
        d.gap,
    )


@special(fedbc.consensus_bound)
def _(d):
    exact = {"error": 0.0, "heterogeneity": 0.0}
    yield (
        "exact solves of equal devices",
        fedbc.consensus_bound(smoothness=d.L, multiplier=1 + d.L, **exact),
        0.0,
    )
    far = fedbc.consensus_bound(
        smoothness=d.L, multiplier=1e12, error=d.error, heterogeneity=d.spread
    )
    yield "lambda to infinity", 1 + far, 1.0
    flat = fedbc.consensus_bound(
        smoothness=1e-12, multiplier=2.0, error=0.0, heterogeneity=d.spread
    )
    yield "linear losses", flat, (d.spread / 8) ** 2


@special(fedbc.stationarity_bound)
def _(d):
    descent = 4 * (d.smooth.max() + 2 * d.bc()["multiplier"]) ** 2 * d.gap / d.T
    yield "exact, in consensus, tight", fedbc.stationarity_bound(**d.bc()), descent
    yield "T to infinity", 1 + fedbc.stationarity_bound(**d.bc(rounds=10**18)), 1.0
    apart = fedbc.consensus_bound(
        smoothness=d.smooth.max(), multiplier=1 + d.smooth.max(), error=0.0, heterogeneity=0.0
    )
    yield "equal devices by Lemma B.2", fedbc.stationarity_bound(**d.bc(spread=apart)), descent


@special(fedbc.relaxed_multipliers)
def _(d):
    always = fedbc.relaxed_multipliers(np.ones(d.h, bool), dual_rate=d.L)
    yield "always violated", always, d.L * np.arange(1, d.h + 1)
    yield (
        "never violated",
        fedbc.relaxed_multipliers(np.zeros(d.h, bool), dual_rate=d.L),
        np.zeros(d.h),
    )


@special(fedbc.local_gradient_bound)
def _(d):
    yield (
        "lambda = 0",
        fedbc.local_gradient_bound(error=d.error, multiplier=0.0, distance=d.distance),
        d.error,
    )
    alone = {
        "gradients": d.vectors,
        "models": d.vectors,
        "global_model": np.zeros(3),
        "multipliers": np.zeros(d.n),
    }
    found = [
        fedbc.local_gradient_bound(error=float(e), multiplier=0.0, distance=1.0)
        for e in fedbc.solve_errors(**alone)
    ]
    yield "lambda = 0: an equality", found, np.sum(d.vectors**2, axis=1)
    exact = fedbc.local_gradient_bound(error=0.0, multiplier=d.L, distance=d.distance)
    yield "an exact solve", exact, (2 * d.L * d.distance) ** 2


@special(fedaware.dissimilarity_offset)
def _(d):
    points = np.stack([d.vectors, 2 * d.vectors])
    apart = float(d.weights @ fedaware.dissimilarities(2 * d.vectors, d.weights))
    yield "B = 1: the largest sigma_g", fedaware.dissimilarity_offset(points, d.weights) ** 2, apart
    most = fedaware.diversity(d.vectors, d.weights) * (1 + 1e-9)
    yield (
        "B = D: nothing is left",
        fedaware.dissimilarity_offset(points, d.weights, dissimilarity=max(most, 1.0)),
        0.0,
    )
    same = np.tile(d.vectors[:1], (d.n, 1))
    yield (
        "equal clients",
        fedaware.dissimilarity_offset(same[None], d.weights, dissimilarity=1 + 1e-9),
        0.0,
    )


@special(fedaware.gradient_bound_as_printed)
def _(d):
    square = math.sqrt(d.weights @ np.sum(d.vectors**2, axis=1))
    own = fedaware.diversity(d.vectors, d.weights, d.tilde)
    found = fedaware.gradient_bound_as_printed(gradient_bound=square, surrogate_diversity=own)
    yield "the surrogate's gradient", found, np.linalg.norm(d.tilde @ d.vectors)


@special(fedaware.rho_as_printed)
def _(d):
    given = {
        "mean_steps": 1.0 + d.h,
        "share": d.share,
        "smoothness": d.L,
        "surrogate_diversity": d.B,
    }
    yield (
        "the clients' own weights at a common minimum",
        fedaware.rho_as_printed(d.own, gradient_bound=0.0, **given),
        1.0,
    )
    g = 0.5 * (3 - math.sqrt(5))  # the root of 1 - sqrt(g) - g, which is 0.382
    edge = fedaware.Divergence(square=0.0, linear=0.0, gap=g, pearson=g)
    yield "ends at 0.382", fedaware.rho_as_printed(edge, gradient_bound=d.gradient, **given), 0.0


@special(fedaware.stationarity_as_printed)
def _(d):
    given = {
        "rate": d.rate,
        "share": d.share,
        "smoothness": d.L,
        "global_variance": 0.0,
        "heterogeneity": 0.0,
    }
    given |= {"surrogate_diversities": np.full(2, d.B), "local_steps": np.full(d.n, d.h)}
    zero = fedaware.Divergence(square=0.0, linear=0.0, gap=0.0, pearson=0.0)
    found = fedaware.stationarity_as_printed(
        [zero] * 2, gradient_bound=d.gradient, local_variance=d.sigma2, optimization=d.gap, **given
    )
    yield "no surrogate", found, d.gap
    none = fedaware.stationarity_as_printed(
        [d.own] * 2, gradient_bound=1e-9, local_variance=0.0, **given
    )
    yield "no drift", none, 0.0


BOUNDS = [
    function
    for module in (local_gd, feddane, fedaware, fedbc)
    for function in bounds(module)
    if function not in MEASURES
]


@pytest.mark.parametrize(
    "function",
    BOUNDS,
    ids=lambda function: f"{function.__module__.split('.')[2]}-{function.__name__}",
)
def test_limits_and_special_cases(function):
    check(function)
