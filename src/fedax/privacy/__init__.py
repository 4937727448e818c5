"""Accounting of differential privacy, by `dp-accounting`.

- `Release`, `Ledger`: sums that the rounds of a run give away.
- `epsilon_of`, `noise_of`, `rounds_of`: of a ledger, the privacy that is spent, the noise for some of it, and how long it lasts.
- `epsilon_of_gaussians`: of messages with noise of several widths.
"""

from fedax.privacy.accounting import Ledger as Ledger
from fedax.privacy.accounting import Release as Release
from fedax.privacy.accounting import epsilon_of as epsilon_of
from fedax.privacy.accounting import epsilon_of_gaussians as epsilon_of_gaussians
from fedax.privacy.accounting import noise_of as noise_of
from fedax.privacy.accounting import rounds_of as rounds_of
