"""Theorems of the papers applied to a task and its methods: constants, step sizes, mu, rounds."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedax.core import Exact, Inexact, InvalidInput, Schedule, Solver, Task, UnknownName
from fedax.numerics.simplex import min_norm
from fedax.theory import constants, dfedavgm, estimate, fedaware, fedbc, feddane, local_gd
from fedax.theory._limits import check

Value = float | int | str
Rows = Iterator[tuple[str, Value, str]]
"""A quantity, its value, and where it comes from."""


class Method(NamedTuple):
    """A method with what its clients do.

    Attributes:
        algorithm: the method, None for none.
        solver: of its local work.
        schedule: who works in a round, and how much.
    """

    algorithm: Any
    solver: Solver
    schedule: Schedule


class Row(NamedTuple):
    """A number that a theorem gives.

    Attributes:
        quantity: its name.
        value: the number.
        source: the theorem that it comes from.
    """

    quantity: str
    value: Value
    source: str


class Setup(constants.Measured):
    """A task with the first method that a paper is about, its solver and its schedule; constants
    are those at the start of a run.

    Args:
        task: what is learned.
        methods: by label; that of the label `""` stands where none is of the paper.
        paper: whose theory is asked.
        seed: of the run.
    """

    def __init__(
        self, task: Task, methods: Mapping[str, Method], paper: "Paper", seed: int
    ) -> None:
        super().__init__(task, paper.weights, [seed])
        # derived classes may have other rounds
        self.methods = {
            label: method
            for label, method in methods.items()
            if type(method.algorithm).__module__.startswith("fedax.")
            and type(method.algorithm).__name__ in paper.methods
        }
        self.method, self.solver, self.schedule = next(iter(self.methods.values()), methods[""])
        self.start = self.losses.start
        self.interval = self.schedule.most_steps(self.task.train.largest)
        self.sizes = self.task.train.sizes.tolist()

    @functools.cached_property
    def lowest(self) -> float:
        """The lowest eigenvalue of any client; 0 where a loss with a closed form is convex up to
        rounding.
        """
        lowest = min(
            estimate.lowest_eigenvalue(self.losses, client=k, tolerance=1e-3)
            for k in range(self.losses.clients)
        )
        # iterations end inside the spectrum: only rounding brings those of convex losses below 0
        if self.source == constants.CLOSED_FORM and lowest > -1e-4 * self.largest:
            return max(lowest, 0.0)
        return lowest

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        """The clients' gradients at the start."""
        return self.losses.gradients(self.start)

    @property
    def gap(self) -> float:
        """The loss at the start."""
        return self.losses.value(self.start)

    def noise(self) -> float:
        """Returns the largest variance of a client's minibatch gradients; of a drawn batch size, at
        the smallest batch.
        """
        # "full", a number, or the range that it is drawn from
        batch = self.schedule.batch_size
        smallest = batch[0] if isinstance(batch, tuple) else batch
        if smallest == "full":
            return 0.0
        return max(
            estimate.local_variance(self.losses, self.start, k, batch_size=smallest, samples=64)
            for k in range(self.losses.clients)
        )


def _answer_local_gd(setup: Setup, accuracy: float, prices: Sequence[float]) -> Rows:
    # the theorem is about convex losses, which have a minimum
    best = estimate.optimum(setup.losses)
    distance = float(np.linalg.norm(best.w - np.asarray(setup.start)))
    variance = local_gd.variance(setup.losses.gradients(best.w))
    given: dict[str, Any] = {
        "distance": distance,
        "variance": variance,
        "smoothness": setup.largest,
        "accuracy": accuracy,
    }
    yield "f*", best.value, f"mean of the clients alike; gradient {best.gradient:.1e} there"
    yield "f(x0) - f*", setup.gap - best.value, ""
    yield "|x0 - x*|", distance, ""
    yield "sigma^2", variance, "after Assumption 1"
    fewest = local_gd.plan(**given)
    yield "communications T/H", fewest.communications, "eq. (6)"
    # usual intervals, and that of the file
    for interval in sorted({1, 4, 16, setup.interval}):
        # at most the step size of the theorem for H, and what the accuracy needs
        plan = local_gd.plan(rate=fewest.rate / interval, **given)
        yield f"gamma for H = {interval}", plan.rate, f"T = {math.ceil(plan.steps):,}"
    # a tenth of the step size for H = 1, with which larger intervals reach the accuracy too
    rate = fewest.rate / 10
    for price in prices:
        interval = local_gd.best_interval(rate=rate, price=price, **given)
        name = f"best H, a communication at {price:g} gradients"
        yield name, interval, f"gamma = {rate:.3g}, from eq. (5)"


