"""Epsilon by the accountant: equal to dp-accounting's own, for what the rounds of a method give
away."""

import dataclasses
import math
import pickle

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import fedax
from fedax.communication.accounting import (
    Ledger,
    Release,
    epsilon_of,
    epsilon_of_gaussians,
    noise_of,
    rounds_of,
)

TASK = fedax.tasks.from_loss(
    lambda w, x: ((w[None] - x) ** 2).sum(1) / 2,
    np.zeros(2),
    clients=[np.full((1, 2), k) for k in 1.0 * np.arange(10)],
)
POISSON = fedax.Schedule(cohort=2, sampling="poisson", weights="equal")
UNIFORM = fedax.Schedule(cohort=2, weights="equal")
EVERYONE = fedax.Schedule(weights="equal")


def own(event, delta):
    fixed = "SampledWithoutReplacement" in repr(event)
    relation = (
        dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    return RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(delta)


@pytest.mark.parametrize(
    ("method", "schedule", "privacy", "event"),
    [
        (
            fedax.FedAvg(),
            POISSON,
            fedax.Privacy(noise=1.1, delta=1e-3),
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.1)), 30),
        ),
        (
            fedax.SCAFFOLD(),
            EVERYONE,
            fedax.Privacy(noise=4.0),
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 30),
        ),
        # a draw of a fixed number: one client is replaced, and a sum moves by up to 2 C; FedDANE
        # has two phases
        (
            fedax.FedDANE(),
            UNIFORM,
            fedax.Privacy(noise=9.0),
            dp.SelfComposedDpEvent(
                dp.SampledWithoutReplacementDpEvent(10, 2, dp.GaussianDpEvent(4.5)), 60
            ),
        ),
        # two draws of a round are sampled one by one
        (
            fedax.FedDANE(),
            POISSON,
            fedax.Privacy(noise=2.0),
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(2.0)), 60),
        ),
        # at the client two inputs differ by up to 2 C, and nothing hides who was drawn
        (
            fedax.FedAvg(),
            POISSON,
            fedax.Privacy(noise=8.0, where="client"),
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 30),
        ),
    ],
    ids=["poisson", "everyone", "fixed", "two draws", "local"],
)
def test_epsilon_is_that_of_dp_accounting(method, schedule, privacy, event):
    spent = fedax.privacy_spent(method, TASK, schedule=schedule, privacy=privacy, rounds=30)
    assert spent == pytest.approx(own(event, privacy.delta), rel=1e-6)


def test_phases_of_one_draw_are_sampled_together():
    ledger = Ledger((Release(0.1, 2),), (Release(0.1, 2),))
    event = dp.SelfComposedDpEvent(
        dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 2)), 7
    )
    assert epsilon_of(ledger, 2.0, 1e-5, 7) == pytest.approx(own(event, 1e-5), rel=1e-9)


def test_another_first_round_counts_as_it_is():
    ledger = Ledger((Release(1.0, 3),), (Release(1.0, 1),))
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 12)
    assert epsilon_of(ledger, 2.0, 1e-5, 10) == pytest.approx(own(event, 1e-5), rel=1e-9)


def test_draws_of_most_clients_cost_no_more_than_everyone():
    """The bound for sampling without replacement exceeds that of the Gaussian mechanism there; both
    hold."""
    most = Ledger((Release(0.9, 1, 50),), (Release(0.9, 1, 50),), halved=True)
    sampled = own(dp.SampledWithoutReplacementDpEvent(50, 45, dp.GaussianDpEvent(1.0)), 1e-3)
    everyone = own(dp.GaussianDpEvent(1.0), 1e-3)
    assert epsilon_of(most, 2.0, 1e-3, 1) == pytest.approx(everyone, rel=1e-9)
    assert everyone < sampled


def test_uploads_of_several_widths_add_up():
    """Gaussian mechanisms compose to one whose inverse square width is the sum."""
    both = dp.GaussianDpEvent((3 * 2.0**-2 + 5.0**-2) ** -0.5)
    assert epsilon_of_gaussians({2.0: 3, 5.0: 1}, 1e-4) == pytest.approx(own(both, 1e-4), rel=1e-9)
    assert epsilon_of_gaussians({2.0: 3, 0.0: 1}, 1e-4) == math.inf


@pytest.mark.parametrize("delta", [0.1, 0.2, 0.9])
def test_a_delta_of_one_client_or_more_is_refused(delta):
    """Of ten clients, one published whole at random would have delta 0.1."""
    privacy, given = fedax.Privacy(noise=2.0, delta=delta), {"schedule": POISSON, "rounds": 1}
    with pytest.raises(
        fedax.InvalidInput,
        match=r"Privacy\(delta=...\): got 0.\d; allowed: "
        r"numbers in \(0, 1/10\)",
    ):
        fedax.privacy_spent(fedax.FedAvg(), TASK, privacy=privacy, **given)
    with pytest.raises(fedax.InvalidInput, match="delta"):
        fedax.noise_for(1.0, fedax.FedAvg(), TASK, privacy=privacy, **given)
    for where in ("server", "client"):
        channel = fedax.Channel(privacy=fedax.Privacy(noise=2.0, delta=delta, where=where))
        with pytest.raises(fedax.InvalidInput, match="delta"):
            fedax.run(fedax.FedAvg(), TASK, channel=channel, **given)


