r"""The theory of decentralized FedAvg with momentum: drift, consensus, rates, step sizes, and when
fewer bits pay.

m clients train K steps of size $\eta$ with momentum $\theta$ between two exchanges over a mixing
matrix whose second largest eigenvalue is $\lambda$ in absolute value; $f = \frac1m \sum_i f_i$,
each $f_i$ is L-smooth. All start at one point.

Three steps of the paper's proofs do not hold, and what is proved here differs; each function says

1. Lemma 4 bounds $\sum_j \lambda^{t-1-j}$ twice by $\frac{1}{1-\lambda}$ and keeps one of them.
2. Eq. (18) drops $\theta^2 (y^{K-1} - y^{K-2})$. A gradient of step k acts with
   $\frac{1 - \theta^{K-k}}{1 - \theta}$, so that K steps act like `effective_steps`, not like
   $\frac{K-\theta}{1-\theta}$.
3. The proof of Theorem 1 applies Lemma 3, on $\lVert y^{t,k}(i) - x^t(i) \rVert$, to
   $\lVert y^{t,k}(i) - \bar x^t \rVert$.

Source: Sun, Li, Wang, Decentralized Federated Averaging (arXiv:2104.11375).
"""

from fedax.theory.dfedavgm.bounds import Constants as Constants
from fedax.theory.dfedavgm.bounds import Rounding as Rounding
from fedax.theory.dfedavgm.bounds import Setting as Setting
from fedax.theory.dfedavgm.bounds import consensus_bound as consensus_bound
from fedax.theory.dfedavgm.bounds import constants as constants
from fedax.theory.dfedavgm.bounds import effective_steps as effective_steps
from fedax.theory.dfedavgm.bounds import pl_bound as pl_bound
from fedax.theory.dfedavgm.bounds import stationarity_bound as stationarity_bound
from fedax.theory.dfedavgm.choices import best_step_size as best_step_size
from fedax.theory.dfedavgm.choices import bit_threshold as bit_threshold
from fedax.theory.dfedavgm.choices import largest_step_size as largest_step_size