def _answer_feddane(setup: Setup, accuracy: float, prices: Sequence[float]) -> Rows:
    b = feddane.dissimilarity(setup.gradients, setup.losses.shares)
    concavity = max(-setup.lowest, 0.0)
    given = {"smoothness": setup.largest, "dissimilarity": b, "concavity": concavity}
    best = feddane.best_mu(**given)
    # the gap to 0, because f* is not known
    rounds = feddane.rounds(gap=setup.gap, rho=best.decrease, accuracy=accuracy)
    yield "lowest eigenvalue of a client", setup.lowest, "at the start; mu must exceed its negative"
    yield "B", b, "Definition 2, at the start; a lower bound"
    yield "best mu", best.mu, "Corollary 4, exact; from B at the start"
    yield "rho with it", best.decrease, "Theorems 3 and 5; from B at the start"
    yield "rounds", rounds, "Theorem 6, from a loss >= 0; an estimate"
    for label, method in setup.methods.items():
        yield f"rho of {label}", *_promised_decrease(setup, given, *method)


def _promised_decrease(
    setup: Setup, given: dict[str, Any], method: Any, solver: Solver, schedule: Schedule
) -> tuple[Value, str]:
    """Returns the decrease that is promised for an algorithm: by Theorems 3 and 5, or by 7 with a
    mu for each device.
    """
    mu = np.asarray(method.mu, float)
    gamma = float(solver.gamma) if isinstance(solver, Inexact) else 0.0
    # the theorems need mu above the concavity for every device
    if mu.min() <= given["concavity"]:
        return -math.inf, "no decrease is promised"
    given = given | {"mu": float(mu.min())}
    theorem = "Theorems 3 and 5"
    if mu.ndim and given["concavity"] > 0:
        return "none", "Theorem 7, of a mu for each device, is about convex losses"
    if mu.ndim:
        theorem = "Theorem 7, corrected"
        given |= {"mu": mu, "smoothness": setup.smoothness, "weights": setup.losses.shares}
    rho = feddane.decrease(inexactness=gamma, **given)
    exact = "" if isinstance(solver, Exact | Inexact) else ", if solved exactly"
    if method.correction != "exact" or method.pipelined or method.decay != 1:
        return rho, f"{theorem}{exact}; no promise, as it is about the exact correction"
    drawn = schedule.sampling.spelling, method.cohorts
    is_drawn = schedule.cohort is None or drawn == ("proportional", "independent")
    # equal weights are the shares of clients with equally many examples
    is_equal = schedule.weights == "equal" and np.ptp(setup.sizes) > 0
    # those who do not answer change the draw
    if not is_drawn or is_equal or schedule.may_be_empty:
        return rho, f"{theorem}{exact}; no promise, as it is about two draws by the clients' shares"
    return rho, f"{theorem}{exact}: " + ("a decrease" if rho > 0 else "no decrease is promised")


_FROM = "an estimate, from lower bounds"
_LOWER = "at the start; a lower bound"


