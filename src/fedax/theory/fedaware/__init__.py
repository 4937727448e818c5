r"""The theory of FedAWARE: diversity of gradients, surrogate weights, drift under unequal work, and
the error of momenta.

N clients with weights $\lambda_i$ of sum 1, $f = \sum_i \lambda_i f_i$, each $f_i$ is L-smooth. A
round of `fedax.FedAWARE` steps along $d = \sum_i \tilde\lambda_i m_i$, the shortest convex
combination of the clients' momenta $m_i$, here in the scale of gradients (local updates divided by
$\eta_l K_i$).

Source: Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via Gradient Diversity
Maximization (arXiv:2310.02702).
"""

from fedax.theory.fedaware.convergence import heterogeneity as heterogeneity
from fedax.theory.fedaware.convergence import stationarity_bound as stationarity_bound
from fedax.theory.fedaware.definitions import Divergence as Divergence
from fedax.theory.fedaware.definitions import dissimilarities as dissimilarities
from fedax.theory.fedaware.definitions import divergence as divergence
from fedax.theory.fedaware.definitions import diversity as diversity
from fedax.theory.fedaware.definitions import surrogate_gradient_bound as surrogate_gradient_bound
