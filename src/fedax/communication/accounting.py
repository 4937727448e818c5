"""Accounting of the privacy that a run spends, by `dp-accounting`."""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedax.errors import FedaxError, InvalidInput, install_hint


@dataclasses.dataclass(frozen=True, order=True)
class Release:
    """Sums over one draw of clients that are published with Gaussian noise.

    Attributes:
        rate: the probability with which a client is drawn, in (0, 1]; 1 where sampling does not
            amplify.
        times: number of sums that are published of this draw, at least 1.
        population: for a draw of a fixed number of clients without replacement, the number of
            clients it is taken from, of which `rate` is a whole number of clients; 0 where every
            client is drawn independently of the others (Poisson sampling).

    Raises:
        InvalidInput: a number out of its range.
    """

    rate: float
    times: int
    population: int = 0

    def __post_init__(self) -> None:
        _require("Release(rate=...)", self.rate, 0 < self.rate <= 1, "numbers in (0, 1]")
        _require("Release(times=...)", self.times, self.times >= 1, "whole numbers >= 1")
        _require("Release(population=...)", self.population, self.population >= 0, "numbers >= 0")
        if self.population:
            drawn = self.rate * self.population
            is_whole = round(drawn) >= 1 and abs(drawn - round(drawn)) < 0.01
            allowed = f"multiples of 1/{self.population}, the shares of a draw of a fixed number"
            _require("Release(rate=...)", self.rate, is_whole, allowed)


def _require(field: str, value: Any, fits: bool, allowed: str) -> None:
    if not fits:
        raise InvalidInput.of(field, value, allowed)


class Ledger(NamedTuple):
    """Releases of a run.

    Attributes:
        first: releases of the first round.
        later: releases of every other round.
        halved: whether neighbouring inputs replace one client's data by any other (local noise,
            draws of a fixed number). A clipped upload then moves by up to 2C in place of C, which
            halves the noise multiplier.
    """

    first: tuple[Release, ...]
    later: tuple[Release, ...]
    halved: bool = False

    @property
    def is_sampled(self) -> bool:
        """Whether sampling amplifies some of the noise."""
        return any(release.rate < 1 for release in self.first + self.later)

    def count(self, rounds: int) -> int:
        """Returns the number of sums that some rounds publish."""
        first, later = (sum(r.times for r in releases) for releases in (self.first, self.later))
        return first + (rounds - 1) * later


def _import_dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        hint = install_hint("privacy")
        raise FedaxError(
            f"accounting of privacy needs dp-accounting ({error}). Try: {hint}."
        ) from error
    return dp_accounting


@functools.lru_cache(maxsize=4096)
def _renyi(releases: tuple[Release, ...], noise: float) -> np.ndarray:
    """Returns the Renyi divergences of one round at the orders of the accountant.

    The bound for draws of a fixed number exceeds that without sampling where most clients are
    drawn. Both hold, and the smaller one counts at each order.
    """
    # shape (orders,); the divergences of several releases add up
    total: Any = 0.0
    for release in releases:
        divergences = _renyi_of(release, noise)
        if release.population:
            everyone = Release(1.0, release.times)
            divergences = np.minimum(divergences, _renyi_of(everyone, noise))
        total = total + divergences
    return total


def _renyi_of(release: Release, noise: float) -> np.ndarray:
    """Returns the Renyi divergences of one release."""
    dp = _import_dp_accounting()
    from dp_accounting.rdp import RdpAccountant

    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), release.times)
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if release.rate < 1 and release.population:
        size = round(release.rate * release.population)
        event = dp.SampledWithoutReplacementDpEvent(release.population, size, event)
        relation = dp.NeighboringRelation.REPLACE_ONE
    elif release.rate < 1:
        event = dp.PoissonSampledDpEvent(release.rate, event)
    accountant: Any = RdpAccountant(neighboring_relation=relation)
    # has no public accessor; composing anew for every number of rounds takes half a second each
    return np.asarray(accountant.compose(event)._rdp)


