"""FedMGDA+: multi-objective descent over the clients of a round."""

import jax.numpy as jnp

from fedax.core import Algorithm, Citation, Client, Federation, Scalar, Upload, Vector, hyper
from fedax.numerics.simplex import min_norm
from fedax.utils.norms import scale_of, unit


class FedMGDA(Algorithm[Vector]):
    r"""FedMGDA+: the shortest combination of the normalised updates, near the usual weights.

    $$ g_k = \frac{w - w_k}{\lVert w - w_k \rVert}, \qquad
       \lambda = \arg\min \Big\lVert \sum_{k \in S} \lambda_k g_k \Big\rVert^2 \text{ over }
       \lambda \in \Delta, \; |\lambda_k - \lambda^0_k| \le \varepsilon, \qquad
       w \leftarrow w - \eta \sum_{k \in S} \lambda_k g_k, $$

    with $\lambda^0$ the cohort's weights. $\varepsilon = 0$ is FedAvg of normalised updates,
    $\varepsilon = 1$ plain MGDA. An update of zero stays zero.

    Args:
        lr: $\eta$, above 0; the length of the step is at most $\eta$.
        epsilon: how far weights may be from the cohort's, in [0, 1].

    Example:
        >>> import fedax
        >>> method = fedax.FedMGDA(lr=0.5, epsilon=0.1)

    Source: Hu et al., Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022
    (arXiv:2006.11489), Alg. 1, eq. (9), as in github.com/SMILELab-FL/FedLab
    (contrib/algorithm/fedmgda+.py), which is not the authors' code and has $\varepsilon = 1$.
    """

    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")
    epsilon: Scalar = hyper(0.1, low=0.0, high=1.0, doc="distance of weights to the cohort's")

    citation = Citation(
        paper="Hu et al., Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022 "
        "(arXiv:2006.11489)",
        read=("others' code",),
        equation="Alg. 1, eq. (9)",
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        sent = fed.gather(self.train, fed.sample(), state)
        # 1 for unit vectors; squares of what a hostile client sends fit, and so do those of others
        size = scale_of(jnp.where(sent.valid[:, None], sent.value, 0))
        most = 2.0 ** min(40, int(jnp.finfo(size.dtype).maxexp) // 3)
        scale = jnp.where(size > 1, size / most, 1)
        scaled = sent.value / scale
        best = min_norm(scaled @ scaled.T, sent.valid, sent.shares(), self.epsilon)
        fed.log(gap=best.gap * scale**2)
        return state - self.lr * (best.weights @ sent.value)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(unit(w - client.minimize(start=w)))
