"""Accounting of differential privacy, by `dp-accounting`.

- `Release`, `Ledger`: sums that the rounds of a run give away.
- `epsilon_of`, `noise_of`, `rounds_of`: of a ledger, the privacy that is spent, the noise for some of it, and how long it lasts.
"""

from fedax.privacy.accounting import Ledger as Ledger
from fedax.privacy.accounting import Release as Release
from fedax.privacy.accounting import epsilon_of as epsilon_of
from fedax.privacy.accounting import noise_of as noise_of
from fedax.privacy.accounting import rounds_of as rounds_of
