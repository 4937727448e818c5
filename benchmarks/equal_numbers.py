"""Digests of a dozen experiments, to compare two states of the code bit by bit.

    python benchmarks/equal_numbers.py > before.json             # at the first state
    python benchmarks/equal_numbers.py --compare before.json     # at the second, same machine

Other devices round differently. There the parameters after ten rounds are compared:

    python benchmarks/equal_numbers.py --values cpu.npz          # with JAX_PLATFORMS=cpu
    python benchmarks/equal_numbers.py --near cpu.npz            # on the GPU

Every experiment stands for a path through the library: methods of all families, chunks, devices, a
grid, the reference engine, MPI, state on disk, host data, privacy, codecs, availability. Each
digest covers the parameters and all metrics."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np

import fedax

SGD = fedax.SGD(0.05)
DIGITS_CNN = fedax.models.CNN((8, 8, 1), (fedax.models.Stage(8, 3),), (32,), 10)
COHORT = fedax.Schedule(epochs=2, batch_size=8, cohort=5)


def synthetic(**options):
    return fedax.task("synthetic", clients=12, seed=3, **options)


def run(algorithm, task=None, **options):
    """Runs ten rounds and returns the history."""
    return fedax.run(
        algorithm,
        task or synthetic(),
        **{"rounds": 10, "solver": SGD, "schedule": COHORT} | options,
    )


def graph_run():
    everyone = fedax.Schedule(steps=3, batch_size=8)
    return run(
        fedax.QuantizedDFedAvgM(topology="ring", b=8, step=1e-3),
        solver=fedax.SGD(0.05, momentum=0.9),
        schedule=everyone,
    )


def cnn():
    return run(fedax.FedAvg(), fedax.task("digits", clients=10, model=DIGITS_CNN), rounds=3)


EXPERIMENTS = {
    "FedAvg, cohort": lambda: run(fedax.FedAvg()),
    "SCAFFOLD, momentum of FedAWARE": lambda: [run(fedax.SCAFFOLD()), run(fedax.FedAWARE())],
    "FedDANE, stragglers and drop-outs": lambda: run(
        fedax.FedDANE(mu=0.1),
        schedule=fedax.Schedule(epochs=2, cohort=5, conditions={"dropouts": 0.2}),
    ),
    "FedBC and Per-FedBC": lambda: [run(fedax.FedBC()), run(fedax.PerFedBC())],
    "DFedAvgM, quantized": graph_run,
    "reference engine": lambda: run(fedax.FedProx(mu=0.1), engine=fedax.Eager()),
    "chunks": lambda: run(fedax.FedYogi(), engine=fedax.Simulation(chunk=3)),
    "two devices": lambda: run(fedax.FedNova(), engine=fedax.Simulation(devices=2)),
    "grid and seeds": lambda: fedax.run_grid(
        [fedax.FedProx(mu=mu) for mu in (0.0, 0.1, 1.0)],
        synthetic(),
        seed=[0, 1],
        rounds=10,
        solver=SGD,
        schedule=COHORT,
    ),
    "state on disk": lambda: run(fedax.SCAFFOLD(), engine=fedax.Simulation(memory="disk")),
    "data on the host": lambda: run(fedax.FedAvgM(), engine=fedax.Simulation(data="host")),
    "privacy, codec, Poisson sampling": lambda: run(
        fedax.FedAvg(),
        schedule=fedax.Schedule(epochs=1, cohort=5, sampling="poisson", weights="equal"),
        channel=fedax.Channel(privacy=fedax.Privacy(clip=1.0, noise=1.0, delta=1e-3)),
    ),
    "availability and two codecs": lambda: run(
        fedax.FedAvg(),
        schedule=fedax.Schedule(cohort=5, conditions={"availability": "daily"}),
        channel=fedax.Channel(up=fedax.codecs.TopK(0.1), down=fedax.codecs.Quantizer(b=8)),
    ),
    "convolutional network": cnn,
}


def parameters(result) -> np.ndarray:
    """Returns all parameters of a result in one row."""
    histories = result if isinstance(result, list) else [result]
    leaves = [leaf for history in histories for leaf in jax.tree.leaves(history.params)]
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def distances(expected: dict[str, np.ndarray]) -> None:
    """Prints how far each experiment ends from these parameters, relative to their norm."""
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name, values in expected.items():
        if name == "two devices" and len(jax.devices()) < 2:
            continue
        found = parameters(EXPERIMENTS[name]())
        print(f"{np.linalg.norm(found - values) / np.linalg.norm(values):.1e}  {name}", flush=True)


def digest(result) -> str:
    """Returns a hash of all parameters and metrics, to the bit."""
    hashed = hashlib.sha256()
    for history in result if isinstance(result, list) else [result]:
        for leaf in jax.tree.leaves(history.params):
            hashed.update(np.ascontiguousarray(leaf).tobytes())
        for name in sorted(history.metrics):
            hashed.update(name.encode() + np.ascontiguousarray(history.metrics[name]).tobytes())
    return hashed.hexdigest()[:16]


def ranks() -> str | None:
    """Returns the digest of a run over four MPI ranks, or None without MPI."""
    mpiexec = Path(sysconfig.get_path("scripts")) / "mpiexec"
    if not mpiexec.exists():
        return None
    command = [
        str(mpiexec),
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "4",
        sys.executable,
        __file__,
        "--rank",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return next(line for line in output.splitlines() if line.startswith("digest ")).split()[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compare", type=Path, help="the digests of another state")
    parser.add_argument("--values", type=Path, help="write the parameters to this file")
    parser.add_argument("--near", type=Path, help="the parameters on another device")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        four = fedax.task("synthetic", clients=4, seed=3)
        history = run(
            fedax.SCAFFOLD(),
            four,
            engine=fedax.MPI(),
            schedule=fedax.Schedule(epochs=1, batch_size=8),
        )
        print("digest", digest(history), flush=True)
        return
    if given.values:
        values = {name: parameters(experiment()) for name, experiment in EXPERIMENTS.items()}
        np.savez(given.values, **values)
        return
    if given.near:
        with np.load(given.near) as expected:
            distances(dict(expected))
        return
    found = {name: digest(experiment()) for name, experiment in EXPERIMENTS.items()} | {
        "four MPI ranks": ranks()
    }
    print(json.dumps(found, indent=1))
    if given.compare:
        before = json.loads(given.compare.read_text(encoding="utf-8"))
        changed = [name for name in found if found[name] != before[name]]
        print("equal" if not changed else f"changed: {', '.join(changed)}", file=sys.stderr)
        sys.exit(bool(changed))


if __name__ == "__main__":
    main()
