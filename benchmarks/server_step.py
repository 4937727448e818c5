"""The cost of FedAWARE's server: 100 clients with about 100,000 parameters, cohorts of 10, as a
share of a round.

A round as in the paper's experiments: three epochs of batches of 64. Two models: the paper's CNN
(122,570 parameters, 500 images of 32 x 32 x 3 a client), and as the cheapest round of that size an
MLP 784-128-10 (101,770 parameters, 600 images of 28 x 28 a client). The server keeps 100 momenta of
the model's size, updates their Gram matrix in the cohort's rows, finds the shortest convex
combination and steps. Two measures, from runs interleaved on one machine:

- `idle`: the same rounds with clients that send an update without working; all that is left is the
  server's, an upper bound.
- `difference`: rounds of FedAWARE minus rounds of FedAvg with the same work; noisy, as it is a
  small difference.

    python benchmarks/server_step.py
    python benchmarks/server_step.py --model mlp --before 40 --rounds 10 --repeat 9
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.data import FederatedData
from fedax.models import MLP, cifar_cnn
from fedax.tasks import classification

CLIENTS = 100
COHORT = 10
CLASSES = 10
MODELS = {
    "cnn": (cifar_cnn, 500, (32, 32, 3)),
    "mlp": (lambda: MLP((784, 128, CLASSES)), 600, (784,)),
}
SCHEDULE = fedax.Schedule(cohort=COHORT, epochs=3, batch_size=64)
RELEASED = {"normalize": "unit", "startup": "explore", "feedback": True}


class Idle(fedax.FedAWARE):
    """FedAWARE whose clients send at once, each the model's entries in its own order, so that
    momenta differ."""

    def train(self, client, x):
        return fedax.Upload(1e-2 * jnp.roll(x, 997 * client.index))


def measure(model, before, rounds, repeat):
    rng = np.random.default_rng(0)
    build, examples, shape = MODELS[model]
    clients = [
        {
            "x": rng.random((examples, *shape), np.float32),
            "y": rng.integers(0, CLASSES, examples).astype(np.int32),
        }
        for _ in range(CLIENTS)
    ]
    task = classification(FederatedData.from_arrays(clients, classes=CLASSES), build())
    methods = {
        "FedAvg": fedax.FedAvg(),
        "FedAWARE": fedax.FedAWARE(),
        "FedAWARE, released form": fedax.FedAWARE(**RELEASED),
        "idle": Idle(),
        "idle, released form": Idle(**RELEASED),
    }
    options = {"solver": fedax.SGD(0.01), "schedule": SCHEDULE, "seed": 0}
    times = {name: [] for name in methods}
    # most clients have been seen before the clock starts
    ready = {
        n: fedax.run(method, task, rounds=before, observe_every=before, **options)
        for n, method in methods.items()
    }

    def seconds(name, count):
        begun = time.perf_counter()
        history = fedax.run(
            methods[name],
            task,
            rounds=before + count,
            observe_every=count,
            resume=ready[name],
            **options,
        )
        jax.block_until_ready(history.state)
        assert history.outcome.ok
        return time.perf_counter() - begun

    for turn in range(repeat + 1):
        for name in methods:
            # a run also carries the state in and out, once: what one more round costs is a
            # difference
            short = seconds(name, 1)
            long = seconds(name, 1 + rounds)
            if turn:  # the first turn compiles
                times[name].append((long - short) / rounds)
    return {name: statistics.median(values) for name, values in times.items()}


def table(seconds):
    print(
        f"{'| form':<12} | round, ms | server (idle), ms | share | minus FedAvg, ms | share "
        "|\n|---|---|---|---|---|---|"
    )
    shares = {}
    for form, suffix in (("paper", ""), ("released", ", released form")):
        whole = seconds["FedAWARE" + suffix]
        idle = seconds["idle" + suffix]
        extra = whole - seconds["FedAvg"]
        shares[form] = {"idle": idle / whole, "difference": extra / whole}
        print(
            f"| {form} | {1e3 * whole:.1f} | {1e3 * idle:.1f} | {idle / whole:.1%} | "
            f"{1e3 * extra:.1f} | {extra / whole:.1%} |"
        )
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", choices=MODELS, default="cnn")
    parser.add_argument("--before", type=int, default=2, help="rounds before the clock starts")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", help="also write seconds and shares to this file")
    arguments = parser.parse_args()
    assert jnp.zeros(()).dtype == jnp.float32
    found = measure(arguments.model, arguments.before, arguments.rounds, arguments.repeat)
    result = {"backend": jax.default_backend(), "seconds": found, "shares": table(found)}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=2)
