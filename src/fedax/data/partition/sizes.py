"""Partitions that do not look at labels."""

from typing import Any

import numpy as np
from jaxtyping import Int

from fedax.core import DataError
from fedax.data.options import Clients, Count, NonNegative, Seed, validated
from fedax.data.partition.base import Partition, check_enough
from fedax.examples.client_names import grouped_by_name


@validated
def iid(n: Count, clients: Clients, seed: Seed = 0) -> Partition:
    """Deals `n` examples at random, by `seed`, to `clients`, in sizes within one of each other.

    >>> sorted(len(part) for part in iid(10, clients=3))
    [3, 3, 4]

    Raises:
        InvalidInput: an argument out of range, or more clients than examples (a `DataError`).
    """
    check_enough("iid", n, clients)
    return np.array_split(np.random.default_rng(seed).permutation(n), clients)


@validated
def by_index(n: Count, clients: Clients) -> Partition:
    """Cuts `n` examples into contiguous blocks, in sizes that differ by at most one.

    The larger blocks come first.

    >>> [part.tolist() for part in by_index(5, clients=2)]
    [[0, 1, 2], [3, 4]]
    """
    check_enough("by_index", n, clients)
    return np.array_split(np.arange(n), clients)


@validated
def quantity_skew(
    n: Count, clients: Clients, sigma: NonNegative = 1.0, seed: Seed = 0
) -> Partition:
    r"""Deals `n` examples at random, in sizes proportional to $e^{\sigma z_k}$.

    $z_k$ is standard normal; sizes are rounded.

    Clients see the same distribution, but not equally much of it. One example for each client is
    set aside first.

    Args:
        n: pooled examples.
        clients: at most n.
        sigma: standard deviation of the logarithm of the sizes, at least 0; equal sizes at 0.
        seed: of sizes and examples.

    >>> [len(part) for part in quantity_skew(10, clients=2, sigma=0.0)]
    [5, 5]
    """
    check_enough("quantity_skew", n, clients)
    rng = np.random.default_rng(seed)
    exponents = sigma * rng.standard_normal(clients)
    # the largest exponent is 0, so that nothing overflows
    weights = np.exp(exponents - exponents.max())
    # the one example of each client that was set aside: + 1, 2, ...
    ends = np.rint(np.cumsum(weights) / weights.sum() * (n - clients)).astype(int) + np.arange(
        1, clients + 1
    )
    return np.split(rng.permutation(n), ends[:-1])


@validated
def by_user(users: Any, minimum: Count = 1) -> Partition:
    """Makes one client for each user, in ascending order of their ids.

    `user2` comes before `user10`; examples keep their order.

    Args:
        users: the id of each example's user, numbers or text.
        minimum: users with fewer examples are left out, and their examples with them.

    Raises:
        DataError: no user has `minimum` examples; an example without a user.

    >>> [part.tolist() for part in by_user(np.array([7, 3, 7, 5]))]
    [[1], [3], [0, 2]]
    >>> [part.tolist() for part in by_user(np.array(["b", "a", "b"]), minimum=2)]
    [[0, 2]]
    """
    return list(named_users(users, minimum).values())


def named_users(
    users: Any, minimum: int = 1, where: str = "by_user(users=...)"
) -> dict[str, Int[np.ndarray, "_"]]:
    """Returns the examples of each user by name; see `by_user`. `where` names the users in
    messages.
    """
    names, owner = grouped_by_name(users, where)
    if not names:
        raise DataError.found(where, "no example", "the users of some examples")
    counts = np.bincount(owner, minlength=len(names))
    partition = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    rows_by_user = {
        name: rows for name, rows in zip(names, partition, strict=True) if len(rows) >= minimum
    }
    if not rows_by_user:
        allowed = f"numbers up to {counts.max(initial=0)}, the examples of the largest user"
        raise DataError.of("by_user(minimum=...)", minimum, allowed)
    return rows_by_user
