"""The picture of docs/theory.md: the part of Theorem 1's bound that runs of local gradient descent
need, on 1,000 random problems.

The problems are those of tests/theory/test_local_gd_bounds.py: 700 heterogeneous quadratics and 300
logistic regressions.

    python tightness.py
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "tests"))
sys.path.insert(0, str(HERE.parents[2] / "tests" / "theory"))

from test_local_gd_bounds import Logistic, Quadratic, descend  # noqa: E402

from fedax.results.drawing import Picture, curves, save  # noqa: E402
from fedax.theory import local_gd  # noqa: E402


def needed(kind, seed):
    """H, and the gap of the mean of the iterates as a part of the bound."""
    rng = np.random.default_rng(seed)
    problem = kind(rng)
    start = problem.optimum + rng.choice([0.0, 1.0, 10.0]) * rng.normal(size=problem.optimum.size)
    interval = int(rng.choice([1, 2, 5, 8]))
    steps = interval * int(rng.integers(1, 4))
    fraction = rng.choice([0.1, 0.5, 1.0])
    rate = fraction * local_gd.step_size(problem.smoothness, interval)
    runs = descend(problem, start, interval, rate, steps)
    bound = local_gd.bound(
        distance=float(np.linalg.norm(start - problem.optimum)),
        variance=local_gd.variance(problem.gradients(problem.optimum)),
        smoothness=problem.smoothness,
        interval=interval,
        steps=steps,
        rate=rate,
    )
    gap = problem.gap(np.mean([models.mean(0) for models in runs[:steps]], axis=0))
    return interval, fraction, gap / bound if bound else np.nan


def shares(title, groups):
    """Returns the problems of each group in the order of what they need."""
    parts = []
    for label, needs in groups.items():
        y = np.sort([need for need in needs if need > 1e-12])
        x = (np.arange(len(y)) + 0.5) / len(y) * 100
        columns = {"problems, %": x, "gap / bound": y, "line": f"{label} ({len(y)})"}
        parts.append(pd.DataFrame(columns).assign(panel=title))
    return pd.concat(parts)


def main():
    kinds = {"quadratics": (Quadratic, 700), "logistic regressions": (Logistic, 300)}
    found = {
        name: [needed(kind, seed) for seed in range(count)] for name, (kind, count) in kinds.items()
    }
    every = [row for rows in found.values() for row in rows]
    by_kind = {name: [part for _, _, part in rows] for name, rows in found.items()}
    by_interval = {
        f"H = {h}": [part for interval, _, part in every if interval == h] for h in (1, 2, 5, 8)
    }
    rows = pd.concat([shares("By kind", by_kind), shares("By local steps", by_interval)])
    figure = curves(rows, "problems, %", "gap / bound", "line", "panel", log=True)
    title = "Part of Theorem 1's bound that a run needs"
    save([Picture("tightness", figure, title)], HERE, ["png"])
    for name, parts in (by_kind | by_interval).items():
        known = np.array([part for part in parts if np.isfinite(part)])
        quartiles = np.quantile(known, [0.5, 0.9])
        print(
            f"{name}: {len(known)} problems, largest {known.max():.3g}, median "
            f"{quartiles[0]:.3g}, ninth tenth {quartiles[1]:.3g}"
        )


if __name__ == "__main__":
    main()
