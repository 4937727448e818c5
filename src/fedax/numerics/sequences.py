"""Sequences of mixing matrices: rows of weights for each round."""

from collections.abc import Iterable, Sequence

import numpy as np

Rows = list[dict[int, float]]
"""For each client the weights of itself and of its neighbours."""

Step = dict[int, dict[int, float]]
"""The rows of one round, without those of clients that keep what they have."""


def average_rows(senders: list[list[int]]) -> Rows:
    """Returns rows in which everybody averages what it hears, from the senders to each client."""
    return [dict.fromkeys([i, *heard], 1 / (1 + len(heard))) for i, heard in enumerate(senders)]


def divide_rows(senders: list[list[int]]) -> Rows:
    """Returns rows in which everybody divides what it has among those it sends to, from the senders
    to each client.
    """
    receivers = [sum(i in heard for heard in senders) for i in range(len(senders))]
    return [{j: 1 / (1 + receivers[j]) for j in [i, *heard]} for i, heard in enumerate(senders)]


def matchings(clients: int, period: int, rng: np.random.Generator) -> list[Rows]:
    """Returns rows of random pairs who average, for each round."""
    steps = list[Rows]()
    for _ in range(period):
        order = rng.permutation(clients).tolist()
        partner = dict(zip(order[0::2], order[1::2], strict=False))
        partner |= {j: i for i, j in partner.items()}
        steps.append(average_rows([[partner[i]] if i in partner else [] for i in range(clients)]))
    return steps


def random_receivers(
    clients: int, degree: int, period: int, rng: np.random.Generator
) -> list[Rows]:
    """Returns rows of clients who divide what they have among `degree` random others, for each
    round.
    """
    steps = list[Rows]()
    for _ in range(period):
        senders: list[list[int]] = [[] for _ in range(clients)]
        for sender in range(clients):
            for k in rng.choice(clients - 1, degree, replace=False).tolist():
                senders[k + (k >= sender)].append(sender)
        steps.append(divide_rows(senders))
    return steps


def one_peer_exponential(clients: int) -> list[Rows]:
    """Returns rows of clients who hear one other, 1, 2, 4, ... places before them on a ring."""
    hops = [2**t for t in range(max((clients - 1).bit_length(), 1))]
    return [
        average_rows([[(i - hop) % clients] * (clients > 1) for i in range(clients)])
        for hop in hops
    ]


def base_k(clients: int, k: int) -> list[Rows]:
    """Returns rows of the Base-(k+1) graph, whose product over all rounds is the mean.

    A factor of the number of clients without prime factors above k + 1 is averaged over at the end,
    by hypercubes. Before that each of the equal groups that remain takes its mean, by
    `_simple_base`. Where the latter needs fewer rounds for all clients at once, it is used alone.
    """
    groups = clients // _remainder(clients, k + 1)
    size, simple = clients // groups, _simple_base(range(clients), k)
    within = [_simple_base(range(i, i + size), k) for i in range(0, clients, size)]
    across = [_hypercube(range(i, clients, size), k + 1) for i in range(size)]
    split = [
        _merge(step) for subgraphs in (within, across) for step in zip(*subgraphs, strict=True)
    ]
    steps = split if len(split) <= len(simple) else simple
    return [[step.get(i, {i: 1.0}) for i in range(clients)] for step in steps or [{}]]


def _remainder(number: int, most: int) -> int:
    """Returns what is left of a number without its prime factors up to `most`."""
    for factor in range(2, most + 1):
        while number % factor == 0:
            number //= factor
    return number


def _hypercube(nodes: range, most: int) -> list[Step]:
    """Returns the hypercube whose edges have up to `most` nodes, one dimension in each round.

    The number of nodes has no prime factor above `most`. After all rounds every node has the mean.
    """
    steps, stride, remaining = list[Step](), 1, len(nodes)
    for factor in range(most, 1, -1):
        while remaining % factor == 0:
            starts = (i for i in range(len(nodes)) if i // stride % factor == 0)
            steps.append(_means(nodes[i : i + stride * factor : stride] for i in starts))
            stride, remaining = stride * factor, remaining // factor
    return steps


def _simple_base(nodes: range, k: int) -> list[Step]:
    """Returns the simple Base-(k+1) graph: the mean of all nodes within 2 log(n) + 2 rounds.

    The digits of the number of nodes in base k + 1 divide them into parts, largest first, each of
    several blocks whose size is a power of k + 1. First every part takes its mean. Then, part by
    part, all smaller parts meet the present one, in such a way that each of its blocks has the mean
    of all afterwards, and the blocks take their means.
    """
    if _remainder(len(nodes), k + 1) == 1:
        return _hypercube(nodes, k + 1)
    groups, widths, begin, width = list[range](), list[int](), 0, 1
    while width * (k + 1) <= len(nodes):
        width *= k + 1
    while begin < len(nodes):
        if size := (len(nodes) - begin) // width * width:
            groups.append(nodes[begin : begin + size])
            widths.append(width)
        begin, width = begin + size, width // (k + 1)
    cubes = [_hypercube(group, k + 1) for group in groups]
    # a part of blocks of one node goes on with its own mean
    blocks = [
        [_merge(step) for step in zip(*(_hypercube(b, k + 1) for b in _cut(group, width)))]
        if width > 1
        else cube
        for group, width, cube in zip(groups, widths, cubes, strict=True)
    ]
    steps = [_merge(_pick_step(cube, t) for cube in cubes) for t in range(len(cubes[0]))]
    last = len(groups) - 1
    for t in range(1 + len(blocks[0])):
        met = {} if t >= last else _meeting(groups[t:], widths[t], k + 1)
        done = [_pick_step(blocks[i], t - i - 1) for i in range(min(t, last))]
        done += [_pick_step(blocks[last], t - last)] if t >= last else []
        steps.append(_merge([*done, met]))
    return steps


def _meeting(groups: list[range], width: int, most: int) -> Step:
    """Returns the round in which all nodes of later parts meet the first part.

    Every one of them hears one node of each block of the first part, and is heard by it. The nodes
    of the first part that are left, which all hold the same, average in groups.
    """
    first, others = groups[0], [i for group in groups[1:] for i in group]
    blocks = _cut(first, width)
    share = len(first) / (len(first) + len(others))
    link = share / len(blocks)
    step: Step = {}
    for index, i in enumerate(others):
        step[i] = {i: 1 - share} | {block[index]: link for block in blocks}
        step |= {block[index]: {block[index]: 1 - link, i: link} for block in blocks}
    leftover = [i for block in blocks for i in block[len(others) :]]
    return step | _means(leftover[i : i + most] for i in range(0, len(leftover), most))


def _means(groups: Iterable[Sequence[int]]) -> Step:
    return {i: dict.fromkeys(group, 1 / len(group)) for group in groups for i in group}


def _merge(steps: Iterable[Step]) -> Step:
    return {i: row for step in steps for i, row in step.items()}


def _pick_step(steps: list[Step], t: int) -> Step:
    return steps[t % len(steps)] if steps else {}


def _cut(nodes: range, width: int) -> list[range]:
    return [nodes[i : i + width] for i in range(0, len(nodes), width)]
