"""`fedax theory`: what the papers' theorems say of an experiment's task, from data to step sizes, mu, bits and rounds."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.cli import theory_figures as figures
from fedax.cli.tables import show
from fedax.core import InvalidInput, UnknownName
from fedax.experiments.config.experiment import Experiment, Plan
from fedax.numerics.simplex import min_norm
from fedax.report.charts import Panel
from fedax.theory import constants, dfedavgm, estimate, fedaware, fedbc, feddane, local_gd


class Row(NamedTuple):
    """A quantity, its value, and where it comes from."""

    quantity: str
    value: float | int | str
    source: str


class Answer(NamedTuple):
    """The table, and panels of a picture."""

    rows: list[Row]
    panels: list[Panel]


class Question(NamedTuple):
    """A question to the theory: an accuracy, prices of communication in gradients, and the plan of an experiment."""

    plan: Plan
    accuracy: float
    prices: tuple[float, ...]


class Measured(constants.Measured):
    """Constants of a task at its start, with more that only these tables need."""

    def __init__(self, plan: Plan, weights: str) -> None:
        super().__init__(plan.task, plan.arguments["schedule"], weights)
        self.start = self.losses.start
        self.steps = np.array([max(round(plan.arguments["schedule"].mean_steps(int(n))), 1) for n in plan.task.train.sizes])

    @functools.cached_property
    def lowest(self) -> float:
        """The lowest eigenvalue of any client."""
        return min(estimate.lowest_eigenvalue(self.losses, client=k, tolerance=1e-3) for k in range(self.losses.clients))

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        return self.losses.gradients(self.start)

    @functools.cached_property
    def gradient(self) -> float:
        return float(np.linalg.norm(self.losses.shares @ self.gradients))

    def common(self) -> list[Row]:
        """The constants that every paper begins with."""
        return [
            Row("clients", self.losses.clients, ""),
            Row("L, the largest of a client", float(self.smoothness.max()), "at the start"),
            Row("L, the smallest of a client", float(self.smoothness.min()), "at the start"),
        ]


def _rate(found: Measured, plan: Plan) -> float:
    """The learning rate of the file's solver."""
    return float(plan.arguments["solver"].fitted(found).step_size())


def _local_gd(question: Question) -> Answer:
    found = Measured(question.plan, "equal")
    best = estimate.optimum(found.losses)
    distance = float(np.linalg.norm(best.w - np.asarray(found.start)))
    smooth, variance = float(found.smoothness.max()), local_gd.variance(found.losses.gradients(best.w))
    given: dict[str, Any] = {"distance": distance, "variance": variance, "smoothness": smooth, "accuracy": question.accuracy}
    rows = [
        *found.common(),
        Row("f*", best.value, f"gradient {best.gradient:.1e} there"),
        Row("f(x0) - f*", found.losses.value(found.start) - best.value, ""),
        Row("|x0 - x*|", distance, ""),
        Row("sigma^2", variance, "after Assumption 1"),
        Row("communications T/H", local_gd.communications(**given), "eq. (6)"),
    ]
    for interval in sorted({1, 4, 16, int(found.steps.max())}):
        rate = local_gd.step_size(smooth, interval)
        plan = local_gd.plan(rate=min(rate, local_gd.plan(**given).rate / interval), **given)
        rows.append(Row(f"gamma for H = {interval}", plan.rate, f"T = {math.ceil(plan.steps):,}"))
    # the largest step size with which one local step reaches the accuracy in the bound, a tenth of it left for progress
    fixed = local_gd.plan(**given).rate / 10
    for price in question.prices:
        interval = local_gd.best_interval(rate=fixed, price=price, **given)
        rows.append(Row(f"best H, a communication at {price:g} gradients", interval, f"gamma = {fixed:.3g}, from eq. (5)"))
    return Answer(rows, figures.local_gd_panels(given, fixed, question.prices))


