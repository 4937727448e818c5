r"""Ways to deal pooled examples out to clients.

A partition is a list with one array of example indices for each client. Every function here is pure: the same arguments and
seed give the same partition; every example goes to exactly one client and no client is left without.

| name | clients differ in | function |
|---|---|---|
| `iid` | nothing | `iid` |
| `index` | whatever the order of the examples holds | `by_index` |
| `quantity_skew` | size | `quantity_skew` |
| `shards` | labels | `label_shards` |
| `dirichlet` | labels and size | `dirichlet` |
| `power_law` | labels and size | `power_law` |
"""

import inspect
import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int, Integer

from fedax.core import DataError, InvalidInput, UnknownName
from fedax.data.limits import CLIENTS, SEED, check, checked, real, whole

Partition: TypeAlias = list[Int[np.ndarray, "_"]]
"""For each client the indices of its examples."""

ATTEMPTS = 2000
"""Draws of a Dirichlet partition before giving up: an acceptance rate of 1 % fails with a probability below 1e-8."""


@checked(n=whole(low=1), clients=CLIENTS, seed=SEED)
def iid(n: int, clients: int, seed: int = 0) -> Partition:
    """`n` examples dealt at random, in sizes that differ by at most one.

    >>> sorted(len(part) for part in iid(10, clients=3))
    [3, 3, 4]

    Raises:
        InvalidInput: an argument out of range, or more clients than examples (a `DataError`).
    """
    _enough("iid", n, clients)
    return np.array_split(np.random.default_rng(seed).permutation(n), clients)


@checked(n=whole(low=1), clients=CLIENTS)
def by_index(n: int, clients: int) -> Partition:
    """`n` examples cut into contiguous blocks in their order, in sizes that differ by at most one, the larger ones first.

    >>> [part.tolist() for part in by_index(5, clients=2)]
    [[0, 1, 2], [3, 4]]
    """
    _enough("by_index", n, clients)
    return np.array_split(np.arange(n), clients)


@checked(n=whole(low=1), clients=CLIENTS, sigma=real(low=0), seed=SEED)
def quantity_skew(n: int, clients: int, sigma: float | int = 1.0, seed: int = 0) -> Partition:
    r"""`n` examples dealt at random, in sizes proportional to $e^{\sigma z_k}$ with $z_k$ standard normal, up to rounding.

    Clients see the same distribution, but not equally much of it. One example for each client is set aside first.

    Args:
        n: pooled examples.
        clients: at most n.
        sigma: standard deviation of the logarithm of the sizes, at least 0; equal sizes at 0.
        seed: of sizes and examples.

    >>> [len(part) for part in quantity_skew(10, clients=2, sigma=0.0)]
    [5, 5]
    """
    _enough("quantity_skew", n, clients)
    rng = np.random.default_rng(seed)
    exponents = sigma * rng.standard_normal(clients)
    weights = np.exp(exponents - exponents.max())
    ends = np.rint(np.cumsum(weights) / weights.sum() * (n - clients)).astype(int) + np.arange(1, clients + 1)
    return np.split(rng.permutation(n), ends[:-1])


@checked(clients=CLIENTS, shards_per_client=whole(low=1), seed=SEED)
def label_shards(
    labels: Integer[np.ndarray, "examples"], clients: int, shards_per_client: int = 2, seed: int = 0
) -> Partition:
    """Examples sorted by label, cut into equal shards (sizes differ by at most one), and the shards dealt at random.

    Args:
        labels: one for each pooled example.
        clients: at least 1.
        shards_per_client: about the number of classes a client sees; clients times shards are at most the examples.
        seed: of the deal.

    >>> labels = np.repeat(np.arange(4), 5)
    >>> [sorted(set(labels[part].tolist())) for part in label_shards(labels, clients=4, shards_per_client=1)]
    [[2], [0], [1], [3]]

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, Sec. 3
    (arXiv:1602.05629).
    """
    count = clients * shards_per_client
    _enough("label_shards", len(labels), count, f"{clients} clients x {shards_per_client} shards")
    shards = np.array_split(np.argsort(labels, kind="stable"), count)
    deal = np.random.default_rng(seed).permutation(count).reshape(clients, shards_per_client)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in deal]


