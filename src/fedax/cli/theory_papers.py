"""Theorems of the papers applied to an experiment's task: constants, step sizes, mu, bits,
rounds.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedax.algorithms.decentralized.dfedavgm import DFedAvgM
from fedax.algorithms.decentralized.quantized_dfedavgm import QuantizedDFedAvgM
from fedax.algorithms.server.fedaware import FedAWARE
from fedax.algorithms.server.fedbc import FedBC
from fedax.algorithms.server.feddane import FedDANE
from fedax.algorithms.server.gd import LocalGD
from fedax.core import Exact, Inexact, InvalidInput, Schedule, UnknownName
from fedax.core.client import Solver
from fedax.experiments.config.experiment import Plan
from fedax.numerics.simplex import min_norm
from fedax.theory import constants, dfedavgm, estimate, fedaware, fedbc, feddane, local_gd


class Row(NamedTuple):
    """A quantity, its value, and where it comes from."""

    quantity: str
    value: float | int | str
    source: str


class Question(NamedTuple):
    """A question to the theory: the plan of an experiment, an accuracy, prices of communication in
    gradients, and a run's seed.
    """

    plan: Plan
    accuracy: float
    prices: tuple[float, ...]
    seed: int = 0


class MethodSetup(NamedTuple):
    """The first algorithm of a file that a paper is about, with the solver and the schedule that it
    runs with.

    `method` is None, and the others are the common ones, where there is no such algorithm.
    """

    method: Any
    solver: Solver
    schedule: Schedule

    @classmethod
    def of(cls, plan: Plan, *kinds: type) -> "MethodSetup":
        """Returns the first algorithm of some classes."""
        label = next(
            (label for label, method in plan.algorithms.items() if type(method) in kinds), None
        )
        arguments = plan.arguments if label is None else plan.arguments_of(label)
        return cls(
            None if label is None else plan.algorithms[label],
            arguments["solver"],
            arguments["schedule"],
        )


class Measured(constants.Measured):
    """Constants of a task, with more that only these tables need: at the start of the question's
    run.
    """

    def __init__(self, question: Question, weights: str, schedule: Schedule) -> None:
        task = question.plan.task
        super().__init__(task, weights, [question.seed])
        self.schedule = schedule
        self.start = self.losses.start
        self.interval = schedule.most_steps(task.train.largest)[1]
        self.sizes = [int(n) for n in task.train.sizes]
        # local steps of each client in a round, on average
        self.steps = np.array([max(round(schedule.mean_steps(n)), 1) for n in self.sizes])

    @functools.cached_property
    def lowest(self) -> float:
        """The lowest eigenvalue of any client; 0 at least for losses with a closed form, which are
        convex.
        """
        lowest = min(
            estimate.lowest_eigenvalue(self.losses, client=k, tolerance=1e-3)
            for k in range(self.losses.clients)
        )
        # an iteration may end slightly below 0
        return max(lowest, 0.0) if self.source == constants.CLOSED_FORM else lowest

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        return self.losses.gradients(self.start)

    @functools.cached_property
    def gradient(self) -> float:
        return float(np.linalg.norm(self.losses.shares @ self.gradients))

    def noise(self) -> float:
        """Returns the largest variance of a client's minibatch gradients; of a drawn batch size, at
        the smallest batch.
        """
        # "full", a number, or the range that it is drawn from
        batch = self.schedule.batch_size
        smallest = batch[0] if isinstance(batch, tuple) else batch
        if smallest == "full":
            return 0.0
        sizes = enumerate(self.sizes)
        variances = (
            estimate.local_variance(
                self.losses, self.start, k, batch_size=min(smallest, n), samples=64
            )
            for k, n in sizes
        )
        return max(variance.mean for variance in variances)

    def common(self) -> list[Row]:
        """Returns the constants that every paper begins with."""
        return [
            Row("clients", self.losses.clients, ""),
            Row("L, the largest of a client", float(self.smoothness.max()), self.source),
            Row("L, the smallest of a client", float(self.smoothness.min()), self.source),
        ]


def _answer_local_gd(question: Question) -> list[Row]:
    method_setup = MethodSetup.of(question.plan, LocalGD)
    measured = Measured(question, "equal", method_setup.schedule)
    # the theorem is about convex losses, which have a minimum
    best = estimate.optimum(measured.losses)
    distance = float(np.linalg.norm(best.w - np.asarray(measured.start)))
    smooth, variance = (
        float(measured.smoothness.max()),
        local_gd.variance(measured.losses.gradients(best.w)),
    )
    task_constants: dict[str, Any] = {
        "distance": distance,
        "variance": variance,
        "smoothness": smooth,
        "accuracy": question.accuracy,
    }
    rows = [
        *measured.common(),
        Row("f*", best.value, f"gradient {best.gradient:.1e} there"),
        Row("f(x0) - f*", measured.losses.value(measured.start) - best.value, ""),
        Row("|x0 - x*|", distance, ""),
        Row("sigma^2", variance, "after Assumption 1"),
        Row("communications T/H", local_gd.communications(**task_constants), "eq. (6)"),
    ]
    # usual intervals, and that of the file
    for interval in sorted({1, 4, 16, measured.interval}):
        rate = local_gd.step_size(smooth, interval)
        # the step size of the theorem for H, or the smaller one that the accuracy needs
        plan = local_gd.plan(
            rate=min(rate, local_gd.plan(**task_constants).rate / interval), **task_constants
        )
        rows.append(Row(f"gamma for H = {interval}", plan.rate, f"T = {math.ceil(plan.steps):,}"))
    # the largest step size with which one local step reaches the accuracy in the bound, a tenth of
    # it left for progress
    fixed = local_gd.plan(**task_constants).rate / 10
    for price in question.prices:
        interval = local_gd.best_interval(rate=fixed, price=price, **task_constants)
        rows.append(
            Row(
                f"best H, a communication at {price:g} gradients",
                interval,
                f"gamma = {fixed:.3g}, from eq. (5)",
            )
        )
    return rows


def _answer_feddane(question: Question) -> list[Row]:
    plan = question.plan
    measured = Measured(question, "shares", MethodSetup.of(plan, FedDANE).schedule)
    smooth, concavity = float(measured.smoothness.max()), max(-measured.lowest, 0.0)
    b = feddane.dissimilarity(measured.gradients, measured.losses.shares)
    task_constants = {"smoothness": smooth, "dissimilarity": b, "concavity": concavity}
    # the gap to 0, because f* is not known
    best, gap = feddane.best_mu(**task_constants), measured.losses.value(measured.start)
    rows = [
        *measured.common(),
        Row(
            "lowest eigenvalue of a client",
            measured.lowest,
            "at the start; mu must exceed its negative",
        ),
        Row("B", b, "Definition 2, at the start; a lower bound"),
        Row("best mu", best.mu, "Corollary 4, exact; from B at the start"),
        Row("rho with it", best.decrease, "Theorems 3 and 5; from B at the start"),
        Row(
            "rounds",
            feddane.rounds(gap=gap, rho=best.decrease, accuracy=question.accuracy),
            "Theorem 6, from a loss >= 0; an estimate",
        ),
    ]
    for label, method in plan.algorithms.items():
        # derived classes may have other rounds
        if type(method) is not FedDANE:
            continue
        rho, source = _promised_decrease(measured, task_constants, method, plan, label)
        rows.append(Row(f"rho of {label}", rho, source))
    return rows


def _promised_decrease(
    measured: Measured, task_constants: dict[str, float], method: FedDANE, plan: Plan, label: str
) -> tuple[float | str, str]:
    """Returns the decrease that is promised for an algorithm: by Theorems 3 and 5, or by 7 with a
    mu for each device.
    """
    arguments = plan.arguments_of(label)
    solver, mu = arguments["solver"], np.asarray(method.mu, float)
    gamma = float(solver.gamma) if isinstance(solver, Inexact) else 0.0
    exact = "" if isinstance(solver, Exact | Inexact) else ", if solved exactly"
    # the theorems need mu above the concavity for every device
    if mu.min() <= task_constants["concavity"]:
        return -math.inf, "no decrease is promised"
    if mu.ndim == 0:
        rho, theorem = (
            feddane.decrease(mu=float(mu), inexactness=gamma, **task_constants),
            ("Theorems 3 and 5"),
        )
    elif task_constants["concavity"] > 0:
        return "none", "Theorem 7, of a mu for each device, is about convex losses"
    else:
        by_device = {
            "mu": mu,
            "smoothness": measured.smoothness,
            "inexactness": gamma,
            "weights": measured.losses.shares,
        }
        rho = feddane.decrease_by_device(dissimilarity=task_constants["dissimilarity"], **by_device)
        theorem = "Theorem 7, corrected"
    if method.correction != "exact" or method.pipelined or method.decay != 1:
        return rho, f"{theorem}{exact}; no promise, as it is about the exact correction"
    return rho, f"{theorem}{exact}: " + ("a decrease" if rho > 0 else "no decrease is promised")


def _answer_dfedavgm(question: Question) -> list[Row]:
    method_setup = MethodSetup.of(question.plan, DFedAvgM, QuantizedDFedAvgM)
    measured = Measured(question, "equal", method_setup.schedule)
    dim, k, noise = int(measured.start.shape[0]), measured.interval, measured.noise()
    momentum = float(getattr(method_setup.solver, "momentum", 0.0))
    smooth, bound = (
        float(measured.smoothness.max()),
        float(np.linalg.norm(measured.gradients, axis=1).max()),
    )
    largest = dfedavgm.largest_step_size(smoothness=smooth, local_steps=k, momentum=momentum)
    rounding, unbounded = _rounding_of(method_setup.method, dim, measured.losses.clients)
    # half of the largest step size; for rounding down, which allows half as much, a quarter
    half = 0.25 if rounding is not None and rounding.kind == "down" else 0.5
    setting = dfedavgm.Setting(
        smooth,
        noise,
        estimate.global_variance(measured.losses, [measured.start]),
        bound,
        k,
        largest * half,
        momentum=momentum,
        mixing=_lambda_of_graph(method_setup.method, measured.losses.clients),
    )
    # bounds fall like 1/sqrt(T): with this T they are of the order of the accuracy
    gap, rounds = measured.losses.value(measured.start), math.ceil(1 / question.accuracy**2)
    rows = [
        *measured.common(),
        Row(
            "lambda",
            setting.mixing,
            "of the file's graph"
            if method_setup.method is not None
            else "no graph in the file: complete",
        ),
        Row("sigma_l^2, the largest of a client", noise, "at the start; a lower bound"),
        Row("sigma_g^2", setting.global_variance, "at the start; a lower bound"),
        Row("B", bound, "at the start; a lower bound"),
        Row("K", k, "local steps of the largest client"),
        Row("theta", momentum, "momentum of the solver"),
        Row("largest eta", largest, "Theorem 1, corrected"),
    ]
    if unbounded is None:
        best = dfedavgm.best_step_size(setting, rounding, gap=gap, rounds=rounds)
        lemma, fraction = (
            ("Lemma 5" if rounding else "Lemma 4"),
            "half" if half == 0.5 else "a quarter of",
        )
        consensus, source = (
            dfedavgm.consensus_bound(setting, rounding),
            f"{lemma}, corrected, at {fraction} the largest eta; {_FROM}",
        )
        rows += [
            Row(
                f"best eta for {rounds:,} rounds",
                best,
                f"Theorem {3 if rounding else 1}, minimised; {_FROM}",
            ),
            Row(
                "eta = 1/(LK sqrt T) from T =",
                math.ceil((1 / (smooth * k * largest)) ** 2),
                "Proposition 1",
            ),
            Row("consensus, mean square", consensus, source),
        ]
    else:
        rows.append(Row("consensus, mean square", "none", unbounded))
    rows.append(
        Row(
            "bits below which fewer pay",
            dfedavgm.bit_threshold(dim=dim),
            "Proposition 3, corrected",
        )
    )
    return rows


_FROM = "an estimate, from lower bounds"


def _lambda_of_graph(method: Any, clients: int) -> float:
    """Returns lambda of a method's graph; 0, that of a complete one, if there is no method."""
    if method is None:
        return 0.0
    graph = method.network(clients)
    if graph.period > 1:
        got = f"a graph that repeats after {graph.period} rounds"
        raise InvalidInput.found(
            "graph", got, "graphs that do not change; Lemma 4 is about one mixing matrix"
        )
    return graph.lam


