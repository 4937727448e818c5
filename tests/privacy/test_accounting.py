"""Epsilon by the accountant: equal to dp-accounting's own, for what the rounds of a method give
away."""

import dataclasses
import math

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

TASK = fedax.Task(
    np.zeros(2),
    lambda w, x: ((w[None] - x) ** 2).sum(1) / 2,
    [np.full((1, 2), k) for k in 1.0 * np.arange(10)],
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


def exact(noise, sums, delta):
    return dp.get_epsilon_gaussian(noise / math.sqrt(sums), delta)


@pytest.mark.parametrize(
    ("method", "schedule", "privacy", "expected"),
    [
        (
            fedax.FedAvg(),
            POISSON,
            fedax.Privacy(noise=1.1, delta=1e-3),
            own(
                dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.1)), 30),
                1e-3,
            ),
        ),
        (fedax.SCAFFOLD(), EVERYONE, fedax.Privacy(noise=4.0), exact(4.0, 30, 1e-5)),
        (fedax.FedAvg(), EVERYONE, fedax.Privacy(noise=0.5), exact(0.5, 30, 1e-5)),
        (fedax.FedAvg(), EVERYONE, fedax.Privacy(noise=2e4), exact(2e4, 30, 1e-5)),
        # a draw of a fixed number: one client is replaced, and a sum moves by up to 2 C; FedDANE
        # has two phases
        (
            fedax.FedDANE(),
            UNIFORM,
            fedax.Privacy(noise=9.0),
            own(
                dp.SelfComposedDpEvent(
                    dp.SampledWithoutReplacementDpEvent(10, 2, dp.GaussianDpEvent(4.5)), 60
                ),
                1e-5,
            ),
        ),
        # two draws of a round are sampled one by one
        (
            fedax.FedDANE(),
            POISSON,
            fedax.Privacy(noise=2.0),
            own(
                dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(2.0)), 60),
                1e-5,
            ),
        ),
        # at the client two inputs differ by up to 2 C, and nothing hides who was drawn
        (
            fedax.FedAvg(),
            POISSON,
            fedax.Privacy(noise=8.0, where="client"),
            exact(4.0, 30, 1e-5),
        ),
        # the phase in which clients train sends nothing, so that it releases nothing
        (fedax.PFedMe(), EVERYONE, fedax.Privacy(noise=4.0), exact(4.0, 30, 1e-5)),
    ],
)
def test_epsilon_is_that_of_dp_accounting(method, schedule, privacy, expected):
    spent = fedax.privacy.privacy_spent(method, TASK, schedule=schedule, privacy=privacy, rounds=30)
    assert spent == pytest.approx(expected, rel=1e-6)


def test_phases_of_one_draw_are_sampled_together():
    ledger = Ledger((Release(0.1, 2),), (Release(0.1, 2),))
    event = dp.SelfComposedDpEvent(
        dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 2)), 7
    )
    assert epsilon_of(ledger, 2.0, 1e-5, 7) == pytest.approx(own(event, 1e-5), rel=1e-9)


def test_another_first_round_counts_as_it_is():
    ledger = Ledger((Release(1.0, 3),), (Release(1.0, 1),))
    assert epsilon_of(ledger, 2.0, 1e-5, 10) == pytest.approx(exact(2.0, 12, 1e-5), rel=1e-9)


def test_draws_of_most_clients_cost_no_more_than_everyone():
    """The bound for sampling without replacement exceeds that of the Gaussian mechanism there; both
    hold."""
    most = Ledger((Release(0.9, 1, 50),), (Release(0.9, 1, 50),), halved=True)
    sampled = own(dp.SampledWithoutReplacementDpEvent(50, 45, dp.GaussianDpEvent(1.0)), 1e-3)
    everyone = exact(1.0, 1, 1e-3)
    assert epsilon_of(most, 2.0, 1e-3, 1) == pytest.approx(everyone, rel=1e-9)
    assert everyone < sampled


def test_uploads_of_several_widths_add_up():
    """Gaussian mechanisms compose to one whose inverse square width is the sum."""
    both = exact((3 * 2.0**-2 + 5.0**-2) ** -0.5, 1, 1e-4)
    assert epsilon_of_gaussians({2.0: 3, 5.0: 1}, 1e-4) == pytest.approx(both, rel=1e-9)
    assert epsilon_of_gaussians({2.0: 3, 0.0: 1}, 1e-4) == math.inf


def test_a_delta_of_one_client_or_more_is_refused():
    """Of ten clients, one published whole at random would have delta 0.1."""
    given = {"schedule": POISSON, "rounds": 1, "privacy": fedax.Privacy(noise=2.0, delta=0.1)}
    with pytest.raises(fedax.InvalidInput, match="delta="):
        fedax.privacy.privacy_spent(fedax.FedAvg(), TASK, **given)
    with pytest.raises(fedax.InvalidInput, match="delta="):
        fedax.privacy.noise_for(1.0, fedax.FedAvg(), TASK, **given)


@pytest.mark.slow
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
    plain = fedax.privacy.noise_for(
        2.0, fedax.FedAvg(), TASK, privacy=fedax.Privacy(delta=1e-3), **given
    )
    assert plain > 2
    fits = fedax.Privacy(quantile=0.5, count_noise=0.51 * plain, delta=1e-3)
    # of ten clients the default is a half, which fits noise below 1 only
    default = fedax.Privacy(quantile=0.5, delta=1e-3)
    for privacy in (fits, dataclasses.replace(fits, noise=plain)):
        assert fedax.privacy.noise_for(2.0, fedax.FedAvg(), TASK, privacy=privacy, **given) == plain
    assert 0 < fedax.privacy.noise_for(90.0, fedax.FedAvg(), TASK, privacy=default, **given) < 1
    with pytest.raises(fedax.InvalidInput, match="count_noise="):
        fedax.privacy.noise_for(2.0, fedax.FedAvg(), TASK, privacy=default, **given)