@checked(clients=CLIENTS, alpha=real(low=0, open_low=True), seed=SEED, minimum=whole(low=1))
def dirichlet(
    labels: Integer[np.ndarray, "examples"], clients: int, alpha: float | int = 0.5, seed: int = 0, minimum: int = 10
) -> Partition:
    r"""Each class is divided among the clients in proportions $p \sim \mathrm{Dir}(\alpha, \dots, \alpha)$.

    Classes are dealt one after another; a client that already holds $n/N$ examples gets none of the classes that follow, and
    the proportions of the others are scaled to sum to one. The whole deal is drawn again until every client holds `minimum`
    examples.

    Args:
        labels: one for each pooled example.
        clients: N; at least 1.
        alpha: concentration, above 0. Small: few classes for each client; large: all classes alike.
        seed: of proportions and examples.
        minimum: examples that every client holds, at least 1. The released code has the number of classes, 10.

    Raises:
        DataError: more is asked for than there is, or no draw of `ATTEMPTS` gave every client its minimum.

    >>> labels = np.repeat(np.arange(10), 50)
    >>> min(len(part) for part in dirichlet(labels, clients=5, alpha=0.3)) >= 10
    True

    Source: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks (arXiv:1905.12022); as in FedLab's
    `hetero_dir`.
    """
    n = len(labels)
    _enough("dirichlet", n, clients * minimum, f"{clients} clients x a minimum of {minimum}")
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
            f"what a draw can reach: in {ATTEMPTS} draws with alpha={alpha} and {clients} clients the smallest client never "
            f"had more than {smallest} of {n} examples",
            "Take a larger alpha, fewer clients, or a smaller minimum.",
        )
    pieces = [np.split(rng.permutation(members), np.cumsum(row)[:-1]) for members, row in zip(classes, counts)]
    return [rng.permutation(np.concatenate(parts)) for parts in zip(*pieces)]


def _dirichlet_counts(
    rng: np.random.Generator, sizes: list[int], clients: int, alpha: float | int
) -> Int[np.ndarray, "classes clients"]:
    """How many examples of each class each client gets in one draw; all zero if the draw cannot be scaled."""
    counts = np.zeros((len(sizes), clients), dtype=int)
    for row, size in zip(counts, sizes):
        open_to = counts.sum(axis=0) < sum(sizes) / clients
        share = rng.dirichlet(np.full(clients, float(alpha))) * open_to
        if share.sum() == 0:  # a tiny alpha can put all mass on a client that has enough
            return np.zeros_like(counts)
        ends = (np.cumsum(share / share.sum()) * size).astype(int)
        ends[-1] = size
        row[:] = np.diff(ends, prepend=0)
    return counts


@checked(clients=CLIENTS, classes_per_client=whole(low=1), ratio=real(low=1), seed=SEED)
def power_law(
    labels: Integer[np.ndarray, "examples"],
    clients: int,
    classes_per_client: int = 2,
    ratio: float | int = 1.2,
    seed: int = 0,
) -> Partition:
    r"""Sizes grow by a constant ratio from client to client; most clients hold few classes, the largest more.

    With ratio a and N clients, client k = 1, ..., N gets $\lfloor a^k b \rfloor$ examples,
    $b = \lfloor n / \sum_{k=1}^N a^k \rfloor$; what the rounding leaves goes to the clients from the largest down, to each
    $\lceil r / a \rceil$ of the r still left. From the smallest client up, each goes through the classes in random order and
    takes at most $\lceil \text{size} / C \rceil$ examples of each, the first still free, until it is full. Should that leave
    examples over, they fill the room of the clients from the largest down, $\lceil r / a \rceil$ of the r left in a class.

    A client's examples stay in blocks of one class, in the order they were taken. The released code of FedBC tests on the
    last fifth of them, which is `split="in_order"`: the tested classes are then not those trained on.

    Args:
        labels: one for each pooled example.
        clients: N; at least 1. The last one is the largest.
        classes_per_client: C, from 1 to the number of classes; clients hold more where classes run out.
        ratio: a, at least 1; limited by $\sum_k a^k \le n$.
        seed: of the order of the classes.

    >>> [len(part) for part in power_law(np.arange(70) % 10, clients=3, ratio=2.0)]
    [10, 20, 40]

    Source: Stripelis and Ambite, Accelerating Federated Learning in Heterogeneous Data and Computational Environments
    (arXiv:2008.11281), as in the released code of Bedi et al., FedBC (arXiv:2206.10815), Tables 4 and 5.
    """
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        allowed = f"at most {len(classes)}, the classes there are"
        raise DataError.of("power_law(classes_per_client=...)", classes_per_client, allowed)
    room = _power_law_sizes(len(labels), clients, ratio)
    free = [np.flatnonzero(labels == label) for label in classes]
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]

    def take(client: int, kind: int, most: int) -> None:
        count = min(most, room[client], len(free[kind]))
        parts[client].append(free[kind][:count])
        free[kind] = free[kind][count:]
        room[client] -= count

    shuffler, order = random.Random(seed), list(range(len(classes)))
    for client in range(clients):
        shuffler.shuffle(order)  # the running list is shuffled, not a fresh one: as the released code draws
        most = math.ceil(room[client] / classes_per_client)
        for kind in order:
            take(client, kind, most)
    while any(room):
        for client in reversed(range(clients)):
            for kind in range(len(classes)):
                take(client, kind, math.ceil(len(free[kind]) / ratio))
    return [np.concatenate(chosen) for chosen in parts]