def _rounding_of(
    method: Any, dim: int, clients: int
) -> tuple[dfedavgm.Rounding | None, str | None]:
    """Returns the rounding of a method's messages (None without one) and the reason why there is no
    bound, if there is none.
    """
    if not isinstance(method, QuantizedDFedAvgM):
        return None, None
    if method.mode != "replica":
        return None, 'Lemma 5 is about models that are mixed whole (16), mode="replica"'
    if method.code is not None or not method.step:
        return None, "Lemma 5 is about messages that are rounded to one grid, step above 0"
    return dfedavgm.Rounding(
        dim, method.step, "down" if method.rounding == "floor" else "stochastic", clients
    ), None


def _answer_fedaware(question: Question) -> list[Row]:
    method_setup = MethodSetup.of(question.plan, FedAWARE)
    measured = Measured(question, "shares", method_setup.schedule)
    # inner products of the clients' gradients, shape (clients, clients)
    gram = jnp.asarray(measured.gradients @ measured.gradients.T)
    shortest = np.asarray(min_norm(gram, jnp.ones(len(gram), bool)).weights, float)
    # the solver's weights add up to 1 in single precision only
    shortest, shares = shortest / shortest.sum(), measured.losses.shares
    divergence, zeta = (
        fedaware.divergence(shortest, shares),
        fedaware.dissimilarities(measured.gradients, shares),
    )
    smooth = float(measured.smoothness.max())
    rate = float(method_setup.solver.step_size())
    work: dict[str, Any] = {"local_steps": measured.steps, "dissimilarities": zeta}
    return [
        *measured.common(),
        Row(
            "gradient diversity D",
            fedaware.diversity(measured.gradients, shares),
            "Definition 3.1, at the start",
        ),
        Row(
            "the largest surrogate diversity",
            fedaware.diversity(measured.gradients, shares, shortest),
            "Definition 3.2, eq. (8)",
        ),
        Row("sigma_g^2", float(shares @ zeta), "at the start; a lower bound"),
        Row("chi^2 of the shortest combination", divergence.square, "Theorem 4.1"),
        Row("N + chi^2 - 2 chi", divergence.gap, "rho of Theorem 4.1 is negative from 0.382 on"),
        Row("Pearson divergence", divergence.pearson, "in its place"),
        Row("K_i", f"{measured.steps.min()} to {measured.steps.max()}", "local steps"),
        Row(
            "Phi_Hetero",
            fedaware.heterogeneity(rate=rate, weights=shares, **work),
            f"Corollary 3.2, eta_l = {rate:g}",
        ),
        Row(
            "largest eta_l",
            1 / (math.sqrt(12) * smooth * int(measured.steps.max())),
            "Lemma A.1, corrected",
        ),
        Row("largest server step", 1 / smooth, "in place of Theorem 4.1"),
    ]


