"""Accounting of the privacy that a run spends, with the Renyi accountant of `dp-accounting`."""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedax.errors import FedaxError, InvalidInput, install_hint

Owner = TypeVar("Owner", bound=type)


def _check_numbers(owner: Owner) -> Owner:
    """Decorates `Release` so that its numbers are checked, as a named tuple cannot do itself."""
    make: Any = owner.__new__

    def new(cls: Any, rate: float, times: int, population: int = 0) -> Any:
        _require("Release(rate=...)", rate, _is_real(rate) and 0 < rate <= 1, "numbers in (0, 1]")
        _require_count("Release(times=...)", times, 1)
        _require_count("Release(population=...)", population, 0)
        if population:
            drawn = rate * population
            allowed = f"multiples of 1/{population}, the shares of a draw of a fixed number"
            is_whole = round(drawn) >= 1 and abs(drawn - round(drawn)) < 0.01
            _require("Release(rate=...)", rate, is_whole, allowed)
        return make(cls, rate, times, population)

    setattr(owner, "__new__", staticmethod(new))  # noqa: B010, as type checkers know another one
    return owner


def _require(field: str, value: Any, fits: bool, allowed: str) -> None:
    if not fits:
        raise InvalidInput.of(field, value, allowed)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require_count(field: str, value: Any, low: int) -> None:
    fits = (
        isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= low)
    )
    _require(field, value, fits, f"whole numbers >= {low}")


def _require_noise(function: str, noise: Any) -> None:
    # NaN fails the comparison too
    _require(f"{function}(noise=...)", noise, _is_real(noise) and noise >= 0, "numbers >= 0")


def _require_delta(function: str, delta: Any) -> None:
    fits = _is_real(delta) and 0 < delta < 1
    _require(f"{function}(delta=...)", delta, fits, "numbers in (0, 1)")


@_check_numbers
class Release(NamedTuple):
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

    def event(self, noise: float, rounds: int) -> Any:
        """Returns the rounds as an event of `dp-accounting`.

        >>> print(Ledger((Release(0.5, 1),), (Release(0.5, 1),)).event(1.5, 10).count)
        10
        """
        _require_noise("Ledger.event", noise)
        _require_count("Ledger.event(rounds=...)", rounds, 1)
        dp = _import_dp_accounting()
        first, later = (
            _events(releases, noise, self.halved) for releases in (self.first, self.later)
        )
        if self.first == self.later:
            return dp.SelfComposedDpEvent(
                later[0] if len(later) == 1 else dp.ComposedDpEvent(later), rounds
            )
        remaining = (
            [dp.SelfComposedDpEvent(dp.ComposedDpEvent(later), rounds - 1)] if rounds > 1 else []
        )
        return dp.ComposedDpEvent([*first, *remaining])


def _import_dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        hint = install_hint("privacy")
        raise FedaxError(
            f"accounting of privacy needs dp-accounting ({error}). Try: {hint}."
        ) from error
    return dp_accounting


def _events(releases: tuple[Release, ...], noise: float, halved: bool) -> list[Any]:
    dp, events = _import_dp_accounting(), []
    for release in releases:
        # where one client's data are replaced, a sum moves by 2C instead of C
        gaussian = dp.GaussianDpEvent(noise / 2 if halved else noise)
        sums = gaussian if release.times == 1 else dp.SelfComposedDpEvent(gaussian, release.times)
        # everyone takes part: the draw hides nothing
        if release.rate >= 1:
            events.append(sums)
        elif release.population:
            size = round(release.rate * release.population)
            events.append(dp.SampledWithoutReplacementDpEvent(release.population, size, sums))
        else:
            events.append(dp.PoissonSampledDpEvent(release.rate, sums))
    return events


