"""PyTorch by hand, a process with one thread for each core: each trains its part of the cohort, and
they average.

torch_.py [--compiled] FILE
"""

import contextlib
import os
import sys

import numpy as np
import torch
import torch.multiprocessing as processes
from serving import serve
from torch_models import local_steps, network, tensors, to_vector


def parts(sizes, count):
    """Places of a cohort for each process, the largest clients first, each to whoever has least to
    do."""
    given = [[] for _ in range(count)]
    load = np.zeros(count)
    for place in np.argsort(-sizes, kind="stable"):
        least = int(load.argmin())
        given[least].append(int(place))
        load[least] += sizes[place]
    return given


class Member:
    """One of the processes: a model of its own, and the sums of all in shared memory."""

    def __init__(self, work, rank, compiled, shared, barrier):
        torch.set_num_threads(1)
        self.work = work
        self.rank = rank
        self.shared = shared
        self.barrier = barrier
        self.model = network(work)
        (self.x, self.y) = tensors(work)
        self.compiled = torch.compile(self.model, dynamic=False) if compiled else None
        self.parameters = list(self.model.parameters())
        self.initial = self.packed()

    @torch.no_grad()
    def packed(self):
        return torch.cat([parameter.reshape(-1) for parameter in self.parameters])

    @torch.no_grad()
    def take(self, vector):
        pieces = vector.split([parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.copy_(piece.view(parameter.shape))

    def train(self, rounds):
        received = self.initial
        for t in range(rounds):
            sizes = self.work.sizes[self.work.cohorts[t]]
            total = torch.zeros_like(received)
            for place in parts(sizes, len(self.shared))[self.rank]:
                self.take(received)
                batches = self.work.batches(t, place)
                local_steps(self.model, self.x, self.y, batches, self.work.rate, self.compiled)
                total.add_(self.packed(), alpha=float(sizes[place] / sizes.sum()))
            self.shared[self.rank].copy_(total)
            self.barrier.wait()
            received = self.shared.sum(0)
            self.barrier.wait()
        self.take(received)
        return to_vector(self.work, self.parameters)


def other(work, rank, compiled, shared, barrier, orders):
    member = Member(work, rank, compiled, shared, barrier)
    with contextlib.suppress(EOFError):  # the first process ends
        while True:
            member.train(orders.recv())


def prepare(work):
    compiled = "--compiled" in sys.argv
    count = os.cpu_count()
    context = processes.get_context("spawn")
    shared = torch.zeros(count, len(work.initial)).share_memory_()
    barrier = context.Barrier(count)
    ends = []
    for rank in range(1, count):
        end, theirs = context.Pipe()
        context.Process(
            target=other, args=(work, rank, compiled, shared, barrier, theirs), daemon=True
        ).start()
        ends.append(end)
    member = Member(work, 0, compiled, shared, barrier)

    def train(rounds):
        for end in ends:
            end.send(rounds)
        return member.train(rounds)

    return train


if __name__ == "__main__":
    serve(prepare)
