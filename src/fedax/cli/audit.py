"""`fedax audit`: membership inference on federated training, as tables and a picture."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedax.audit import Membership, membership
from fedax.core import InvalidInput, RunExists
from fedax.experiments.config.experiment import Experiment

ATTACKS = {"shadow": "shadow attack", "calibrated": "calibrated loss"}


def run_audit(experiment: Experiment, every: int, out: Path, console: Console) -> dict[str, Membership]:
    """Attacks every algorithm of an experiment with each `every` rounds, and writes `auc.csv` and `roc.html` below `out`.

    Raises:
        RunExists: the folder is not empty; nothing is done.
    """
    if every < 1:
        raise InvalidInput.of("--every", every, "whole numbers >= 1")
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty. Choose another folder with --out.")
    plan, seed = experiment.plan(), experiment.seeds[0]
    looks = sorted({0, *range(every, experiment.rounds + 1, every), experiment.rounds})
    options = {"solver": plan.arguments["solver"], "schedule": plan.arguments["schedule"]}
    found: dict[str, Membership] = {}
    for label, algorithm in plan.algorithms.items():
        found[label] = membership(algorithm, plan.task, looks=looks, seed=seed, **options)
        console.print(_table(label, found[label]))
    out.mkdir(parents=True, exist_ok=True)
    write_csv(found, out / "auc.csv")
    write_picture(found, out / "roc.html")
    return found


def _table(label: str, audit: Membership) -> Table:
    table = Table(title=label, title_justify="left", box=None, header_style="dim", padding=(0, 3, 0, 0))
    for title in ("round", *(f"AUC, {name}" for name in ATTACKS.values()), "members found at 5 % false alarms"):
        table.add_column(title, justify="right")
    for i, t in enumerate(audit.rounds):
        areas = (f"{audit.auc[name][i]:.3f}" for name in ATTACKS)
        table.add_row(str(t), *areas, f"{100 * audit.calibrated[i].true_at(0.05):.1f} %")
    return table


def write_csv(found: dict[str, Membership], path: Path) -> None:
    """One line for each algorithm, round and attack."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["algorithm", "round", "attack", "auc"])
        for label, audit in found.items():
            for name in ATTACKS:
                writer.writerows([label, int(t), name, area] for t, area in zip(audit.rounds, audit.auc[name], strict=True))


def write_picture(found: dict[str, Membership], path: Path) -> None:
    """AUC by round, and the curves after the last one, as a self-contained page."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, subplot_titles=("AUC by round", "ROC after the last round"))

    def line(x: np.ndarray, y: np.ndarray, column: int, **style: Any) -> None:
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", **style), row=1, col=column)

    for label, audit in found.items():
        for name, title in ATTACKS.items():
            last = getattr(audit, name)[-1]
            line(audit.rounds, audit.auc[name], 1, name=f"{label}, {title}")
            line(last.false, last.true, 2, name=f"{label}, {title}, AUC {last.auc:.3f}")
    guess = np.array([0.0, 1.0])
    line(guess, guess, 2, name="guessing", line={"dash": "dot", "color": "#9aa0a6"})
    figure.update_xaxes(title_text="round", row=1, col=1)
    figure.update_xaxes(title_text="others accused", row=1, col=2)
    figure.update_yaxes(title_text="members found", row=1, col=2)
    figure.update_layout(template="plotly_white", title="Membership inference")
    figure.write_html(path, include_plotlyjs=True)
