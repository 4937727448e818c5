"""A small federation for tests of the Flower engine: four clients of equal sizes, and a grid that
loses and spoils answers."""

import numpy as np

import fedax
from fedax.flower.client.worker import Worker
from fedax.flower.protocol.plan import Assignment
from fedax.flower.protocol.records import LEAVES
from fedax.flower.server import Flower
from fedax.flower.server.in_process import LocalGrid
from problems import vector

CLIENTS = 4
SIZE = 6
SOLVER = fedax.SGD(0.05)
SCHEDULE = fedax.Schedule(cohort=3, epochs=2, batch_size=3)
EVERYONE = fedax.Schedule(epochs=2, batch_size=3)


def squares(params, examples):
    return (examples["x"] @ params["w"] + params["b"] - examples["y"]) ** 2 / 2


def examples(clients=CLIENTS, dtype=float):
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.normal(size=(SIZE, 3)).astype(dtype),
            "y": (rng.normal(size=SIZE) + k).astype(dtype),
        }
        for k in range(clients)
    ]


def task(clients=CLIENTS, dtype=float):
    start = {"b": np.zeros((), dtype), "w": np.full(3, 0.1, dtype)}
    return fedax.Task(
        start,
        squares,
        fedax.FederatedData.from_arrays(examples(clients, dtype), test=examples(clients, dtype)),
        l2=0.01,
        # also the name of what the server counts
        scores={"count": squares},
    )


class Recorded(LocalGrid):
    """Keeps every message, and lets a test change the answers of a kind: `spoil(message, answer)`
    gives those that arrive."""

    def __init__(self, workers, spoil=None, kind="train"):
        super().__init__(workers)
        self.spoil = spoil
        self.kind = kind
        self.messages = []
        self.replies = []

    def answers(self, message):
        found = super().answers(message)
        self.messages.append(message)
        self.replies += found
        if self.spoil is None or message.metadata.message_type != self.kind:
            return found
        return [answer for one in found for answer in self.spoil(message, one)]


def federation(
    folder,
    *algorithms,
    whole=None,
    solver=SOLVER,
    schedule=SCHEDULE,
    channel=None,
    spoil=None,
    kind="train",
    dtype=float,
    **options,
):
    """The engine, with its grid as `engine.grid`; `whole` is the task of all clients."""
    assignments = [Assignment(algorithm, solver, schedule, channel) for algorithm in algorithms]
    whole = whole or task(dtype=dtype)
    secure = "secure" in options
    workers = [
        Worker(whole, k, folder / f"client-{k}", assignments, secure)
        for k in range(whole.train.clients)
    ]
    return Flower(Recorded(workers, spoil, kind), **{"deadline": 0.2, **options})


def run(algorithm, engine=None, *, clients=CLIENTS, dtype=float, **options):
    given = {"solver": SOLVER, "schedule": SCHEDULE, "rounds": 3, "seed": 3, "observe_every": 3}
    engine = engine or fedax.Simulation(devices=1)
    return fedax.run(algorithm, task(clients, dtype), engine=engine, **{**given, **options})


def average_of(folder, **options):
    """The engine for `run_average`."""
    return federation(folder, fedax.FedAvg(), schedule=EVERYONE, **options)


def run_average(engine=None, **options):
    """FedAvg with all clients in every round."""
    return run(fedax.FedAvg(), engine, schedule=EVERYONE, **options)


def check_same(history, other):
    """Both runs end with the same parameters, up to rounding."""
    np.testing.assert_allclose(vector(history), vector(other), rtol=0, atol=1e-12)


def client_of(message):
    return message.metadata.dst_node_id - 100


def numbers(record, dtype=np.float64):
    """The numbers in a record of arrays."""
    return np.frombuffer(record[LEAVES].data, dtype)


def changed_record(content, record, **fields):
    """A message with other fields in one of its records."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict(dict(content) | {record: ConfigRecord(dict(content[record]) | fields)})