def _power_law_sizes(n: int, clients: int, ratio: float | int) -> list[int]:
    with np.errstate(over="ignore"):
        powers = np.power(float(ratio), np.arange(1, clients + 1))
        base = math.floor(n / powers.sum())
    if base < 1:
        raise DataError.of(
            "power_law(ratio=...)",
            ratio,
            f"ratios whose powers up to {clients}, the number of clients, sum to at most {n}, the number of examples",
            "Take a smaller ratio or fewer clients.",
        )
    sizes = [math.floor(power * base) for power in powers.tolist()]
    left = n - sum(sizes)
    while left:
        for client in reversed(range(clients)):
            piece = math.ceil(left / ratio)
            sizes[client] += piece
            left -= piece
    return sizes


def _enough(owner: str, examples: int, needed: int, why: str = "") -> None:
    """Refuses at once what cannot be dealt without empty shares."""
    if needed > examples:
        asked = why or f"{needed} clients"
        raise DataError.of(f"{owner}(clients=...)", asked, f"at most as many as there are examples, {examples}")


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "index": by_index,
    "quantity_skew": quantity_skew,
    "shards": label_shards,
    "dirichlet": dirichlet,
    "power_law": power_law,
}
"""By the name that tasks and experiment files use."""


def partition_options(name: str) -> dict[str, Any]:
    """The options of a named partition, beside clients and seed, with their defaults.

    >>> partition_options("dirichlet")
    {'alpha': 0.5, 'minimum': 10}
    """
    if name not in PARTITIONS:
        raise UnknownName.among("partition", name, PARTITIONS)
    parameters = inspect.signature(PARTITIONS[name]).parameters
    return {key: p.default for key, p in parameters.items() if key not in ("n", "labels", "clients", "seed")}


def check_partition(name: str, clients: int, seed: int, **options: Any) -> None:
    """Checks a named partition and its options before there are any data.

    Raises:
        UnknownName: no such partition, or not an option of it; with the nearest name.
        InvalidInput: an option out of range.
    """
    known = partition_options(name)
    for key, value in options.items():
        if not known:
            raise InvalidInput.of(f"partition {name!r} ({key}=...)", value, "no options")
        if key not in known:
            raise UnknownName.among(f"option of partition {name!r}", key, known)
    function: Any = PARTITIONS[name]
    check(function.__name__, function.limits, {"clients": clients, "seed": seed, **options})


def partition_by(
    name: str, labels: Integer[np.ndarray, "examples"], clients: int, seed: int = 0, **options: Any
) -> Partition:
    """The partition of that name in `PARTITIONS`, with its own options.

    >>> [len(part) for part in partition_by("shards", np.arange(20) % 10, clients=5, shards_per_client=1)]
    [4, 4, 4, 4, 4]

    Raises:
        InvalidInput: as `check_partition`; or a `DataError` if the examples do not suffice.
    """
    check_partition(name, clients, seed, **options)
    function = PARTITIONS[name]
    takes = inspect.signature(function).parameters
    drawn = {"seed": seed} if "seed" in takes else {}
    return function(len(labels) if "n" in takes else labels, clients=clients, **drawn, **options)