def _answer_dfedavgm(setup: Setup, accuracy: float, prices: Sequence[float]) -> Rows:
    method = setup.method
    dim = setup.losses.layout.dim
    k = setup.interval
    noise = setup.noise()
    # refuses solvers other than SGD, some of which have another momentum
    setup.solver.nominal_step_size()
    momentum = float(getattr(setup.solver, "momentum", 0.0))
    bound = float(np.linalg.norm(setup.gradients, axis=1).max())
    largest = dfedavgm.largest_step_size(smoothness=setup.largest, local_steps=k, momentum=momentum)
    rounding, unbounded = _rounding_of(method, dim, setup.losses.clients)
    # half of the largest step size; for rounding down, which allows half as much, a quarter
    is_down = bool(rounding and rounding.kind == "down")
    setting = dfedavgm.Setting(
        setup.largest,
        noise,
        float(setup.losses.shares @ fedaware.dissimilarities(setup.gradients, setup.losses.shares)),
        bound,
        k,
        largest / (4 if is_down else 2),
        momentum=momentum,
        mixing=0.0 if method is None else _lambda_of(method.network(setup.losses.clients)),
    )
    graph = "of the file's graph" if method else "no graph in the file: complete"
    yield "lambda", setting.mixing, graph
    yield "sigma_l^2, the largest of a client", noise, _LOWER
    yield "sigma_g^2", setting.global_variance, _LOWER
    yield "B", bound, _LOWER
    yield "K", k, "local steps of the largest client"
    yield "theta", momentum, "momentum of the solver"
    yield "largest eta", largest, "Theorem 1, corrected"
    if unbounded:
        yield "consensus, mean square", "none", unbounded
    else:
        # bounds fall like 1/sqrt(T): with this T they are of the order of the accuracy
        rounds = math.ceil(1 / accuracy**2)
        best = dfedavgm.best_step_size(setting, rounding, gap=setup.gap, rounds=rounds)
        theorem = f"Theorem {3 if rounding else 1}, minimised; {_FROM}"
        yield f"best eta for {rounds:,} rounds", best, theorem
        first = math.ceil((1 / (setup.largest * k * largest)) ** 2)
        yield "eta = 1/(LK sqrt T) from T =", first, "Proposition 1"
        lemma = f"Lemma {5 if rounding else 4}, corrected"
        source = f"{lemma}, at {'a quarter of' if is_down else 'half'} the largest eta; {_FROM}"
        yield "consensus, mean square", dfedavgm.consensus_bound(setting, rounding), source
    yield "bits below which fewer pay", dfedavgm.bit_threshold(dim=dim), "Proposition 3, corrected"


def _lambda_of(graph: Any) -> float:
    if graph.period > 1:
        raise InvalidInput.found(
            "graph",
            f"a graph that repeats after {graph.period} rounds",
            "graphs that do not change; Lemma 4 is about one mixing matrix",
        )
    return graph.lam


def _rounding_of(method: Any, dim: int, clients: int) -> tuple[dfedavgm.Rounding | None, str]:
    """Returns the rounding of a method's messages (None without one) and the reason why there is no
    bound, if there is none.
    """
    if not hasattr(method, "rounding"):
        return None, ""
    if method.mode != "replica":
        return None, 'Lemma 5 is about models that are mixed whole (16), mode="replica"'
    if method.code is not None or not method.step:
        return None, "Lemma 5 is about messages that are rounded to one grid, step above 0"
    kind = "down" if method.rounding == "floor" else "stochastic"
    return dfedavgm.Rounding(dim, method.step, kind, clients), ""


def _answer_fedaware(setup: Setup, accuracy: float, prices: Sequence[float]) -> Rows:
    gradients = setup.gradients
    shares = setup.losses.shares
    # inner products of the clients' gradients, shape (clients, clients)
    gram = jnp.asarray(gradients @ gradients.T)
    shortest = np.asarray(min_norm(gram, jnp.ones(len(gram), bool)).weights, float)
    # the solver's weights add up to 1 in single precision only
    shortest = shortest / shortest.sum()
    divergence = fedaware.divergence(shortest, shares)
    zeta = fedaware.dissimilarities(gradients, shares)
    rate = float(setup.solver.step_size())
    # local steps of each client in a round, on average
    steps = np.array([max(round(setup.schedule.mean_steps(n)), 1) for n in setup.sizes])
    heterogeneity = fedaware.heterogeneity(
        rate=rate, weights=shares, local_steps=steps, dissimilarities=zeta
    )
    diversity = functools.partial(fedaware.diversity, gradients, shares)
    yield "gradient diversity D", diversity(), "Definition 3.1, at the start"
    yield "the largest surrogate diversity", diversity(shortest), "Definition 3.2, eq. (8)"
    yield "sigma_g^2", float(shares @ zeta), _LOWER
    yield "chi^2 of the shortest combination", divergence.square, "Theorem 4.1"
    yield "N + chi^2 - 2 chi", divergence.gap, "rho of Theorem 4.1 is negative from 0.382 on"
    yield "Pearson divergence", divergence.pearson, "in its place"
    yield "K_i", f"{steps.min()} to {steps.max()}", "local steps"
    yield "Phi_Hetero", heterogeneity, f"Corollary 3.2, eta_l = {rate:g}"
    largest = 1 / (math.sqrt(12) * setup.largest * setup.interval)
    yield "largest eta_l", largest, "Lemma A.1, corrected"
    yield "largest server step", 1 / setup.largest, "in place of Theorem 4.1"