def _feddane(question: Question) -> Answer:
    found = Measured(question.plan, "shares")
    smooth, concavity = float(found.smoothness.max()), max(-found.lowest, 0.0)
    b = feddane.dissimilarity(found.gradients, found.losses.shares)
    given = {"smoothness": smooth, "dissimilarity": b, "concavity": concavity}
    best, gap = feddane.best_mu(**given), found.losses.value(found.start)
    rows = [
        *found.common(),
        Row("lowest eigenvalue of a client", found.lowest, "at the start; mu must exceed its negative"),
        Row("B", b, "Definition 2, at the start"),
        Row("best mu", best.mu, "Corollary 4, exact"),
        Row("rho with it", best.decrease, "Theorems 3 and 5"),
        Row(
            "rounds",
            feddane.rounds(gap=gap, rho=best.decrease, accuracy=question.accuracy),
            "Theorem 6, from a loss >= 0",
        ),
    ]
    chosen: dict[str, float] = {}
    for label, method in question.plan.algorithms.items():
        mu = float(getattr(method, "mu", math.nan))
        if type(method).__name__ == "FedDANE" and np.ndim(mu) == 0:
            rho = feddane.decrease(mu=mu, **given) if mu > concavity else -math.inf
            rows.append(Row(f"rho of {label}", rho, "a decrease" if rho > 0 else "no decrease is promised"))
            chosen[label] = mu
    return Answer(rows, figures.feddane_panels(given, gap, question.accuracy, chosen))


def _dfedavgm(question: Question) -> Answer:
    found, plan = Measured(question.plan, "equal"), question.plan
    gossips = [method for method in plan.algorithms.values() if isinstance(method, Gossip)]
    graphs = [method.network(found.losses.clients) for method in gossips[:1]]
    batch = plan.arguments["schedule"].batch_size
    sizes = [int(n) for n in plan.task.train.sizes]
    noise = 0.0
    if isinstance(batch, int):
        local = (
            estimate.local_variance(found.losses, found.start, k, batch_size=min(batch, n), samples=64)
            for k, n in enumerate(sizes)
        )
        noise = max(each.mean for each in local)
    k = int(found.steps.max())
    smooth, bound = float(found.smoothness.max()), float(np.linalg.norm(found.gradients, axis=1).max())
    most = dfedavgm.largest_step_size(smoothness=smooth, local_steps=k)
    setting = dfedavgm.Setting(
        smooth,
        noise,
        estimate.global_variance(found.losses, [found.start]),
        bound,
        k,
        most / 2,
        mixing=graphs[0].lam if graphs else 0.0,
    )
    gap, dim = found.losses.value(found.start), int(found.start.shape[0])
    rounds = math.ceil(1 / question.accuracy**2)
    best = dfedavgm.best_step_size(setting, gap=gap, rounds=rounds)
    rows = [
        *found.common(),
        Row("lambda", setting.mixing, "of the first algorithm's graph" if graphs else "no graph in the file: complete"),
        Row("sigma_l^2, the largest of a client", noise, "at the start"),
        Row("sigma_g^2", setting.global_variance, "at the start; a lower bound"),
        Row("B", bound, "at the start; a lower bound"),
        Row("K", k, "local steps of the largest client"),
        Row("largest eta", most, "Theorem 1, corrected"),
        Row(f"best eta for {rounds:,} rounds", best, "Theorem 1, minimised"),
        Row("eta = 1/(LK sqrt T) from T =", math.ceil((1 / (smooth * k * most)) ** 2), "Proposition 1"),
        Row("consensus, mean square", dfedavgm.consensus_bound(setting), "Lemma 4, corrected, at half the largest eta"),
        Row("bits below which fewer pay", dfedavgm.bit_threshold(dim=dim), "Proposition 3, corrected"),
    ]
    return Answer(rows, figures.dfedavgm_panels(setting, gap, rounds))


def _fedaware(question: Question) -> Answer:
    found = Measured(question.plan, "shares")
    gram = jnp.asarray(found.gradients @ found.gradients.T)
    shortest = np.asarray(min_norm(gram, jnp.ones(len(gram), bool)).weights, float)
    shortest, shares = shortest / shortest.sum(), found.losses.shares
    between, zeta = fedaware.divergence(shortest, shares), fedaware.dissimilarities(found.gradients, shares)
    smooth, rate = float(found.smoothness.max()), _rate(found, question.plan)
    work: dict[str, Any] = {"local_steps": found.steps, "dissimilarities": zeta}
    rows = [
        *found.common(),
        Row("gradient diversity D", fedaware.diversity(found.gradients, shares), "Definition 3.1, at the start"),
        Row(
            "the largest surrogate diversity",
            fedaware.diversity(found.gradients, shares, shortest),
            "Definition 3.2, eq. (8)",
        ),
        Row("sigma_g^2", float(shares @ zeta), "at the start; a lower bound"),
        Row("chi^2 of the shortest combination", between.square, "Theorem 4.1"),
        Row("N + chi^2 - 2 chi", between.gap, "rho of Theorem 4.1 is negative from 0.382 on"),
        Row("Pearson divergence", between.pearson, "in its place"),
        Row("K_i", f"{found.steps.min()} to {found.steps.max()}", "local steps"),
        Row("Phi_Hetero", fedaware.heterogeneity(rate=rate, weights=shares, **work), f"Corollary 3.2, eta_l = {rate:g}"),
        Row("largest eta_l", 1 / (math.sqrt(12) * smooth * int(found.steps.max())), "Lemma A.1, corrected"),
        Row("largest server step", 1 / smooth, "in place of Theorem 4.1"),
    ]
    return Answer(rows, figures.fedaware_panels(shares, shortest, found.steps, zeta))


