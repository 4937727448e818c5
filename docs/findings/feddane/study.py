"""The runs of docs/findings/feddane.md: which assumption of FedDANE holds in which round, and what repairs it.

python study.py run FOLDER SEEDS    all runs that the folder lacks, each kept as FOLDER/<set>-<variant>-<seed>.npz
"""

import sys
from pathlib import Path

import fedax
from fedax.observe import Curvature, Dissimilarity, Inexactness, Objective, TrainLoss
from fedax.report import Record

SETS = {
    "iid": {"iid": True},
    "0": {"alpha": 0.0, "beta": 0.0},
    "0.5": {"alpha": 0.5, "beta": 0.5},
    "1": {"alpha": 1.0, "beta": 1.0},
}
EXACT = {"mu": 1.0, "cohort": 10}
VARIANTS = {
    "exact": EXACT,
    "as released": EXACT | {"correction": "as_released"},
    "without correction": EXACT | {"correction": "off"},
    "decayed": EXACT | {"decay": 0.8},
    "pipelined": EXACT | {"pipelined": True},
    "all devices": EXACT | {"cohort": None},
    "mu 10": EXACT | {"mu": 10.0},
    "mu 100": EXACT | {"mu": 100.0},
    "mu by theory": EXACT | {"mu": {"iid": 0.97, "0": 650.0, "0.5": 943.0, "1": 2935.0}},
}
WATCHED = ("exact", "as released")
ROUNDS = 20


def run(name: str, variant: str, seed: int) -> Record:
    """One run: every round observed; curvature and exactness in the first seed of some."""
    options = dict(VARIANTS[variant])
    mu, cohort = options.pop("mu"), options.pop("cohort")
    mu = mu[name] if isinstance(mu, dict) else mu
    observers = [TrainLoss(), Objective(), Dissimilarity()]
    if variant in WATCHED and seed == 0:
        observers += [Curvature(15), Inexactness()]
    sampling = {} if cohort is None else {"sampling": "proportional"}
    schedule = fedax.Schedule(cohort=cohort, epochs=20, batch_size=10, **sampling)
    # a larger mu needs a smaller step: the local loss is (L + mu)-smooth
    solver = fedax.SGD(min(0.01, 1 / mu))
    task = fedax.tasks.synthetic(clients=30, **SETS[name])
    history = fedax.run(
        fedax.FedDANE(mu=mu, **options), task, solver=solver, schedule=schedule, rounds=ROUNDS, seed=seed, observe=observers
    )
    title = "Synthetic IID" if name == "iid" else f"Synthetic ({name}, {name})"
    return Record.of(history, task=title, label=variant, seed=seed)


def main() -> None:
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(int(sys.argv[3])):
        for variant in VARIANTS:
            for name in ("1", "0.5", "0", "iid"):
                path = folder / f"{name}-{variant.replace(' ', '_')}-{seed}.npz"
                if not path.exists():
                    path.write_bytes(run(name, variant, seed).to_bytes())
                    print(path.name, flush=True)


if __name__ == "__main__":
    main()
