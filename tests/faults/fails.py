"""Run by mpiexec: a run of four ranks in which one of them meets a fault.

fails.py FAULT RANK FILE      writes the time of the fault to FILE
"""

import errno
import os
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np

FAULT = sys.argv[1]
ODD = int(sys.argv[2])
FILE = Path(sys.argv[3])
jax.config.update("jax_platforms", "cpu")
jax.config.update(
    "jax_enable_x64", FAULT != "precision" or int(os.environ["OMPI_COMM_WORLD_RANK"]) != ODD
)

import fedax  # noqa: E402

SIZES = (7, 12, 9, 4)


def happen():
    """The moment from which on the seconds count."""
    FILE.write_text(str(time.time()))


def squares(params, examples):
    return (examples["x"] @ params["w"] - examples["y"]) ** 2 / 2


def task(rank, here):
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n) + k} for k, n in enumerate(SIZES)
    ]
    if here and FAULT == "bad data":
        happen()
        clients[rank]["x"][0, 0] = np.nan
    if here and FAULT == "data type":
        clients[rank]["x"] = clients[rank]["x"].astype(int)  # floats of any width are made alike
    return fedax.Task(
        {"w": np.zeros(3)},
        squares,
        fedax.FederatedData.from_arrays([clients[rank]], test=[clients[rank]]),
    )


def hook(progress):
    """In the middle of the run."""
    if progress.round != 3:
        return None
    happen()
    if FAULT == "exception":
        raise RuntimeError("something went wrong")
    if FAULT == "exit":
        sys.exit(3)
    if FAULT == "Ctrl-C":
        os.kill(os.getpid(), signal.SIGINT)
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    return FAULT == "stop"


def full(handle):
    """A disk without space, from the first file on."""
    happen()
    raise OSError(errno.ENOSPC, "No space left on device")


DISAGREEMENTS = {
    "learning rate": lambda: {"solver": fedax.SGD(0.06)},
    "momentum": lambda: {"solver": fedax.SGD(0.05, momentum=0.5)},
    "hyperparameter": lambda: {"algorithm": fedax.SCAFFOLD(lr=0.5)},
    "algorithm": lambda: {"algorithm": fedax.FedAvg()},
    "seed": lambda: {"seed": 4},
    "schedule": lambda: {"schedule": fedax.Schedule(cohort=3, steps=3)},
    "cohort": lambda: {"schedule": fedax.Schedule(cohort=2, steps=2)},
    "rounds": lambda: {"rounds": 8},
    "observers": lambda: {"observe": []},
    "cadence": lambda: {"observe_every": 2},
    "channel": lambda: {"channel": fedax.Channel(up=fedax.codecs.Quantizer(b=8))},
    "stop rule": lambda: {"stop": fedax.Divergence()},
    "refused": lambda: {"seed": -1},
}


def main():
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    here = rank == ODD
    if FAULT == "left before" and here:
        happen()
        sys.exit(3)
    own = task(rank, here)
    engine = fedax.MPI()
    folder = FILE.parent / "checkpoints"
    options = {
        "algorithm": fedax.SCAFFOLD(),
        "seed": 3,
        "rounds": 6,
        "observe": [fedax.observe.TrainLoss()],
    }
    options |= {
        "solver": fedax.SGD(0.05),
        "schedule": fedax.Schedule(cohort=3, steps=2),
        "checkpoint_every": 2,
    }
    if FAULT == "folder is a file" and here:
        folder.touch()
    if FAULT == "full disk" and here:
        os.fsync = full
    engine.comm.Barrier()  # how long ranks take to start does not count
    if FAULT == "left" and here:
        happen()
        sys.exit(3)
    if here:
        options |= DISAGREEMENTS.get(FAULT, dict)()
        happen()
    algorithm = options.pop("algorithm")
    history = fedax.run(
        algorithm, own, engine=engine, checkpoint=folder, progress=hook if here else None, **options
    )
    print(f"rank {rank}: {history.outcome}", flush=True)
    sys.exit(0 if history.outcome.ok else 130)


if __name__ == "__main__":
    main()
