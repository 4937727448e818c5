"""fedax with its default engine, a device for each core: it draws cohorts and orders itself, from
the seed of the work."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import itertools

import jax
import numpy as np
from serving import serve
from workloads import WORKLOADS, schedule_of, task_of

import fedax

jax.config.update("jax_num_cpu_devices", os.cpu_count())  # before JAX starts


def prepare(work):
    workload = WORKLOADS[work.name]
    clients = [
        {"x": work.x[a:b], "y": work.y[a:b].astype(np.int32)}
        for a, b in itertools.pairwise(work.offsets)
    ]
    task = task_of(workload, fedax.FederatedData.from_arrays(clients, classes=10))
    schedule = schedule_of(workload)
    solver = fedax.SGD(work.rate)

    def train(rounds):
        history = fedax.run(
            fedax.FedAvg(), task, solver=solver, schedule=schedule, rounds=rounds, seed=work.seed, observe=[], observe_every=rounds
        )  # fmt: skip
        assert history.outcome.ok
        return np.concatenate(
            [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(history.params)]
        )

    return train


if __name__ == "__main__":
    serve(prepare)