def _fedbc(question: Question) -> Answer:
    found = Measured(question.plan, "equal")
    bounds = fedbc.multiplier_bounds(found.smoothness)
    low, high, smooth = float(bounds.low.max()), float(bounds.high.min()), float(found.smoothness.max())
    delta = fedbc.heterogeneity(found.gradients, low=low, high=low)
    given = {"smoothness": smooth, "multiplier": low, "heterogeneity": delta}
    rows = [
        *found.common(),
        Row("lam_min", f"{bounds.low.min():.4g} to {low:.4g}", "1 + L_i"),
        Row("lam_max", f"{high:.4g} to {bounds.high.max():.4g}", "(1 + L_i)^2 / L_i"),
        Row("one interval for all", "none" if low >= high else f"[{low:.4g}, {high:.4g})", "after (61); not needed"),
        Row("delta with all multipliers at lam_min", delta, "Assumption 4.3, at the start"),
        Row("consensus, solved exactly", fedbc.consensus_bound(error=0.0, **given), "Lemma B.2, corrected"),
        Row(
            f"consensus, epsilon = {question.accuracy:g}",
            fedbc.consensus_bound(error=question.accuracy, **given),
            "the same",
        ),
    ]
    return Answer(rows, figures.fedbc_panels(found.smoothness, delta, question.accuracy))


PAPERS: dict[str, Callable[[Question], Answer]] = {
    "local-gd": _local_gd,
    "feddane": _feddane,
    "dfedavgm": _dfedavgm,
    "fedaware": _fedaware,
    "fedbc": _fedbc,
}
"""The papers by the names of the command line."""


def suggestions(
    paper: str, plan: Plan, accuracy: float = 1e-3, prices: Sequence[float] = (0.1, 1.0, 10.0, 100.0, 1000.0)
) -> Answer:
    r"""A paper's theory on an experiment's task.

    Args:
        paper: a name of `PAPERS`.
        plan: of the experiment; see `Experiment.plan`.
        accuracy: $\varepsilon$, above 0.
        prices: of a communication, in gradients; each above 0.

    Raises:
        InvalidInput: another paper, or numbers out of their range.
    """
    if paper not in PAPERS:
        raise UnknownName.among("paper", paper, PAPERS)
    if not 0 < accuracy < math.inf:
        raise InvalidInput.of("accuracy", accuracy, "numbers in (0, infinity)")
    if not all(0 < price < math.inf for price in prices):
        raise InvalidInput.of("price", list(prices), "numbers in (0, infinity)")
    return PAPERS[paper](Question(plan, accuracy, tuple(prices)))


def show_theory(paper: str, file: Path, accuracy: float, prices: Sequence[float], figure: Path | None = None) -> None:
    """Prints a paper's theory on the task of an experiment file as a table, and draws it."""
    plan, console = Experiment.read(file, ()).plan(), Console()
    table: Any = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for title, side in (("quantity", "left"), ("value", "right"), ("source", "left")):
        table.add_column(title, justify=side, no_wrap=True)
    found = suggestions(paper, plan, accuracy, prices)
    rows = [(row.quantity, _text(row.value), row.source) for row in found.rows]
    for row in rows:
        table.add_row(*row)
    show(table, console)
    if figure is not None:
        figures.save_figure(figure, f"Theory of {paper}", found.panels, rows)
        console.print(f"[dim]{figure}[/dim]")


def _text(value: float | int | str) -> str:
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