@functools.lru_cache(maxsize=4096)
def _renyi(releases: tuple[Release, ...], noise: float, halved: bool) -> np.ndarray:
    """Returns the Renyi divergences of one round at the orders of the accountant.

    The bound for draws of a fixed number exceeds that without sampling where most clients are
    drawn. Both hold, and the smaller one counts at each order.
    """
    dp = _import_dp_accounting()
    from dp_accounting.rdp import RdpAccountant

    # shape (orders,); the divergences of several releases add up
    total = np.zeros(len(_orders()))
    for release in releases:
        divergences = []
        for variant in {release, release._replace(rate=1.0)} if release.population else {release}:
            fixed = variant.population and variant.rate < 1
            relation = (
                dp.NeighboringRelation.REPLACE_ONE
                if fixed
                else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
            )
            accountant: Any = RdpAccountant(neighboring_relation=relation)
            # has no public accessor; composing anew for every number of rounds takes half a second
            # each
            divergences.append(accountant.compose(_events((variant,), noise, halved)[0])._rdp)
        total = total + np.min(divergences, axis=0)
    return total


def _orders() -> Any:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    return DEFAULT_RDP_ORDERS


@functools.lru_cache(maxsize=4096)
def epsilon_of(ledger: Ledger, noise: float, delta: float, rounds: int) -> float:
    """Returns the privacy that some rounds have spent, between neighbours that differ in one client
    (see `Ledger`).

    Args:
        ledger: what a round releases.
        noise: the noise multiplier, at least 0.
        delta: of the guarantee, in (0, 1).
        rounds: at least 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> round(epsilon_of(Ledger((Release(1.0, 1),), (Release(1.0, 1),)), 5.0, 1e-5, 1), 2)
    0.79
    """
    _require_noise("epsilon_of", noise)
    _require_delta("epsilon_of", delta)
    _require_count("epsilon_of(rounds=...)", rounds, 0)
    if not rounds:
        return 0.0
    if not noise:
        return math.inf
    with _silence_accountant():
        total = _renyi(ledger.first, noise, ledger.halved)
        if rounds > 1:  # an order that is infinite times none would be no number
            total = total + (rounds - 1) * _renyi(ledger.later, noise, ledger.halved)
        return _epsilon(total, delta)


def epsilon_of_gaussians(multipliers: dict[float, int], delta: float) -> float:
    """Returns the privacy spent by Gaussian mechanisms without sampling.

    Args:
        multipliers: for each noise multiplier the number of mechanisms that have it; 0 for one
            without noise.
        delta: of the guarantee, in (0, 1).

    Raises:
        InvalidInput: a number out of its range.

    >>> round(epsilon_of_gaussians({5.0: 1}, 1e-5), 2), epsilon_of_gaussians({}, 1e-5)
    (0.79, 0.0)
    """
    _require_delta("epsilon_of_gaussians", delta)
    for noise, count in multipliers.items():
        _require_noise("epsilon_of_gaussians", noise)
        _require_count("epsilon_of_gaussians(multipliers=...)", count, 0)
    if not multipliers:
        return 0.0
    if 0.0 in multipliers:
        return math.inf
    with _silence_accountant():
        uploads = [
            count * _renyi((Release(1.0, 1),), noise, False)
            for noise, count in multipliers.items()
            if count
        ]
        return _epsilon(np.sum(uploads, axis=0), delta) if uploads else 0.0


def _epsilon(renyi: np.ndarray, delta: float) -> float:
    from dp_accounting.rdp import compute_epsilon

    assert not np.isnan(renyi).any(), (
        "an order whose divergence is not a number would count as none"
    )
    return float(compute_epsilon(_orders(), renyi.tolist(), delta)[0])


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
    if not 0 < epsilon < math.inf:
        raise InvalidInput.of("epsilon", epsilon, "finite numbers > 0")
    _require_delta("noise_of", delta)
    _require_count("noise_of(rounds=...)", rounds, 1)
    # doubles until the noise suffices
    low, high = 0.0, 1.0
    while epsilon_of(ledger, high, delta, rounds) > epsilon:
        low, high = high, 2 * high
    # `high` always meets the budget, `low` never does
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if epsilon_of(ledger, middle, delta, rounds) > epsilon else (low, middle)
        )
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
    _require_noise("rounds_of", noise)
    _require_delta("rounds_of", delta)
    _require("rounds_of(budget=...)", budget, _is_real(budget) and budget > 0, "numbers > 0")
    _require_count("rounds_of(most=...)", most, 0)
    low, high = 0, most
    # `low` rounds always fit, and the answer is at most `high`
    while low < high:
        # rounded up, so that the interval shrinks when two numbers are left
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if epsilon_of(ledger, noise, delta, middle) <= budget
            else (low, middle - 1)
        )
    return low
