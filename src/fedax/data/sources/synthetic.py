"""Synthetic(alpha, beta): logistic models and Gaussian inputs that differ between clients."""

import random
from typing import Annotated

import numpy as np
from jaxtyping import Float
from pydantic import Field

from fedax.core import InvalidInput
from fedax.data.options import Clients, Seed, Share, Switch, validated
from fedax.examples.federated import FederatedData
from fedax.examples.overlap import train_size
from fedax.examples.ragged import Examples

FEATURES = 60
CLASSES = 10
MOST_EXAMPLES = 2**32 // (8 * FEATURES)
"""Of all clients together: 4 GB while they are drawn."""
# beyond a million, all that is drawn is rounding
Spread = Annotated[float, Field(strict=True, ge=0, lt=1e6)]


@validated
def synthetic(
    alpha: Spread = 1.0,
    beta: Spread = 1.0,
    iid: Switch = False,
    clients: Clients = 30,
    seed: Seed = 0,
    test_fraction: Share = 0.1,
) -> FederatedData:
    r"""Draws Synthetic($\alpha$, $\beta$), 60 features and 10 classes.

    For client k

    $$ n_k = 50 + \lfloor e^{4 + 2 z_k} \rfloor, \quad u_k \sim N(0, \alpha^2), \quad B_k \sim N(0,
    \beta^2), \quad
       v_k \sim N(B_k 1, I), \quad W_k, b_k \sim N(u_k, 1) \text{ per entry}, $$
    $$ x \sim N(v_k, \Sigma), \quad \Sigma_{jj} = j^{-1.2}, \qquad y = \arg\max(x W_k + b_k). $$

    The papers write $N(0, \alpha)$; their generator passes $\alpha$ and $\beta$ as standard
    deviations, which is done here. The order of the draws is the generator's: all $n$, $u$, $B$,
    $v$, then for each client W, b and its inputs. Sizes are heavy tailed, so one client may hold
    half of the data: results depend on the seed, and several should be compared.

    Args:
        alpha: spread of the clients' models, from 0 to below a million.
        beta: spread of the clients' inputs, from 0 to below a million.
        iid: one model $W, b \sim N(0, 1)$ and v = 0 for all clients; alpha and beta then have no
            effect.
        clients: 30 in FedProx, FedDANE and FedBC, 100 in q-FFL.
        seed: of everything.
        test_fraction: share of each client's shuffled examples kept for testing, in [0, 1). The
            released code has 0.1, the papers write 0.2.

    Raises:
        InvalidInput: an argument out of range, before anything is drawn.

    >>> data = synthetic(0.5, 0.5, clients=3)
    >>> data.clients, data.train[0]["x"].shape[1], int(data.sizes.min() >= 45)
    (3, 60, 1)

    Source: Li et al., Federated Optimization in Heterogeneous Networks (arXiv:1812.06127), Sec.
    5.1.
    """
    # the generator's two streams
    rng = np.random.RandomState(seed)
    shuffler = random.Random(seed)
    sizes = rng.lognormal(4, 2, clients).astype(int) + 50
    if sizes.sum() > MOST_EXAMPLES:
        got = f"{clients}, with {sizes.sum()} examples"
        allowed = f"at most {MOST_EXAMPLES} examples"
        raise InvalidInput.found("synthetic(clients=...)", got, allowed)
    if iid:
        # all clients share the model and the centre
        centres = np.zeros((clients, FEATURES))
        shared = rng.normal(0, 1, (FEATURES, CLASSES)), rng.normal(0, 1, CLASSES)
        models = [shared] * clients
    else:
        means = rng.normal(0, alpha, clients)
        shifts = rng.normal(0, beta, clients)
        centres = np.stack([rng.normal(shift, 1, FEATURES) for shift in shifts])
        models = (
            (rng.normal(mean, 1, (FEATURES, CLASSES)), rng.normal(mean, 1, CLASSES))
            for mean in means
        )
    covariance = np.diag(np.arange(1, FEATURES + 1) ** -1.2)
    train: list[Examples] = []
    test: list[Examples] = []
    # The models of a non-iid set are drawn lazily: between two of them come the inputs of a client.
    for (kernel, bias), centre, size in zip(models, centres, sizes.tolist()):
        x = rng.multivariate_normal(centre, covariance, size)
        examples = _label_and_shuffle(x, kernel, bias, shuffler)
        cut = train_size(size, test_fraction)
        train.append({key: values[:cut] for key, values in examples.items()})
        test.append({key: values[cut:] for key, values in examples.items()})
    name = "Synthetic iid" if iid else f"Synthetic({alpha:g}, {beta:g})"
    return FederatedData.from_arrays(
        train, classes=CLASSES, test=test if test_fraction else None, name=name
    )


def _label_and_shuffle(
    x: Float[np.ndarray, "examples features"],
    kernel: Float[np.ndarray, "features classes"],
    bias: Float[np.ndarray, "classes"],
    shuffler: random.Random,
) -> Examples:
    y = np.argmax(x @ kernel + bias, axis=1)
    order = list(range(len(y)))
    shuffler.shuffle(order)
    return {"x": x[order], "y": y[order]}