def _answer_fedbc(question: Question) -> list[Row]:
    measured = Measured(question, "equal", MethodSetup.of(question.plan, FedBC).schedule)
    # one interval for each client
    bounds = fedbc.multiplier_bounds(measured.smoothness)
    # the interval that all clients share, if low < high
    low = float(bounds.low.max())
    high = float(bounds.high.min())
    smooth = float(measured.smoothness.max())
    delta = fedbc.heterogeneity(measured.gradients, low=low, high=low)
    arguments = {"smoothness": smooth, "multiplier": low, "heterogeneity": delta}
    return [
        *measured.common(),
        Row("lam_min", f"{bounds.low.min():.4g} to {low:.4g}", "1 + L_i"),
        Row("lam_max", f"{high:.4g} to {bounds.high.max():.4g}", "(1 + L_i)^2 / L_i"),
        Row(
            "one interval for all",
            "none" if low >= high else f"[{low:.4g}, {high:.4g})",
            "after (61); not needed",
        ),
        Row(
            "delta with all multipliers at lam_min",
            delta,
            "Assumption 4.3, at the start; a lower bound",
        ),
        Row(
            "consensus, solved exactly",
            fedbc.consensus_bound(error=0.0, **arguments),
            f"Lemma B.2, corrected; {_FROM}",
        ),
        Row(
            f"consensus, epsilon = {question.accuracy:g}",
            fedbc.consensus_bound(error=question.accuracy, **arguments),
            "the same",
        ),
    ]