def test_noise_and_rounds_are_inverse_to_epsilon():
    ledger = Ledger((Release(0.2, 1),), (Release(0.2, 1),))
    noise = noise_of(ledger, 3.0, 1e-4, 50)
    assert epsilon_of(ledger, noise, 1e-4, 50) <= 3.0 < epsilon_of(ledger, 0.995 * noise, 1e-4, 50)
    last = rounds_of(ledger, noise, 1e-4, 2.0, 50)
    assert epsilon_of(ledger, noise, 1e-4, last) <= 2.0 < epsilon_of(ledger, noise, 1e-4, last + 1)
    assert epsilon_of(ledger, 0.0, 1e-4, 1) == math.inf


def test_the_noise_of_adaptive_clipping_is_checked_as_found():
    """The noise that `privacy` came with, here the default 1.0, does not matter."""
    given = {"schedule": EVERYONE, "rounds": 3}
    plain = fedax.noise_for(2.0, fedax.FedAvg(), TASK, privacy=fedax.Privacy(delta=1e-3), **given)
    assert plain > 2
    fits = fedax.Privacy(quantile=0.5, count_noise=0.51 * plain, delta=1e-3)
    # of ten clients the default is a half, which fits noise below 1 only
    default = fedax.Privacy(quantile=0.5, delta=1e-3)
    for privacy in (fits, dataclasses.replace(fits, noise=plain)):
        assert fedax.noise_for(2.0, fedax.FedAvg(), TASK, privacy=privacy, **given) == plain
    assert 0 < fedax.noise_for(90.0, fedax.FedAvg(), TASK, privacy=default, **given) < 1
    with pytest.raises(
        fedax.InvalidInput,
        match=rf"Privacy\(count_noise=...\): got None; allowed: finite numbers > {plain / 2:g}",
    ):
        fedax.noise_for(2.0, fedax.FedAvg(), TASK, privacy=default, **given)
    with pytest.raises(fedax.InvalidInput, match=r"Privacy\(count_noise=...\): got \d"):
        fedax.noise_for(1.0, fedax.FedAvg(), TASK, privacy=fits, **given)


LEDGER = Ledger((Release(0.3, 1),), (Release(0.3, 1),))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Release(1.5, 1), r"Release\(rate=...\): got 1.5; allowed: numbers in \(0, 1\]"),
        (
            lambda: Release(math.nan, 1),
            r"Release\(rate=...\): got nan; allowed: numbers in \(0, 1\]",
        ),
        (lambda: Release(0.3, 0), r"Release\(times=...\): got 0; allowed: whole numbers >= 1"),
        (lambda: Release(0.3, 1, -5), r"Release\(population=...\): got -5; .* whole numbers >= 0"),
        (lambda: Release(0.001, 1, 100), r"Release\(rate=...\): got 0.001; .* multiples of 1/100"),
        (lambda: Release(0.4, 1, 3), r"Release\(rate=...\): got 0.4; .* multiples of 1/3"),
        (
            lambda: epsilon_of(LEDGER, math.nan, 1e-5, 3),
            r"epsilon_of\(noise=...\): got nan; .* >= 0",
        ),
        (lambda: epsilon_of(LEDGER, -1.0, 1e-5, 3), r"epsilon_of\(noise=...\): got -1.0"),
        (lambda: epsilon_of(LEDGER, 1.0, 1.5, 3), r"delta=...\): got 1.5; .* numbers in \(0, 1\)"),
        (lambda: epsilon_of(LEDGER, 1.0, 0.0, 3), r"delta=...\): got 0.0"),
        (lambda: epsilon_of(LEDGER, 1.0, 1e-5, -3), r"rounds=...\): got -3; .* whole numbers >= 0"),
        (lambda: LEDGER.event(math.nan, 3), r"Ledger.event\(noise=...\): got nan"),
        (lambda: noise_of(LEDGER, 1.0, math.nan, 3), r"noise_of\(delta=...\): got nan"),
        (lambda: noise_of(LEDGER, 1.0, 1e-5, 0), r"noise_of\(rounds=...\): got 0; .* >= 1"),
        (lambda: rounds_of(LEDGER, math.nan, 1e-5, 3.0, 9), r"rounds_of\(noise=...\): got nan"),
        (lambda: rounds_of(LEDGER, 1.0, 2, 3.0, 9), r"rounds_of\(delta=...\): got 2"),
        (lambda: rounds_of(LEDGER, 1.0, 1e-5, math.nan, 9), r"rounds_of\(budget=...\): got nan"),
        (lambda: rounds_of(LEDGER, 1.0, 1e-5, 3.0, -1), r"rounds_of\(most=...\): got -1"),
        (
            lambda: epsilon_of_gaussians({5.0: 1}, 1.5),
            r"epsilon_of_gaussians\(delta=...\): got 1.5",
        ),
        (lambda: epsilon_of_gaussians({math.nan: 1}, 1e-5), r"gaussians\(noise=...\): got nan"),
        (lambda: epsilon_of_gaussians({5.0: -1}, 1e-5), r"multipliers=...\): got -1"),
    ],
)
def test_numbers_that_promise_privacy_for_nothing_are_refused(call, message):
    with pytest.raises(fedax.InvalidInput, match=message):
        call()


def test_releases_stay_named_tuples():
    release = Release(rate=0.3, times=2, population=10)
    assert pickle.loads(pickle.dumps(release)) == release == (0.3, 2, 10)
    assert release._replace(times=1) == Release(0.3, 1, 10)
    assert sorted([release, Release(1 / 3, 1, 3)])[0] is release
