"""The observers' view of a deployed run: sums that the clients form over their own examples."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from fedax.core.algorithm import Algorithm, Constraint
from fedax.core.federation import Cohort
from fedax.core.task import Task
from fedax.engine.round.client import Setup
from fedax.engine.round.evaluation import CompiledView, empty_cohort, has_equal_weights
from fedax.engine.round.trace import TracingBackend, initial_carry
from fedax.errors import InvalidInput
from fedax.observe.base import Gradients, Observer, OfClients, Split, View
from fedax.utils.layout import accumulator


class FlowerView(View):
    """See `View`. Clients that are left out are NaN, and do not count in sums.

    A central test set is the server's own. Gradients and memories of single clients are nothing
    that an observer may ask for.

    Args:
        setup: of the server.
        task: with everybody's sizes and nobody's examples.
        measure: asks the clients, see `FlowerBackend.measure`.
        algorithm, state: of the run.
        worked: the cohort that worked last.
    """

    def __init__(
        self,
        setup: Setup,
        task: Task,
        measure: Callable[..., dict[str, Float[Array, "clients"]]],
        algorithm: Algorithm[Any],
        state: Any,
        worked: Cohort,
    ) -> None:
        self.setup, self.task, self._measure, self._worked = setup, task, measure, worked
        self.equal, self.nodes = has_equal_weights(setup, algorithm), None
        self.method, self.solver, self.schedule = algorithm, setup.solver, setup.schedule
        self.w = algorithm.model(setup.published(state))
        self._personal = algorithm.personal(state)
        self._answered: dict[tuple[str, bool], dict[str, Float[Array, "clients"]]] = {}

    @property
    def weights(self) -> Float[Array, "clients"] | None:
        raise _refusal("weights that clients remember")

    @property
    def constraints(self) -> Constraint | None:
        raise _refusal("constraints that clients remember")

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        raise _refusal("losses and gradients of single clients")

    def cohort(self) -> Cohort:
        if self.setup.private is not None and self.setup.private.amplified:
            hint = "Its epsilon holds for those who cannot tell who was drawn."
            raise InvalidInput.because(
                "run(observe=...)",
                "an observer shows who was drawn, which privacy by sampling hides",
                hint,
            )
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(split, score, False)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(split, score, self._personal is not None)

    def _means(self, split: str, score: str, personal: bool) -> Float[Array, "clients"]:
        sums = self._sums(split, personal)
        return jnp.where(sums["count"] > 0, sums[score] / sums["count"], jnp.nan)

    def measured(self, split: OfClients) -> Bool[Array, "clients"]:
        # asked after `per_client` or `personal`, which share the answers that came
        answered = [sums for (name, _), sums in self._answered.items() if name == split]
        counts = [sums["count"] for sums in answered or [self._sums(split)]]
        return (jnp.stack(counts) > 0).all(axis=0)

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        if split == "central" and self.task.central is not None:
            return CompiledView(self.setup, self.w).overall("central", score)
        sums = self._sums("test" if split == "central" else split)
        return sums[score].sum() / sums["count"].sum()

    @property
    def measured_clients(self) -> int | None:
        """The fewest clients whose sums a metric is of, None if none is of clients' sums."""
        counts = [int((sums["count"] > 0).sum()) for sums in self._answered.values()]
        return min(counts, default=None)

    def per_node(self, score: str) -> Float[Array, "clients"]:
        return jnp.broadcast_to(self.overall("central", score), (self.task.train.clients,))

    def gradients(self) -> Gradients:
        raise _refusal("gradients of single clients")

    def _sums(self, split: str, personal: bool = False) -> dict[str, Float[Array, "clients"]]:
        if (split, personal) not in self._answered:
            model = self._personal if personal else None
            down = self.w if model is None else model.down
            self._answered[split, personal] = self._measure(down, split, model)
        return self._answered[split, personal]


def check_observers(
    observers: Sequence[Observer],
    setup: Setup,
    task: Task,
    algorithm: Algorithm[Any],
    root: Key[Array, ""],
) -> None:
    """Refuses observers that ask for more than sums over a client's examples, without asking a
    client.

    Args:
        observers: of the run.
        setup, task, algorithm, root: see `FlowerView`.

    Raises:
        InvalidInput: the first such observer, by name.
    """

    def measure(*_: Any) -> dict[str, Float[Array, "clients"]]:
        ones = jnp.ones(setup.population.clients, accumulator(setup.layout.dtype))
        return dict.fromkeys(["count", "loss", *task.scores], ones)

    def look(observer: Observer) -> dict[str, Any]:
        w = jnp.zeros(setup.layout.dim, setup.layout.dtype)
        state = initial_carry(TracingBackend(setup), algorithm, root, w).state
        worked = empty_cohort(0, setup.layout.dtype).padded(setup.population.clients)
        return observer(FlowerView(setup, task, measure, algorithm, state, worked))

    for observer in observers:
        try:
            jax.eval_shape(lambda observer=observer: look(observer))
        except InvalidInput as error:
            cause = str(error).removeprefix("observe: ").rstrip(".")
            reason = f"{type(observer).__name__} cannot be used in a deployed run: {cause}"
            hint = "Watch the loss and the scores, which are sums over a client's examples."
            raise InvalidInput.because("run(observe=...)", reason, hint) from error


def _refusal(what: str) -> InvalidInput:
    return InvalidInput.because(
        "observe", f"it asks for {what}, which deployed clients do not send"
    )
