"""Run by several processes: each trains as one host of them, and prints the results, which the test
compares.

program.py PROCESS PROCESSES PORT FOLDER CASE...
"""

import json
import os
import sys

import jax
import numpy as np

import fedax
from fedax.core import FedaxError
from problems import regression, vector

ONE_STEP = ("DGD", "DSGD", "GradientTracking", "GTAdam", "GTSGD")
GRAPHS = ("DFedAvgM", "QuantizedDFedAvgM", *ONE_STEP)


def usual(name, **more):
    """Arguments that every method takes."""
    if name in ("GD", "LocalGD"):
        schedule = fedax.Schedule(batch_size="full", steps=2)
    elif name == "ProxSkip":  # as many steps for every client
        schedule = fedax.Schedule(batch_size=4, steps=2)
    else:
        cohort = {} if name in (*GRAPHS, "DANE") else {"cohort": 3}
        schedule = fedax.Schedule(
            batch_size=4, **cohort, **({"steps": 1} if name in ONE_STEP else {})
        )
    observe = {"observe": [fedax.observe.TrainLoss()], "observe_every": 2}
    return {"solver": fedax.SGD(0.02), "schedule": schedule, "rounds": 4} | observe | more


def summary(history):
    losses = [float(value) for value in history.metrics["train_loss"]]
    return {
        "params": vector(history).tolist(),
        "losses": losses,
        "up": int(history.bits.up.sum()),
        "ok": history.outcome.ok,
    }


def result(case, folder, process):
    """The result of a case, which processes of other numbers have to share."""
    if case == "grid":
        grid = fedax.run_grid(
            [fedax.FedProx(mu=mu) for mu in (0.0, 0.1, 1.0)],
            regression(),
            seed=[0, 1],
            **usual("FedProx"),
        )
        return [summary(history) for history in grid]
    if case == "personal":
        history = fedax.run(fedax.PFedMe(), regression(), **usual("PFedMe"), personal=True)
        return summary(history) | {
            "own": np.concatenate(
                [np.ravel(leaf) for leaf in jax.tree.leaves(history.personal)]
            ).tolist()
        }
    if case == "resumed":
        own = os.path.join(folder, f"kept-{process}")  # only the first one's is used
        for rounds in (2, 4):
            history = fedax.run(
                fedax.SCAFFOLD(),
                regression(),
                **usual("SCAFFOLD", rounds=rounds),
                checkpoint=own,
                checkpoint_every=2,
            )
        return summary(history) | {"files": len(os.listdir(own)) if os.path.isdir(own) else 0}
    if case == "disagree":
        try:
            fedax.run(
                fedax.FedAvg(),
                regression(),
                **usual("FedAvg", solver=fedax.SGD(0.02 if process == 0 else 0.03)),
            )
        except FedaxError as error:
            return str(error)
    if case == "refused":
        fedax.run(fedax.FedProx(mu=-1.0), regression(), **usual("FedProx"))
    if case == "fails":
        if process == 1:
            raise ValueError("the disk of this host is broken")
        return summary(fedax.run(fedax.FedAvg(), regression(), **usual("FedAvg")))
    return summary(fedax.run(getattr(fedax.algorithms, case)(), regression(), **usual(case)))


def main():
    process, processes, port, folder, *cases = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_enable_x64", True)
    team = fedax.connect_hosts(f"127.0.0.1:{port}", int(processes), int(process))
    assert (team.rank, team.size, len(jax.devices())) == (
        int(process),
        int(processes),
        int(processes),
    )
    for case in cases:
        print(json.dumps({case: result(case, folder, int(process))}), flush=True)


if __name__ == "__main__":
    main()
