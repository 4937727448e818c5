"""Dirichlet proportions for every class."""

from typing import Any

import numpy as np
from jaxtyping import Int

from fedax.core import DataError
from fedax.data.options import Clients, Count, Positive, Seed, validated
from fedax.data.partition.base import Partition, check_enough, labels_of

ATTEMPTS = 2000
"""Draws of a Dirichlet partition before giving up: an acceptance rate of 1 % fails with a
probability below 1e-8.
"""


@validated
def dirichlet(
    labels: Any,
    clients: Clients,
    alpha: Positive = 0.5,
    seed: Seed = 0,
    minimum: Count = 10,
) -> Partition:
    r"""Divides each class among the clients in proportions $p \sim \mathrm{Dir}(\alpha, \dots)$.

    Classes are dealt one after another; a client that already holds $n/N$ examples gets none of the
    classes that follow, and the proportions of the others are scaled to sum to one. Where rounding
    leaves an example of a class over, the last client gets it, even if it has enough. The whole
    deal is drawn again until every client holds `minimum` examples.

    Args:
        labels: one for each pooled example.
        clients: N; at least 1.
        alpha: concentration, above 0. Small: few classes for each client; large: all classes alike.
        seed: of proportions and examples.
        minimum: examples that every client holds, at least 1. The released code has the number of
            classes, 10.

    Raises:
        DataError: more is asked for than there is, or no draw of `ATTEMPTS` gave every client its
            minimum.

    >>> labels = np.repeat(np.arange(10), 50)
    >>> min(len(part) for part in dirichlet(labels, clients=5, alpha=0.3)) >= 10
    True

    Source: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks
    (arXiv:1905.12022); as in FedLab's `hetero_dir`.
    """
    labels = labels_of("dirichlet", labels)
    n = len(labels)
    check_enough("dirichlet", n, clients * minimum)
    rng = np.random.default_rng(seed)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    smallest = 0
    for _ in range(ATTEMPTS):
        counts = _dirichlet_counts(rng, [len(members) for members in classes], clients, alpha)
        if counts.sum(axis=0).min() >= minimum:
            break
        smallest = max(smallest, int(counts.sum(axis=0).min()))
    else:
        raise DataError.of(
            "dirichlet(minimum=...)",
            minimum,
            f"at most {smallest}, the most that the smallest client had in {ATTEMPTS} draws",
            "Take a larger alpha, fewer clients, or a smaller minimum.",
        )
    # pieces[class][client]
    pieces = [
        np.split(rng.permutation(members), np.cumsum(row)[:-1])
        for members, row in zip(classes, counts)
    ]
    return [rng.permutation(np.concatenate(client_pieces)) for client_pieces in zip(*pieces)]


def _dirichlet_counts(
    rng: np.random.Generator, sizes: list[int], clients: int, alpha: float
) -> Int[np.ndarray, "classes clients"]:
    """Draws how many examples of each class each client gets.

    All zero if the draw cannot be scaled.
    """
    counts = np.zeros((len(sizes), clients), dtype=int)
    for row, size in zip(counts, sizes):
        # clients with their equal share get no more
        has_room = counts.sum(axis=0) < sum(sizes) / clients
        share = rng.dirichlet(np.full(clients, alpha)) * has_room
        if share.sum() == 0:  # a tiny alpha can put all mass on a client that has enough
            return np.zeros_like(counts)
        ends = (np.cumsum(share / share.sum()) * size).astype(int)
        # rounding must not lose the last example
        ends[-1] = size
        row[:] = np.diff(ends, prepend=0)
    return counts
