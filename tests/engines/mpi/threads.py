"""A communicator whose ranks are threads of this process: what the engine asks of mpi4py, without a
launcher."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor


class Request:
    def __init__(self, arrived):
        self.arrived = arrived

    def Test(self):
        return self.arrived()


class Shared:
    """One per communicator. Every collective call of a rank has a number; calls of the same number
    belong together."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Condition()
        self.calls = {}

    def arrive(self, number, kind, rank, value):
        with self.lock:
            kinds, values = self.calls.setdefault(number, (set(), {}))
            kinds.add(kind)
            values[rank] = pickle.dumps(value)
            self.lock.notify_all()
        return lambda: len(values) == self.size

    def all(self, number, kind, rank, value):
        arrived = self.arrive(number, kind, rank, value)
        with self.lock:
            if not self.lock.wait_for(arrived, timeout=20):
                raise TimeoutError(f"rank {rank} waits for the others in {kind}")
        kinds, values = self.calls[number]
        assert len(kinds) == 1, f"ranks are in different calls: {kinds}"
        return [pickle.loads(values[rank]) for rank in range(self.size)]


class Comm:
    def __init__(self, shared, rank):
        self.shared = shared
        self.rank = rank
        self.size = shared.size
        self.count = 0

    def __eq__(self, other):
        return isinstance(other, Comm) and self.shared is other.shared and self.rank == other.rank

    def __hash__(self):
        return hash((id(self.shared), self.rank))

    def all(self, kind, value):
        self.count += 1
        return self.shared.all(self.count, kind, self.rank, value)

    def allgather(self, value):
        return self.all("allgather", value)

    def allreduce(self, value):
        return sum(self.all("allreduce", value))

    def bcast(self, value):
        return self.all("bcast", value)[0]

    def gather(self, value):
        values = self.all("gather", value)
        return None if self.rank else values

    def scatter(self, values):
        return self.all("scatter", values)[0][self.rank]

    def Abort(self, code):
        """Nothing: the rank's error ends its thread."""

    def Ibarrier(self):
        self.count += 1
        return Request(self.shared.arrive(self.count, "Ibarrier", self.rank, None))

    def alltoall(self, values):
        return [row[self.rank] for row in self.all("alltoall", values)]


def on_ranks(size, work):
    """For each rank, what `work(comm)` returns or raises."""
    shared = Shared(size)

    def one(rank):
        try:
            return work(Comm(shared, rank))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
