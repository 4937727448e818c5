"""The runs of docs/reproduction/feddane.md: which assumption of FedDANE holds in which round, and what
repairs it.

python study.py run FOLDER SEEDS    all runs that the folder lacks, each kept as
FOLDER/<set>-<variant>-<seed>
python study.py draw FOLDER         the pictures and the table of repairs"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import fedax
from fedax.observe import Curvature, Dissimilarity, Inexactness, Objective, TrainLoss
from fedax.results import Record
from fedax.results.drawing import Picture, curves, save
from fedax.results.store import read_run, write_run
from fedax.theory import feddane

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
GAMMA = "gamma, largest of a device"
ROUNDS = 20
ORDER = ("1", "0.5", "0", "iid")


def run(name: str, variant: str, seed: int) -> Record:
    """One run: every round observed; curvature and exactness in the first seed of some."""
    options = dict(VARIANTS[variant])
    mu = options.pop("mu")
    cohort = options.pop("cohort")
    mu = mu[name] if isinstance(mu, dict) else mu
    observers = [TrainLoss(), Objective(), Dissimilarity()]
    if variant in WATCHED and seed == 0:
        observers += [Curvature(15), Inexactness()]
    sampling = {} if cohort is None else {"sampling": "proportional"}
    schedule = fedax.Schedule(cohort=cohort, epochs=20, batch_size=10, **sampling)
    # a larger mu needs a smaller step: the local loss is (L + mu)-smooth
    solver = fedax.SGD(min(0.01, 1 / mu))
    task = fedax.task("synthetic", clients=30, **SETS[name])
    history = fedax.run(
        fedax.FedDANE(mu=mu, **options),
        task,
        solver=solver,
        schedule=schedule,
        rounds=ROUNDS,
        seed=seed,
        observe=observers,
    )
    title = "Synthetic IID" if name == "iid" else f"Synthetic ({name}, {name})"
    return Record.of(history, task=title, label=variant, seed=seed)


def watched(record: Record) -> dict[str, np.ndarray]:
    """Returns a watched run's curves by name: exactness and dissimilarity of each round."""
    return {
        "gamma": np.asarray(record.metrics["inexactness_largest"], float),
        "B": np.maximum(np.asarray(record.metrics["dissimilarity"], float), 1),
    }


def against_theory(record: Record) -> dict[str, np.ndarray]:
    """Returns the curves of a run with the exact correction, with what Theorems 3 and 5 promise and
    ask for.
    """
    curves = watched(record)
    metrics = record.metrics
    constants = {
        "smoothness": np.nanmax(metrics["smoothness_largest"]),
        "concavity": max(-np.nanmin(metrics["eigenvalue_lowest"]), 0.0),
    }
    best = [feddane.best_mu(dissimilarity=b, **constants).mu for b in curves["B"]]
    constants |= {"mu": metrics["proximal"][0], "inexactness": np.nanmax(curves["gamma"])}
    # B before each round: the last one belongs to no round
    rho = [feddane.decrease(dissimilarity=b, **constants) for b in curves["B"][:-1]]
    fell = -np.diff(metrics["objective"])
    return curves | {
        "fell": fell,
        "rose": -fell,
        "promised": np.maximum(rho, 0) * metrics["gradient_norm"][:-1] ** 2,
        "mu": metrics["proximal"],
        "best mu": np.array(best),
    }


def watched_rounds(folder: Path, name: str) -> pd.DataFrame:
    """Returns decrease, mu, exactness and dissimilarity of the exact and the released correction on
    one set of data."""
    runs = {variant: read_run(place(folder, name, variant, 0)) for variant in WATCHED}
    found = {"exact": against_theory(runs["exact"]), "as released": watched(runs["as released"])}
    exact, released = WATCHED
    lines = [
        ("change of f", "f fell by", exact, "fell"),
        ("change of f", "f rose by", exact, "rose"),
        ("change of f", "promised, rho |∇f|²", exact, "promised"),
        ("mu", "mu of the runs", exact, "mu"),
        ("mu", "best mu of the theory", exact, "best mu"),
        (GAMMA, "exact correction", exact, "gamma"),
        (GAMMA, "as released", released, "gamma"),
        ("B", "exact correction", exact, "B"),
        ("B", "as released", released, "B"),
    ]
    parts = []
    for what, line, variant, source in lines:
        y = found[variant][source]
        columns = {"rounds": runs[variant].rounds[: len(y)], what: y}
        parts.append(pd.DataFrame(columns).assign(line=line, task=runs[variant].task))
    return pd.concat(parts, ignore_index=True)


def place(folder: Path, name: str, variant: str, seed: int) -> Path:
    return folder / f"{name}-{variant.replace(' ', '_')}-{seed}"


def draw(folder: Path) -> None:
    """The pictures and the numbers."""
    rounds = pd.concat([watched_rounds(folder, name) for name in reversed(ORDER)])
    assumptions = curves(
        rounds, "rounds", ["change of f", "mu", GAMMA, "B"], "line", ["metric", "task"],
        log=True,
    )  # fmt: skip
    parts = []
    for name in reversed(ORDER):
        for variant in VARIANTS:
            runs = [
                read_run(file.parent)
                for file in sorted(folder.glob(f"{name}-{variant.replace(' ', '_')}-?/run.json"))
            ]
            if not runs:
                continue
            values = np.stack([run.metrics["objective"] for run in runs])
            tops = values[:, 0].mean(), values[:, -1].mean(), values.max()
            fell = f"fell {np.mean(np.diff(values, axis=1) < 0):.2f}"
            print(name, variant, len(runs), *(f"{top:.3f}" for top in tops), fell, sep=" | ")
            for number, run in enumerate(runs):
                columns = {"round": run.rounds, "objective": values[number]}
                parts.append(
                    pd.DataFrame(columns).assign(task=run.task, method=variant, run=number)
                )
    repairs = curves(pd.concat(parts), y="objective", log=True, band=False, lines=len(VARIANTS))
    pictures = [Picture("assumptions", assumptions), Picture("repairs", repairs)]
    save(pictures, Path(__file__).parent, ["png"])


def main() -> None:
    folder = Path(sys.argv[2])
    if sys.argv[1] == "draw":
        draw(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(int(sys.argv[3])):
        for variant in VARIANTS:
            for name in ORDER:
                path = place(folder, name, variant, seed)
                if not path.exists():
                    write_run(path, run(name, variant, seed))
                    print(path.name, flush=True)


if __name__ == "__main__":
    main()