def _answer_fedbc(setup: Setup, accuracy: float, prices: Sequence[float]) -> Rows:
    # one interval for each client
    bounds = fedbc.multiplier_bounds(setup.smoothness)
    # the interval that all clients share, if low < high
    low = float(bounds.low.max())
    high = float(bounds.high.min())
    delta = fedbc.heterogeneity(setup.gradients, low=low, high=low)
    consensus = functools.partial(
        fedbc.consensus_bound, smoothness=setup.largest, multiplier=low, heterogeneity=delta
    )
    interval = "none" if low >= high else f"[{low:.4g}, {high:.4g})"
    yield "lam_min", f"{bounds.low.min():.4g} to {low:.4g}", "1 + L_i"
    yield "lam_max", f"{high:.4g} to {bounds.high.max():.4g}", "(1 + L_i)^2 / L_i"
    yield "one interval for all", interval, "after (61); not needed"
    yield "delta with all multipliers at lam_min", delta, f"Assumption 4.3, {_LOWER}"
    yield "consensus, solved exactly", consensus(error=0.0), f"Lemma B.2, corrected; {_FROM}"
    yield f"consensus, epsilon = {accuracy:g}", consensus(error=accuracy), "the same"


class Paper(NamedTuple):
    """A paper.

    Attributes:
        answer: the rows for a setup, an accuracy and prices.
        weights: of clients in its objective, `"equal"` or `"shares"`.
        methods: the classes of its methods.
    """

    answer: Callable[[Setup, float, Sequence[float]], Rows]
    weights: str
    methods: tuple[str, ...]


PAPERS = {
    "local-gd": Paper(_answer_local_gd, "equal", ("LocalGD",)),
    "feddane": Paper(_answer_feddane, "shares", ("FedDANE",)),
    "dfedavgm": Paper(_answer_dfedavgm, "equal", ("DFedAvgM", "QuantizedDFedAvgM")),
    "fedaware": Paper(_answer_fedaware, "shares", ("FedAWARE",)),
    "fedbc": Paper(_answer_fedbc, "equal", ("FedBC",)),
}
"""The papers by the names of the command line."""


def suggestions(
    paper: str,
    task: Task,
    methods: Mapping[str, Method],
    accuracy: float = 1e-3,
    prices: Sequence[float] = (0.1, 1.0, 10.0, 100.0, 1000.0),
    seed: int = 0,
) -> list[Row]:
    r"""Returns a paper's theory on a task.

    Args:
        paper: a name of `PAPERS`.
        task: what is learned.
        methods: by label, and with the label `""` solver and schedule of those without methods.
        accuracy: $\varepsilon$, above 0.
        prices: of a communication, in gradients; each above 0.
        seed: of the run whose start the constants are measured at.

    Raises:
        InvalidInput: another paper, or numbers out of their range.
    """
    if paper not in PAPERS:
        raise UnknownName.among("paper", paper, PAPERS)
    check("suggestions", accuracy=accuracy)
    setup = Setup(task, methods, PAPERS[paper], seed)
    rows = PAPERS[paper].answer(setup, accuracy, prices)
    return [
        Row("clients", setup.losses.clients, ""),
        Row("L, the largest of a client", setup.largest, setup.source),
        Row("L, the smallest of a client", float(setup.smoothness.min()), setup.source),
        *(Row(*row) for row in rows),
    ]