@functools.lru_cache(maxsize=4096)
def epsilon_of(ledger: Ledger, noise: float, delta: float, rounds: int) -> float:
    """Returns the privacy that some rounds have spent, between neighbours that differ in one client
    (see `Ledger`).

    Exact where all clients take part, otherwise a bound by Renyi divergences.

    Args:
        ledger: what a round releases.
        noise: the noise multiplier, at least 0.
        delta: of the guarantee, in (0, 1).
        rounds: at least 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> round(epsilon_of(Ledger((Release(1.0, 1),), (Release(1.0, 1),)), 5.0, 1e-5, 1), 2)
    0.73
    """
    _require("epsilon_of(noise=...)", noise, noise >= 0, "numbers >= 0")
    _require("epsilon_of(rounds=...)", rounds, rounds >= 0, "whole numbers >= 0")
    if not rounds:
        return 0.0
    # where one client's data are replaced, a sum moves by 2C in place of C
    if ledger.halved:
        noise = noise / 2
    # without what sampling hides, which bounds a sampled run too
    epsilon = epsilon_of_gaussians({noise: ledger.count(rounds)}, delta)
    if not ledger.is_sampled or not noise:
        return epsilon
    with _silence_accountant():
        from dp_accounting.rdp import compute_epsilon
        from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

        total = _renyi(ledger.first, noise)
        if rounds > 1:  # an order that is infinite times none would be no number
            total = total + (rounds - 1) * _renyi(ledger.later, noise)
        # an order whose divergence is not a number would count as none
        assert not np.isnan(total).any()
        bound = compute_epsilon(DEFAULT_RDP_ORDERS, total.tolist(), delta)[0]
        return min(epsilon, float(bound))


def epsilon_of_gaussians(multipliers: dict[float, int], delta: float) -> float:
    """Returns the privacy spent by Gaussian mechanisms without sampling, exactly.

    Args:
        multipliers: for each noise multiplier the number of mechanisms that have it; 0 for one
            without noise.
        delta: of the guarantee, in (0, 1).

    Raises:
        InvalidInput: a number out of its range.

    >>> round(epsilon_of_gaussians({5.0: 1}, 1e-5), 2), epsilon_of_gaussians({}, 1e-5)
    (0.73, 0.0)
    """
    _require("epsilon_of_gaussians(delta=...)", delta, 0 < delta < 1, "numbers in (0, 1)")
    precision = 0.0  # Gaussian mechanisms compose to one: their inverse square widths add up
    for noise, count in multipliers.items():
        fits = noise >= 0 and count >= 0
        _require("epsilon_of_gaussians", {noise: count}, fits, "multipliers and counts >= 0")
        if count:
            precision += math.inf if noise == 0 else count / noise**2
    if precision == math.inf:
        return math.inf
    if precision == 0:
        return 0.0
    # the search begins where a logarithm of 0 is a warning
    with np.errstate(divide="ignore"):
        return float(_import_dp_accounting().get_epsilon_gaussian(precision**-0.5, delta))


@contextlib.contextmanager
def _silence_accountant() -> Iterator[None]:
    """Hides a warning for each order that the accountant leaves out, which makes the bound no
    smaller.
    """
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def noise_of(ledger: Ledger, epsilon: float, delta: float, rounds: int) -> float:
    """Returns the least noise multiplier with which rounds spend at most epsilon, to a relative
    1e-3.

    Args:
        ledger: of the releases of a round.
        epsilon: the budget, above 0.
        delta: in (0, 1).
        rounds: at least 1.

    Raises:
        InvalidInput: no privacy that could be spent, or a number out of its range.
    """
    _require("epsilon", epsilon, 0 < epsilon < math.inf, "finite numbers > 0")
    # doubles until the noise suffices
    low = 0.0
    high = 1.0
    while epsilon_of(ledger, high, delta, rounds) > epsilon:
        low = high
        high = 2 * high
    # `high` always meets the budget, `low` never does
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if epsilon_of(ledger, middle, delta, rounds) > epsilon:
            low = middle
        else:
            high = middle
    return high


def rounds_of(ledger: Ledger, noise: float, delta: float, budget: float, most: int) -> int:
    """Returns how many rounds, up to `most`, spend no more than a budget.

    Args:
        ledger: of the releases of a round.
        noise: the noise multiplier, at least 0.
        delta: in (0, 1).
        budget: epsilon, above 0.
        most: where to stop, at least 0.

    Raises:
        InvalidInput: a number out of its range.
    """
    _require("rounds_of(budget=...)", budget, budget > 0, "numbers > 0")
    low = 0
    high = most
    # `low` rounds always fit, and the answer is at most `high`
    while low < high:
        # rounded up, so that the interval shrinks when two numbers are left
        middle = (low + high + 1) // 2
        if epsilon_of(ledger, noise, delta, middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
