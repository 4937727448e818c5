"""Accounting of differential privacy, by `dp-accounting`.

- `Release`, `Ledger`: sums that the rounds of a run give away.
- `epsilon_of`, `noise_of`, `rounds_of`: of a ledger, the privacy that is spent, the noise for some
  of it, and how long it lasts.
- `privacy_spent`, `noise_for`: of a run, before it is made.
- `epsilon_of_gaussians`: of messages with noise of several widths.
"""

from fedax.communication.accounting import Ledger as Ledger
from fedax.communication.accounting import Release as Release
from fedax.communication.accounting import epsilon_of as epsilon_of
from fedax.communication.accounting import epsilon_of_gaussians as epsilon_of_gaussians
from fedax.communication.accounting import noise_of as noise_of
from fedax.communication.accounting import rounds_of as rounds_of
from fedax.engine.driver.privacy import noise_for as noise_for
from fedax.engine.driver.privacy import privacy_spent as privacy_spent

__all__ = [
    "Ledger",
    "Release",
    "epsilon_of",
    "epsilon_of_gaussians",
    "noise_for",
    "noise_of",
    "privacy_spent",
    "rounds_of",
]
