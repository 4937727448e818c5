"""Run by mpiexec: every rank trains with both engines and rank 0 prints how far they are apart.

program.py CASE [--own]       with --own, a rank has its own examples alone
"""

import functools
import json
import sys

import jax
import numpy as np

import fedax
from fedax import codecs
from fedax.engine.backends import mpi

SIZES = (7, 12, 9, 4)


def squares(params, examples):
    return (examples["x"] @ params["w"] + params["b"] - examples["y"]) ** 2 / 2


def task(rank):
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n) + k} for k, n in enumerate(SIZES)
    ]
    kept = clients if rank is None else [clients[rank]]
    return fedax.Task(
        {"b": 0.0, "w": np.full(3, 0.1)},
        squares,
        fedax.FederatedData.from_arrays(kept, test=kept),
        l2=0.01,
    )


def centred(params, examples, *, state, training):
    """Of a model with batch statistics."""
    x = examples["x"]
    mean = state["mean"]
    if training:
        mean = x.mean(0)
    losses = squares(params, {"x": x - mean, "y": examples["y"]})
    return (losses, {"mean": 0.9 * state["mean"] + 0.1 * mean}) if training else losses


HARD = fedax.Graph.ring(4).lossy(0.3, "both")
STATEFUL = {
    "State": "average",
    "Local state": "local",
    "State on a graph": "average",
    "State mixed first": "average",
    "Local state tuned": "local",
}


def stateful(name, rank):
    plain = task(rank)
    kept = [plain.train[k] for k in range(plain.train.clients)]
    more = {"state": {"mean": np.zeros(3)}, "state_policy": STATEFUL[name]}
    return fedax.Task(
        {"b": 0.0, "w": np.full(3, 0.1)},
        centred,
        fedax.FederatedData.from_arrays(kept, test=kept),
        **more,
    )


def cases():
    return {
        "State": fedax.FedAvg(),
        "Local state": fedax.Ditto(),
        "State on a graph": fedax.DFedAvgM(),
        "State mixed first": fedax.DSGD(),
        "Local state tuned": fedax.FedBABU(head="b"),
        "SCAFFOLD": fedax.SCAFFOLD(),
        "FedDANE": fedax.FedDANE(mu=0.1),
        "FedBC": fedax.FedBC(dual_lr=0.1),
        "FedAWARE": fedax.FedAWARE(startup="explore", feedback=True),
        "DFedAvgM": fedax.DFedAvgM(),
        "Quantized 8": fedax.QuantizedDFedAvgM(b=8),
        "Quantized random": fedax.QuantizedDFedAvgM(
            b=8, graph=fedax.Graph.erdos_renyi(4, 0.7, seed=1)
        ),
        "Hard graph": fedax.DFedAvgM(graph=HARD),
        "Coded": fedax.FedAvg(),
        "Daily": fedax.SCAFFOLD(),
        **dict.fromkeys(PRIVATE, fedax.SCAFFOLD()),
    }


PRIVATE = {
    "Private": fedax.Privacy(clip=0.05, noise=0.5, delta=1e-3, quantile=0.5, count_noise=1.0),
    "Private clients": fedax.Privacy(clip=0.05, noise=0.5, delta=1e-3, where="client"),
}
CHANNELS = {"Coded": fedax.Channel(up=codecs.Quantizer(b=8))}
CHANNELS |= {name: fedax.Channel(privacy=privacy) for name, privacy in PRIVATE.items()}
WATCHED = {"FedBC", "DFedAvgM", "State", "Local state"}
OBSERVERS = [
    fedax.observe.TrainLoss(), fedax.observe.TestLoss(), fedax.observe.ClientAccuracy("loss", True),
    fedax.observe.Dissimilarity(), fedax.observe.Consensus(), fedax.observe.Objective(), fedax.observe.Extremes("loss"),
]  # fmt: skip
OPTIONS = {"solver": fedax.SGD(0.05), "rounds": 6, "seed": 3, "observe_every": 3}


def apart(a, b):
    return max(
        float(np.abs(x - y).max())
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def main(names, own):
    engine = mpi.MPI()
    results = {}
    rank = engine.comm.rank
    for name in names:
        algorithm = cases()[name]
        there = {"name": "daily", "fraction": 0.4, "period": 5} if "Daily" in name else None
        weights = "equal" if name in PRIVATE else "size"
        schedule = fedax.Schedule(
            cohort=3, epochs=2, batch_size=4, weights=weights, conditions={"availability": there}
        )
        options = {**OPTIONS, "schedule": schedule, "channel": CHANNELS.get(name)}
        watched = {"observe": OBSERVERS, "personal": True} if name in WATCHED else {}
        made = functools.partial(stateful, name) if name in STATEFUL else task
        ours = fedax.run(
            algorithm, made(rank if own else None), engine=engine, **options, **watched
        )
        if rank:
            continue
        theirs = fedax.run(
            algorithm, made(None), engine=fedax.Simulation(devices=1), **options, **watched
        )
        results[name] = {
            "far": apart(*((h.params, h.personal, h.final_state) for h in (ours, theirs))),
            "metrics": max(
                [
                    float(np.nanmax(np.abs(ours.metrics[m] - theirs.metrics[m])))
                    for m in theirs.metrics
                ]
                or [0]
            ),
            "watched": sorted(ours.metrics) == sorted(theirs.metrics),
            "bits": [
                ours.bits.up.tolist() == theirs.bits.up.tolist(),
                ours.bits.down.tolist() == theirs.bits.down.tolist(),
            ],
            "moved": float(np.abs(ours.params["w"] - 0.1).max()),
        }
    if rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    main(list(cases()) if sys.argv[1] == "all" else sys.argv[1].split(","), "--own" in sys.argv)
