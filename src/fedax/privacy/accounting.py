"""Accounting of privacy that is spent, by the Renyi accountant of `dp-accounting`."""

import functools
import logging
import math
from typing import Any, NamedTuple

from fedax.core.errors import FedaxError, InvalidInput


class Release(NamedTuple):
    """Sums of one draw of clients that are made public with Gaussian noise.

    Attributes:
        rate: the probability with which each client is drawn, independently of the others; 1 where no amplification holds.
        times: how many of the draw's sums.
    """

    rate: float
    times: int


class Ledger(NamedTuple):
    """The releases of a run.

    Attributes:
        first: in its first round.
        later: in every other one.
        halved: whether the neighbouring inputs are any two of a client (local privacy), which may differ by twice a bound.
    """

    first: tuple[Release, ...]
    later: tuple[Release, ...]
    halved: bool = False

    def event(self, noise: float, rounds: int) -> Any:
        """The rounds as an event of `dp-accounting`.

        >>> print(Ledger((Release(0.5, 1),), (Release(0.5, 1),)).event(1.5, 10).count)
        10
        """
        dp = _dp()

        def of(releases: tuple[Release, ...]) -> list[Any]:
            found = []
            for release in releases:
                gaussian = dp.GaussianDpEvent(noise / 2 if self.halved else noise)
                composed = gaussian if release.times == 1 else dp.SelfComposedDpEvent(gaussian, release.times)
                found.append(composed if release.rate >= 1 else dp.PoissonSampledDpEvent(release.rate, composed))
            return found

        def whole(events: list[Any]) -> Any:
            return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)

        if self.first == self.later:
            return dp.SelfComposedDpEvent(whole(of(self.later)), rounds)
        rest = [dp.SelfComposedDpEvent(whole(of(self.later)), rounds - 1)] if rounds > 1 else []
        return dp.ComposedDpEvent([*of(self.first), *rest])


def _dp() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        hint = 'pip install "fedax[privacy]"'
        raise FedaxError(f"accounting of privacy needs dp-accounting ({error}). Try: {hint}.") from error
    return dp_accounting


@functools.lru_cache(maxsize=4096)
def epsilon_of(ledger: Ledger, noise: float, delta: float, rounds: int) -> float:
    """The privacy that some rounds have spent, with neighbours that differ in one client.

    >>> round(epsilon_of(Ledger((Release(1.0, 1),), (Release(1.0, 1),)), 5.0, 1e-5, 1), 2)
    0.79
    """
    if not rounds:
        return 0.0
    if not noise:
        return math.inf
    event = ledger.event(noise, rounds)
    from dp_accounting.rdp import RdpAccountant

    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # a warning for each order that it leaves out, which makes the bound no smaller
    try:
        return float(RdpAccountant().compose(event).get_epsilon(delta))
    finally:
        log.setLevel(level)


def noise_of(ledger: Ledger, epsilon: float, delta: float, rounds: int) -> float:
    """The least noise multiplier with which some rounds spend at most so much, to a relative 1e-3.

    Args:
        ledger: of the releases of a round.
        epsilon: the budget, above 0.
        delta: in (0, 1).
        rounds: at least 1.

    Raises:
        InvalidInput: no privacy that could be spent.
    """
    if not 0 < epsilon < math.inf:
        raise InvalidInput.of("epsilon", epsilon, "finite numbers > 0")
    low, high = 0.0, 1.0
    while epsilon_of(ledger, high, delta, rounds) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(ledger, middle, delta, rounds) > epsilon else (low, middle)
    return high


def rounds_of(ledger: Ledger, noise: float, delta: float, budget: float, most: int) -> int:
    """The most rounds, up to `most`, that spend no more than a budget.

    Args:
        ledger: of the releases of a round.
        noise: the noise multiplier, above 0.
        delta: in (0, 1).
        budget: epsilon, above 0.
        most: where to stop.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if epsilon_of(ledger, noise, delta, middle) <= budget else (low, middle - 1)
    return low
