"""`fedax audit`: membership inference on federated training, as tables and a picture."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax.cli.options import Algorithms, Schedule, Solver
from fedax.errors import InvalidInput, RunExists

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from fedax.audit import Membership
    from fedax.experiments.config.experiment import Experiment

COLORS = ("#1f6feb", "#c2410c", "#15803d", "#7e22ce", "#b45309", "#0e7490", "#be185d", "#4d7c0f")
ATTACKS = {"shadow": "shadow attack", "calibrated": "calibrated loss"}


def audit(
    algorithms: Algorithms,
    task: Annotated[
        str, typer.Option(help="A classification task, as name:key=value,...")
    ] = "digits:partition=iid,model=mlp",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 20,
    every: Annotated[int, typer.Option(help="Rounds between attacks.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the split and the runs.")] = 0,
    solver: Solver = "sgd:learning_rate=0.01,momentum=0.9",
    schedule: Schedule = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for auc.csv and roc.html, new or empty.", show_default=False),
    ] = None,
) -> None:
    """Measure what models give away: membership inference on federated training.

    A target and a shadow model are trained on a quarter of the training examples each; an attack
    model learns on the shadow what members look like, and a second attack compares the losses of
    both. An AUC of 0.5 is guessing.
    """
    from rich.console import Console

    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.config.shorthand import parse_options, parse_section
    from fedax.experiments.results.store import fresh

    experiment = Experiment.of(
        name="audit",
        rounds=rounds,
        seeds=[seed],
        task=parse_section(task),
        solver=parse_section(solver),
        schedule=parse_options(schedule),
        algorithm=[parse_section(text) for text in algorithms],
    )
    folder, console = out or fresh(Path("runs"), "audit"), Console()
    run_audit(experiment, every, folder, console)
    console.print(f"Results: {folder}", markup=False, highlight=False, soft_wrap=True)


def run_audit(
    experiment: Experiment, every: int, out: Path, console: Console
) -> dict[str, Membership]:
    """Attacks every algorithm of an experiment after each `every` rounds; writes `auc.csv` and
    `roc.html`.

    Raises:
        RunExists: the folder is not empty; nothing is done.
    """
    from fedax.audit import membership
    from fedax.cli.tables import show

    if every < 1:
        raise InvalidInput.of("--every", every, "whole numbers >= 1")
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty. Choose another folder with --out.")
    plan, seed = experiment.plan(), experiment.seeds[0]
    # the initial and the final model are always attacked
    looks = sorted({0, *range(every, experiment.rounds + 1, every), experiment.rounds})
    results: dict[str, Membership] = {}
    for label, algorithm in plan.algorithms.items():
        # an algorithm may have its own solver and schedule
        arguments = plan.arguments_of(label)
        options = {name: arguments[name] for name in ("solver", "schedule", "channel")}
        results[label] = membership(algorithm, plan.task, looks=looks, seed=seed, **options)
        show(_make_table(label, results[label]), console)
    for label, membership_result in results.items():
        console.print(f"{label}: {verdict(membership_result)}", highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(results, out / "auc.csv")
    write_picture(results, out / "roc.html")
    return results


def _make_table(label: str, audit: Membership) -> Table:
    from rich.table import Table

    table = Table(
        title=label, title_justify="left", box=None, header_style="dim", padding=(0, 3, 0, 0)
    )
    areas = (f"AUC, {name}" for name in ATTACKS.values())
    shares_found = (f"members found at 5 % false alarms, {name}" for name in ATTACKS.values())
    for title in ("round", "accuracy, members", "accuracy, others", *areas, *shares_found):
        table.add_column(title, justify="right")
    for i, t in enumerate(audit.rounds):
        found = [getattr(audit, name)[i].true_at(0.05) for name in ATTACKS]
        accuracies, shares = (
            [f"{100 * share:.1f} %" for share in values] for values in (audit.accuracy[i], found)
        )
        table.add_row(
            str(t), *accuracies, *(f"{audit.auc[name][i]:.3f}" for name in ATTACKS), *shares
        )
    return table


def verdict(audit: Membership) -> str:
    r"""Compares the last AUC with two standard errors of guessing, and returns the conclusion as a
    sentence.

    The variance of an area under guessing is $(m + n + 1) / (12 m n)$ with m members and n others
    (Mann and Whitney).
    """
    if not len(audit.rounds):
        return "not attacked; the model is not finite."
    # two standard errors, see the docstring
    members, others = audit.members, audit.others
    chance = 2 * math.sqrt((members + others + 1) / (12 * members * others))
    name, area = max(
        ((name, float(audit.auc[name][-1])) for name in ATTACKS), key=lambda pair: pair[1]
    )
    inside, outside = audit.accuracy[-1]
    gap = f"Its accuracy on members is {100 * (inside - outside):+.1f} points from that on others."
    if area - 0.5 <= chance:
        return (
            f"no attack does better than guessing, which has an AUC of 0.5 ± {chance:.3f} "
            f"with {members:,} members and {others:,} others. {gap}"
        )
    members_found = 100 * getattr(audit, name)[-1].true_at(0.05)
    return (
        f"members are told apart: {ATTACKS[name]} has an AUC of {area:.3f}, guessing 0.5 ± "
        f"{chance:.3f}; "
        f"accusing 5 % of others wrongly finds {members_found:.1f} % of the members. {gap}"
    )


def write_csv(results: dict[str, Membership], path: Path) -> None:
    """Writes one line for each algorithm, round and attack."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["algorithm", "round", "attack", "auc"])
        for label, audit in results.items():
            for name in ATTACKS:
                writer.writerows(
                    [label, int(t), name, area]
                    for t, area in zip(audit.rounds, audit.auc[name], strict=True)
                )


def write_picture(results: dict[str, Membership], path: Path) -> None:
    """Writes the AUC by round and the ROC curves after the last round as a self-contained page."""
    import numpy as np
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("AUC by round", "ROC after the last round")
    )

    def line(x: np.ndarray, y: np.ndarray, column: int, **style: Any) -> None:
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", **style), row=1, col=column)

    for i, (label, audit) in enumerate(results.items()):
        # a colour for each algorithm, a dash for each attack
        for (name, title), dash in zip(ATTACKS.items(), ("dash", "solid"), strict=True):
            style = {"name": f"{label}, {title}", "legendgroup": f"{label}, {title}"}
            stroke = {"dash": dash, "color": COLORS[i % len(COLORS)]}
            line(audit.rounds, audit.auc[name], 1, line=stroke, **style)
            # empty if no model was attacked
            for last in getattr(audit, name)[-1:]:
                line(last.false, last.true, 2, line=stroke, showlegend=False, **style)
    guess = np.array([0.0, 1.0])
    line(guess, guess, 2, name="guessing", line={"dash": "dot", "color": "#9aa0a6"})
    figure.update_xaxes(title_text="round", row=1, col=1)
    figure.update_xaxes(title_text="others accused", row=1, col=2)
    figure.update_yaxes(title_text="members found", row=1, col=2)
    figure.update_layout(template="plotly_white", title="Membership inference")
    figure.write_html(path, include_plotlyjs=True)