PAPERS: dict[str, Callable[[Question], list[Row]]] = {
    "local-gd": _answer_local_gd,
    "feddane": _answer_feddane,
    "dfedavgm": _answer_dfedavgm,
    "fedaware": _answer_fedaware,
    "fedbc": _answer_fedbc,
}
"""The papers by the names of the command line."""


def suggestions(
    paper: str,
    plan: Plan,
    accuracy: float = 1e-3,
    prices: Sequence[float] = (0.1, 1.0, 10.0, 100.0, 1000.0),
    seed: int = 0,
) -> list[Row]:
    r"""Returns a paper's theory on an experiment's task.

    Args:
        paper: a name of `PAPERS`.
        plan: of the experiment; see `Experiment.plan`.
        accuracy: $\varepsilon$, above 0.
        prices: of a communication, in gradients; each above 0.
        seed: of the run whose start the constants are measured at.

    Raises:
        InvalidInput: another paper, or numbers out of their range.
    """
    if paper not in PAPERS:
        raise UnknownName.among("paper", paper, PAPERS)
    if not 0 < accuracy < math.inf:
        raise InvalidInput.of("accuracy", accuracy, "numbers in (0, infinity)")
    if not all(0 < price < math.inf for price in prices):
        raise InvalidInput.of("price", list(prices), "numbers in (0, infinity)")
    return PAPERS[paper](Question(plan, accuracy, tuple(prices), seed))
